"""Scenarios: calls, claims, outcomes and clock steps, drawn by Hypothesis and driven over any store.

A scenario is data. :func:`play` drives it through the programs over a *drive* (a program and an instant in, its
result out) and returns a log in which jobs are named by the order of their creation, so that the logs of two stores
can be compared for equality.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from flowq.policy import Coalesce, CoDel, Concurrency, Debounce, Flow, RateLimit, Retry
from flowq.programs import (
    Claimed,
    Declaration,
    Failed,
    Request,
    Succeeded,
    claim,
    declare,
    enqueue,
    maintain,
    redrive,
    settle,
)
from flowq.programs.commands import Program, ReadDead, ReadJobs, Register, Round, Unregister
from flowq.task import TaskSpec

Drive = Callable[[Callable[[], Program[Any]], int], Any]
MS = 1_000


@dataclass(frozen=True)
class Call:
    task: int
    key: str
    priority: int | None = None
    delay_us: int = 0
    cost: int = 1


@dataclass(frozen=True)
class Enqueue:
    calls: tuple[Call, ...]


@dataclass(frozen=True)
class ClaimUpTo:
    n: int


@dataclass(frozen=True)
class Finish:
    """The oldest running job ends; ``late`` settles it with a fencing token that it no longer holds."""

    success: bool
    late: bool = False


@dataclass(frozen=True)
class Crash:
    """The worker dies with all that it runs, and upkeep finds out (rule X5)."""


@dataclass(frozen=True)
class RetryDead:
    """Up to ``n`` dead letters, the newest first, are retried by hand (rule D5)."""

    n: int


Step = Enqueue | ClaimUpTo | Finish | Crash | RetryDead


@dataclass(frozen=True)
class Scenario:
    flows: tuple[Flow, ...]
    queue_limit: RateLimit | None
    codel: CoDel | None
    cap: Concurrency | None
    steps: tuple[tuple[int, Step], ...]
    """(microseconds since the step before, negative where the clock steps back; what happens)."""

    def specs(self) -> list[TaskSpec]:
        return [TaskSpec(f"task{index}", flow=flow) for index, flow in enumerate(self.flows)]


_REGISTER = Register("player", ("default",), 5, 1 << 60)


def answer(command: Any) -> Program[Any]:
    [reply] = yield Round((command,), True)
    return reply


def without_worker(record: Any) -> Any:
    """A record whose error names no worker: its number is the store's."""
    return record._replace(error=record.error and re.sub(r"worker \d+", "worker", record.error))


def read_jobs(ids: tuple[int, ...]) -> Program[Any]:
    [records] = yield Round((ReadJobs(ids),), True)
    return records


def read_dead(n: int) -> Program[Any]:
    [letters] = yield Round((ReadDead(n),), True)
    return letters


@dataclass
class Play:
    """One scenario on one store."""

    drive: Drive
    namespace: str = "default"
    now_us: int = 0
    gated: bool = False
    worker: int = 0
    names: dict[int, int] = field(default_factory=dict)
    running: list[Any] = field(default_factory=list)
    log: list[Any] = field(default_factory=list)

    def name(self, id: int) -> int:
        return self.names.setdefault(id, len(self.names))

    def run(self, scenario: Scenario) -> list[Any]:
        specs = scenario.specs()
        gates = [d for spec in specs for d in spec.declarations()]
        gates += [
            Declaration("queue_rate", "default", scenario.queue_limit),
            Declaration("queue_codel", "default", scenario.codel),
            Declaration("queue_concurrency", "default", scenario.cap),
        ]
        lines = [spec.line for spec in specs]
        self.drive(lambda: declare(gates, lines=lines), self.now_us)
        self.worker = self.drive(lambda: answer(_REGISTER), self.now_us)
        for wait_us, step in scenario.steps:
            self.now_us = max(0, self.now_us + wait_us)
            match step:
                case Enqueue(calls):
                    self.enqueue(specs, calls)
                case ClaimUpTo(n):
                    self.claim(n)
                case Finish(success, late):
                    self.finish(specs, success, late)
                case Crash():
                    self.crash()
                case RetryDead(n):
                    self.retry_dead(n)
        ids = tuple(self.names)
        records = self.drive(lambda: read_jobs(ids), self.now_us)
        self.log.append(
            [
                (self.names[id], without_worker(records[id])._replace(id=0, metadata=None, payload=""))
                for id in sorted(records)
            ]
        )
        return self.log

    def enqueue(self, specs: list[TaskSpec], calls: tuple[Call, ...]) -> None:
        requests = []
        for call in calls:
            spec = specs[call.task % len(specs)]
            request = spec.keyed_request(call.key, self.namespace)
            changes: dict[str, Any] = {"cost": call.cost}
            if call.priority is not None:
                changes["priority"] = call.priority
            if request.debounce is None:
                changes["delay_us"] = call.delay_us
            if spec.flow.rate_limit is not None:
                changes["cost"] = min(call.cost, spec.flow.rate_limit.max_cost)
            requests.append(Request(request.job._replace(**changes), request.debounce))
        receipts = self.drive(lambda: enqueue(requests), self.now_us)
        self.log.append([(self.name(r.id), str(r.outcome), *r[2:]) for r in receipts])

    def claim(self, n: int) -> list[Any]:
        started = []
        while True:
            claimed: Claimed = self.drive(
                lambda n=n: claim("default", n, self.worker, gated=self.gated), self.now_us
            )  # type: ignore[misc]
            self.gated = claimed.gated
            self.running += claimed.started
            started += claimed.started
            self.log.append(
                (
                    [(self.name(job.id), job._replace(id=0, payload="")) for job in claimed.started],
                    [(self.name(shed.id), shed.reason, shed.error, shed.metadata) for shed in claimed.sheds],
                    claimed.come_back_us,
                    claimed.more,
                )
            )
            n -= len(claimed.started)
            if not claimed.more:
                return started

    def finish(self, specs: list[TaskSpec], success: bool, late: bool) -> None:
        if not self.running:
            return
        job = self.running[0] if late else self.running.pop(0)
        token = job.token - 1 if late else job.token
        spec = specs[int(job.task.removeprefix("task"))]
        ended = (
            Succeeded(job.id, token, '"done"')
            if success
            else Failed(job.id, token, "boom", job.failures, spec.flow.retry or Retry(1, delays=["1s"]))
        )
        settled = self.drive(lambda: settle([ended]), self.now_us)
        self.log.append(sorted(self.name(id) for id in settled))

    def crash(self) -> None:
        self.running.clear()
        self.drive(lambda: answer(Unregister(self.worker)), self.now_us)
        self.worker = self.drive(lambda: answer(_REGISTER), self.now_us)
        done = self.drive(lambda: maintain(crash_limit=2), self.now_us)
        returned, dead = (sorted(map(self.name, ids)) for ids in (done.returned, done.dead))
        self.log.append([returned, dead, done.more])

    def retry_dead(self, n: int) -> None:
        letters = self.drive(lambda: read_dead(n), self.now_us)
        self.log.append([without_worker(letter)._replace(id=self.name(letter.id)) for letter in letters])
        again = self.drive(lambda: redrive([letter.id for letter in letters]), self.now_us)
        self.log.append([(self.name(old), self.name(new)) for old, new in sorted(again.items())])


