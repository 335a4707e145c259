"""The queue that services import: declare tasks, enqueue, wait, look at dead letters.

:class:`Queue` and :class:`AsyncQueue` are two ways to wait for the same operations (:mod:`flowq.handles`): one calls,
one awaits.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from flowq.declaration import Registry
from flowq.errors import ConfigurationError, DatabaseUnreachable, FlowqError
from flowq.handles import (
    AsyncJob,
    DeadLetter,
    Job,
    Operation,
    dead_filter,
    dead_letters,
    purged,
    record,
    records,
    redriven,
)
from flowq.policy import CoDel, Concurrency, Flow, RateLimit
from flowq.policy.rate_limit import Rate
from flowq.programs import Declaration, Receipt, Request, declare, enqueue
from flowq.programs.commands import JobRecord
from flowq.rehearsal import AsyncMemoryBackend, Clock, MemoryBackend
from flowq.task import Duration, TaskSpec
from flowq.units import checked_key, duration_us

if TYPE_CHECKING:
    import psycopg

    from flowq.postgres.connection import AsyncBackend, Backend
    from flowq.postgres.server import Server

__all__ = ["AsyncJob", "AsyncQueue", "AsyncTask", "DeadLetter", "Job", "Queue", "Task"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
_BATCH = 1_000
"""Calls of an AsyncQueue that go out together at most."""


class Task(Generic[P, R]):
    """A declared task. Call it to run it here and now; :meth:`delay` to enqueue a call."""

    def __init__(self, queue: Queue, spec: TaskSpec, function: Callable[P, R]) -> None:
        self._queue = queue
        self.spec = spec
        self.name = spec.name
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """Enqueue a call with these arguments, by the task's declared policies."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Job:
        """Enqueue a call with options of its own; see :class:`flowq.task.CallOptions`."""
        return self._queue.enqueue(self.name, args=args, kwargs=kwargs, **options)


