"""The world: calls that come, workers that are busy, and a clock; all decisions are flowq's.

Theory of operation
-------------------
The world holds no rule of a queue. It runs flowq's programs (`enqueue`, `claim` with the outcomes that have ended) at
instants of a SimPy clock, over a :data:`Drive`: a function that takes what makes a program, and an instant, and returns
the program's result. Over `flowq.memory` that is a simulation; over PostgreSQL it is the same world, and must be equal
to it job by job (see `flowsim.validate`).

The clock is a whole number of microseconds. At one instant, completions come first, then what falls due (a timer),
then arrivals; each is followed by a claim of as many jobs as there are free workers. So a call at the instant at which
the job of its key ends opens a new job, and so does one at the instant at which its key's debounced job starts. Among
equals, the order is that in which they were scheduled; no set and no hash decides anything.

A claim says at which instant another can do more with no event between; one timer stands at the earliest such instant.
Claims that can do nothing are left out: with no worker free nothing starts, and what waits for a worker only is no
excess (rule D1a).

There is no process and no request object for a job: one lean event for each worker, one for the next arrival, one for
the timer, and columns of numbers.
"""

from __future__ import annotations

import gc
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import simpy
from simpy.events import EventPriority

from flowq.job import Outcome
from flowq.memory import MemoryStore
from flowq.programs import Receipt, Request, Succeeded, claim, declare, enqueue
from flowq.programs.claim import Claimed
from flowq.programs.commands import Program, Register, Round, ShedJob, Started
from flowq.programs.declare import Declaration

__all__ = ["Drive", "Gates", "Log", "Offer", "World", "over_memory"]

T = TypeVar("T")
EventCallbacks: TypeAlias = list[Callable[[Any], None]]

COMPLETION: Final = EventPriority(0)
TIMER: Final = EventPriority(1)
ARRIVAL: Final = EventPriority(2)

ACCEPTED, COALESCED, MERGED = 0, 1, 2
CALL_OUTCOMES: Final = ("accepted", "coalesced", "merged")
"""What became of a call; the log has indexes into this."""
PENDING, RUNNING, SUCCEEDED, FAILED, SHED = 0, 1, 2, 3, 4
JOB_OUTCOMES: Final = ("pending", "running", "succeeded", "failed", "shed")
"""What became of a job; the log has indexes into this."""
_LEASE_US: Final = 1 << 60
"""Longer than any run."""
NEVER: Final = -1
"""In a column of instants: it did not happen."""

_CODES: Final = {Outcome.ACCEPTED: ACCEPTED, Outcome.COALESCED: COALESCED, Outcome.MERGED: MERGED}


class Drive(Protocol):
    """Runs the program that a factory makes at an instant in µs, and returns its result."""

    def __call__(self, factory: Callable[[], Program[T]], now_us: int, /) -> T: ...


def over_memory() -> Drive:
    """Return a drive over a fresh `flowq.memory.MemoryStore`."""
    run = MemoryStore().run

    def drive(factory: Callable[[], Program[T]], now_us: int, /) -> T:
        return run(factory(), now_us)

    return drive


class Gates(NamedTuple):
    """What is declared before the first call."""

    queue: str
    declarations: tuple[Declaration, ...]
    lines: tuple[tuple[str, str, int], ...]


class Offer(NamedTuple):
    """The calls, as plain lists."""

    arrivals_us: list[int]
    requests: Sequence[Request]
    """One for each key."""
    request_of: list[int]
    """Of each call: its index in ``requests``."""
    service_us: list[int]


class Log(NamedTuple):
    """What happened, in columns; jobs are numbered in the order in which they were created."""

    call_outcome: bytearray
    call_job: array[int]
    job_id: array[int]
    """The store's id of the job."""
    job_call: array[int]
    """The call that opened the job."""
    eligible_us: array[int]
    start_us: array[int]
    end_us: array[int]
    """Of a shed job: the instant at which it was shed."""
    outcome: bytearray
    reason: bytearray
    """Index into ``reasons``."""
    reasons: list[str]
    calls: array[int]
    """How many calls the job answers, its own included."""
    end_of_run_us: int


class _Worker(simpy.Event):
    """A worker, and the event that its job has ended."""

    _ok = True
    _value = None

    def __init__(self) -> None:  # one for each worker, scheduled again and again
        self.id = self.token = self.job = 0


