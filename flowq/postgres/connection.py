"""Connections: what a queue and a worker hold of a server.

Theory of operation
-------------------
A queue shares a small pool (:class:`Backend`, :class:`AsyncBackend`); a worker has connections of its own
(:class:`Link`, :class:`AsyncLink`), one for each thing that must not wait for another: claims, upkeep, heartbeats.

All of them survive a server that restarts: a connection's socket is looked at before each use (a server says goodbye,
so a dead connection is readable), and a dead one is replaced. A call that was under way when its connection was lost
raises :class:`~flowq.errors.DatabaseUnreachable` and is not repeated here, because it may have been committed: whether
to try again is the caller's to know.

An embedded server is migrated at once, since nobody else could do it; a given one never is: `flowq migrate` does it.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
from collections.abc import Callable, Collection
from typing import Any, Final, LiteralString, TypeVar

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from flowq.errors import ConfigurationError, DatabaseUnreachable
from flowq.postgres.driver import PostgresStore, aconfigure, apool, connect, pool, translated
from flowq.postgres.migrate import check, migrate
from flowq.postgres.server import Server, resolve_server
from flowq.programs.commands import Program, Started

__all__ = [
    "AsyncBackend",
    "AsyncLink",
    "Backend",
    "Link",
    "aopen",
    "checked_connection",
    "commits_at_once",
    "patient",
]

T = TypeVar("T")

_POOL_SIZE: Final = 8
_POOL_OPTIONS: Final[dict[str, Any]] = {"max_size": _POOL_SIZE, "timeout": 10.0, "reconnect_timeout": 5.0}
"""Seconds to wait for a connection, and to try for one before the next caller tries anew."""
_CONNECT_S: Final = 10
_PATIENCE: Final = {
    "connect_timeout": _CONNECT_S,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 40_000,
}
"""What libpq is told where the DSN says nothing: a peer that vanished is noticed within a minute, not in hours."""
_HELD: Final[LiteralString] = """
    select j.id, l.task, j.payload::text, j.token, j.failures, j.crashes, j.max_retries, j.eligible_us, j.priority,
        q.name
    from flowq.job j
    join flowq.line l on l.id = j.line_id
    join flowq.queue q on q.id = j.queue_id
    where j.worker_id = $1::bigint
    order by j.id
