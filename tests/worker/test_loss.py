"""Connections are lost, leases lapse, workers are told to stop: nothing is lost, and nothing is done twice in silence."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flowq import DatabaseUnreachable, JobState, Queue, StoreError, Worker
from flowq.postgres.connection import AsyncLink, Link
from flowq.programs.commands import Program, Settle
from worker.working import PATIENCE_S, eventually, working


def end_connections(db: psycopg.Connection) -> int:
    """End every connection to the database but this one, as a restart of the server does."""
    sql = """
        select count(pg_terminate_backend(pid, 10000)) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and backend_type = 'client backend'
    """
    row = db.execute(sql).fetchone()
    assert row is not None
    return int(row[0])


def test_work_goes_on_after_every_connection_was_ended(queue: Queue, db: psycopg.Connection) -> None:
    @queue.task(max_retries=0)
    def add(a: int, b: int) -> int:
        return a + b

    with working(queue, poll="200ms") as worker:
        assert add.delay(1, 1).result("20s") == 2
        for n in range(3):
            assert end_connections(db) >= 2
            assert add.delay(n, 1).result("20s") == n + 1
        assert worker.id is not None


def test_connections_that_end_in_the_middle_of_a_drain_lose_no_job(
    queue: Queue, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    @queue.task(max_retries=0)
    async def note(n: int) -> None:
        runs.append(n)

    jobs = queue.enqueue_many([{"task": "note", "args": [n]} for n in range(4_000)])
    caplog.set_level(logging.CRITICAL, "flowq")
    with working(queue, concurrency=20):
        for done in (500, 1_500, 2_500):
            eventually(lambda done=done: len(runs) > done)  # type: ignore[misc]
            end_connections(db)
        eventually(lambda: not unfinished(queue, db))
    assert sorted(set(runs)) == list(range(4_000))
    assert all(queue.job(job.id).state == "succeeded" for job in jobs[::500])
    assert len(runs) == 4_000, "an outcome whose reply was lost is sent again, not run again"


def unfinished(queue: Queue, db: psycopg.Connection) -> int:
    row = db.execute("select count(*) from flowq.job where namespace = %s", (queue.namespace,)).fetchone()
    assert row is not None
    return int(row[0])


def test_a_job_whose_claim_was_committed_but_not_heard_of_is_started(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.task(max_retries=0)
    def add(a: int, b: int) -> int:
        return a + b

    run = AsyncLink.run
    lost = []

    async def losing(self: AsyncLink, factory: Callable[[], Program[Any]]) -> Any:
        result = await run(self, factory)
        if getattr(result, "started", None) and not lost:
            lost.append(result)
            raise DatabaseUnreachable("the reply was lost")
        return result

    job = add.delay(1, 2)
    monkeypatch.setattr(AsyncLink, "run", losing)
    with caplog.at_level(logging.WARNING, "flowq.worker"), working(queue):
        assert job.result("20s") == 3
    assert lost
    assert "its claim was committed" in caplog.text
    assert queue.job(job.id).token == 1


def test_an_outcome_that_the_store_refuses_keeps_none_of_the_others(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule X9: one bad item never fails its batch."""

    @queue.task(max_retries=0)
    async def echo(text: str) -> str:
        return text

    run = AsyncLink.run

    async def refusing(self: AsyncLink, factory: Callable[[], Program[Any]]) -> Any:
        def refuse() -> Program[Any]:
            program = factory()
            try:
                round_ = next(program)
                while True:
                    for command in round_.commands:
                        if isinstance(command, Settle) and any(
                            j.result == '"bad"' for j in command.succeeded
                        ):
                            raise StoreError("PostgreSQL refused: invalid json (22P02)")
                    round_ = program.send((yield round_))
            except StopIteration as stop:
                return stop.value

        return await run(self, refuse)

    monkeypatch.setattr(AsyncLink, "run", refusing)
    jobs = [echo.delay(text) for text in ("one", "bad", "two")]
    with caplog.at_level(logging.CRITICAL, "flowq.worker"), working(queue):
        assert (jobs[0].result("20s"), jobs[2].result("20s")) == ("one", "two")
        eventually(lambda: jobs[1].state() is JobState.FAILED)
    [letter] = queue.dead_letters()
    assert letter.error.startswith("the store refused the job's outcome")


def test_a_heartbeat_keeps_a_long_job(queue: Queue, db: psycopg.Connection) -> None:
    """Rule X5: while the lease is renewed nobody else starts the job, however busy its worker is."""
    gate, runs = threading.Event(), []

    @queue.task(max_retries=0)
    async def blocks() -> None:
        runs.append(1)
        gate.wait(PATIENCE_S)  # holds the event loop: only a thread can renew the lease

    def lease_until() -> int:
        row = db.execute(
            "select max(lease_until_us) from flowq.worker where namespace = %s", (queue.namespace,)
        ).fetchone()
        assert row is not None
        return int(row[0] or 0)

    job = blocks.delay()
    with working(queue, lease="600ms"):
        eventually(lambda: runs)
        first = lease_until()
        with working(queue, lease="600ms"):
            eventually(lambda: lease_until() > first + 2_000_000)
            assert job.state() is JobState.RUNNING
            gate.set()
            job.result("20s")
    assert runs == [1]
    assert queue.job(job.id).crashes == 0