class AsyncTask(Generic[P, R]):
    """As :class:`Task`; its enqueues are awaited."""

    def __init__(self, queue: AsyncQueue, spec: TaskSpec, function: Callable[P, R]) -> None:
        self._queue = queue
        self.spec = spec
        self.name = spec.name
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._function(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[AsyncJob]:
        """Enqueue a call with these arguments, by the task's declared policies."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> Awaitable[AsyncJob]:
        """Enqueue a call with options of its own; see :class:`flowq.task.CallOptions`."""
        return self._queue.enqueue(self.name, args=args, kwargs=kwargs, **options)


class _Surface:
    """All that Queue and AsyncQueue do without waiting."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        namespace: str = "default",
        notify: bool = True,
        lock_timeout: Duration | None = None,
    ) -> None:
        if dsn is not None and not isinstance(dsn, str):
            raise TypeError(f"dsn must be a PostgreSQL URL: {dsn!r}")
        self.dsn = dsn
        self.namespace = checked_key(namespace, "namespace")
        self.notify = notify
        self._lock_timeout_us = None if lock_timeout is None else duration_us(lock_timeout, "lock_timeout")
        self._registry = Registry(self.namespace)
        self._memory = MemoryBackend() if dsn == "memory://" else None

    _backend: Any  # Backend | AsyncBackend, or one of memory

    @property
    def server(self) -> Server:
        """The PostgreSQL in use, once the queue is open; ``server.describe()`` says which in one line."""
        if self._backend is None:
            raise FlowqError("queue is not open: call open(), or enqueue something")
        server: Server = self._backend.server
        return server

    @property
    def clock(self) -> Clock:
        """The clock of a ``memory://`` queue, to be moved by the test: ``clock.advance("5s")``, ``clock.now``."""
        return self._rehearsed().clock

    def _rehearsed(self) -> MemoryBackend:
        if self._memory is None:
            raise ConfigurationError("clock and run_due() are for tests: they need Queue('memory://')")
        return self._memory

    def specs(self) -> list[TaskSpec]:
        """Return the declared tasks with the policies of their queues; ``flowsim.simulate`` takes the whole queue."""
        return self._registry.specs()

    def declarations(self) -> tuple[Declaration, ...]:
        """Return every gate that is declared here, of tasks and of queues."""
        return self._registry.declarations()

    def handler(self, name: str) -> Callable[..., Any]:
        """Return the function of a declared task."""
        return self._registry.handler(name)

    def _set_codel(
        self, queue: str, target: Duration | CoDel | None, interval: Duration | None, options: Any
    ) -> None:
        checked_key(queue, "queue")
        policy = None
        if isinstance(target, CoDel):
            if interval is not None or options:
                raise ConfigurationError(
                    "interval and law are part of the CoDel that was given: set them there"
                )
            policy = target
        elif target is not None or interval is not None or options:
            policy = CoDel(target, interval, **options)  # type: ignore[arg-type]  # None is refused with its name
        self._registry.set_queue("queue_codel", queue, policy)

    def _set_rate_limit(self, queue: str, limit: str | Rate | RateLimit | None, burst: float | None) -> None:
        checked_key(queue, "queue")
        policy = limit if limit is None or isinstance(limit, RateLimit) else RateLimit(limit, burst)
        if policy is not None and policy.on_excess != "defer":
            raise ConfigurationError(
                "on_excess is a task's, not a queue's (rule D1): declare it with the task"
            )
        self._registry.set_queue("queue_rate", queue, policy)

    def _set_concurrency(self, queue: str, max_concurrent: int | Concurrency | None) -> None:
        checked_key(queue, "queue")
        policy = (
            max_concurrent
            if max_concurrent is None or isinstance(max_concurrent, Concurrency)
            else Concurrency(max_concurrent)
        )
        self._registry.set_queue("queue_concurrency", queue, policy)

    def _request(
        self,
        name: str,
        payload: Mapping[str, Any] | None,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> Request:
        if payload is not None and (args is not None or kwargs is not None):
            raise TypeError(
                "payload and args/kwargs can't both be given: payload is the call's keyword arguments"
            )
        if payload is not None and not isinstance(payload, Mapping):
            raise TypeError(f"payload must be a mapping of the call's keyword arguments: {payload!r}")
        if not isinstance(args, (list, tuple, type(None))) and (
            isinstance(args, str) or not isinstance(args, Sequence)
        ):
            raise TypeError(f"args must be a list or tuple of the call's arguments: {args!r}")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise TypeError(f"kwargs must be a mapping of the call's keyword arguments: {kwargs!r}")
        spec = self._registry.spec(name)
        call = self._registry.options(options)
        request = spec.request(args or (), kwargs if payload is None else payload, call, self.namespace)
        limit = self._registry.queue_policies.get(("queue_rate", request.job.queue))
        if isinstance(limit, RateLimit):
            limit.check_cost(request.job.cost)
        return request

    def _requests(self, calls: Iterable[Mapping[str, Any]]) -> list[Request]:
        requests = []
        for index, call in enumerate(calls):
            if not isinstance(call, Mapping) or "task" not in call:
                raise TypeError(f"item {index} must be a mapping with a 'task': {call!r}")
            call = dict(call)
            name, payload = call.pop("task"), call.pop("payload", None)
            requests.append(
                self._request(name, payload, call.pop("args", None), call.pop("kwargs", None), call)
            )
        return requests

    def _undeclared(self) -> Operation[None] | None:
        """The declaration of what this process has declared since it last told the store."""
        registry = self._registry
        if not registry.undeclared and not registry.lines:
            return None
        declarations, lines = dict(registry.undeclared), frozenset(registry.lines)

        def told(_: int) -> None:
            for key, declaration in declarations.items():
                if registry.undeclared.get(key) == declaration:
                    del registry.undeclared[key]
            registry.lines -= lines

        return Operation(lambda: declare(list(declarations.values()), lines=sorted(lines)), told)


class Queue(_Surface):
    """A job queue on PostgreSQL.

    Use it in services that call; use :class:`AsyncQueue` where calls are awaited. Making one touches no server: the
    first operation does. A queue is safe to share between threads, not across a fork.

    Parameters
    ----------
    dsn
        A PostgreSQL URL, or ``memory://`` for tests (:mod:`flowq.testing`). None: ``FLOWQ_DATABASE_URL``, else ``DATABASE_URL``, else a server of its own, started from
        the ``embedded`` extra or the system's PostgreSQL.
    namespace
        Jobs, keys, limits and settings of two namespaces never meet.
    notify
        Whether enqueues wake sleeping workers (NOTIFY); off, workers poll.
    lock_timeout
        Longest wait of a keyed call for a key that another open transaction holds; then ``KeyLockTimeout``. None: as
        the server is set, by default without end.

    Examples
    --------
    >>> queue = Queue("postgresql://localhost/app")
    >>> @queue.task(rate_limit="10/s", on_excess="drop")
    ... def record_sample(metric: str, value: float) -> None: ...
    >>> record_sample.spec.flow
    Flow(RateLimit('10/s', on_excess='drop'))
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        namespace: str = "default",
        notify: bool = True,
        lock_timeout: Duration | None = None,
    ) -> None:
        super().__init__(dsn, namespace=namespace, notify=notify, lock_timeout=lock_timeout)
        self._backend: Backend | MemoryBackend | None = self._memory
        self._opening = threading.Lock()

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        flow: Flow | None = None,
        **policies: Any,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...
    def task(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        flow: Flow | None = None,
        **policies: Any,
    ) -> Any:
        """Declare a function as a task.

        Parameters
        ----------
        name
            The task's name; the function's by default.
        queue, priority
            Where its jobs wait, and in which order: higher first.
        flow
            All of its policies as one object, from a notebook say; or these keywords as shorthand:
        rate_limit, burst, on_excess
            ``"10/s"``; the bucket's capacity; ``"defer"`` (wait) or ``"drop"`` (shed to the dead letters).
        idempotent, unique_key
            Coalesce equal calls; or those that render a key template to the same key.
        debounce, debounce_key, debounce_max_wait, debounce_replace_payload
            Run once per key after the burst; the first three come together.
        max_concurrent
            How many of its jobs may run at once, cluster-wide.
        max_retries, retry_delays
            Attempts after the first (3), and exact waits in place of jittered exponential ones.

        Raises
        ------
        ConfigurationError
            Anything that can't work, now and not at the first call.
        """

        def declare_task(function: Callable[P, R]) -> Task[P, R]:
            return Task(self, self._registry.add(function, name, queue, priority, flow, policies), function)

        return declare_task if function is None else declare_task(function)

    def set_queue_codel(
        self,
        queue: str,
        target: Duration | CoDel | None = None,
        interval: Duration | None = None,
        **options: Any,
    ) -> None:
        """Shed what has waited too long in a queue, by CoDel; with no target, stop shedding.

        Parameters
        ----------
        target, interval
            Acceptable standing sojourn, and how long it must be exceeded before the first shed; or a whole ``CoDel``.
        **options
            ``law``, ``exempt_backlog``, ``max_shed``: see :class:`flowq.policy.CoDel`.
        """
        self._set_codel(queue, target, interval, options)
        self._tell_if_open()

    def set_queue_rate_limit(
        self, queue: str, limit: str | Rate | RateLimit | None, burst: float | None = None
    ) -> None:
        """Bound the starts of a whole queue; None lifts the bound. Its tasks' own limits hold beside it (rule R4)."""
        self._set_rate_limit(queue, limit, burst)
        self._tell_if_open()

    def set_queue_concurrency(self, queue: str, max_concurrent: int | Concurrency | None) -> None:
        """Bound how many jobs of a whole queue run at once, cluster-wide; None lifts the bound (rule A1).

        It is counted from live leases: a worker that died frees its slots when its lease lapses.
        """
        self._set_concurrency(queue, max_concurrent)
        self._tell_if_open()

    def enqueue(
        self,
        name: str,
        payload: Mapping[str, Any] | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        connection: psycopg.Connection[Any] | None = None,
        **options: Any,
    ) -> Job:
        """Enqueue one call by the task's name; a task declared here brings its policies and defaults.

        Parameters
        ----------
        name
            The task.
        payload
            The call's keyword arguments; or ``args`` and ``kwargs``.
        connection
            The caller's own psycopg connection (SQLAlchemy: ``session.connection().connection.driver_connection``,
            Django: ``connection.connection``). The job is then written in its transaction and never committed here; in
            autocommit mode, outside of a transaction, it is committed at once, like any statement there. A call with a
            key holds the key until that commit, and others with the same key wait, within their ``lock_timeout``; it
            needs READ COMMITTED. A refusal leaves the transaction usable.
        **options
            See :class:`flowq.task.CallOptions`.

        Raises
        ------
        KeyLockTimeout
            Another open transaction holds the key past ``lock_timeout``.
        ConfigurationError
            An option is outside its range, or a keyed call is made above READ COMMITTED.
        """
        return self._enqueued([self._request(name, payload, args, kwargs, options)], connection)[0]

    def enqueue_many(
        self, calls: Iterable[Mapping[str, Any]], *, connection: psycopg.Connection[Any] | None = None
    ) -> list[Job]:
        """Enqueue calls in order, all or none, in few round trips; return one handle a call.

        Parameters
        ----------
        calls
            Mappings: ``task``, then ``payload`` or ``args`` and ``kwargs``, and the options of ``enqueue``.
        connection
            The caller's own, as for ``enqueue``.
        """
        return self._enqueued(self._requests(calls), connection)

    def job(self, id: int) -> JobRecord:
        """Return what is known of a job, live or archived.

        Raises
        ------
        UnknownJob
            There is none with this id.
        """
        return self._do(record(id))

    def jobs(self, ids: Sequence[int]) -> dict[int, JobRecord]:
        """Return what is known of jobs, live or archived; ids that are unknown are absent."""
        return self._do(records(ids))

    def dead_letters(
        self,
        limit: int = 50,
        *,
        task: str | None = None,
        reason: str | None = None,
        before_id: int | None = None,
    ) -> list[DeadLetter]:
        """Return dead letters, newest first; ``before_id`` is the last id of the page before."""
        return self._do(dead_letters(limit, before_id, task, reason))

    def retry_dead(
        self,
        ids: Sequence[int] | None = None,
        *,
        task: str | None = None,
        reason: str | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> dict[int, int]:
        """Enqueue dead letters again; return old id -> new id. A shed job is not shed a second time (rule D5).

        Parameters
        ----------
        ids
            Which; None: all that the filter names, in pages, the newest first.
        task, reason, before, limit
            The filter: of this task, shed for this reason, died before this instant, at most so many.
        """
        return self._do(redriven(ids, dead_filter(task, reason, before, limit)))

    def purge_dead(
        self,
        ids: Sequence[int] | None = None,
        *,
        task: str | None = None,
        reason: str | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> int:
        """Remove dead letters; return how many. The jobs stay in the archive, and the letters can't be retried any more.

        Parameters
        ----------
        ids
            Which; None: all that the filter names.
        task, reason, before, limit
            As for :meth:`retry_dead`.
        """
        return self._do(purged(ids, dead_filter(task, reason, before, limit)))

    def run_due(self) -> int:
        """Run the due jobs of a ``memory://`` queue in this thread until none is due; return how many handlers ran.

        Their retries, and jobs that they enqueue, run too where they are due now; the clock doesn't move.
        """
        self._rehearsed()
        backend: MemoryBackend = self._connected()
        return backend.run_due(self._registry.tasks.get)

    def open(self) -> None:
        """Connect, and store what was declared; every operation does so by itself."""
        self._connected()

    def close(self) -> None:
        """Give connections back; an embedded server stops once nobody uses it."""
        backend, self._backend = self._backend, None
        if backend is not None:
            backend.close()

    def __enter__(self) -> Queue:
        self.open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _enqueue(self, requests: list[Request]) -> Operation[list[Job]]:
        return Operation(
            lambda: enqueue(requests), lambda receipts: [Job(self, receipt) for receipt in receipts]
        )

    def _enqueued(self, requests: list[Request], connection: psycopg.Connection[Any] | None) -> list[Job]:
        return self._do_within(self._enqueue(requests), requests, connection)

    def _do_within(
        self, operation: Operation[T], requests: Sequence[Request], connection: psycopg.Connection[Any] | None
    ) -> T:
        """Do what these requests ask for, in the caller's transaction where there is one."""
        if connection is None:
            return self._do(operation)
        import psycopg

        from flowq.postgres.connection import checked_connection

        checked_connection(connection, psycopg.Connection)
        backend = self._connected()
        missing = backend.store.unknown_lines(_lines(requests))
        if missing:  # in the caller's transaction, others would wait for them until it ends
            backend.run(lambda: declare((), lines=missing))
        return operation.meaning(backend.run_within(connection, operation.program, _keyed(requests)))

    def _do(self, operation: Operation[T]) -> T:
        return operation.meaning(self._connected().run(operation.program))

    def _connected(self) -> Any:
        if self._memory is not None:
            self._backend = self._memory
        backend = self._backend
        if backend is None:
            from flowq.postgres.connection import Backend

            with self._opening:
                if self._backend is None:
                    self._backend = Backend(self.dsn, self.namespace, self.notify, self._lock_timeout_us)
                backend = self._backend
        undeclared = self._undeclared()
        if undeclared is not None:
            undeclared.meaning(backend.run(undeclared.program))
        return backend

    def _tell_if_open(self) -> None:
        if self._backend is not None:
            self._connected()


class AsyncQueue(_Surface):
    """As :class:`Queue`, awaited. Declaring (``task``, ``set_queue_*``) waits for nothing: the next operation, or
    :meth:`open`, tells the store."""

    def __init__(
        self,
        dsn: str | None = None,
        *,
        namespace: str = "default",
        notify: bool = True,
        lock_timeout: Duration | None = None,
    ) -> None:
        super().__init__(dsn, namespace=namespace, notify=notify, lock_timeout=lock_timeout)
        self._backend: AsyncBackend | AsyncMemoryBackend | None = None
        self._waiting: dict[str, list[tuple[Request, asyncio.Future[Receipt]]]] = {}
        """Calls to be sent with the next batch, of each queue that has a batch under way."""
        self._sending: set[asyncio.Task[None]] = set()
        self._opening = asyncio.Lock()

    @overload
    def task(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        flow: Flow | None = None,
        **policies: Any,
    ) -> Callable[[Callable[P, R]], AsyncTask[P, R]]: ...
    def task(
        self,
        function: Callable[P, R] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        flow: Flow | None = None,
        **policies: Any,
    ) -> Any:
        """Declare a function as a task. See :meth:`Queue.task`."""

        def declare_task(function: Callable[P, R]) -> AsyncTask[P, R]:
            return AsyncTask(
                self, self._registry.add(function, name, queue, priority, flow, policies), function
            )

        return declare_task if function is None else declare_task(function)

    def set_queue_codel(
        self,
        queue: str,
        target: Duration | CoDel | None = None,
        interval: Duration | None = None,
        **options: Any,
    ) -> None:
        """Shed what has waited too long in a queue, by CoDel. See :meth:`Queue.set_queue_codel`."""
        self._set_codel(queue, target, interval, options)

    def set_queue_rate_limit(
        self, queue: str, limit: str | Rate | RateLimit | None, burst: float | None = None
    ) -> None:
        """Bound the starts of a whole queue. See :meth:`Queue.set_queue_rate_limit`."""
        self._set_rate_limit(queue, limit, burst)

    def set_queue_concurrency(self, queue: str, max_concurrent: int | Concurrency | None) -> None:
        """Bound how many jobs of a whole queue run at once. See :meth:`Queue.set_queue_concurrency`."""
        self._set_concurrency(queue, max_concurrent)

    async def enqueue(
        self,
        name: str,
        payload: Mapping[str, Any] | None = None,
        *,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        connection: psycopg.AsyncConnection[Any] | None = None,
        **options: Any,
    ) -> AsyncJob:
        """Enqueue one call by the task's name. See :meth:`Queue.enqueue`.

        Calls without a key that are made while one of the same queue is under way go out together, in order.
        """
        request = self._request(name, payload, args, kwargs, options)
        if connection is None and not _keyed((request,)):
            return AsyncJob(self, await self._joined(request))
        return (await self._enqueued([request], connection))[0]

    async def enqueue_many(
        self, calls: Iterable[Mapping[str, Any]], *, connection: psycopg.AsyncConnection[Any] | None = None
    ) -> list[AsyncJob]:
        """Enqueue calls in order, all or none. See :meth:`Queue.enqueue_many`."""
        return await self._enqueued(self._requests(calls), connection)

    async def job(self, id: int) -> JobRecord:
        """Return what is known of a job. See :meth:`Queue.job`."""
        return await self._do(record(id))

    async def jobs(self, ids: Sequence[int]) -> dict[int, JobRecord]:
        """Return what is known of jobs. See :meth:`Queue.jobs`."""
        return await self._do(records(ids))

    async def dead_letters(
        self,
        limit: int = 50,
        *,
        task: str | None = None,
        reason: str | None = None,
        before_id: int | None = None,
    ) -> list[DeadLetter]:
        """Return dead letters, newest first. See :meth:`Queue.dead_letters`."""
        return await self._do(dead_letters(limit, before_id, task, reason))

    async def retry_dead(
        self,
        ids: Sequence[int] | None = None,
        *,
        task: str | None = None,
        reason: str | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> dict[int, int]:
        """Enqueue dead letters again. See :meth:`Queue.retry_dead`."""
        return await self._do(redriven(ids, dead_filter(task, reason, before, limit)))

    async def purge_dead(
        self,
        ids: Sequence[int] | None = None,
        *,
        task: str | None = None,
        reason: str | None = None,
        before: datetime | None = None,
        limit: int | None = None,
    ) -> int:
        """Remove dead letters. See :meth:`Queue.purge_dead`."""
        return await self._do(purged(ids, dead_filter(task, reason, before, limit)))

    async def run_due(self) -> int:
        """Run the due jobs of a ``memory://`` queue. See :meth:`Queue.run_due`."""
        self._rehearsed()
        backend: AsyncMemoryBackend = await self._connected()
        return await backend.run_due(self._registry.tasks.get)

    async def open(self) -> None:
        """Connect, and store what was declared."""
        await self._connected()

    async def close(self) -> None:
        """Give connections back."""
        backend, self._backend = self._backend, None
        if backend is not None:
            await backend.close()

    async def __aenter__(self) -> AsyncQueue:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _enqueue(self, requests: list[Request]) -> Operation[list[AsyncJob]]:
        return Operation(lambda: enqueue(requests), lambda receipts: [AsyncJob(self, r) for r in receipts])

    def _joined(self, request: Request) -> asyncio.Future[Receipt]:
        """Send a call with others of its queue: at once if none is under way, else with the next batch.

        Keyed calls don't join: one that waits for another transaction's key would hold up its neighbours, among them
        maybe the call that has to return before that transaction ends. For the same reason queues go apart.
        """
        loop = asyncio.get_running_loop()
        receipt: asyncio.Future[Receipt] = loop.create_future()
        waiting = self._waiting.get(request.job.queue)
        if waiting is not None and (not waiting or waiting[-1][1].get_loop() is loop):
            waiting.append((request, receipt))
        else:
            self._waiting[request.job.queue] = waiting = [(request, receipt)]
            task = loop.create_task(self._send(request.job.queue, waiting))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        return receipt

    async def _send(self, queue: str, waiting: list[tuple[Request, asyncio.Future[Receipt]]]) -> None:
        batch: list[tuple[Request, asyncio.Future[Receipt]]] = []
        try:
            while waiting:
                batch = [call for call in waiting[:_BATCH] if not call[1].done()]
                del waiting[:_BATCH]
                if batch:
                    await self._send_batch(batch)
        finally:
            if self._waiting.get(queue) is waiting:
                del self._waiting[queue]
            for _, receipt in (*batch, *waiting):  # none, unless the loop is being closed
                receipt.cancel()

    async def _send_batch(self, batch: Sequence[tuple[Request, asyncio.Future[Receipt]]]) -> None:
        requests = [request for request, _ in batch]
        try:
            receipts = await self._do(Operation(lambda: enqueue(requests), list))
        except Exception as error:
            # A batch whose connection was lost may have been committed, so it isn't sent again.
            if len(batch) == 1 or isinstance(error, DatabaseUnreachable):
                for _, receipt in batch:
                    if not receipt.done():
                        receipt.set_exception(error)
                return
            for call in batch:  # whose error it was is seen when each goes alone
                if not call[1].done():
                    await self._send_batch((call,))
            return
        for (_, receipt), got in zip(batch, receipts, strict=True):
            if not receipt.done():
                receipt.set_result(got)

    async def _enqueued(
        self, requests: list[Request], connection: psycopg.AsyncConnection[Any] | None
    ) -> list[AsyncJob]:
        return await self._do_within(self._enqueue(requests), requests, connection)

    async def _do_within(
        self,
        operation: Operation[T],
        requests: Sequence[Request],
        connection: psycopg.AsyncConnection[Any] | None,
    ) -> T:
        if connection is None:
            return await self._do(operation)
        import psycopg

        from flowq.postgres.connection import checked_connection

        checked_connection(connection, psycopg.AsyncConnection)
        backend = await self._connected()
        missing = backend.store.unknown_lines(_lines(requests))
        if missing:
            await backend.run(lambda: declare((), lines=missing))
        return operation.meaning(await backend.run_within(connection, operation.program, _keyed(requests)))

    async def _do(self, operation: Operation[T]) -> T:
        return operation.meaning(await (await self._connected()).run(operation.program))

    async def _connected(self) -> Any:
        if self._memory is not None and self._backend is None:
            self._backend = AsyncMemoryBackend(self._memory)
        backend = self._backend
        if backend is not None and backend.loop.is_closed():
            backend.server.release()  # of an earlier asyncio.run, which took its connections with it
            backend = self._backend = None
            self._opening = asyncio.Lock()
        if backend is not None and backend.loop is not asyncio.get_running_loop():
            raise FlowqError(
                "queue is open in another event loop that still runs: use one AsyncQueue for each loop"
            )
        if backend is None:
            from flowq.postgres.connection import AsyncBackend

            async with self._opening:
                if self._backend is None:
                    self._backend = await AsyncBackend.open(
                        self.dsn, self.namespace, self.notify, self._lock_timeout_us
                    )
                backend = self._backend
        undeclared = self._undeclared()
        if undeclared is not None:
            undeclared.meaning(await backend.run(undeclared.program))
        return backend


def _lines(requests: Iterable[Request]) -> list[tuple[str, str, int]]:
    """Where these requests' jobs wait: (queue, task, priority)."""
    return sorted({(job.queue, job.task, job.priority) for job, *_ in requests})


def _keyed(requests: Iterable[Request]) -> bool:
    """Whether one of them has a key to lock; keys are found by the hashes that the job carries."""
    return any(job.unique_hash is not None or job.window_hash is not None for job, *_ in requests)
