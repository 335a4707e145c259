"""A job's success and its handler's own writes are one commit (rule X6)."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import psycopg
import pytest

import flowq
from flowq import ConfigurationError, FlowqError, JobState, LeaseLost, Queue
from worker.working import drain

Conn = psycopg.Connection[Any]


@pytest.fixture
def orders(db: Conn, namespace: str) -> str:
    """A table of the application's."""
    name = f"orders_{namespace}"
    db.execute(f"create table {name} (n int)")
    return name


def counted(db: Conn, orders: str) -> int:
    row = db.execute(f"select count(*) from {orders}").fetchone()
    assert row is not None
    return int(row[0])


def test_both_are_there_after_the_commit(
    queue: Queue, dsn: str, db: Conn, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []

    @queue.task()
    def charge(n: int) -> str:
        job = flowq.current_job()
        with psycopg.connect(dsn) as conn:
            conn.execute(f"insert into {orders} values ({n})")
            job.complete(conn, {"n": n})
            seen.append((job.id, job.task, job.queue, job.attempt, job.failures, job.completed))
            seen.append(db.execute("select state from flowq.job where id = %s", (job.id,)).fetchone())
        return "dropped: complete() gave the result"

    job = charge.delay(7)
    with caplog.at_level(logging.WARNING):
        drain(queue)
    assert seen == [(job.id, "charge", "default", 1, 0, True), ("running",)]
    assert job.result("5s") == {"n": 7}
    assert counted(db, orders) == 1
    assert caplog.messages == []


def test_a_coroutine_does_the_same(
    queue: Queue, dsn: str, db: Conn, orders: str, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task()
    async def charge(n: int) -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn, conn.transaction():
            await conn.execute(f"insert into {orders} values ({n})")
            await flowq.current_job().complete(conn, n)

    jobs = [charge.delay(n) for n in range(5)]
    with caplog.at_level(logging.WARNING):
        drain(queue)
    assert [job.result("5s") for job in jobs] == [0, 1, 2, 3, 4]
    assert counted(db, orders) == 5
    assert caplog.messages == []


def test_a_failure_before_the_commit_is_a_failure(queue: Queue, dsn: str, db: Conn, orders: str) -> None:
    @queue.task(max_retries=1, retry_delays=["1ms"])
    def charge() -> None:
        job = flowq.current_job()
        with psycopg.connect(dsn) as conn:
            conn.execute(f"insert into {orders} values (1)")
            job.complete(conn, job.attempt)
            if job.failures == 0:
                raise ValueError("not yet")

    job = charge.delay()
    drain(queue)
    assert job.result("5s") == 2
    assert counted(db, orders) == 1
    assert queue.job(job.id).failures == 1


def test_a_failure_after_the_commit_is_only_logged(
    queue: Queue, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task()
    def charge() -> None:
        with psycopg.connect(dsn) as conn:
            flowq.current_job().complete(conn)
        raise ValueError("too late")

    job = charge.delay()
    with caplog.at_level(logging.WARNING):
        drain(queue)
    assert job.state() is JobState.SUCCEEDED
    assert caplog.messages == [f"job {job.id}: raised after its success was committed: ValueError: too late"]


def test_a_rollback_by_the_handler_leaves_the_usual_success(queue: Queue, dsn: str) -> None:
    @queue.task()
    def charge() -> None:
        with psycopg.connect(dsn) as conn:
            flowq.current_job().complete(conn, "gone")
            conn.rollback()

    job = charge.delay()
    drain(queue)
    assert job.result("5s") is None


def test_a_lost_lease_is_said(queue: Queue, dsn: str, db: Conn) -> None:
    """Another start of the job owns it: the transaction is to be rolled back."""
    raised: list[BaseException] = []

    @queue.task(max_retries=0)
    def charge() -> None:
        job = flowq.current_job()
        db.execute("update flowq.job set token = token + 1 where id = %s", (job.id,))
        try:
            with psycopg.connect(dsn) as conn:
                job.complete(conn)
        except LeaseLost as error:
            raised.append(error)
        db.execute("update flowq.job set token = token - 1 where id = %s", (job.id,))

    charge.delay()
    drain(queue)
    assert len(raised) == 1


def test_twice_is_refused(queue: Queue, dsn: str) -> None:
    raised: list[BaseException] = []

    @queue.task()
    def charge() -> None:
        with psycopg.connect(dsn) as conn:
            flowq.current_job().complete(conn, 1)
            try:
                flowq.current_job().complete(conn, 2)
            except LeaseLost as error:
                raised.append(error)

    job = charge.delay()
    drain(queue)
    assert job.result("5s") == 1
    assert len(raised) == 1


def test_a_connection_that_commits_at_once_is_refused(queue: Queue, db: Conn) -> None:
    @queue.task(max_retries=0)
    def charge() -> str:
        refused = []
        for wrong, error in ((db, ConfigurationError), (object(), TypeError)):
            try:
                flowq.current_job().complete(wrong)  # type: ignore[call-overload]
            except error:
                refused.append(error.__name__)
        return ",".join(refused)

    job = charge.delay()
    drain(queue)
    assert job.result("5s") == "ConfigurationError,TypeError"


def test_each_handler_sees_its_own_job(queue: Queue) -> None:
    met = threading.Barrier(2, timeout=20)

    @queue.task()
    def function() -> int:
        met.wait()
        return flowq.current_job().id

    @queue.task()
    async def coroutine() -> int:
        await asyncio.sleep(0.001)
        return await asyncio.to_thread(lambda: flowq.current_job().id)

    @queue.task()
    def wrapped() -> Any:
        async def inside() -> int:
            return flowq.current_job().id

        return inside()

    jobs = [task.delay() for task in (function, function, coroutine, coroutine, coroutine, wrapped)]
    drain(queue, concurrency=6)
    assert [job.result("5s") for job in jobs] == [job.id for job in jobs]
    with pytest.raises(FlowqError, match="no job runs here"):
        flowq.current_job()
