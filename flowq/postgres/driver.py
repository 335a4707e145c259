"""Drive programs over PostgreSQL: one conversation, two short drivers.

Theory of operation
-------------------
:meth:`PostgresStore._converse` is a generator that runs a program: it yields the statements of a round and is
sent their rows. All that is to decide stands there once: where a transaction begins and ends, and when a
program is run again. :meth:`PostgresStore.run` and :meth:`PostgresStore.arun` only carry statements to a
connection, in one pipeline each (one round trip), and rows or errors back.

A program whose first round is its last and a single statement is sent as it is, in autocommit: one round trip
without BEGIN and COMMIT. Otherwise the first round begins a transaction, READ COMMITTED in so many words: a
statement must see what was committed while the locks of the statement before were waited for. The last round
carries the COMMIT along.

A program is run again, from a fresh generator, when jobs moved between its read and its write (``FQ001``), when
PostgreSQL ended it as the victim of a deadlock, and when a line that was known has gone. Rounds that were
committed before are not sent twice: programs are pure, so the new generator is fed the same replies. Errors of
psycopg become those of :mod:`flowq.errors` in one place, with the original as their cause.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import pq
from psycopg.rows import tuple_row

from flowq.errors import ConfigurationError, DatabaseUnreachable, KeyLockTimeout, SchemaMismatch, StoreError
from flowq.postgres.codec import Codec, Encoded, LineKey, Row, Statement
from flowq.programs.commands import LockKeys, OpenQueue, Program

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

__all__ = [
    "ATTEMPTS",
    "PostgresStore",
    "aconfigure",
    "aconnect",
    "apool",
    "configure",
    "connect",
    "pool",
    "translated",
]

T = TypeVar("T")
Connection = psycopg.Connection[Any]
AsyncConnection = psycopg.AsyncConnection[Any]
Conversation = Generator[list[Statement], list[Sequence[Row]], T]

ATTEMPTS: Final = 20
"""How often a program is run before its conflicts become an error."""

_SETTINGS: Final = """
    select set_config('jit', 'off', false), set_config('plan_cache_mode', 'force_generic_plan', false),
        set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false)
