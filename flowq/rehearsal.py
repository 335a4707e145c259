"""What stands behind ``Queue("memory://")``: the store of dicts, and a clock that the test moves (rule S5)."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Generator
from datetime import datetime
from random import Random
from typing import Any, Final, NoReturn, TypeVar

from flowq.declaration import DeclaredTask
from flowq.errors import ConfigurationError
from flowq.memory import MemoryStore
from flowq.payload import clean_text, json_text, read_arguments
from flowq.policy import Retry
from flowq.programs import Ended, Failed, Succeeded, claim, settle
from flowq.programs.commands import Program, Register, Round, Started
from flowq.running import CURRENT, RunningJob
from flowq.task import Duration
from flowq.units import duration_us, instant_datetime

__all__ = ["AsyncMemoryBackend", "Clock", "MemoryBackend"]

T = TypeVar("T")
Calls = Generator[tuple[Callable[..., Any], RunningJob, list[Any], dict[str, Any]], tuple[Any, Any], int]

_BEGIN_US: Final = 1_735_689_600_000_000
_LEASE_US: Final = 1 << 60
_RETRY: Final = Retry()


class Clock:
    """A clock that stands still until it is told to go on; it begins on 2025-01-01, UTC.

    Examples
    --------
    >>> clock = Clock()
    >>> clock.advance("90s")
    >>> clock.now.isoformat()
    '2025-01-01T00:01:30+00:00'
    """

    def __init__(self) -> None:
        self.now_us = _BEGIN_US

    @property
    def now(self) -> datetime:
        """The present instant, aware."""
        return instant_datetime(self.now_us)

    def advance(self, by: Duration) -> None:
        """Move on. Nothing runs by it: what has become due runs at the new instant, when it is asked to."""
        self.now_us += duration_us(by, "by")


class MemoryBackend:
    """As ``flowq.postgres.connection.Backend``, without a server."""

    def __init__(self) -> None:
        self.clock = Clock()
        self._store = MemoryStore()
        self._random = Random(0)
        self._worker: int | None = None

    @property
    def server(self) -> NoReturn:
        """There is none."""
        _no_server()

    @property
    def store(self) -> NoReturn:
        """There is none that a transaction could reach."""
        _no_transactions()

    def run(self, factory: Callable[[], Program[T]]) -> T:
        """Run a program at the clock's instant; return its result."""
        return self._store.run(factory(), self.clock.now_us)

    def close(self) -> None:
        """Nothing is to be given back; the jobs stay as long as the queue."""

    def calls(self, find: Callable[[str], DeclaredTask | None]) -> Calls:
        """Yield each handler's call that is due, be sent (result, error), settle it; return how many ran."""
        ran = 0
        if self._worker is None:
            self._worker = self.run(_registration)
        worker, busy = self._worker, True
        while busy:
            busy = False
            for name in self._store.queue_names():
                claimed = self.run(lambda name=name: claim(name, 1, worker))  # type: ignore[misc]
                busy = busy or bool(claimed.started) or claimed.more
                for job in claimed.started:
                    declared = find(job.task)
                    if declared is None:
                        outcome: Ended = Failed(
                            job.id,
                            job.token,
                            f"UnknownTask: no task {job.task!r} is declared here",
                            job.failures,
                        )
                    else:
                        args, kwargs = read_arguments(job.payload)
                        running = RunningJob(job, name)
                        result, error = yield declared.function, running, args, kwargs
                        outcome = self._outcome(job, declared.spec.flow.retry or _RETRY, result, error)
                        ran += 1
                    self.run(lambda outcome=outcome: settle((outcome,)))  # type: ignore[misc]
        return ran

    def _outcome(self, job: Started, retry: Retry, result: Any, error: BaseException | None) -> Ended:
        retried: Retry | None = retry
        if error is None:
            try:
                text = None if result is None else json_text(result, f"result of task {job.task!r}")
                return Succeeded(job.id, job.token, text)
            except Exception as refused:
                error, retried = refused, None
        text = clean_text("".join(traceback.format_exception(error)))
        return Failed(job.id, job.token, text, job.failures, retried, job.max_retries, self._random.random())

    def run_due(self, find: Callable[[str], DeclaredTask | None]) -> int:
        """Run what is due in this thread."""
        calls = self.calls(find)
        answer: Any = None
        try:
            while True:
                function, running, args, kwargs = calls.send(answer)
                mark = CURRENT.set(running)
                try:
                    result = function(*args, **kwargs)
                    answer = (asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result), None
                except Exception as error:
                    answer = None, error
                finally:
                    CURRENT.reset(mark)
        except StopIteration as stop:
            return int(stop.value)


class AsyncMemoryBackend:
    """As :class:`MemoryBackend`, awaited."""

    def __init__(self, inner: MemoryBackend) -> None:
        self._inner = inner
        self.clock = inner.clock

    @property
    def server(self) -> NoReturn:
        """There is none."""
        _no_server()

    @property
    def store(self) -> NoReturn:
        """There is none."""
        _no_transactions()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Whichever runs: nothing here belongs to one."""
        return asyncio.get_running_loop()

    async def run(self, factory: Callable[[], Program[T]]) -> T:
        """Run a program at the clock's instant."""
        return self._inner.run(factory)

    async def close(self) -> None:
        """Nothing is to be given back."""

    async def run_due(self, find: Callable[[str], DeclaredTask | None]) -> int:
        """Run what is due, one after the other."""
        calls = self._inner.calls(find)
        answer: Any = None
        try:
            while True:
                function, running, args, kwargs = calls.send(answer)
                mark = CURRENT.set(running)
                try:
                    result = function(*args, **kwargs)
                    answer = (await result if inspect.isawaitable(result) else result), None
                except Exception as error:
                    answer = None, error
                finally:
                    CURRENT.reset(mark)
        except StopIteration as stop:
            return int(stop.value)


async def _awaited(awaitable: Any) -> Any:
    return await awaitable


def _registration() -> Program[int]:
    [id] = yield Round((Register("memory", (), 1, _LEASE_US),), True)
    return int(id)


def _no_server() -> NoReturn:
    raise ConfigurationError("memory:// has no server, so no worker can serve it: call queue.run_due()")


def _no_transactions() -> NoReturn:
    raise ConfigurationError("memory:// has no transactions: leave connection= out")
