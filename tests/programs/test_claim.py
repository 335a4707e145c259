"""Claim: gates as part of selection (R3-R6), drop (D1-D5), CoDel over a queue (O3-O7), and when to come back."""

from __future__ import annotations

from typing import Any

import pytest

from flowq.memory import MemoryStore
from flowq.policy import CoDel, Flow, RateLimit, Retry
from flowq.programs import Claimed, Declaration, Failed, Request, Succeeded, claim, declare, enqueue, settle
from flowq.programs.commands import Program, ReadDead, ReadJobs, Round
from flowq.task import TaskSpec

S = 1_000_000
H = 3_600 * S


class Queue:
    """A queue over the store of dicts, with the clock in the test's hands."""

    def __init__(self, **flows: Flow) -> None:
        self.store = MemoryStore()
        self.specs = {name: TaskSpec(name, flow=flow) for name, flow in flows.items()}
        gates = [gate for spec in self.specs.values() for gate in spec.declarations()]
        self.store.run(declare(gates, lines=[spec.line for spec in self.specs.values()]), 0)

    def gate(self, kind: str, policy: RateLimit | CoDel | None, at_us: int = 0) -> None:
        self.store.run(declare([Declaration(kind, "default", policy)]), at_us)

    def call(self, task: str, at_us: int = 0, n: int = 1, **job: Any) -> list[int]:
        request = self.specs[task].keyed_request()
        requests = [Request(request.job._replace(**job))] * n
        return [receipt.id for receipt in self.store.run(enqueue(requests), at_us)]

    def claim(self, n: int, at_us: int = 0) -> Claimed:
        return self.store.run(claim("default", n, worker=1), at_us)

    def starts(self, n: int, until_us: int) -> list[int]:
        """Start times, claiming only when the last claim said to come back."""
        times, now_us = [], 0
        while now_us <= until_us:
            claimed = self.claim(n, now_us)
            times += [now_us] * len(claimed.started)
            if claimed.come_back_us is None:
                break
            now_us = claimed.come_back_us
        return times

    def read(self, command: Any) -> Any:
        def program() -> Program[Any]:
            [reply] = yield Round((command,), True)
            return reply

        return self.store.run(program(), 0)


def ids(rows: Any) -> list[int]:
    return [row.id for row in rows]


# --- rate limit ---


@pytest.mark.parametrize(
    ("limit", "jobs", "expected"),
    [
        pytest.param(RateLimit("10/s"), 12, [0] * 10 + [100_000, 200_000], id="F1: a full bucket, then one per 100 ms"),
        pytest.param(RateLimit("10/s", burst=1), 4, [0, 100_000, 200_000, 300_000], id="R6: burst=1 spaces evenly"),
        pytest.param(RateLimit("1.5/s"), 4, [0, 333_334, 1_000_000, 1_666_667], id="R1, F4: a fractional burst"),
        pytest.param(RateLimit("3/h"), 4, [0, 0, 0, 1200 * S], id="F3: per hour"),
        pytest.param(RateLimit("2 per 6s", burst=3), 6, [0, 0, 0, 3 * S, 6 * S, 9 * S], id="users 3.3"),
        pytest.param(RateLimit("10/s", start="empty"), 2, [100_000, 200_000], id="R1: an empty start"),
    ],
)  # fmt: skip
def test_starts_come_at_exact_instants(limit: RateLimit, jobs: int, expected: list[int]) -> None:
    queue = Queue(task=Flow(limit))
    queue.call("task", n=jobs)
    assert queue.starts(1_000, 10 * H) == expected


def test_a_closed_lane_delays_nobody_else_and_keeps_its_order() -> None:  # R3, F8, F10, B56
    queue = Queue(slow=Flow(RateLimit("1/h")), free=Flow())
    slow = queue.call("slow", n=60)
    free = queue.call("free", at_us=1, n=10)
    claimed = queue.claim(100, 2)
    assert ids(claimed.started) == [slow[0], *free]
    assert claimed.come_back_us == H + 2
    assert ids(queue.claim(100, H + 2).started) == [slow[1]]


def test_a_refusal_changes_no_attempt_count_and_spends_nothing() -> None:  # R4, F11, F22
    queue = Queue(task=Flow(RateLimit("1/h")))
    queue.gate("queue_rate", RateLimit("100/h"))
    queue.call("task", n=5)
    queue.claim(5)
    for at_us in range(1, 51):
        assert queue.claim(5, at_us).started == []
    records = queue.read(ReadJobs((2, 3, 4, 5)))
    assert {(r.token, r.failures, r.run_at_us) for r in records.values()} == {(0, 0, 0)}
    gate = queue.store._gates["queue_rate", "default"]
    limit = RateLimit("100/h")
    assert gate.state is not None
    assert limit.tokens(limit.state_from_json(gate.state), 0) == 99