"""
_BEGIN: Final = Statement(b"BEGIN ISOLATION LEVEL READ COMMITTED", returns=False)
_COMMIT: Final = Statement(b"COMMIT", returns=False)
_SAVE: Final = Statement(b"SAVEPOINT flowq", returns=False)
_RELEASE: Final = Statement(b"RELEASE SAVEPOINT flowq", returns=False)
_UNDO: Final = Statement(b"ROLLBACK TO SAVEPOINT flowq", returns=False)

_MOVED: Final = "FQ001"
_REPEATED: Final = frozenset({_MOVED, "40001", "40P01"})
"""SQLSTATEs after which the program is run again: jobs moved, serialization failure, deadlock."""
_NO_SCHEMA: Final = frozenset({"42P01", "3F000", "42883", "42703"})
"""SQLSTATEs of an object that is missing: table, schema, function, column."""
_GONE_CLASSES: Final = ("08", "57P")
_TUPLES: Final = pq.ExecStatus.TUPLES_OK
_IDLE: Final = pq.TransactionStatus.IDLE


class PostgresStore:
    """A store in one namespace of a PostgreSQL database.

    Use it to drive programs; it holds no connection, and is safe to share between threads and tasks.

    Parameters
    ----------
    namespace
        Jobs, keys, gates and workers of two namespaces never meet.
    notify
        Whether writes that make jobs due wake sleeping workers; off, workers poll.
    lock_timeout_us
        Longest wait for a key that another open transaction holds; None: as the server is set.
    prepare
        Whether statements are prepared on the server; off for poolers that can't.

    Examples
    --------
    >>> from flowq.programs import Request, enqueue
    >>> from flowq.programs.commands import NewJob
    >>> store = PostgresStore()
    >>> with connect("postgresql://localhost/app") as conn:  # doctest: +SKIP
    ...     [receipt] = store.run(conn, lambda: enqueue([Request(NewJob("default", "greet"))]))
    """

    def __init__(
        self,
        namespace: str = "default",
        *,
        notify: bool = True,
        lock_timeout_us: int | None = None,
        prepare: bool = True,
    ) -> None:
        self.namespace = namespace
        self.prepare = prepare
        self._codec = Codec(namespace, notify, lock_timeout_us)

    def run(
        self,
        conn: Connection,
        factory: Callable[[], Program[T]],
        *,
        now_us: int | None = None,
        own_transaction: bool = True,
    ) -> T:
        """Run a program to its end and return its result.

        Parameters
        ----------
        conn
            A connection in autocommit mode and outside of a transaction; or, with ``own_transaction=False``,
            the caller's own, in whatever transaction: the program then writes in it and never commits.
        factory
            Makes the program; called again after a conflict.
        now_us
            The instant to see as now; None: the server's clock.

        Raises
        ------
        DatabaseUnreachable, SchemaMismatch, KeyLockTimeout, StoreError
        """
        own = _owned(conn, own_transaction)
        talk = self._converse(factory, now_us, own)
        try:
            statements = next(talk)
            while True:
                try:
                    results = self._send(conn, statements)
                except psycopg.Error as error:
                    if own:
                        _roll_back(conn)
                    statements = talk.throw(error)
                else:
                    statements = talk.send(results)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except psycopg.Error as error:
            raise translated(error) from error
        except BaseException:
            if own:
                _roll_back(conn)
            raise

    async def arun(
        self,
        conn: AsyncConnection,
        factory: Callable[[], Program[T]],
        *,
        now_us: int | None = None,
        own_transaction: bool = True,
    ) -> T:
        """Run a program as :meth:`run` does, awaited.

        A call that is cancelled is like one whose connection is lost: if its last round is on the way, it may
        have been committed.
        """
        own = _owned(conn, own_transaction)
        talk = self._converse(factory, now_us, own)
        try:
            statements = next(talk)
            while True:
                try:
                    results = await self._asend(conn, statements)
                except psycopg.Error as error:
                    if own:
                        await _aroll_back(conn)
                    statements = talk.throw(error)
                else:
                    statements = talk.send(results)
        except StopIteration as stop:
            result: T = stop.value
            return result
        except psycopg.Error as error:
            raise translated(error) from error
        except BaseException:
            if own:
                await _aroll_back(conn)
            raise

    def unknown_lines(self, lines: Collection[LineKey]) -> list[LineKey]:
        """Return those of these lines that an enqueue would have to create."""
        return [line for line in lines if line not in self._codec.known]

    def channel_names(self, conn: Connection, queues: Sequence[str]) -> dict[str, str]:
        """Return the channel of each queue that exists: what a worker listens on."""
        return dict(self._send(conn, self._channels(queues))[0])

    async def achannel_names(self, conn: AsyncConnection, queues: Sequence[str]) -> dict[str, str]:
        """Return the channel of each queue that exists, awaited."""
        return dict((await self._asend(conn, self._channels(queues)))[0])

    def _channels(self, queues: Sequence[str]) -> list[Statement]:
        return [self._codec.channel_names(queues)]

    def _send(self, conn: Connection, statements: Sequence[Statement]) -> list[Sequence[Row]]:
        """Send statements in one round trip; return the rows of each."""
        cursors = [psycopg.RawCursor(conn, row_factory=tuple_row) for _ in statements]
        if len(statements) == 1:
            [cursor], [(sql, params, returns)] = cursors, statements
            cursor.execute(sql, params, prepare=self.prepare)
            return [cursor.fetchall() if returns else ()]
        sendings = list(zip(cursors, statements, strict=True))
        failure: psycopg.Error | None = None
        try:
            with conn.pipeline():
                try:
                    for cursor, (sql, params, _) in sendings:
                        cursor.execute(sql, params, prepare=self.prepare)
                except psycopg.Error as error:
                    failure = error  # raised below: the pipeline would log what follows from it
        except psycopg.Error as error:
            failure = failure or error
        if failure is not None:
            raise failure
        return [cursor.fetchall() if each.returns else () for cursor, each in sendings]

    async def _asend(self, conn: AsyncConnection, statements: Sequence[Statement]) -> list[Sequence[Row]]:
        """Send statements as :meth:`_send` does, awaited."""
        cursors = [psycopg.AsyncRawCursor(conn, row_factory=tuple_row) for _ in statements]
        if len(statements) == 1:
            [cursor], [(sql, params, returns)] = cursors, statements
            await cursor.execute(sql, params, prepare=self.prepare)
            return [await cursor.fetchall() if returns else ()]
        sendings = list(zip(cursors, statements, strict=True))
        failure: psycopg.Error | None = None
        try:
            async with conn.pipeline():
                try:
                    for cursor, (sql, params, _) in sendings:
                        await cursor.execute(sql, params, prepare=self.prepare)
                except psycopg.Error as error:
                    failure = error
        except psycopg.Error as error:
            failure = failure or error
        if failure is not None:
            raise failure
        return [await cursor.fetchall() if each.returns else () for cursor, each in sendings]

    def _converse(self, factory: Callable[[], Program[T]], now_us: int | None, own: bool) -> Conversation[T]:
        """Run a program, and again after a conflict; yields statements, is sent rows or thrown errors."""
        committed: list[list[Any]] = []
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return (yield from self._attempt(factory(), committed, now_us, own))
            except psycopg.Error as error:
                if not self._repeats(error, own):
                    raise
                if attempt == ATTEMPTS:
                    raise StoreError(
                        f"the program met a conflict in each of {ATTEMPTS} attempts: {_first_line(error)}"
                    ) from error
        raise AssertionError("unreachable")

    def _attempt(
        self, program: Program[T], committed: list[list[Any]], now_us: int | None, own: bool
    ) -> Conversation[T]:
        """Run a program from the first round whose replies are not in ``committed``, which grows."""
        begun = saved = False
        ensured: set[LineKey] = set()
        open_rounds: list[list[Any]] = []
        try:
            commands, last = next(program)
            for answers in committed:
                commands, last = program.send(answers)
            while True:
                encoded = self._codec.encode(commands, now_us, ensured, own)
                if own:
                    lead, tail = _transaction(begun, last, encoded)
                    begun = not last
                else:
                    lead = [_SAVE] if not saved and self._may_conflict(commands) else []
                    saved = saved or bool(lead)
                    tail = [_RELEASE] if saved and last else []
                statements = [*lead, *encoded.statements, *tail]
                try:
                    results = (yield statements) if statements else []
                except psycopg.Error as error:
                    if saved:
                        yield [_UNDO]  # alone: after a rollback psycopg deallocates what is prepared
                        yield [_RELEASE]
                    if isinstance(error, psycopg.errors.LockNotAvailable) and _locks_keys(commands):
                        raise KeyLockTimeout(
                            f"another open transaction holds a key of this call past lock_timeout:"
                            f" {_first_line(error)}; try again, or commit that one sooner"
                        ) from error
                    raise
                answers = encoded.decode(results[len(lead) : len(statements) - len(tail)])
                open_rounds.append(answers)
                if last:
                    saved = False
                    committed += open_rounds
                    open_rounds = []
                    if own:
                        self._codec.known |= ensured
                commands, last = program.send(answers)
        except StopIteration as stop:
            if begun or saved:
                raise RuntimeError(
                    "the program ended inside a transaction: its last round must be marked last"
                ) from None
            result: T = stop.value
            return result

    def _may_conflict(self, commands: Sequence[Any]) -> bool:
        """Whether a caller's transaction needs a savepoint, to survive a conflict or the wait for a key."""
        return any(type(c) is OpenQueue or type(c) is LockKeys for c in commands)

    def _repeats(self, error: psycopg.Error, own: bool) -> bool:
        """Whether the program is to be run again after this error."""
        if error.sqlstate == _MOVED:
            return True
        if own and isinstance(error, psycopg.errors.NotNullViolation) and error.diag.table_name == "job":
            # A line that was known is gone: the database was restored or emptied.
            known = bool(self._codec.known)
            self._codec.known.clear()
            return known
        return own and error.sqlstate in _REPEATED


