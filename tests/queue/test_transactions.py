"""Enqueues in the caller's own transaction (rule S3)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from flowq import AsyncQueue, ConfigurationError, JobState, KeyLockTimeout, Queue, UnknownJob
from flowq.job import Outcome

Conn = psycopg.Connection[Any]


@pytest.fixture
def mine(dsn: str) -> Iterator[Conn]:
    """The caller's connection, as psycopg makes it."""
    with psycopg.connect(dsn) as conn:
        yield conn
        conn.rollback()


@pytest.fixture
def elsewhere() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def waits(db: Conn, future: Future[Any]) -> None:
    """Return once some session of this database waits for a lock."""
    blocked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    pause = threading.Event()
    for _ in range(4_000):
        if db.execute(blocked).fetchone() != (0,):
            return
        assert not future.done(), future.result()
        pause.wait(0.005)
    raise AssertionError("nobody waits")


def exists(queue: Queue, id: int) -> bool:
    return id in queue.jobs([id])


@pytest.mark.parametrize("keyed", [False, True])
def test_a_job_is_there_with_the_commit_and_not_before(queue: Queue, mine: Conn, keyed: bool) -> None:
    """B147."""
    options = {"unique_key": "k"} if keyed else {}
    job = queue.enqueue("t", {"n": 1}, connection=mine, **options)
    assert not exists(queue, job.id)
    mine.commit()
    assert job.state() is JobState.PENDING


@pytest.mark.parametrize("keyed", [False, True])
def test_a_rollback_leaves_nothing(queue: Queue, mine: Conn, keyed: bool) -> None:
    """B147."""
    options = {"unique_key": "k"} if keyed else {}
    calls = [{"task": "t", **options}, {"task": "t"}]
    jobs = queue.enqueue_many(calls, connection=mine)
    mine.rollback()
    assert queue.jobs([job.id for job in jobs]) == {}
    with pytest.raises(UnknownJob):
        jobs[0].state()
    assert queue.enqueue("t", **options).outcome is Outcome.ACCEPTED


def test_a_tasks_calls_go_with_the_transaction(queue: Queue, mine: Conn) -> None:
    @queue.task(idempotent=True)
    def send(to: str) -> None: ...

    job = send.apply_async(("a",), connection=mine)
    assert send.apply_async(("a",), connection=mine).id == job.id
    mine.rollback()
    assert not exists(queue, job.id)


def test_a_key_that_exists_leaves_the_transaction_going(queue: Queue, mine: Conn) -> None:
    """B149."""
    first = queue.enqueue("t", unique_key="k")
    mine.execute("create temp table orders (n int)")
    mine.execute("insert into orders values (1)")
    again = queue.enqueue("t", unique_key="k", connection=mine)
    mine.execute("insert into orders values (2)")
    mine.commit()
    assert (again.id, again.outcome) == (first.id, Outcome.COALESCED)
    assert mine.execute("select count(*) from orders").fetchone() == (2,)


@pytest.mark.parametrize("winner_commits", [True, False])
@pytest.mark.parametrize("mode", ["coalesce", "debounce"])
def test_a_second_call_waits_for_the_first_ones_end(
    queue: Queue, mine: Conn, db: Conn, elsewhere: ThreadPoolExecutor, mode: str, winner_commits: bool
) -> None:
    """B22, C7: exactly one job, and the id that the second call was given exists."""
    options: dict[str, Any] = (
        {"unique_key": "k"}
        if mode == "coalesce"
        else {"debounce": "1h", "debounce_key": "k", "debounce_max_wait": "2h"}
    )
    first = queue.enqueue("t", connection=mine, **options)
    future = elsewhere.submit(lambda: queue.enqueue("t", **options))
    waits(db, future)
    if winner_commits:
        mine.commit()
    else:
        mine.rollback()
    second = future.result(30)
    assert exists(queue, second.id)
    assert (second.id == first.id) is winner_commits
    joined = Outcome.COALESCED if mode == "coalesce" else Outcome.MERGED
    assert second.outcome is (joined if winner_commits else Outcome.ACCEPTED)
    assert db.execute(
        "select count(*) from flowq.job where namespace = %s", (queue.namespace,)
    ).fetchone() == (1,)


@pytest.mark.parametrize("bound", ["the queue's", "the session's"])
def test_a_key_held_too_long_is_an_error_and_the_transaction_goes_on(
    dsn: str, namespace: str, mine: Conn, bound: str
) -> None:
    """S3, B80."""
    timeout = "50ms" if bound == "the queue's" else None
    with Queue(dsn, namespace=namespace, lock_timeout=timeout) as queue, psycopg.connect(dsn) as other:
        queue.enqueue("t", unique_key="k", connection=other)
        mine.execute("create temp table orders (n int)")
        if timeout is None:
            mine.execute("set lock_timeout = '50ms'")
        with pytest.raises(KeyLockTimeout):
            queue.enqueue("t", unique_key="k", connection=mine)
        if timeout is not None:
            with pytest.raises(KeyLockTimeout):
                queue.enqueue("t", unique_key="k")
        mine.execute("insert into orders values (1)")
        job = queue.enqueue("t", unique_key="another", connection=mine)
        mine.commit()
        other.rollback()
        assert mine.execute("select count(*) from orders").fetchone() == (1,)
        assert exists(queue, job.id)