def test_a_worker_whose_lease_is_gone_registers_anew(
    queue: Queue, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()

    @queue.task(max_retries=0)
    def waits(n: int) -> int:
        gate.wait(PATIENCE_S)
        return n

    caplog.set_level(logging.WARNING, "flowq.worker")
    with working(queue, lease="900ms", concurrency=2) as worker:
        old = worker.id
        job = waits.delay(1)
        eventually(lambda: job.state() == "running")
        db.execute("delete from flowq.worker where id = %s", (old,))
        eventually(lambda: worker.id not in (None, old))
        eventually(lambda: queue.job(job.id).token == 2)
        gate.set()
        assert job.result("20s") == 1
        assert waits.delay(2).result("20s") == 2
    assert "registering anew" in caplog.text
    assert queue.job(job.id).crashes == 1


def test_the_outcome_of_a_lost_attempt_changes_nothing(
    queue: Queue, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule X5: the fencing token of the newer attempt keeps the older one out."""
    gates = [threading.Event(), threading.Event()]
    runs: list[int] = []

    @queue.task(max_retries=0)
    def slow() -> int:
        attempt = len(runs)
        runs.append(attempt)
        gates[attempt].wait(PATIENCE_S)
        return attempt

    job = slow.delay()
    caplog.set_level(logging.WARNING, "flowq.worker")
    with working(queue, lease="900ms", concurrency=2) as worker:
        eventually(lambda: len(runs) == 1)
        db.execute("delete from flowq.worker where id = %s", (worker.id,))
        eventually(lambda: len(runs) == 2)
        gates[0].set()
        eventually(lambda: "came too late" in caplog.text)
        assert job.state() is JobState.RUNNING
        gates[1].set()
        assert job.result("20s") == 1


def test_a_heartbeat_that_finds_no_server_tries_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    beats = []
    run = Link.run

    def failing(self: Link, factory: Callable[[], Program[Any]]) -> Any:
        beats.append(1)
        if len(beats) < 4:
            raise DatabaseUnreachable("no connection")
        return run(self, factory)

    monkeypatch.setattr(Link, "run", failing)
    caplog.set_level(logging.ERROR, "flowq.worker")
    with working(queue, lease="3s") as worker:
        first = worker.id
        eventually(lambda: len(beats) > 5)
        assert worker.id == first


class TestStop:
    def test_running_jobs_end_and_are_settled(self, queue: Queue) -> None:
        gate = threading.Event()

        @queue.task(max_retries=0)
        def waits() -> str:
            gate.wait(PATIENCE_S)
            return "done"

        running, waiting = waits.delay(), waits.delay()
        with working(queue, concurrency=1) as worker:
            eventually(lambda: running.state() == "running")
            worker.stop()
            late = waits.delay()
            gate.set()
        assert running.state() is JobState.SUCCEEDED
        assert (waiting.state(), late.state()) == (JobState.PENDING, JobState.PENDING)

    def test_it_is_unregistered(self, queue: Queue, db: psycopg.Connection) -> None:
        with working(queue) as worker:
            id = worker.id
        assert db.execute("select count(*) from flowq.worker where id = %s", (id,)).fetchone() == (0,)

    @pytest.mark.parametrize("how", ["grace", "at once"])
    def test_what_does_not_end_in_time_starts_elsewhere(self, queue: Queue, how: str) -> None:
        gate, runs = threading.Event(), []
        cancelled = threading.Event()

        @queue.task(max_retries=0)
        def stuck() -> int:
            runs.append(1)
            if len(runs) == 1:
                gate.wait(PATIENCE_S)
            return len(runs)

        @queue.task(max_retries=0)
        async def stuck_awaited() -> str:
            if cancelled.is_set():
                return "again"
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
            return "never"

        job, awaited = stuck.delay(), stuck_awaited.delay()
        with working(queue, grace="100ms" if how == "grace" else "300s") as worker:
            eventually(lambda: runs and awaited.state() == "running")
            worker.stop(at_once=how == "at once")
        assert cancelled.is_set()
        with working(queue):
            assert job.result("20s") == 2
            assert awaited.result("20s") == "again"
        gate.set()
        assert queue.job(job.id).crashes == 1

    def test_cancelling_run_async_stops_it(self, queue: Queue, db: psycopg.Connection) -> None:
        async def run() -> None:
            worker = Worker(queue)
            running = asyncio.create_task(worker.run_async())
            await asyncio.to_thread(eventually, lambda: worker.id)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

        asyncio.run(run())
        row = db.execute(
            "select count(*) from flowq.worker where namespace = %s", (queue.namespace,)
        ).fetchone()
        assert row == (0,)