"""


_ISOLATION: Final[LiteralString] = "select current_setting('transaction_isolation')"


class Backend:
    """A server and a pool of connections to it, for calls.

    Parameters
    ----------
    dsn
        As for :class:`flowq.Queue`.
    namespace
        Of all that is written.
    notify
        Whether enqueues wake sleeping workers.
    lock_timeout_us
        Longest wait for a key that another open transaction holds.

    Raises
    ------
    DatabaseUnreachable
        No server answers at a given DSN.
    SchemaMismatch
        Its schema is missing or of another version: run ``flowq migrate``.
    ServerUnavailable
        There is no DSN, and no server could be started.
    """

    def __init__(
        self, dsn: str | None, namespace: str, notify: bool = True, lock_timeout_us: int | None = None
    ) -> None:
        self.server = _ready(dsn)
        self.store = PostgresStore(namespace, notify=notify, lock_timeout_us=lock_timeout_us)
        self._pool = pool(patient(self.server.dsn), **_POOL_OPTIONS)
        self._pool.open()

    def run(self, factory: Callable[[], Program[T]]) -> T:
        """Run a program on a connection of the pool; return its result."""
        conn = self._lend()
        try:
            return self.store.run(conn, factory)
        finally:
            self._pool.putconn(conn)

    def run_within(
        self, conn: psycopg.Connection[Any], factory: Callable[[], Program[T]], keyed: bool = False
    ) -> T:
        """Run a program in the caller's transaction, and don't commit; outside of one, in one of its own.

        ``keyed`` programs refuse an isolation level above READ COMMITTED: after the wait for a key they would read
        by a snapshot from before it, and join a job that has ended (rules C2, C7).
        """
        if keyed and not commits_at_once(conn):
            try:
                with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
                    _check_isolation(cursor.execute(_ISOLATION).fetchone())
            except psycopg.Error as error:
                raise translated(error) from error
        return self.store.run(conn, factory, own_transaction=False)

    def _lend(self) -> psycopg.Connection[Any]:
        """Take a connection; the pool replaces dead ones, without the pauses that its own check makes."""
        try:
            while not _alive(conn := self._pool.getconn()):
                self._pool.putconn(conn)
        except psycopg.Error as error:
            raise translated(error) from error
        return conn

    def close(self) -> None:
        """Close the connections, and let go of the server."""
        self._pool.close()
        self.server.release()


class AsyncBackend:
    """As :class:`Backend`, awaited, and made by :meth:`open`. It lives in one event loop."""

    def __init__(
        self, server: Server, namespace: str, notify: bool, lock_timeout_us: int | None = None
    ) -> None:
        self.server = server
        self.store = PostgresStore(namespace, notify=notify, lock_timeout_us=lock_timeout_us)
        self.loop = asyncio.get_running_loop()
        self._pool = apool(patient(server.dsn), **_POOL_OPTIONS)

    @classmethod
    async def open(
        cls, dsn: str | None, namespace: str, notify: bool = True, lock_timeout_us: int | None = None
    ) -> AsyncBackend:
        """Find the server, check its schema, and open the pool. Raises as :class:`Backend`."""
        backend = cls(await asyncio.to_thread(_ready, dsn), namespace, notify, lock_timeout_us)
        await backend._pool.open()
        return backend

    async def run(self, factory: Callable[[], Program[T]]) -> T:
        """Run a program on a connection of the pool; return its result."""
        conn = await self._lend()
        try:
            return await self.store.arun(conn, factory)
        finally:
            await self._pool.putconn(conn)

    async def run_within(
        self, conn: psycopg.AsyncConnection[Any], factory: Callable[[], Program[T]], keyed: bool = False
    ) -> T:
        """Run a program in the caller's transaction. See :meth:`Backend.run_within`."""
        if keyed and not commits_at_once(conn):
            try:
                async with psycopg.AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
                    _check_isolation(await (await cursor.execute(_ISOLATION)).fetchone())
            except psycopg.Error as error:
                raise translated(error) from error
        return await self.store.arun(conn, factory, own_transaction=False)

    async def _lend(self) -> psycopg.AsyncConnection[Any]:
        try:
            while not await _aalive(conn := await self._pool.getconn()):
                await self._pool.putconn(conn)
        except psycopg.Error as error:
            raise translated(error) from error
        return conn

    async def close(self) -> None:
        """Close the connections, and let go of the server."""
        await self._pool.close()
        self.server.release()


class Link:
    """One connection, opened when it is needed and again after it was lost; for one thread."""

    def __init__(self, dsn: str, store: PostgresStore) -> None:
        self._dsn = patient(dsn)
        self._store = store
        self._conn: psycopg.Connection[Any] | None = None

    def run(self, factory: Callable[[], Program[T]]) -> T:
        """Run a program; return its result.

        Raises
        ------
        DatabaseUnreachable
            No connection, or it was lost on the way: the program may have been committed.
        """
        if self._conn is None or not _alive(self._conn):
            self._conn = connect(self._dsn)
        return self._store.run(self._conn, factory)

    def close(self) -> None:
        """Close the connection."""
        if self._conn is not None:
            self._conn.close()