class _Alarm(simpy.Event):
    """The next arrival, or the timer."""

    _ok = True
    _value = None

    def __init__(self) -> None:
        pass


@contextmanager
def _collector_off() -> Iterator[None]:
    """Spare the cycle collector: a run makes no cycles, and a growing heap to search costs a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _registered(queue: str, slots: int) -> Program[int]:
    [id] = yield Round((Register("world", (queue,), slots, _LEASE_US),), True)
    return int(id)


class World:
    """One run of calls against one queue.

    Parameters
    ----------
    drive : Drive
        Where programs run.
    gates : Gates
        What the queue declares.
    offer : Offer
        The calls.
    workers : int
        Jobs that can run at once, >= 1.
    until_us : int, optional
        The run stops before what happens at this instant; None: when nothing is left to do.
    """

    def __init__(
        self, drive: Drive, gates: Gates, offer: Offer, workers: int, until_us: int | None = None
    ) -> None:
        self._drive = drive
        self._gates = gates
        self._queue = gates.queue
        self._until_us = until_us
        self._env = simpy.Environment()
        self._schedule = self._env.schedule
        self._now = 0

        self._arrivals_us, self._requests, self._request_of, self._service_us = offer
        self._calls = calls = len(self._arrivals_us)
        self._call = 0
        self._request = self._requests[0]
        self._on_arrival: EventCallbacks = [self._arrive]

        self._free = self._workers = workers
        self._idle: list[_Worker] = []
        self._on_end: EventCallbacks = [self._end]
        self._worker = 0
        """The lease that all workers share: here none dies."""
        self._gated = False
        self._ended: Sequence[Succeeded] = ()
        self._settled = 0
        self._timer_us = NEVER
        self._on_timer: EventCallbacks = [self._fall_due]

        self._rows: dict[int, int] = {}
        """Live jobs: id -> number."""
        zero, never = array("q", [0]), array("q", [NEVER])
        self._call_outcome = bytearray(calls)
        self._call_job = zero * calls
        self._job_id = array("q")
        self._job_call = array("q")
        self._eligible_us = zero * calls
        self._start_us = never * calls
        self._end_us = never * calls
        self._outcome = bytearray(calls)
        self._reason = bytearray(calls)
        self._reasons = [""]
        self._calls_of = array("q", [1]) * calls

    def run(self) -> Log:
        """Run to the end; return what happened.

        Raises
        ------
        RuntimeError
            If the books don't balance: what came is not what was coalesced, merged, finished, shed or left.
        """
        gates = self._gates
        self._drive(lambda: declare(gates.declarations, lines=gates.lines), 0)
        self._worker = self._drive(lambda: _registered(gates.queue, self._workers), 0)
        arrival = _Alarm()
        arrival.callbacks = self._on_arrival
        self._schedule(arrival, ARRIVAL, self._arrivals_us[0])
        with _collector_off():
            self._env.run(self._until_us)
        for callbacks in (self._on_arrival, self._on_end, self._on_timer):
            callbacks.clear()  # else world and store would live on, each by the other, until the next collection
        log = self._written()
        self._balance(log)
        return log

    # --- programs, as the drive takes them ---

    def _enqueue(self) -> Program[list[Receipt]]:
        return enqueue((self._request,))

    def _claim_free(self) -> Program[Claimed]:
        return claim(self._queue, self._free, self._worker, gated=self._gated, ended=self._ended)

    # --- what happens ---

    def _arrive(self, event: simpy.Event) -> None:
        call = self._call
        self._now = now = self._arrivals_us[call]
        self._call = coming = call + 1
        if coming < self._calls:
            event.callbacks = self._on_arrival
            self._schedule(event, ARRIVAL, self._arrivals_us[coming] - now)
        self._request = self._requests[self._request_of[call]]
        receipt = self._drive(self._enqueue, now)[0]
        id, outcome, due_us = receipt.id, receipt.outcome, receipt.run_at_us
        if outcome is Outcome.ACCEPTED:
            self._rows[id] = job = len(self._job_id)
            self._job_id.append(id)
            self._job_call.append(call)
            self._call_job[call] = job
            self._eligible_us[job] = due_us
            if due_us <= now:
                if self._free:
                    self._claim()
                return
        else:
            self._call_job[call] = job = self._rows[id]
            self._call_outcome[call] = _CODES[outcome]
            self._calls_of[job] += 1
            if outcome is Outcome.COALESCED:
                return
            self._eligible_us[job] = due_us
        if self._free and due_us > now and not now < self._timer_us <= due_us:
            self._set_timer(due_us)

    def _fall_due(self, _event: simpy.Event) -> None:
        now = self._timer_us
        if now == self._env.now:  # else it was moved meanwhile
            self._now = now
            self._timer_us = NEVER
            self._claim()

    def _end(self, worker: Any) -> None:
        job = worker.job
        self._now = self._end_us[job] = self._env.now  # type: ignore[assignment]  # whole, as every delay is
        self._outcome[job] = SUCCEEDED
        del self._rows[worker.id]
        self._idle.append(worker)
        self._free += 1
        self._ended = (Succeeded(worker.id, worker.token),)
        self._claim()

    def _claim(self) -> None:
        now = self._now
        more = True
        while more:
            claimed = self._drive(self._claim_free, now)
            self._gated = claimed.gated
            self._settled += len(claimed.settled)
            self._ended = ()
            for job in claimed.started:
                self._start(job)
            for shed in claimed.sheds:
                self._shed(shed)
            more = claimed.more
        come_back_us = claimed.come_back_us
        if come_back_us is None or not self._free:
            self._timer_us = NEVER
        elif come_back_us != self._timer_us:
            if come_back_us <= now:
                raise RuntimeError(
                    f"the claim at {now} µs names no later instant to come back: {come_back_us} µs"
                )
            self._set_timer(come_back_us)

    def _start(self, started: Started) -> None:
        worker = self._idle.pop() if self._idle else _Worker()
        worker.id = id = started.id
        worker.token = started.token
        worker.job = job = self._rows[id]
        worker.callbacks = self._on_end
        self._free -= 1
        self._eligible_us[job] = started.eligible_us
        self._start_us[job] = self._now
        self._outcome[job] = RUNNING
        self._schedule(worker, COMPLETION, self._service_us[self._job_call[job]])

    def _shed(self, shed: ShedJob) -> None:
        job = self._rows.pop(shed.id)
        self._eligible_us[job] = shed.eligible_us
        self._end_us[job] = self._now
        self._outcome[job] = SHED
        if shed.reason not in self._reasons:
            self._reasons.append(shed.reason)
        self._reason[job] = self._reasons.index(shed.reason)

    def _set_timer(self, at_us: int) -> None:
        self._timer_us = at_us
        timer = _Alarm()
        timer.callbacks = self._on_timer
        self._schedule(timer, TIMER, at_us - self._now)

    # --- the books ---

    def _written(self) -> Log:
        """The columns, without the rows that no call and no job took."""
        calls, jobs = self._call, len(self._job_id)
        return Log(
            self._call_outcome[:calls], self._call_job[:calls], self._job_id, self._job_call, self._eligible_us[:jobs],
            self._start_us[:jobs], self._end_us[:jobs], self._outcome[:jobs], self._reason[:jobs], self._reasons,
            self._calls_of[:jobs], self._now if self._until_us is None else self._until_us,
        )  # fmt: skip

    def _balance(self, log: Log) -> None:
        """Calls = jobs + coalesced + merged, and jobs = finished + left; what the world and the store say agrees."""
        came = self._call
        parts = [log.outcome.count(code) for code in range(len(JOB_OUTCOMES))]
        joined = log.call_outcome.count(COALESCED) + log.call_outcome.count(MERGED)
        if came != joined + sum(parts) or sum(log.calls) != came:
            raise RuntimeError(f"the books don't balance: {came} calls, {joined} joined, jobs {parts}")
        if parts[RUNNING] != self._workers - self._free or self._settled != parts[SUCCEEDED] + parts[FAILED]:
            raise RuntimeError(
                f"the books don't balance: {parts[RUNNING]} jobs run on {self._workers - self._free} workers,"
                f" {self._settled} of {parts[SUCCEEDED] + parts[FAILED]} outcomes were taken by the store"
            )
        if len(self._rows) != parts[PENDING] + parts[RUNNING]:
            raise RuntimeError(f"the books don't balance: {len(self._rows)} live jobs, {parts} by outcome")
        if self._until_us is None and self._rows:
            raise RuntimeError(
                f"the run ended with {len(self._rows)} jobs left and no instant to come back at"
            )