# --- strategies ----------------------------------------------------------------------------------------------------

_waits = st.sampled_from([0, 0, 1, 50 * MS, 100 * MS, 333_333, 1_000 * MS, 5_000 * MS])
_limits = st.builds(
    RateLimit,
    st.sampled_from(["1/s", "2/s", "10/s", "1.5/s", "7/m"]),
    burst=st.sampled_from([None, 1, 2.5, 3]),
    on_excess=st.sampled_from(["defer", "drop"]),
)
_codels = st.builds(
    CoDel,
    target=st.sampled_from(["1ms", "50ms", "500ms"]),
    interval=st.sampled_from(["20ms", "100ms", "1s"]),
    law=st.sampled_from(["rfc8289", "slough"]),
    exempt_backlog=st.sampled_from([0, 0, 2]),
    max_shed=st.sampled_from([1, 3, 100, None]),
)
_keyed = st.sampled_from(
    [
        None,
        None,
        Coalesce(),
        Debounce("1s", "{k}", "3s"),
        Debounce("200ms", "{k}", "200ms", replace_payload=True),
    ]
)


@st.composite
def flows(draw: Any) -> Flow:
    policies = [
        draw(_keyed),
        draw(st.none() | _limits),
        draw(st.none() | st.none() | st.builds(Concurrency, st.integers(1, 3))),
        draw(st.none() | st.just(Retry(2, delays=["300ms", "2s"]))),
    ]
    return Flow(*(policy for policy in policies if policy is not None))


_calls = st.builds(
    Call,
    task=st.integers(0, 2),
    key=st.sampled_from("abc"),
    priority=st.sampled_from([None, None, 0, 5, -1]),
    delay_us=st.sampled_from([0, 0, 0, 100 * MS, 2_000 * MS]),
    cost=st.sampled_from([1, 1, 1, 2, 3]),
)
_bursts = st.builds(lambda call, n: Enqueue((call,) * n), _calls, st.integers(4, 12))
_steps = st.one_of(
    st.builds(Enqueue, st.lists(_calls, min_size=1, max_size=6).map(tuple)),
    _bursts,
    st.builds(ClaimUpTo, st.integers(0, 5)),
    st.builds(ClaimUpTo, st.integers(1, 3)),
    st.builds(Finish, st.booleans(), st.sampled_from([False, False, False, True])),
)


_losses = st.one_of(_steps, _steps, _steps, st.just(Crash()), st.builds(RetryDead, st.integers(1, 3)))
_back = st.sampled_from([-1, -100 * MS, -2_000 * MS])


@st.composite
def scenarios(draw: Any, max_steps: int = 30, losses: bool = False) -> Scenario:
    """Scenarios; with ``losses``, of workers that die, retries by hand and clocks that step back, too."""
    waits = st.one_of(_waits, _waits, _waits, _back) if losses else _waits
    steps = _losses if losses else _steps
    return Scenario(
        flows=tuple(draw(st.lists(flows(), min_size=1, max_size=3))),
        queue_limit=draw(
            st.none()
            | st.none()
            | st.builds(RateLimit, st.sampled_from(["2/s", "20/s"]), burst=st.sampled_from([3, 5]))
        ),
        codel=draw(st.none() | _codels | _codels),
        cap=draw(st.none() | st.none() | st.builds(Concurrency, st.integers(1, 4))),
        steps=tuple(draw(st.lists(st.tuples(waits, steps), min_size=max_steps // 3, max_size=max_steps))),
    )
