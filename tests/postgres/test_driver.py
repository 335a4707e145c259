"""The drivers: one conversation, awaited or not; whose transaction it is; and errors in flowq's own words."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from psycopg.rows import dict_row

from flowq.errors import ConfigurationError, DatabaseUnreachable, SchemaMismatch, StoreError
from flowq.job import Outcome
from flowq.postgres import PostgresStore, aconnect, apool, configure, connect, pool
from flowq.postgres.codec import Statement
from flowq.programs import Request, enqueue, key_hash
from flowq.programs.commands import Insert, LockKeys, NewJob, Program, ReadJobs, Register, Round, Take
from postgres.support import rounds, wait_until_blocked
from scenario import Play, Scenario, scenarios

Conn = psycopg.Connection[Any]
IDLE = psycopg.pq.TransactionStatus.IDLE
ONE = rounds(Insert([NewJob("q", "t")]))


def count(conn: Conn, store: PostgresStore) -> int:
    row = conn.execute("select count(*) from flowq.job where namespace = %s", (store.namespace,)).fetchone()
    assert row is not None
    return int(row[0] if isinstance(row, tuple) else row["count"])


# --- one conversation ----------------------------------------------------------------------------------------


def test_sync_and_async_give_the_same_results(dsn: str, conn: Conn, namespace: str) -> None:
    names = iter(range(1 << 30))
    with asyncio.Runner() as runner:
        aconn = runner.run(aconnect(dsn))

        @settings(max_examples=20)
        @given(scenarios(max_steps=12))
        def agree(scenario: Scenario) -> None:
            name = f"{namespace}.{next(names)}"
            sync, awaited = PostgresStore(name + "s"), PostgresStore(name + "a")
            plays = (
                Play(lambda program, now_us: sync.run(conn, program, now_us=now_us), name),
                Play(lambda program, now_us: runner.run(awaited.arun(aconn, program, now_us=now_us)), name),
            )
            logs = [play.run(scenario) for play in plays]
            assert logs[0] == logs[1]

        agree()
        runner.run(aconn.close())


def test_a_lone_statement_is_one_round_trip(
    store: PostgresStore, conn: Conn, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[list[bytes]] = []
    send = store._send

    def noted(conn: Conn, batch: list[Statement]) -> Any:
        sent.append([each.sql for each in batch])
        return send(conn, batch)

    monkeypatch.setattr(store, "_send", noted)
    store.run(conn, ONE)
    store.run(conn, ONE)
    store.run(conn, lambda: enqueue([Request(NewJob("q", "t", unique_hash=b"k" * 16))]))
    first, second, lock, write = sent
    assert [first[0], first[-1]] == [
        b"BEGIN ISOLATION LEVEL READ COMMITTED",
        b"COMMIT",
    ]  # it creates the line
    assert len(second) == 1
    assert lock[0] == b"BEGIN ISOLATION LEVEL READ COMMITTED"
    assert write[-1] == b"COMMIT"


def test_rounds_after_a_last_one_are_a_new_transaction(store: PostgresStore, conn: Conn) -> None:
    def program() -> Program[int]:
        yield Round((Insert([NewJob("q", "t")]),), True)
        assert conn.info.transaction_status == IDLE
        yield Round((Insert([NewJob("q", "t")]),), False)
        assert conn.info.transaction_status != IDLE
        yield Round((), False)
        yield Round((), True)
        assert conn.info.transaction_status == IDLE
        yield Round((), True)
        return 7

    assert store.run(conn, program) == 7
    assert count(conn, store) == 2


def test_a_transaction_is_read_committed_whatever_the_default(dsn: str, store: PostgresStore) -> None:
    levels = []

    def program() -> Program[None]:
        yield Round((Insert([NewJob("q", "t")]),), False)
        levels.append(conn.execute("show transaction_isolation").fetchone())
        yield Round((), True)

    with psycopg.connect(
        dsn, autocommit=True, options="-c default_transaction_isolation=serializable"
    ) as conn:
        configure(conn)
        store.run(conn, program)
        store.run(conn, ONE)
    assert levels == [("read committed",)]


@pytest.mark.parametrize("prepare", [True, False])
def test_statements_are_prepared_only_if_asked(dsn: str, namespace: str, prepare: bool) -> None:
    store = PostgresStore(namespace, prepare=prepare)
    with connect(dsn, prepare=prepare) as conn:
        for _ in range(3):
            store.run(conn, ONE)
        prepared = "select count(*) from pg_prepared_statements where statement like %s"
        row = conn.execute(prepared, ("insert into flowq.job%",), prepare=False).fetchone()
        assert row == (1 if prepare else 0,)
        mode = conn.execute("show plan_cache_mode").fetchone()
        assert mode == ("force_generic_plan" if prepare else "auto",)


def test_the_clock_is_the_servers_unless_one_is_given(store: PostgresStore, conn: Conn) -> None:
    [held] = store.run(conn, rounds(LockKeys((b"k" * 16,), ())))
    now_us = conn.execute("select (extract(epoch from clock_timestamp()) * 1000000)::bigint").fetchall()[0][0]
    assert 0 <= now_us - held.now_us < 60_000_000
    assert store.run(conn, rounds(LockKeys((b"k" * 16,), ())), now_us=-5)[0].now_us == -5


# --- whose transaction ---------------------------------------------------------------------------------------


def test_the_callers_transaction_is_never_committed(store: PostgresStore, conn: Conn) -> None:
    with conn.transaction(force_rollback=True):
        store.run(conn, ONE, own_transaction=False)
        assert count(conn, store) == 1
    assert count(conn, store) == 0


def test_a_callers_connection_without_autocommit(dsn: str, conn: Conn, store: PostgresStore) -> None:
    keyed = [Request(NewJob("q", "t", unique_hash=key_hash("unique", store.namespace, "t", "", "k")))]
    with psycopg.connect(dsn, row_factory=dict_row) as caller:
        for outcome in (Outcome.ACCEPTED, Outcome.COALESCED):
            receipts = store.run(caller, lambda: enqueue(keyed), own_transaction=False)
            assert [receipt.outcome for receipt in receipts] == [outcome]
        assert count(conn, store) == 0
        caller.commit()
    assert count(conn, store) == 1


def test_a_caller_without_a_transaction_gets_one(store: PostgresStore, conn: Conn) -> None:
    """In autocommit and outside of a transaction, locks would be gone before they are used."""
    keyed = [Request(NewJob("q", "t", unique_hash=b"k" * 16))]
    [receipt] = store.run(conn, lambda: enqueue(keyed), own_transaction=False)
    assert conn.info.transaction_status == IDLE
    assert store.run(conn, lambda: enqueue(keyed))[0].id == receipt.id


@pytest.mark.parametrize("inside", [True, False])
def test_a_transaction_of_the_callers_must_be_named(dsn: str, store: PostgresStore, inside: bool) -> None:
    refused = pytest.raises(ConfigurationError, match="own_transaction=False")
    with psycopg.connect(dsn, autocommit=inside) as conn, conn.transaction(), refused:
        store.run(conn, ONE)


def test_a_program_that_raises_leaves_nothing(store: PostgresStore, conn: Conn) -> None:
    def program() -> Program[None]:
        yield Round((Insert([NewJob("q", "t")]),), False)
        raise LookupError("as the program wants it")

    with pytest.raises(LookupError):
        store.run(conn, program)
    assert conn.info.transaction_status == IDLE
    assert count(conn, store) == 0


def test_a_program_must_end_its_transaction(store: PostgresStore, conn: Conn) -> None:
    with pytest.raises(RuntimeError, match="marked last"):
        store.run(conn, rounds(Insert([NewJob("q", "t")]), last=False))
    assert count(conn, store) == 0


def test_a_task_cancelled_while_it_waits_leaves_nothing(
    dsn: str, conn: Conn, open_connection: Callable[[], Conn], store: PostgresStore
) -> None:
    watcher = open_connection()

    def program() -> Program[None]:
        yield Round((Insert([NewJob("q", "t")]),), False)
        yield Round((LockKeys((b"k" * 16,), ()),), True)

    async def main() -> None:
        aconn = await aconnect(dsn)
        with conn.transaction():
            store.run(conn, rounds(LockKeys((b"k" * 16,), ())), own_transaction=False)
            task = asyncio.create_task(store.arun(aconn, program))
            await asyncio.to_thread(wait_until_blocked, watcher, aconn)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert aconn.closed or aconn.info.transaction_status == IDLE
        await aconn.close()

    asyncio.run(main())
    assert count(conn, store) == 0


# --- errors --------------------------------------------------------------------------------------------------


def test_an_error_is_ours_with_the_drivers_as_its_cause(
    store: PostgresStore, conn: Conn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    for jobs in ([NewJob("q", "t", payload="{")], [NewJob("q", "t", payload="{")] * 2):
        with pytest.raises(StoreError) as caught:
            store.run(conn, rounds(Insert(jobs)))
        assert type(caught.value) is StoreError
        assert isinstance(caught.value.__cause__, psycopg.errors.InvalidTextRepresentation)
    assert conn.info.transaction_status == IDLE
    assert caplog.records == []


@pytest.mark.parametrize("broken", ["closed", "ended by the server", "ended within a transaction"])
def test_a_lost_connection(store: PostgresStore, open_connection: Callable[[], Conn], broken: str) -> None:
    conn, other = open_connection(), open_connection()
    store.run(conn, ONE)
    end = "select pg_terminate_backend(%s, 10000)"

    def program() -> Program[None]:
        yield Round((Insert([NewJob("q", "t")]),), False)
        other.execute(end, (conn.info.backend_pid,))
        yield Round((Insert([NewJob("q", "t")]),), True)

    if broken == "closed":
        conn.close()
    if broken == "ended by the server":
        other.execute(end, (conn.info.backend_pid,))
    with pytest.raises(DatabaseUnreachable) as caught:
        store.run(conn, program if "within" in broken else ONE)
    assert isinstance(caught.value.__cause__, psycopg.OperationalError)
    assert conn.closed
    assert count(other, store) == 1


def test_no_server_there() -> None:
    dsn = "postgresql://localhost:1/none?connect_timeout=2"
    with pytest.raises(DatabaseUnreachable):
        connect(dsn)
    with pytest.raises(DatabaseUnreachable):
        asyncio.run(aconnect(dsn))


def test_a_database_without_the_schema(empty_database_url: str, store: PostgresStore) -> None:
    with connect(empty_database_url) as conn:
        for program in (ONE, rounds(ReadJobs((1,))), rounds(Register("w", (), 1, 1))):
            with pytest.raises(SchemaMismatch, match="run 'flowq migrate'"):
                store.run(conn, program)


# --- pools ---------------------------------------------------------------------------------------------------


def test_pools(dsn: str, store: PostgresStore) -> None:
    with pool(dsn, max_size=2) as connections:
        for _ in range(3):
            with connections.connection() as conn:
                store.run(conn, ONE)
                assert conn.execute("show enable_seqscan").fetchone() == ("off",)

    async def main() -> Any:
        async with apool(dsn, max_size=2) as connections, connections.connection() as conn:
            worker = (await store.arun(conn, rounds(Register("w", ("q",), 9, 1))))[0]
            return await store.arun(conn, rounds(Take("q", 9, worker))), await store.achannel_names(
                conn, ["q"]
            )

    [taken], channels = asyncio.run(main())
    assert len(taken.started) == 3
    assert list(channels) == ["q"]