def configure(conn: Connection, *, prepare: bool = True) -> None:
    """Set what keeps the plans of flowq's prepared statements stable on a connection of its own.

    A prepared statement is planned once, maybe over tables that are still empty: a sequential scan would be
    kept until the next ANALYZE. So generic plans are asked for, and plans that read whole tables put off; JIT
    never pays here. Statements that are not prepared are planned each time over what is there, and their
    connections, which a pooler may share with others, are left alone.
    """
    if prepare:
        conn.execute(_SETTINGS, prepare=False)


async def aconfigure(conn: AsyncConnection, *, prepare: bool = True) -> None:
    """Set a connection up as :func:`configure` does, awaited."""
    if prepare:
        await conn.execute(_SETTINGS, prepare=False)


def connect(dsn: str, *, prepare: bool = True) -> Connection:
    """Open a connection of flowq's own: autocommit, configured.

    Raises
    ------
    DatabaseUnreachable
        No server answers there.
    """
    try:
        conn = psycopg.connect(dsn, autocommit=True)
        configure(conn, prepare=prepare)
    except psycopg.Error as error:
        raise translated(error) from error
    return conn


async def aconnect(dsn: str, *, prepare: bool = True) -> AsyncConnection:
    """Open a connection as :func:`connect` does, awaited."""
    try:
        conn = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
        await aconfigure(conn, prepare=prepare)
    except psycopg.Error as error:
        raise translated(error) from error
    return conn