def test_a_refused_call_leaves_the_transaction_as_it_was(queue: Queue, mine: Conn) -> None:
    """B80."""
    mine.execute("create temp table orders (n int)")
    with pytest.raises(ConfigurationError):
        queue.enqueue("t", unique_key="", connection=mine)
    mine.execute("insert into orders values (1)")
    mine.commit()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_keyed_call_needs_read_committed(queue: Queue, mine: Conn, level: str) -> None:
    """B150: no serialization failure, no job joined that has ended; the transaction goes on."""
    mine.execute(f"set transaction isolation level {level}")
    with pytest.raises(ConfigurationError, match="READ COMMITTED"):
        queue.enqueue("t", unique_key="k", connection=mine)
    job = queue.enqueue("t", connection=mine)
    mine.commit()
    assert exists(queue, job.id)


def test_the_eligible_instant_is_that_of_the_call_not_of_the_transactions_start(
    queue: Queue, mine: Conn
) -> None:
    """B153."""
    begun = mine.execute("select now()").fetchone()
    mine.execute("select pg_sleep(0.05)")
    job = queue.enqueue("t", connection=mine)
    keyed = queue.enqueue("t", unique_key="k", connection=mine)
    mine.commit()
    assert begun is not None
    assert (job.run_at - begun[0]).total_seconds() >= 0.05
    assert (keyed.run_at - begun[0]).total_seconds() >= 0.05


def test_a_hint_comes_after_the_commit(queue: Queue, mine: Conn, db: Conn) -> None:
    """B147: the notification is the transaction's."""
    from flowq.postgres import PostgresStore
    from flowq.programs.commands import Register, Round

    def registration() -> Any:
        yield Round((Register("w", ("default",), 1, 60_000_000),), True)

    queue.enqueue("t")
    store = PostgresStore(queue.namespace)
    store.run(db, registration)
    db.execute(f'listen "{store.channel_names(db, ["default"])["default"]}"')
    queue.enqueue("t", connection=mine)
    assert list(db.notifies(timeout=0, stop_after=1)) == []
    mine.commit()
    assert len(list(db.notifies(timeout=20, stop_after=1))) == 1


@pytest.mark.parametrize("keyed", [False, True])
def test_any_row_factory_and_search_path(dsn: str, queue: Queue, keyed: bool) -> None:
    options = {"unique_key": "k"} if keyed else {}
    with psycopg.connect(dsn, row_factory=dict_row, options="-c search_path=pg_temp") as conn:
        job = queue.enqueue("t", connection=conn, **options)
    assert exists(queue, job.id)


@pytest.mark.parametrize("keyed", [False, True])
def test_autocommit_outside_of_a_transaction_commits_and_inside_does_not(
    queue: Queue, db: Conn, keyed: bool
) -> None:
    """In autocommit mode a statement is a transaction of its own, and so is a call."""
    options = {"unique_key": "k"} if keyed else {}
    assert exists(queue, queue.enqueue("t", connection=db, **options).id)
    with db.transaction(force_rollback=True):
        job = queue.enqueue("other", connection=db, **options)
    assert not exists(queue, job.id)


def test_a_new_line_inside_a_long_transaction_makes_nobody_wait(queue: Queue, mine: Conn) -> None:
    """The line is declared before, on a connection of the queue's own."""
    queue.enqueue("new", queue="new", priority=7, connection=mine)
    assert exists(queue, queue.enqueue("new", queue="new", priority=7).id)  # would wait for `mine`


def test_only_psycopgs_connections_are_taken(dsn: str, queue: Queue) -> None:
    for wrong in (object(), "connection", 0):
        with pytest.raises(TypeError, match="driver_connection"):
            queue.enqueue("t", connection=wrong)  # type: ignore[arg-type]

    async def run() -> None:
        async with (
            AsyncQueue(dsn, namespace=queue.namespace) as theirs,
            await psycopg.AsyncConnection.connect(dsn) as conn,
        ):
            with pytest.raises(TypeError, match=r"psycopg\.AsyncConnection"):
                await theirs.enqueue("t", connection=queue)  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"psycopg\.Connection"):
                queue.enqueue("t", connection=conn)  # type: ignore[arg-type]

    asyncio.run(run())


def test_the_async_queue_does_the_same(dsn: str, queue: Queue) -> None:
    async def run() -> tuple[list[int], int]:
        async with AsyncQueue(dsn, namespace=queue.namespace) as theirs:

            @theirs.task(idempotent=True)
            async def send(to: str) -> None: ...

            async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as conn:
                kept = [await send.apply_async(("a",), connection=conn)]
                kept += await theirs.enqueue_many([{"task": "t"}], connection=conn)
                assert await theirs.jobs([job.id for job in kept]) == {}
                await conn.commit()
                gone = await send.apply_async(("b",), connection=conn)
                await conn.rollback()
                await conn.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
                with pytest.raises(ConfigurationError, match="READ COMMITTED"):
                    await send.apply_async(("b",), connection=conn)
            return [job.id for job in kept], gone.id

    kept, gone = asyncio.run(run())
    assert list(queue.jobs([*kept, gone])) == kept
