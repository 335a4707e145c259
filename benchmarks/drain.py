"""Drain a backlog of no-op jobs with one worker process, beside a hand-written claim and complete.

The worker is `flowq worker --burst` in a process of its own. Its time runs from the first start to the last finish as
the database recorded them; the yardstick's from the return of its first claim to that of its last commit. So neither
counts the start of a process.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import psycopg

from benchmarks.app import NAMESPACE
from benchmarks.yardstick import Contender, Figures, Place, Sizes, Subject
from flowq import Queue

__all__ = ["drain", "worker"]

BATCH: Final = 100
"""Rows of a raw claim, and slots of a worker: what it can claim at once."""
_FILL: Final = """
    insert into raw.job (task, args) select 'noop', jsonb_build_object('n', n) from generate_series(1, %s) n
"""
_CLAIM: Final = """
    update raw.job set state = 1, attempt = attempt + 1
    where id = any (array(
        select id from raw.job where queue = 'default' and state = 0 and run_at <= now()
        order by priority, id limit %s for update skip locked
    ))
    returning id, args
"""
_COMPLETE: Final = "update raw.job set state = 2 where id = any (%s)"
_TOOK: Final = """
    select count(*), (max(finished_us) - min(started_us)) / 1e6 from flowq.archive
    where namespace = %s and state = 'succeeded'
"""


@contextmanager
def drain(place: Place, sizes: Sizes) -> Iterator[Subject]:
    """The whole backlog, once."""
    yield Subject(
        "drain",
        f"3. Drain of {sizes.drain:,} no-op jobs, one process, batches of {BATCH}",
        (
            Contender("raw claim, then complete", lambda: _raw(place, sizes.drain)),
            Contender("flowq worker", lambda: _flowq(place, "plain", sizes.drain), "≥ 0.25"),
            Contender("flowq worker, rate limit and CoDel", lambda: _flowq(place, "gated", sizes.drain)),
        ),
    )


def worker(dsn: str, namespace: str, *options: str) -> subprocess.Popen[bytes]:
    """Start a worker process over :mod:`benchmarks.app`."""
    command = [sys.executable, "-m", "flowq.cli", "worker", "benchmarks.app:queue", *options]
    environment = {**os.environ, "FLOWQ_DATABASE_URL": dsn, NAMESPACE: namespace}
    root = Path(__file__).parents[1]
    return subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _flowq(place: Place, namespace: str, jobs: int) -> Figures:
    place.settle()
    with Queue(place.dsn, namespace=namespace) as queue:
        queue.enqueue_many({"task": "noop", "payload": {"n": n}} for n in range(jobs))
    place.refresh()
    if worker(place.dsn, namespace, "--burst", f"--concurrency={BATCH}").wait(timeout=300) != 0:
        raise RuntimeError("the worker failed")
    [(done, seconds)] = place.conn.execute(_TOOK, (namespace,)).fetchall()
    if done != jobs:
        raise RuntimeError(f"the worker ended with {done} of {jobs} jobs done")
    return {"jobs/s": jobs / float(seconds)}


def _raw(place: Place, jobs: int) -> Figures:
    place.settle()
    place.conn.execute(_FILL, (jobs,))
    place.refresh()

    def handler(n: int) -> None: ...

    with psycopg.connect(place.dsn, autocommit=True) as conn:
        done = 0
        begun = 0.0
        while rows := conn.execute(_CLAIM, (BATCH,)).fetchall():
            begun = begun or time.perf_counter()
            for _, args in rows:
                handler(args["n"])
            conn.execute(_COMPLETE, ([id for id, _ in rows],))
            done += len(rows)
            ended = time.perf_counter()
    if done != jobs:
        raise RuntimeError(f"the yardstick ended with {done} of {jobs} jobs done")
    return {"jobs/s": jobs / (ended - begun)}