def pool(dsn: str, *, max_size: int = 4, prepare: bool = True, **options: Any) -> ConnectionPool[Connection]:
    """Return a pool, not yet open, of connections as :func:`connect` makes them.

    ``options`` go to psycopg_pool.
    """
    from psycopg_pool import ConnectionPool

    def prepared(conn: Connection) -> None:
        configure(conn, prepare=prepare)

    return ConnectionPool(
        dsn,
        min_size=0,
        max_size=max_size,
        open=False,
        kwargs={"autocommit": True},
        configure=prepared,
        **options,
    )


def apool(
    dsn: str, *, max_size: int = 4, prepare: bool = True, **options: Any
) -> AsyncConnectionPool[AsyncConnection]:
    """Return a pool, not yet open, of connections as :func:`aconnect` makes them.

    ``options`` go to psycopg_pool.
    """
    from psycopg_pool import AsyncConnectionPool

    async def prepared(conn: AsyncConnection) -> None:
        await aconfigure(conn, prepare=prepare)

    return AsyncConnectionPool(
        dsn,
        min_size=0,
        max_size=max_size,
        open=False,
        kwargs={"autocommit": True},
        configure=prepared,
        **options,
    )


def _transaction(begun: bool, last: bool, encoded: Encoded) -> tuple[list[Statement], list[Statement]]:
    """What stands before and after the statements of a round in a transaction of our own."""
    if last and not begun and len(encoded.statements) <= 1:
        return [], []
    return [] if begun else [_BEGIN], [_COMMIT] if last else []


def _locks_keys(commands: Sequence[Any]) -> bool:
    return any(type(command) is LockKeys for command in commands)


def _owned(conn: Connection | AsyncConnection, own: bool) -> bool:
    """Whether the transaction is the driver's; so it is, too, where the caller has none to write in."""
    outside = conn.autocommit and conn.pgconn.transaction_status == _IDLE
    if own and not outside and not conn.closed:
        raise ConfigurationError(
            "conn must be in autocommit mode and outside of a transaction;"
            " pass own_transaction=False to write in the caller's transaction"
        )
    return own or outside


def _roll_back(conn: Connection) -> None:
    """Leave the transaction; a connection that can't is closed."""
    try:
        conn.rollback()
    except psycopg.Error:
        conn.close()


async def _aroll_back(conn: AsyncConnection) -> None:
    try:
        await conn.rollback()
    except psycopg.Error:
        await conn.close()


def _first_line(error: psycopg.Error) -> str:
    text = error.diag.message_primary or str(error)
    return text.strip().partition("\n")[0]


def translated(error: psycopg.Error) -> StoreError:
    """The error of flowq that an error of psycopg comes to; by class and SQLSTATE, never by text."""
    state = error.sqlstate
    line = _first_line(error)
    if state is None and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        return DatabaseUnreachable(
            f"no connection to the database: {line}; check the DSN and the server, then try again"
        )
    if state is not None and state.startswith(_GONE_CLASSES):
        return DatabaseUnreachable(f"the database ended the connection: {line}; try again")
    if state in _NO_SCHEMA:
        return SchemaMismatch(
            f"the schema flowq is missing or of another version: {line}; run 'flowq migrate'"
        )
    if state == "23505":
        return StoreError(
            f"a key is held by a job that this transaction can't see: {line}; use READ COMMITTED, or try again"
        )
    return StoreError(f"PostgreSQL refused: {line} ({state or type(error).__name__})")