class AsyncLink:
    """As :class:`Link`, awaited; tasks that share it follow each other."""

    def __init__(self, dsn: str, store: PostgresStore) -> None:
        self._dsn = dsn
        self._store = store
        self._conn: psycopg.AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()

    async def run(self, factory: Callable[[], Program[T]]) -> T:
        """Run a program; return its result. Raises as :meth:`Link.run`."""
        async with self._lock:
            return await self._store.arun(await self._connected(), factory)

    async def channels(self, queues: Collection[str]) -> dict[str, str]:
        """Return the channel on which each queue is notified."""
        async with self._lock:
            conn = await self._connected()
            try:
                return await self._store.achannel_names(conn, tuple(queues))
            except psycopg.Error as error:
                raise translated(error) from error

    async def notify(self, channel: str) -> None:
        """Notify a channel."""
        await self._rows("select pg_notify($1::text, '')", channel)

    async def held(self, worker: int) -> list[tuple[Started, str]]:
        """Return the jobs that the store believes this worker runs, each with its queue.

        Use it after a connection was lost: a claim may have been committed whose reply never came.
        """
        return [(Started._make(row[:-1]), row[-1]) for row in await self._rows(_HELD, worker)]

    async def close(self) -> None:
        """Close the connection."""
        if self._conn is not None:
            await self._conn.close()

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._conn is None or not await _aalive(self._conn):
            self._conn = await aopen(self._dsn)
        return self._conn

    async def _rows(self, statement: LiteralString, *params: Any) -> list[tuple[Any, ...]]:
        async with self._lock:
            conn = await self._connected()
            try:
                async with psycopg.AsyncRawCursor(conn, row_factory=tuple_row) as cursor:
                    return await (await cursor.execute(statement, params)).fetchall()
            except psycopg.Error as error:
                raise translated(error) from error


async def aopen(dsn: str) -> psycopg.AsyncConnection[Any]:
    """Open a connection of flowq's own in bounded time; one that is cancelled on the way leaves nothing open."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            conn = await psycopg.AsyncConnection.connect(patient(dsn), autocommit=True)
            try:
                await aconfigure(conn)
            except BaseException:
                await conn.close()
                raise
    except TimeoutError:
        raise DatabaseUnreachable(f"no connection to the database within {_CONNECT_S} s") from None
    except psycopg.Error as error:
        raise translated(error) from error
    return conn


def checked_connection(conn: Any, kind: type[psycopg.Connection[Any] | psycopg.AsyncConnection[Any]]) -> None:
    """Refuse what isn't a connection of psycopg, of this kind, and say how to get at it."""
    if not isinstance(conn, kind):
        raise TypeError(
            f"connection must be a psycopg.{kind.__name__}: {conn!r}; under SQLAlchemy it is"
            " session.connection().connection.driver_connection, under Django connection.connection"
        )


def commits_at_once(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether what is written here is committed at once: there is no transaction, and none would begin by itself."""
    return conn.autocommit and conn.pgconn.transaction_status == pq.TransactionStatus.IDLE


def _check_isolation(row: tuple[Any, ...] | None) -> None:
    if row is not None and row[0] not in ("read committed", "read uncommitted"):
        raise ConfigurationError(
            f"a call with a key needs a transaction at READ COMMITTED, this one is {row[0]}: it would judge by a"
            " snapshot from before the wait for the key; enqueue in a transaction of that level, without a key,"
            " or without connection="
        )


def patient(dsn: str) -> str:
    """Return the DSN with time-outs where it has none of its own."""
    given = conninfo_to_dict(dsn)
    return make_conninfo(dsn, **{name: value for name, value in _PATIENCE.items() if name not in given})


def _ready(dsn: str | None) -> Server:
    """Find the server and see to its schema."""
    server = resolve_server(dsn)
    try:
        with connect(patient(server.dsn)) as conn:
            if server.embedded:
                migrate(conn)
            else:
                check(conn)
    except BaseException:
        server.release()
        raise
    return server


def _said_something(conn: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    """Whether an idle connection is readable: the server has ended it, or has a notice."""
    poller = select.poll()
    poller.register(conn.fileno(), select.POLLIN)
    return bool(poller.poll(0))


def _alive(conn: psycopg.Connection[Any]) -> bool:
    """Whether an idle connection is open, as far as can be told without a round trip; one that isn't is closed."""
    if not conn.closed and _said_something(conn):
        with contextlib.suppress(psycopg.Error):
            conn.execute("")
    return not conn.closed


async def _aalive(conn: psycopg.AsyncConnection[Any]) -> bool:
    if not conn.closed and _said_something(conn):
        with contextlib.suppress(psycopg.Error):
            await conn.execute("")
    return not conn.closed