def test_a_retry_is_a_start_and_takes_a_token() -> None:  # R5, F23
    queue = Queue(task=Flow(RateLimit("1/s")))
    queue.call("task")
    [job] = queue.claim(1).started
    queue.store.run(settle([Failed(job.id, job.token, "boom", 0, Retry(1, delays=["1ms"]))]), 0)
    assert queue.claim(1, 1_000).started == []
    assert ids(queue.claim(1, S).started) == [job.id]


def test_a_lane_is_closed_while_its_first_job_lacks_its_whole_cost() -> None:  # R3
    queue = Queue(task=Flow(RateLimit("10/s")))
    first, second = queue.call("task", cost=10)[0], queue.call("task", cost=1)[0]
    queue.claim(1)
    queue.call("task", cost=6)
    assert ids(queue.claim(5, 100_000).started) == [second]
    claimed = queue.claim(5, 200_000)
    assert (claimed.started, claimed.come_back_us) == ([], 700_000)
    assert first == 1


def test_a_changed_limit_keeps_the_level_capped_to_the_new_burst() -> None:  # R5, B50
    queue = Queue(task=Flow(RateLimit("10/s")))
    queue.call("task", n=30)
    queue.claim(10, 0)
    queue.store.run(declare([Declaration("task_rate", "task", RateLimit("1/s", burst=2))]), 500_000)
    assert len(queue.claim(30, 500_000).started) == 2, "five tokens came at the old rate, two fit"
    assert queue.claim(30, 500_000).come_back_us == 1_500_000


def test_an_old_process_does_not_flip_a_newer_limit_back() -> None:  # R5, B62
    queue = Queue(task=Flow())
    old, new = (Declaration("task_rate", "task", RateLimit(rate)) for rate in ("25/s", "60/s"))
    old_version = queue.store.run(declare([old]), 1)
    queue.store.run(declare([new]), 2)
    queue.store.run(declare([old], version_us=old_version), 3)
    stored = queue.store._gates["task_rate", "task"].params
    assert stored is not None
    assert stored["rate"] == "60/s"


def test_a_cost_above_a_lowered_burst_takes_the_whole_bucket() -> None:
    queue = Queue(task=Flow(RateLimit("10/s")))
    queue.call("task", n=1, cost=10)
    queue.store.run(declare([Declaration("task_rate", "task", RateLimit("2/s"))]), 1)
    assert len(queue.claim(1, 2).started) == 1


def test_priority_then_eligibility_then_insertion() -> None:  # A5, F110
    queue = Queue(task=Flow(), other=Flow())
    late = queue.call("task", at_us=5)[0]
    low = queue.call("other", at_us=0, priority=-1)[0]
    high = queue.call("other", at_us=7, priority=9)[0]
    early = queue.call("other", at_us=3)[0]
    tie = queue.call("task", at_us=5)[0]
    assert ids(queue.claim(9, 10).started) == [high, early, late, tie, low]


# --- drop ---


def test_excess_is_shed_at_once_with_its_marker() -> None:  # D1, D2, F25, F38
    queue = Queue(task=Flow(RateLimit("2/h", on_excess="drop")))
    jobs = queue.call("task", n=5, metadata='{"mine":1}')
    claimed = queue.claim(10)
    assert (ids(claimed.started), ids(claimed.sheds)) == (jobs[:2], jobs[2:])
    letter = queue.read(ReadDead(1))[0]
    assert letter.error == (
        "rate_limit: task 'task' is over its dispatch rate limit, and its on_excess is drop"
    )
    assert (letter.metadata, letter.retry_count, letter.started_us) == ('{"shed": "rate_limit"}', 0, None)
    assert queue.read(ReadJobs((jobs[4],)))[jobs[4]].metadata == '{"mine":1}'  # F26


def test_a_claim_of_none_neither_starts_nor_sheds() -> None:  # D1a
    queue = Queue(task=Flow(RateLimit("1/h", on_excess="drop")))
    queue.call("task", n=2)
    queue.claim(1)
    claimed = queue.claim(0)
    assert (claimed.started, claimed.sheds) == ([], [])
    assert ids(queue.claim(1).sheds) == [2], "a slot is free: now it is excess"


