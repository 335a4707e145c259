"""Concurrency caps inside a claim: exact, from live leases, judged with the other gates (rules A1, R4, D4, O5)."""

from __future__ import annotations

from typing import Any

import pytest

from flowq.memory import MemoryStore
from flowq.policy import CoDel, Concurrency, Flow, RateLimit, Retry
from flowq.programs import Claimed, Declaration, Failed, Succeeded, claim, declare, enqueue, maintain, settle
from flowq.programs.commands import Beat, Program, Register, Round, Started
from flowq.task import TaskSpec

S = 1_000_000
LEASE_US = 10 * S


class Caps:
    """A store, its tasks by name, and a registered worker."""

    def __init__(self, queues: dict[str, str] | None = None, **flows: Flow) -> None:
        self.store = MemoryStore()
        queues = queues or {}
        self.specs = {
            name: TaskSpec(name, queue=queues.get(name, "default"), flow=flow) for name, flow in flows.items()
        }
        gates = [gate for spec in self.specs.values() for gate in spec.declarations()]
        self.store.run(declare(gates, lines=[spec.line for spec in self.specs.values()]), 0)
        self.worker = self.register(0)

    def ask(self, command: Any, at_us: int) -> Any:
        def program() -> Program[Any]:
            [reply] = yield Round((command,), True)
            return reply

        return self.store.run(program(), at_us)

    def register(self, at_us: int, lease_us: int = LEASE_US) -> int:
        return int(self.ask(Register("w", ("default",), 10, lease_us), at_us))

    def cap_queue(self, n: int | None, at_us: int = 0) -> None:
        cap = None if n is None else Concurrency(n)
        self.store.run(declare([Declaration("queue_concurrency", "default", cap)]), at_us)

    def call(self, task: str, n: int = 1, at_us: int = 0) -> list[int]:
        return [
            receipt.id for receipt in self.store.run(enqueue([self.specs[task].keyed_request()] * n), at_us)
        ]

    def claim(self, n: int, at_us: int = 0, queue: str = "default", worker: int | None = None) -> Claimed:
        return self.store.run(claim(queue, n, self.worker if worker is None else worker), at_us)

    def end(self, job: Started, at_us: int) -> None:
        assert self.store.run(settle([Succeeded(job.id, job.token)]), at_us) == {job.id}


def ids(rows: Any) -> list[int]:
    return [row.id for row in rows]


@pytest.mark.parametrize("cap", [1, 3])
def test_the_cap_is_reached_and_never_passed(cap: int) -> None:  # A1, B83
    caps = Caps(task=Flow(Concurrency(cap)))
    jobs = caps.call("task", 10)
    running = list(caps.claim(100).started)
    assert ids(running) == jobs[:cap]
    assert caps.claim(100).started == []
    for next_job in jobs[cap:]:
        caps.end(running.pop(0), S)
        started = caps.claim(100, S).started
        assert ids(started) == [next_job]
        running += started


def test_one_cap_holds_over_all_queues_of_a_task() -> None:  # A1
    caps = Caps(task=Flow(Concurrency(2)))
    jobs = caps.call("task", 2)
    other = caps.store.run(
        enqueue([caps.specs["task"].keyed_request()._replace(job=_elsewhere(caps.specs["task"]))] * 2), 0
    )
    assert ids(caps.claim(5, queue="default").started) == jobs
    assert caps.claim(5, queue="other").started == []
    assert len(other) == 2


def _elsewhere(spec: TaskSpec) -> Any:
    return spec.keyed_request().job._replace(queue="other")


def test_a_queues_cap_counts_all_its_tasks() -> None:  # A1
    caps = Caps(a=Flow(), b=Flow())
    caps.cap_queue(3)
    first, second = caps.call("a", 2), caps.call("b", 2)
    started = caps.claim(10).started
    assert ids(started) == [*first, second[0]]
    caps.end(started[0], S)
    assert ids(caps.claim(10, S).started) == [second[1]]
    caps.cap_queue(None, S)
    assert caps.claim(10, S).gated is False


def test_a_full_cap_delays_nobody_else() -> None:  # R3, B56
    caps = Caps(slow=Flow(Concurrency(1)), free=Flow())
    slow, free = caps.call("slow", 50), caps.call("free", 5)
    assert ids(caps.claim(10).started) == [slow[0], *free]


def test_a_lapsed_lease_does_not_count_and_the_claim_says_when_that_is() -> None:  # A1, T4, X5, B73
    caps = Caps(task=Flow(Concurrency(1)))
    jobs = caps.call("task", 2)
    assert ids(caps.claim(1).started) == [jobs[0]]
    other = caps.register(S, 100 * S)
    waiting = caps.claim(1, S, worker=other)
    assert (waiting.started, waiting.come_back_us) == ([], LEASE_US)
    assert caps.claim(1, LEASE_US - 1, worker=other).started == []
    assert ids(caps.claim(1, LEASE_US, worker=other).started) == [jobs[1]]


