"""The job that a handler runs for, and its completion in the handler's own transaction (rule X6).

A handler that writes to the same database can make its writes and its job's success one commit: either both are there
or neither. Delivery stays at least once, but what the handler wrote is then there exactly once::

    @queue.task()
    def charge(order: int) -> None:
        with psycopg.connect(dsn) as conn:  # commits at its end
            conn.execute("update orders set charged = true where id = %s", (order,))
            flowq.current_job().complete(conn)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, overload

from flowq.errors import ConfigurationError, FlowqError, LeaseLost
from flowq.payload import json_text
from flowq.programs import Succeeded, settle
from flowq.programs.commands import Program, Started

if TYPE_CHECKING:
    import psycopg

    from flowq.postgres.driver import PostgresStore

__all__ = ["CURRENT", "RunningJob", "current_job"]


class RunningJob:
    """The attempt that the calling handler is.

    Attributes
    ----------
    id, task, queue
        Of the job.
    attempt
        The number of this start, from 1: the fencing token of its lease.
    failures
        Failed attempts before this one.
    completed
        Whether :meth:`complete` was called; the caller's commit makes it true for others.
    """

    __slots__ = ("_store", "attempt", "completed", "failures", "id", "queue", "task")

    def __init__(self, job: Started, queue: str, store: PostgresStore | None = None) -> None:
        self.id = job.id
        self.task = job.task
        self.queue = queue
        self.attempt = job.token
        self.failures = job.failures
        self.completed = False
        self._store = store

    def __repr__(self) -> str:
        return f"<RunningJob {self.id} of task {self.task!r}, attempt {self.attempt}>"

    @overload
    def complete(self, connection: psycopg.Connection[Any], result: Any = None) -> None: ...
    @overload
    def complete(self, connection: psycopg.AsyncConnection[Any], result: Any = None) -> Awaitable[None]: ...
    def complete(self, connection: Any, result: Any = None) -> Awaitable[None] | None:
        """End the job successfully in the handler's own transaction; await it on an ``AsyncConnection``.

        It is never committed here: commit before the handler returns. From then on the job has ended, whatever the
        handler does; what it returns is dropped, since ``result`` is the job's. If the transaction is rolled back, the
        job runs on as if this had not been called.

        Parameters
        ----------
        connection
            A psycopg connection to the queue's database, in a transaction or not in autocommit mode.
        result
            The job's result: anything that JSON carries.

        Raises
        ------
        LeaseLost
            The lease of this attempt is gone, another may run: roll back.
        ConfigurationError
            The connection would commit at once.
        """
        import psycopg

        from flowq.postgres.connection import checked_connection, commits_at_once

        if self._store is None:
            raise ConfigurationError(
                "complete() needs a worker's job: one of memory:// has no transaction to be part of"
            )
        awaited = isinstance(connection, psycopg.AsyncConnection)
        checked_connection(connection, psycopg.AsyncConnection if awaited else psycopg.Connection)
        if commits_at_once(connection):
            raise ConfigurationError(
                "connection is in autocommit mode and outside of a transaction, so the success would be committed apart"
                " from the handler's writes: call complete() inside of connection.transaction()"
            )
        text = None if result is None else json_text(result, f"result of task {self.task!r}")

        def program() -> Program[frozenset[int]]:
            return settle((Succeeded(self.id, self.attempt, text),))

        if awaited:
            return self._acomplete(self._store, connection, program)
        self._judge(self._store.run(connection, program, own_transaction=False))
        return None

    async def _acomplete(
        self,
        store: PostgresStore,
        connection: psycopg.AsyncConnection[Any],
        program: Callable[[], Program[frozenset[int]]],
    ) -> None:
        self._judge(await store.arun(connection, program, own_transaction=False))

    def _judge(self, held: frozenset[int]) -> None:
        if self.id not in held:
            raise LeaseLost(
                f"attempt {self.attempt} of job {self.id} no longer holds its lease, or has completed: roll back"
            )
        self.completed = True


CURRENT: Final[ContextVar[RunningJob]] = ContextVar("flowq.current_job")


def current_job() -> RunningJob:
    """Return the job that the calling handler runs for, in a thread of a worker or in a coroutine.

    Raises
    ------
    FlowqError
        No handler is running here.

    Examples
    --------
    >>> current_job()
    Traceback (most recent call last):
    flowq.errors.FlowqError: no job runs here: call current_job() inside of a handler that a worker runs
    """
    try:
        return CURRENT.get()
    except LookupError:
        raise FlowqError(
            "no job runs here: call current_job() inside of a handler that a worker runs"
        ) from None
