"""Run handlers: coroutines in the event loop, functions in threads, and what their end means to the store.

Theory of operation
-------------------
Jobs wait in two queues, one for coroutines and one for plain functions. A *runner* (a task, or a thread) takes a job,
sees to it that another runner stands by for the next, and runs the handler. While handlers return at once one runner
empties the queue, and no job pays for a task or a thread of its own; as soon as a handler waits, the one that stands
by goes on with the next job. So jobs run concurrently, as many as were claimed, and none waits for another's handler.

Whatever a handler raises ends its job and nothing else, ``SystemExit`` and ``KeyboardInterrupt`` included. A task that
isn't declared in this process fails its job for good: a worker serves the tasks that it imports, and a name that it
doesn't know is a deployment's mistake, to be seen in the dead letters and retried from there. So does a result that
JSON can't carry: the handler has done its work, and would do it again.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import random
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from flowq.declaration import DeclaredTask
from flowq.payload import clean_text, json_text, read_arguments
from flowq.policy import Retry
from flowq.programs import Ended, Failed, Succeeded
from flowq.programs.commands import Started
from flowq.running import CURRENT, RunningJob

if TYPE_CHECKING:
    from flowq.postgres.driver import PostgresStore

__all__ = ["Attempt", "Execution"]

_TURN_S: Final = 0.005
"""How long handlers that never wait may keep the event loop."""
_BREATH_S: Final = 0.0001
_CANCEL_S: Final = 2.0
"""How long cancelled handlers may take to tidy up."""
_FRAMES: Final = 30
"""Innermost frames of a traceback that are kept."""
_TEXT: Final = 9_000
"""Characters of an error's text; of a longer one the beginning and the end are kept."""
_RETRY: Final = Retry()

Attempt = tuple[int, int]
"""(id, token) of a job's start."""


class _Handler(NamedTuple):
    function: Callable[..., Any]
    awaited: bool
    retry: Retry


