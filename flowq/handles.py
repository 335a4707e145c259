"""Operations and handles: what an operation asks of a store, and what a caller gets back.

An :class:`Operation` pairs a program with what its result means; the queues only run it, one by calling, one by
awaiting.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from flowq.errors import (
    ConfigurationError,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotSucceeded,
    JobShed,
    ResultTimeout,
    UnknownJob,
)
from flowq.job import FINAL, SHED_REASONS, JobState, Outcome
from flowq.programs import DeadFilter, Receipt, purge, purge_matching, redrive, redrive_matching
from flowq.programs.commands import DeadRecord, JobRecord, Program, ReadDead, ReadJobs, Round
from flowq.task import Duration
from flowq.units import checked_key, choice, duration_us, instant_datetime, instant_us, whole_number

__all__ = [
    "AsyncJob",
    "DeadLetter",
    "Job",
    "Operation",
    "dead_filter",
    "dead_letters",
    "purged",
    "record",
    "records",
    "redriven",
]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_POLL_FIRST_S, _POLL_LAST_S = 0.005, 0.1
_ENDINGS: dict[JobState, type[JobNotSucceeded]] = {
    JobState.FAILED: JobFailed,
    JobState.SHED: JobShed,
    JobState.CANCELLED: JobCancelled,
    JobState.EXPIRED: JobExpired,
}


@dataclass(frozen=True)
class DeadLetter:
    """A job that ended for good without success: a real failure, or shed on purpose (then ``reason`` is set)."""

    id: int
    queue: str
    task: str
    error: str
    reason: str | None
    metadata: dict[str, Any] | None
    args: list[Any]
    kwargs: dict[str, Any]
    retry_count: int
    started_at: datetime | None
    died_at: datetime


class Operation(NamedTuple, Generic[T]):
    """A program, and what its result means to the caller."""

    program: Callable[[], Program[Any]]
    meaning: Callable[[Any], T]


class _Runner(Protocol):
    def _do(self, operation: Operation[T]) -> T: ...
    def run_due(self) -> int: ...


class _AsyncRunner(Protocol):
    def _do(self, operation: Operation[T]) -> Awaitable[T]: ...
    def run_due(self) -> Awaitable[int]: ...


class _Handle:
    """What one enqueue call did, and the way to its job."""

    def __init__(self, receipt: Receipt) -> None:
        self.id: int = receipt.id
        self.outcome: Outcome = receipt.outcome
        self.hits: int = receipt.hits
        self._run_at_us = receipt.run_at_us
        self._ends_us = receipt.window_ends_at_us

    @property
    def run_at(self) -> datetime:
        """When the job may start; of a debounced one, as of this call."""
        return instant_datetime(self._run_at_us)

    @property
    def window_ends_at(self) -> datetime | None:
        """The deadline of the debounce window as of this call; None: the call is not debounced."""
        return None if self._ends_us is None else instant_datetime(self._ends_us)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.outcome}, runs at {self.run_at.isoformat()}>"


class Job(_Handle):
    """What one call did (``id``, ``outcome``, ``run_at``, ``hits``, ``window_ends_at``), and the way to its job."""

    def __init__(self, queue: _Runner, receipt: Receipt) -> None:
        super().__init__(receipt)
        self._queue = queue

    def state(self) -> JobState:
        """Return the job's state now."""
        return JobState(self._queue._do(record(self.id)).state)

    def result(self, timeout: Duration | None = None) -> Any:
        """Wait until the job is final; return its result.

        Parameters
        ----------
        timeout
            How long to wait at most; None waits for ever.

        Raises
        ------
        JobFailed, JobShed, JobCancelled, JobExpired
            How else it ended; a shed job's ``reason`` is ``rate_limit`` or ``codel`` (rule D3).
        ResultTimeout
            It is not final yet.
        """
        if getattr(self._queue, "_memory", None) is not None:
            self._queue.run_due()
            timeout = 0  # nobody else runs it: waiting would not help
        for pause_s in _pauses(self.id, timeout):
            found = self._queue._do(record(self.id))
            if found.state in FINAL:
                return _result(found)
            time.sleep(pause_s)


