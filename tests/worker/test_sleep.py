"""A worker sleeps exactly as long as it may: hints wake it, timers wake it, and a poll catches what got lost."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time

import psycopg
import pytest

from flowq import Queue
from flowq.postgres.connection import AsyncLink
from flowq.postgres.driver import PostgresStore
from flowq.postgres.listener import Listener
from worker.working import PATIENCE_S, drain, eventually, working

LONG = "300s"
"""A poll that no test waits for."""
SOON_US = 1_000_000
"""Later than a timer is on the busiest machine, and long before that poll."""


def asleep(db: psycopg.Connection, namespace: str) -> bool:
    """Whether every worker of the namespace has said that it sleeps."""
    sql = "select bool_and(asleep_until_us > flowq.now_us(null)) from flowq.worker where namespace = %s"
    row = db.execute(sql, (namespace,)).fetchone()
    return row is not None and bool(row[0])


def test_an_enqueue_wakes_a_sleeping_worker(queue: Queue, db: psycopg.Connection) -> None:
    @queue.task()
    def add(a: int, b: int) -> int:
        return a + b

    with working(queue, poll=LONG):
        for n in range(5):
            eventually(lambda: asleep(db, queue.namespace))
            assert add.delay(n, 1).result("20s") == n + 1


def test_each_of_several_queues_wakes_it(queue: Queue, db: psycopg.Connection) -> None:
    @queue.task()
    def name(text: str) -> str:
        return text

    with working(queue, "one", "two", poll=LONG):
        for text in ("one", "two", "one"):
            eventually(lambda: asleep(db, queue.namespace))
            assert name.apply_async((text,), queue=text).result("20s") == text


def test_a_delayed_job_starts_at_its_instant(queue: Queue, db: psycopg.Connection) -> None:
    @queue.task()
    async def note() -> None: ...

    with working(queue, poll=LONG):
        eventually(lambda: asleep(db, queue.namespace))
        jobs = [note.apply_async(delay=delay) for delay in ("600ms", "200ms", "400ms")]
        for job in jobs:
            job.result("20s")
    late = [(queue.job(job.id).started_us or 0) - queue.job(job.id).run_at_us for job in jobs]
    assert all(0 <= us < SOON_US for us in late), late


def test_a_job_far_ahead_does_not_notify_but_is_found_by_its_instant(
    queue: Queue, db: psycopg.Connection, dsn: str
) -> None:
    @queue.task()
    def note() -> None: ...

    with working(queue, poll="200ms"), psycopg.connect(dsn, autocommit=True) as ear:
        eventually(lambda: asleep(db, queue.namespace))
        row = db.execute(
            "select id from flowq.queue where namespace = %s and name = 'default'", (queue.namespace,)
        ).fetchone()
        assert row is not None
        ear.execute(f'listen "flowq_{row[0]}"'.encode())
        job = note.apply_async(delay="900ms")
        assert list(ear.notifies(timeout=0.01)) == []
        job.result("20s")
        record = queue.job(job.id)
        assert 0 <= (record.started_us or 0) - record.run_at_us < SOON_US


def test_without_notify_a_poll_finds_it(dsn: str, namespace: str, db: psycopg.Connection) -> None:
    with Queue(dsn, namespace=namespace, notify=False) as queue:

        @queue.task()
        def add(a: int, b: int) -> int:
            return a + b

        with working(queue, poll="50ms"):
            assert add.delay(1, 2).result("20s") == 3
            assert not asleep(db, namespace)


def test_a_retry_is_taken_at_its_instant(queue: Queue, db: psycopg.Connection) -> None:
    starts = []

    @queue.task(max_retries=1, retry_delays=["300ms"])
    def flaky() -> None:
        starts.append(time.monotonic())
        if len(starts) == 1:
            raise ValueError("once")

    with working(queue, poll=LONG):
        eventually(lambda: asleep(db, queue.namespace))
        flaky.delay().result("20s")
    assert 0.295 <= starts[1] - starts[0] < 0.3 + SOON_US / 1e6


def test_a_closed_rate_limit_is_waited_for_exactly(queue: Queue) -> None:
    """Rules R3, R6: the claim names the next start, and the worker sleeps until then."""

    @queue.task(rate_limit="10/s", burst=1)
    def paced() -> None: ...

    jobs = [paced.delay() for _ in range(8)]
    drain(queue, poll=LONG)
    starts = sorted(queue.job(job.id).started_us or 0 for job in jobs)
    gaps = [after - before for before, after in itertools.pairwise(starts)]
    assert all(100_000 <= gap < 100_000 + SOON_US for gap in gaps), gaps


def test_what_waits_for_a_slot_only_is_no_excess(queue: Queue) -> None:
    """Rule D1a: ten a second, one slot, jobs that take their time: load below its limit is never shed."""
    gate = threading.Event()

    @queue.task(rate_limit="1000/s", burst=1, on_excess="drop")
    def sample(n: int) -> None:
        gate.wait(PATIENCE_S)

    with working(queue, poll=LONG, concurrency=1):
        jobs = [sample.delay(0)]
        eventually(lambda: jobs[0].state() == "running")
        jobs += [sample.delay(n) for n in range(1, 5)]
        gate.set()
        assert [job.result("20s") for job in jobs] == [None] * 5
    assert queue.dead_letters() == []


def test_a_full_worker_asks_not_to_be_notified(queue: Queue, db: psycopg.Connection) -> None:
    gate = threading.Event()

    @queue.task()
    def waits() -> None:
        gate.wait(PATIENCE_S)

    with working(queue, poll=LONG, concurrency=1):
        eventually(lambda: asleep(db, queue.namespace))
        first = waits.delay()
        eventually(lambda: first.state() == "running")
        eventually(lambda: not asleep(db, queue.namespace))
        second = waits.delay()
        gate.set()
        first.result("10s")
        second.result("10s")
        eventually(lambda: asleep(db, queue.namespace))


def test_a_flood_is_taken_without_notifications(queue: Queue, db: psycopg.Connection) -> None:
    @queue.task()
    async def note(n: int) -> int:
        return n

    with working(queue, poll=LONG, concurrency=20):
        eventually(lambda: asleep(db, queue.namespace))
        jobs = [note.delay(n) for n in range(300)]
        assert [job.result("20s") for job in jobs] == list(range(300))
        eventually(lambda: asleep(db, queue.namespace))


class TestListener:
    def listen(self, dsn: str, queue: Queue, hints: list[str | None], meanwhile: object) -> None:
        """Run a listener while ``meanwhile`` waits in a thread."""

        async def run() -> None:
            echo = AsyncLink(dsn, PostgresStore(queue.namespace))
            listener = Listener(dsn, echo, ("default",), hints.append)
            listening = asyncio.create_task(listener.run())
            try:
                await asyncio.to_thread(meanwhile, listener)  # type: ignore[arg-type]
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
                await echo.close()

        asyncio.run(run())

    def test_it_connects_again_and_hints_after_the_gap(
        self, dsn: str, queue: Queue, db: psycopg.Connection, caplog: pytest.LogCaptureFixture
    ) -> None:
        @queue.task()
        def note() -> None: ...

        note.delay()
        hints: list[str | None] = []

        def meanwhile(listener: Listener) -> None:
            eventually(lambda: listener.hearing)
            hints.clear()
            ended = "select pg_terminate_backend(pid) from pg_stat_activity where query like 'LISTEN %' and datname = current_database()"
            assert db.execute(ended).fetchall()
            eventually(lambda: not listener.hearing)
            eventually(lambda: listener.hearing)
            eventually(lambda: None in hints)

        with caplog.at_level(logging.WARNING, "flowq.listener"):
            self.listen(dsn, queue, hints, meanwhile)
        assert "connecting again" in caplog.text

    def test_it_warns_where_listen_is_not_heard(
        self, dsn: str, queue: Queue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def lost(self: AsyncLink, channel: str) -> None: ...

        @queue.task()
        def note() -> None: ...

        note.delay()
        monkeypatch.setattr(AsyncLink, "notify", lost)
        monkeypatch.setattr("flowq.postgres.listener._ANSWER_S", 0.05)
        with caplog.at_level(logging.WARNING, "flowq.listener"):
            self.listen(dsn, queue, [], lambda _: eventually(lambda: "transaction pooler" in caplog.text))
