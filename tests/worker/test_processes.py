"""``flowq worker`` as processes of their own: killed, told to stop, and several under one limit."""

from __future__ import annotations

import os
import signal
import threading
import time
from fractions import Fraction

import psycopg

from flowq import Queue
from worker import app
from worker.working import eventually, process, working


def workers(db: psycopg.Connection, namespace: str) -> int:
    sql = "select count(*) from flowq.worker where namespace = %s and lease_until_us > flowq.now_us(null)"
    row = db.execute(sql, (namespace,)).fetchone()
    assert row is not None
    return int(row[0])


def declared(dsn: str, namespace: str) -> Queue:
    """A queue that knows the tasks of the processes' app."""
    queue = Queue(dsn, namespace=namespace)
    for name, task in vars(app).items():
        if hasattr(task, "spec"):
            queue.task(name=name, flow=task.spec.flow)(task)
    return queue


def test_the_job_of_a_killed_worker_starts_again_within_its_lease_and_a_second(
    dsn: str, namespace: str, db: psycopg.Connection
) -> None:
    """Rule X5; the crash is counted apart from the handler's own failures."""
    lease_s = 1.5
    with declared(dsn, namespace) as queue, process(dsn, namespace, f"--lease={lease_s}s") as first:
        job = queue.enqueue("hold", args=[60])
        eventually(lambda: job.state() == "running")
        with process(dsn, namespace, f"--lease={lease_s}s", "--queues=default,other") as second:
            eventually(lambda: workers(db, namespace) == 2)
            first.send_signal(signal.SIGKILL)
            killed = time.monotonic()
            eventually(lambda: queue.job(job.id).token == 2)
            assert time.monotonic() - killed <= lease_s + 1
            record = queue.job(job.id)
            assert (record.state, record.crashes, record.failures) == ("running", 1, 0)
            second.send_signal(signal.SIGKILL)


def test_sigterm_lets_the_running_job_end(dsn: str, namespace: str, db: psycopg.Connection) -> None:
    with declared(dsn, namespace) as queue, process(dsn, namespace) as worker:
        job = queue.enqueue("hold", args=[0.5])
        eventually(lambda: job.state() == "running")
        worker.send_signal(signal.SIGTERM)
        output, _ = worker.communicate(timeout=20)
        assert worker.returncode == 0
        assert job.result("1s") == worker.pid
        assert workers(db, namespace) == 0
        assert "flowq: PostgreSQL" in output
        assert "SIGTERM, stopping" in output


def test_a_second_signal_stops_at_once_and_the_job_starts_elsewhere(
    dsn: str, namespace: str, db: psycopg.Connection
) -> None:
    with declared(dsn, namespace) as queue, process(dsn, namespace) as worker:
        job = queue.enqueue("hold", args=[60])
        eventually(lambda: job.state() == "running")
        worker.send_signal(signal.SIGINT)
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=20)
        assert workers(db, namespace) == 0
        with process(dsn, namespace):
            eventually(lambda: queue.job(job.id).token == 2)


def test_four_processes_keep_one_limit(dsn: str, namespace: str, db: psycopg.Connection) -> None:
    """Rules R1, R2, R6: in every window of length T at most 1 + 10 T starts, cluster-wide."""
    with declared(dsn, namespace) as queue, process(dsn, namespace, "--processes=4", "--concurrency=2"):
        eventually(lambda: workers(db, namespace) == 4)
        queue.enqueue_many([{"task": "paced"}] * 25)
        jobs = "select count(*) from flowq.job where namespace = %s"
        eventually(lambda: db.execute(jobs, (namespace,)).fetchone() == (0,))
    rows = db.execute(
        "select started_us, worker_id from flowq.archive where namespace = %s order by started_us",
        (namespace,),
    ).fetchall()
    starts = [row[0] for row in rows]
    assert len(starts) == 25
    for i, begin in enumerate(starts):
        for j in range(i, len(starts)):
            assert j - i + 1 <= 1 + 10 * Fraction(starts[j] - begin, 1_000_000)
    assert starts[-1] - starts[0] < 2 * 2_400_000, "and nobody sleeps through a token"


def test_a_supervisor_starts_a_killed_worker_again_and_stops_all(
    dsn: str, namespace: str, db: psycopg.Connection
) -> None:
    with declared(dsn, namespace) as queue, process(dsn, namespace, "--processes=2", "--lease=1s") as parent:
        eventually(lambda: workers(db, namespace) == 2)
        killed = queue.enqueue("hold", args=[0]).result("20s")
        os.kill(killed, signal.SIGKILL)
        ids = "select array_agg(id) from flowq.worker where namespace = %s and lease_until_us > flowq.now_us(null)"
        before = db.execute(ids, (namespace,)).fetchone()
        eventually(lambda: workers(db, namespace) < 2 or db.execute(ids, (namespace,)).fetchone() != before)
        eventually(lambda: workers(db, namespace) == 2)
        parent.send_signal(signal.SIGTERM)
        parent.communicate(timeout=20)
        assert parent.returncode == 0
        eventually(lambda: workers(db, namespace) == 0)


def test_workers_stop_when_their_supervisor_is_killed(
    dsn: str, namespace: str, db: psycopg.Connection
) -> None:
    with process(dsn, namespace, "--processes=2") as parent:
        eventually(lambda: workers(db, namespace) == 2)
        parent.send_signal(signal.SIGKILL)
        sql = "select count(*) from flowq.worker where namespace = %s"
        eventually(lambda: db.execute(sql, (namespace,)).fetchone() == (0,))


def test_processes_drain_and_return(dsn: str, namespace: str) -> None:
    with declared(dsn, namespace) as queue:
        jobs = [queue.enqueue("add", args=[n, 1]) for n in range(50)]
        with process(dsn, namespace, "--processes=2", "--burst") as parent:
            parent.communicate(timeout=30)
            assert parent.returncode == 0
        assert [job.result("1s") for job in jobs] == list(range(1, 51))


def test_a_freed_slot_under_a_cap_wakes_a_worker_that_sleeps(
    dsn: str, namespace: str, db: psycopg.Connection
) -> None:
    """Rule A1: the worker that held the slot has no free one for the next job, another has."""
    queue = Queue(dsn, namespace=namespace)
    started, release = threading.Event(), threading.Event()

    @queue.task(max_concurrent=1)
    def alone(n: int) -> None:
        started.set()
        if n == 0:
            assert release.wait(30)

    with queue, working(queue, "default", concurrency=1, poll="30s"):
        first = alone.delay(0)
        assert started.wait(30)
        with working(queue, "default", concurrency=1, poll="30s") as other:
            second = alone.delay(1)
            asleep = "select asleep_until_us is not null from flowq.worker where id = %s"
            eventually(lambda: db.execute(asleep, (other.id,)).fetchone() == (True,))
            assert second.state() == "pending"
            release.set()
            first.result("10s")
            second.result("10s")