class AsyncJob(_Handle):
    """As :class:`Job`, awaited."""

    def __init__(self, queue: _AsyncRunner, receipt: Receipt) -> None:
        super().__init__(receipt)
        self._queue = queue

    async def state(self) -> JobState:
        """Return the job's state now."""
        return JobState((await self._queue._do(record(self.id))).state)

    async def result(self, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109 (as Job.result)
        """Wait until the job is final; return its result. See :meth:`Job.result`."""
        if getattr(self._queue, "_memory", None) is not None:
            await self._queue.run_due()
            timeout = 0
        for pause_s in _pauses(self.id, timeout):
            found = await self._queue._do(record(self.id))
            if found.state in FINAL:
                return _result(found)
            await asyncio.sleep(pause_s)


def _read(command: ReadJobs | ReadDead) -> Program[Any]:
    [reply] = yield Round((command,), True)
    return reply


def record(id: int) -> Operation[JobRecord]:
    """Read one job."""
    id = whole_number(id, "id", 1)

    def found(records: dict[int, JobRecord]) -> JobRecord:
        if id not in records:
            raise UnknownJob(
                f"no job has id {id} in this namespace: it was never stored, or its archive was purged"
            )
        return records[id]

    return Operation(lambda: _read(ReadJobs((id,))), found)


def records(ids: Sequence[int]) -> Operation[dict[int, JobRecord]]:
    """Read jobs; those that exist."""
    command = ReadJobs(tuple(whole_number(id, "id", 1) for id in ids))
    return Operation(lambda: _read(command), dict)


def dead_letters(
    limit: int, before_id: int | None, task: str | None, reason: str | None
) -> Operation[list[DeadLetter]]:
    """Read a page of dead letters."""
    _check_filter(task, reason)
    command = ReadDead(whole_number(limit, "limit", 1, 10_000), before_id, task, reason)
    return Operation(lambda: _read(command), lambda rows: [_dead_letter(row) for row in rows])


def _check_filter(task: str | None, reason: str | None) -> None:
    if task is not None:
        checked_key(task, "task")
    if reason is not None:
        choice(reason, "reason", SHED_REASONS)


def _dead_letter(row: DeadRecord) -> DeadLetter:
    args, kwargs = json.loads(row.payload)
    return DeadLetter(
        id=row.id,
        queue=row.queue,
        task=row.task,
        error=row.error,
        reason=row.reason,
        metadata=None if row.metadata is None else json.loads(row.metadata),
        args=args,
        kwargs=kwargs,
        retry_count=row.retry_count,
        started_at=None if row.started_us is None else instant_datetime(row.started_us),
        died_at=instant_datetime(row.finished_us),
    )


def _result(record: JobRecord) -> Any:
    state = JobState(record.state)
    if state is JobState.SUCCEEDED:
        return None if record.result is None else json.loads(record.result)
    message = f"job {record.id} (task {record.task!r}) {state}: {record.error}"
    if state is JobState.SHED:
        raise JobShed(message, reason=record.reason or "")
    raise _ENDINGS[state](message)


def _pauses(id: int, timeout: Duration | None) -> Iterator[float]:
    """The waits between looks at a job; raises once the time is up."""
    ends = (
        None if timeout is None else time.monotonic() + duration_us(timeout, "timeout", allow_zero=True) / 1e6
    )
    pause_s = _POLL_FIRST_S
    while True:
        left = None if ends is None else ends - time.monotonic()
        yield pause_s if left is None else max(0.0, min(pause_s, left))
        if left is not None and left <= 0:
            raise ResultTimeout(f"job {id} is not final within {timeout}: is a worker running for its queue?")
        pause_s = min(pause_s * 1.5, _POLL_LAST_S)


def redriven(ids: Sequence[int] | None, which: DeadFilter) -> Operation[dict[int, int]]:
    """Enqueue dead letters again, by id or by filter."""
    chosen = _chosen(ids, which, "retry_dead")
    return Operation(lambda: redrive_matching(which) if chosen is None else redrive(chosen), dict)


def purged(ids: Sequence[int] | None, which: DeadFilter) -> Operation[int]:
    """Remove dead letters, by id or by filter."""
    chosen = _chosen(ids, which, "purge_dead")
    return Operation(lambda: purge_matching(which) if chosen is None else purge(chosen), int)


def dead_filter(
    task: str | None, reason: str | None, before: datetime | None, limit: int | None
) -> DeadFilter:
    """Check the parts of a filter."""
    _check_filter(task, reason)
    return DeadFilter(
        task,
        reason,
        None if before is None else instant_us(before, "before"),
        None if limit is None else whole_number(limit, "limit", 1),
    )


def _chosen(ids: Sequence[int] | None, which: DeadFilter, name: str) -> list[int] | None:
    """The ids, checked; None where the filter chooses."""
    if ids is None:
        return None
    if which != DeadFilter():
        raise ConfigurationError(
            f"{name} takes ids or a filter (task, reason, before, limit), not both: {list(ids)!r}"
        )
    return [whole_number(id, "id", 1) for id in ids]