class Execution:
    """The handlers that run now, and the outcomes that wait to be settled.

    Parameters
    ----------
    slots
        How many jobs may run at once, and threads for those that are plain functions.
    declared
        Finds a declared task by its name.
    on_end
        Called in the event loop after jobs ended.
    store
        Where a handler can complete its job in a transaction of its own.
    """

    def __init__(
        self,
        slots: int,
        declared: Callable[[str], DeclaredTask | None],
        on_end: Callable[[], None],
        store: PostgresStore | None = None,
    ) -> None:
        self._store = store
        self._slots = slots
        self._declared = declared
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._handlers: dict[str, _Handler] = {}
        self._context = contextvars.copy_context()
        self._ended: deque[Ended] = deque()
        self._told = False
        self._given_up = False
        self.queues: dict[Attempt, str] = {}
        """The queue of each attempt that isn't settled yet."""
        self.completed: set[Attempt] = set()
        """Of these, the attempts whose handler has settled them itself, if it committed (rule X6)."""
        self.running = 0
        """Attempts whose handler hasn't ended."""

        self._coroutines: deque[tuple[Started, _Handler]] = deque()
        self._runners: set[asyncio.Task[None]] = set()
        self._task_stands_by = False

        self._functions: deque[tuple[Started, _Handler]] = deque()
        self._lock = threading.Lock()
        self._calls = threading.Semaphore(0)
        self._threads = 0
        self._idle_threads = 0
        self._thread_stands_by = False

    def start(self, job: Started, queue: str) -> None:
        """Run a job's handler as soon as may be."""
        self.queues[job.id, job.token] = queue
        self.running += 1
        handler = self._handlers.get(job.task) or self._find(job.task)
        if handler is None:
            error = f"UnknownTask: no task {job.task!r} is declared in the worker that claimed it: import its module"
            self._end(Failed(job.id, job.token, clean_text(error), job.failures))
        elif handler.awaited:
            self._coroutines.append((job, handler))
            self._call_task()
        else:
            self._functions.append((job, handler))
            self._call_thread()

    def take(self) -> list[Ended]:
        """Return the outcomes since the last call; their slots are free.

        While functions wait for a thread, the threads are going through short ones: the interpreter is left to them
        for a moment, so that more outcomes are settled at once.
        """
        if self._functions:
            time.sleep(_BREATH_S)
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        self.running -= len(ended)
        return ended

    async def close(self) -> None:
        """Cancel what still runs and take no outcome any more. A thread can't be cancelled: it ends unheard."""
        self._given_up = True
        self._functions.clear()
        self._coroutines.clear()
        for runner in self._runners:
            runner.cancel()
        if self._runners:
            await asyncio.wait(self._runners, timeout=_CANCEL_S)
        for _ in range(self._threads):
            self._calls.release()

    # --- coroutines, in the event loop ---

    def _call_task(self) -> None:
        if not self._task_stands_by:
            self._task_stands_by = True
            runner = self._loop.create_task(self._run_coroutines())
            self._runners.add(runner)
            runner.add_done_callback(self._runners.discard)

    async def _run_coroutines(self) -> None:
        self._task_stands_by = False
        me = asyncio.current_task()
        context = contextvars.copy_context()
        turn_ends = time.monotonic() + _TURN_S
        while self._coroutines:
            job, handler = self._coroutines.popleft()
            if self._coroutines:
                self._call_task()
            running = self._running(job)
            mark = CURRENT.set(running)
            try:
                args, kwargs = read_arguments(job.payload)
                result = await handler.function(*args, **kwargs)
                outcome = _succeeded(job, None if running.completed else result)
            except BaseException as error:
                if self._given_up:
                    return
                outcome = _failed(job, handler, error)
            CURRENT.reset(mark)
            self._note(running)
            self._end(outcome)
            if contextvars.copy_context() != context or (me is not None and me.cancelling()):
                # The handler left a mark on this task: the next job gets a clean one.
                if self._coroutines:
                    self._call_task()
                return
            if time.monotonic() > turn_ends:
                await asyncio.sleep(0)
                turn_ends = time.monotonic() + _TURN_S

    # --- functions, in threads ---

    def _call_thread(self) -> None:
        with self._lock:
            if self._thread_stands_by:
                return
            self._thread_stands_by = True
            if self._idle_threads == 0 and self._threads < self._slots:
                self._threads += 1
                name = f"flowq-{self._threads}"
                # A daemon, so that a handler that never returns can't keep a process that was told to stop.
                threading.Thread(target=self._serve, name=name, daemon=True).start()
                return
        self._calls.release()

    def _serve(self) -> None:
        while not self._given_up:
            with self._lock:
                self._thread_stands_by = False
            self._run_functions()
            with self._lock:
                self._idle_threads += 1
            self._calls.acquire()
            with self._lock:
                self._idle_threads -= 1

    def _run_functions(self) -> None:
        while True:
            try:
                job, handler = self._functions.popleft()
            except IndexError:
                return
            if self._functions:
                self._call_thread()
            running = self._running(job)
            context = self._context.copy()
            context.run(CURRENT.set, running)
            try:
                args, kwargs = read_arguments(job.payload)
                result = context.run(handler.function, *args, **kwargs)
                if inspect.isawaitable(result):
                    waiting = context.run(asyncio.run_coroutine_threadsafe, _awaited(result), self._loop)
                    result, error = waiting.result()
                    if error is not None:
                        raise error
                outcome = _succeeded(job, None if running.completed else result)
            except BaseException as error:
                outcome = _failed(job, handler, error)
            self._note(running)
            self._end_in_thread(outcome)

    def _end_in_thread(self, outcome: Ended) -> None:
        self._ended.append(outcome)
        if not self._told and not self._given_up:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._hear)
            except RuntimeError:
                self._given_up = True  # the loop is closed: the worker has stopped without this handler

    def _hear(self) -> None:
        self._told = False
        self._on_end()

    # --- both ---

    def _end(self, outcome: Ended) -> None:
        self._ended.append(outcome)
        self._on_end()

    def _running(self, job: Started) -> RunningJob:
        return RunningJob(job, self.queues[job.id, job.token], self._store)

    def _note(self, running: RunningJob) -> None:
        if running.completed:
            self.completed.add((running.id, running.attempt))

    def _find(self, task: str) -> _Handler | None:
        declared = self._declared(task)
        if declared is None:
            return None
        function = declared.function
        awaited = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)  # noqa: B004 - an instance whose __call__ is a coroutine
        )
        handler = self._handlers[task] = _Handler(function, awaited, declared.spec.flow.retry or _RETRY)
        return handler


async def _awaited(awaitable: Any) -> tuple[Any, BaseException | None]:
    """What an awaitable comes to; an exit that it raises is its job's failure and must not end the loop."""
    try:
        return await awaitable, None
    except BaseException as error:
        return None, error


def _succeeded(job: Started, result: Any) -> Ended:
    """The outcome of a handler that returned; its result must be JSON, and running it again would not change that."""
    if result is None:
        return Succeeded(job.id, job.token)
    try:
        return Succeeded(job.id, job.token, json_text(result, f"result of task {job.task!r}"))
    except Exception as error:
        text = "".join(traceback.format_exception_only(error)).strip()
        return Failed(job.id, job.token, clean_text(text), job.failures)


def _failed(job: Started, handler: _Handler, error: BaseException) -> Failed:
    """The outcome of a handler that raised."""
    return Failed(
        job.id,
        job.token,
        _error_text(error),
        failures=job.failures,
        retry=handler.retry,
        max_retries=job.max_retries,
        u=random.random(),
    )


def _error_text(error: BaseException) -> str:
    """The traceback from the handler on, without the frame that called it."""
    trace = error.__traceback__
    inner = trace.tb_next if trace is not None and trace.tb_next is not None else trace
    try:
        text = "".join(traceback.format_exception(type(error), error, inner, limit=-_FRAMES))
    except Exception:  # an exception whose own text can't be had
        text = f"{type(error).__name__}: (its text raised an error itself)"
    if len(text) > _TEXT:
        text = f"{text[: _TEXT // 4]}\n[...]\n{text[-_TEXT // 2 :]}"
    return clean_text(text)