def test_a_heartbeat_keeps_the_slot() -> None:  # A1, B74
    caps = Caps(task=Flow(Concurrency(1)))
    caps.call("task", 2)
    caps.claim(1)
    assert caps.ask(Beat(caps.worker, LEASE_US), 9 * S)
    other = caps.register(9 * S, 100 * S)
    assert caps.claim(1, LEASE_US, worker=other).come_back_us == 19 * S


def test_the_job_of_a_dead_worker_does_not_wait_for_the_slot_it_held() -> None:  # B73, B82, X5
    caps = Caps(task=Flow(Concurrency(1)))
    [job] = caps.call("task")
    caps.claim(1)
    assert caps.store.run(maintain(), LEASE_US).returned == (job,)
    [again] = caps.claim(1, LEASE_US, worker=caps.register(LEASE_US)).started
    assert (again.id, again.token, again.crashes) == (job, 2, 1)


def test_a_lowered_cap_ends_nothing_and_lets_nothing_start_until_below() -> None:  # A1, W71
    caps = Caps(task=Flow())
    caps.cap_queue(3)
    jobs = caps.call("task", 6)
    running = list(caps.claim(10).started)
    caps.cap_queue(1)
    for at_s in (1, 2):
        caps.end(running.pop(0), at_s * S)
        assert caps.claim(10, at_s * S).started == []
    caps.end(running.pop(0), 3 * S)
    assert ids(caps.claim(10, 3 * S).started) == [jobs[3]]


def test_tokens_are_spent_only_by_jobs_that_start() -> None:  # R4, F12, B46
    caps = Caps(task=Flow(RateLimit("1000/h"), Concurrency(1)))
    caps.call("task", 6)
    for at_s in range(3):
        [job] = caps.claim(10, at_s * S).started
        assert caps.claim(10, at_s * S).started == []
        caps.end(job, (at_s + 1) * S)
    gate = caps.store._gates["task_rate", "task"]
    limit = RateLimit("1000/h")
    assert gate.state is not None
    state = gate.state if hasattr(gate.state, "level") else limit.state_from_json(gate.state)
    assert limit.tokens(state, 2 * S) == 997  # type: ignore[arg-type]


def test_a_full_cap_is_never_excess() -> None:  # D1, D4, F34
    caps = Caps(task=Flow(RateLimit("2/h", on_excess="drop"), Concurrency(1)))
    jobs = caps.call("task", 5)
    [first] = caps.claim(10).started
    assert list(caps.claim(0).sheds) == []  # one token is left, and the cap is full: all wait
    waiting = caps.claim(10, S)
    assert (waiting.started, list(waiting.sheds)) == ([], [])
    caps.end(first, 2 * S)
    opened = caps.claim(10, 2 * S)
    assert ids(opened.started) == [jobs[1]]
    assert list(opened.sheds) == []  # the start has filled the cap again
    caps.end(opened.started[0], 3 * S)
    assert ids(caps.claim(10, 3 * S).sheds) == jobs[2:]


def test_what_waits_behind_a_full_cap_is_no_backlog_to_codel() -> None:  # O3, O5
    caps = Caps(task=Flow(Concurrency(1)))
    codel = CoDel("10ms", "100ms", law="slough")
    caps.store.run(declare([Declaration("queue_codel", "default", codel)]), 0)
    caps.call("task", 5)
    [job] = caps.claim(10).started
    for at_s in range(1, 5):
        claimed = caps.claim(10, at_s * S)
        assert (claimed.started, list(claimed.sheds)) == ([], [])
    state = caps.store._gates["queue_codel", "default"].state
    caps.claim(10, 5 * S)
    assert caps.store._gates["queue_codel", "default"].state == state
    caps.end(job, 6 * S)
    assert len(caps.claim(10, 6 * S).started) == 1


def test_a_retry_waits_for_the_cap_and_keeps_its_place() -> None:  # D4, A1
    caps = Caps(task=Flow(Concurrency(1)))
    jobs = caps.call("task", 2)
    [first] = caps.claim(10).started
    ended = [Failed(first.id, first.token, "boom", 0, Retry(1, delays=["1s"]))]
    caps.store.run(settle(ended), 0)
    [second] = caps.claim(10, 0).started
    assert second.id == jobs[1]
    assert caps.claim(10, 2 * S).started == []
    caps.end(second, 3 * S)
    assert ids(caps.claim(10, 3 * S).started) == [first.id]


def test_when_rate_and_cap_are_closed_the_claim_comes_back_for_the_later() -> None:  # R3, R4
    caps = Caps(task=Flow(RateLimit("1 per 60s", burst=1), Concurrency(1)))
    caps.call("task", 2)
    caps.claim(10)
    other = caps.register(0, 100 * S)
    assert caps.claim(10, S, worker=other).come_back_us == 60 * S