def test_load_below_its_limit_that_gathers_behind_a_busy_worker_is_not_shed() -> None:  # D1a
    queue = Queue(task=Flow(RateLimit("10/s", burst=1, on_excess="drop")))
    for second in range(6):
        queue.call("task", at_us=second * S)
    claims = [queue.claim(1, nth * 14 * S) for nth in range(6)]
    assert [(len(each.started), len(each.sheds)) for each in claims] == [(1, 0)] * 6


def test_the_instant_of_the_next_start_does_not_depend_on_a_page() -> None:  # R3, R4
    answers = []
    for n in (8, 9):  # the ninth due job is beyond the first page of a claim of one
        queue = Queue(task=Flow(RateLimit("1/s", burst=3, on_excess="drop")))
        [id] = queue.call("task", cost=2)
        [started] = queue.claim(1).started
        queue.store.run(settle([Failed(id, started.token, "boom", 0, Retry(1, delays=["9s"]))]), 0)
        queue.call("task", at_us=S, n=n - 1, cost=2)
        claimed = queue.claim(1, 9 * S)
        answers.append((len(claimed.started), len(claimed.sheds), claimed.come_back_us))
    assert answers == [(1, 0, 10 * S), (1, 0, 10 * S)]


@pytest.mark.parametrize("law", ["rfc8289", "slough"])
@pytest.mark.parametrize("n", [7, 8, 9, 30, 300])
def test_a_queue_left_without_a_due_job_is_disarmed_whatever_was_read(n: int, law: str) -> None:  # O3
    queue = Queue(drops=Flow(RateLimit("1/d", burst=3, on_excess="drop")), plain=Flow())
    queue.gate("queue_codel", CoDel("1s", "10s", law=law))
    queue.call("drops", n=n, cost=2)
    first = queue.claim(9, 5 * S)
    assert (len(first.started), len(first.sheds)) == (1, n - 1)
    queue.call("plain", at_us=14 * S, n=5)
    later = queue.claim(1, 16 * S)
    assert (len(later.started), list(later.sheds)) == (1, [])


def test_a_queues_refusal_sheds_drop_tasks_and_defers_the_rest() -> None:  # D1, D2, F29
    queue = Queue(drop=Flow(RateLimit("100/h", on_excess="drop")), plain=Flow())
    queue.gate("queue_rate", RateLimit("2/h"))
    dropped = queue.call("drop", n=4)
    queue.call("plain", n=2)
    claimed = queue.claim(10)
    assert (ids(claimed.started), ids(claimed.sheds)) == (dropped[:2], dropped[2:])
    assert {shed.error for shed in claimed.sheds} == {
        "rate_limit: queue 'default' is over its dispatch rate limit, and its on_excess is drop"
    }
    assert len(queue.claim(10, H).started) == 2


def test_when_both_buckets_refuse_the_reason_names_the_task() -> None:  # D4
    queue = Queue(drop=Flow(RateLimit("1/h", on_excess="drop")))
    queue.gate("queue_rate", RateLimit("1/h"))
    queue.call("drop", n=2)
    assert queue.claim(5).sheds[0].error.startswith("rate_limit: task 'drop'")


def test_a_retry_is_never_excess() -> None:  # D4, F33
    queue = Queue(task=Flow(RateLimit("1/h", on_excess="drop")))
    queue.call("task")
    [job] = queue.claim(1).started
    queue.store.run(settle([Failed(job.id, job.token, "boom", 0, Retry(1, delays=["1ms"]))]), 0)
    claimed = queue.claim(1, 2_000)
    assert (claimed.started, claimed.sheds, claimed.come_back_us) == ([], [], H)


def test_only_what_costs_more_than_the_tokens_is_excess() -> None:  # D1, D1a
    queue = Queue(task=Flow(RateLimit("3/h", on_excess="drop")))
    small, large, last = (queue.call("task", cost=cost)[0] for cost in (1, 3, 2))
    assert (ids(queue.claim(1).started), ids(queue.claim(0).sheds)) == ([small], [])
    claimed = queue.claim(1)
    assert (ids(claimed.started), ids(claimed.sheds)) == ([last], [large])


def test_sheds_come_in_pages_of_a_thousand() -> None:  # D1
    queue = Queue(task=Flow(RateLimit("1/h", on_excess="drop")))
    queue.call("task", n=2_502)
    pages = []
    while True:
        claimed = queue.claim(2)
        pages.append((len(claimed.started), len(claimed.sheds), claimed.more))
        if not claimed.more:
            break
        assert claimed.come_back_us == claimed.now_us
    assert pages == [(1, 1000, True), (0, 1000, True), (0, 501, False)]


# --- CoDel ---

CODEL = CoDel("100ms", "1s")


def test_the_law_is_fed_the_oldest_and_takes_from_the_lowest_priority() -> None:  # O3, F55
    queue = Queue(task=Flow())
    queue.gate("queue_codel", CODEL)
    low = queue.call("task", n=3, priority=0)
    high = queue.call("task", at_us=200_000, n=3, priority=5)
    queue.claim(1, 400_000)  # arms
    claimed = queue.claim(1, 1_400_000)
    assert (ids(claimed.started), ids(claimed.sheds)) == ([high[1]], [low[0]])
    assert claimed.sheds[0].error == "codel: sojourn 1.4s is above target 100ms"  # O6
    assert (claimed.sheds[0].reason, claimed.sheds[0].metadata) == ("codel", '{"codel": true}')


def test_a_shed_neither_takes_a_token_nor_ends_the_claim() -> None:  # O3, F52
    queue = Queue(task=Flow(RateLimit("5/s")))
    queue.gate("queue_codel", CODEL)
    queue.call("task", n=10)
    queue.claim(1, 200_000)
    claimed = queue.claim(10, 1_200_000)
    assert (len(claimed.sheds), len(claimed.started)) == (1, 5)


def test_the_last_waiting_job_is_never_shed() -> None:  # O2, F47
    queue = Queue(task=Flow())
    queue.gate("queue_codel", CODEL)
    for second in range(5):
        queue.call("task", at_us=second * 10 * S)
        assert queue.claim(1, second * 10 * S + 5 * S).sheds == []


def test_an_empty_queue_disarms_and_a_gated_one_does_not() -> None:  # O3, F48
    queue = Queue(task=Flow(RateLimit("1/h")))
    queue.gate("queue_codel", CODEL)
    queue.call("task", n=5)
    queue.claim(1, 200_000)
    assert queue.store._gates["queue_codel", "default"].state[0] == 1_200_000  # type: ignore[index]
    queue.claim(1, 300_000)
    assert queue.store._gates["queue_codel", "default"].state[0] == 1_200_000, "behind a gate: left alone"  # type: ignore[index]
    free = Queue(task=Flow())
    free.gate("queue_codel", CODEL)
    free.call("task", n=2)
    free.claim(1, 200_000)
    free.claim(1, 200_000)
    assert free.store._gates["queue_codel", "default"].state[0] is None  # type: ignore[index]


def test_a_rate_limits_refusal_does_not_reset_sojourn() -> None:  # O4, F53
    queue = Queue(task=Flow(RateLimit("1/s", burst=1)))
    queue.gate("queue_codel", CODEL)
    queue.call("task", n=10)
    sheds = [len(queue.claim(1, second * S).sheds) for second in range(4)]
    assert sheds == [0, 0, 1, 1]


def test_an_intended_delay_is_not_sojourn() -> None:  # O4, F44
    queue = Queue(task=Flow())
    queue.gate("queue_codel", CoDel("10ms", "20ms", law="slough"))
    queue.call("task", n=5, delay_us=H)
    queue.claim(1, H + 5_000)
    queue.claim(1, H + 8_000)
    claimed = queue.claim(1, H + 9_000)
    assert claimed.sheds == []


def test_catch_up_after_a_pause_is_bounded() -> None:  # O7
    queue = Queue(task=Flow())
    queue.gate("queue_codel", CoDel("5ms", "100ms", max_shed=3))
    queue.call("task", n=500)
    queue.claim(1, 10_000)
    queue.claim(1, 1_210_000)
    claimed = queue.claim(1, H)
    assert (len(claimed.sheds), len(claimed.started)) == (3, 1)


def test_a_claim_says_when_a_scheduled_job_falls_due() -> None:
    queue = Queue(task=Flow())
    queue.call("task", delay_us=5 * S)
    assert queue.claim(1, 1).come_back_us == 5 * S
    assert queue.claim(1, 5 * S).come_back_us is None


def test_settling_in_a_claim_frees_nothing_that_lost_its_lease() -> None:  # X5
    queue = Queue(task=Flow())
    queue.call("task", n=2)
    first, second = queue.claim(2).started
    ended = [Succeeded(first.id, first.token), Succeeded(second.id, second.token + 1)]
    claimed = queue.store.run(claim("default", 1, worker=1, ended=ended), 5)
    assert claimed.settled == {first.id}
