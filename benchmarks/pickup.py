"""How long an idle worker takes to start a job, from the return of its enqueue, beside plain LISTEN and NOTIFY.

Run as a module it is the yardstick's worker: ``python -m benchmarks.pickup DSN``.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psycopg

from benchmarks.drain import worker
from benchmarks.yardstick import Contender, Figures, Place, Sizes, Subject
from flowq import Queue

__all__ = ["pickup"]

_PAUSE_S: Final = 0.05
_WARM_UP: Final = 5
_INSERT: Final = """
    with written as (insert into raw.job (task, args) values ('stamp', '{}') returning id)
    select id, pg_notify('raw_job', '') from written
"""
_CLAIM: Final = """
    update raw.job set state = 1, attempt = attempt + 1
    where id = (select id from raw.job where state = 0 order by priority, id limit 1 for update skip locked)
    returning id
"""
_COMPLETE: Final = "update raw.job set state = 2, started_ns = %s where id = %s"


@contextmanager
def pickup(place: Place, sizes: Sizes) -> Iterator[Subject]:
    """One job every 50 ms, so that each finds an idle worker."""
    yield Subject(
        "pickup",
        f"4. Pick-up by an idle worker, one job every {_PAUSE_S * 1e3:.0f} ms, {sizes.pickups:,} jobs a round",
        (
            Contender("raw LISTEN and NOTIFY", lambda: _raw(place, sizes.pickups)),
            Contender("flowq worker", lambda: _flowq(place, sizes.pickups), "p50 < 3 ms"),
        ),
    )


def _flowq(place: Place, jobs: int) -> Figures:
    place.settle()
    process = worker(place.dsn, "pickup", "--queues=pickup", "--concurrency=4")
    try:
        with Queue(place.dsn, namespace="pickup") as queue:
            for n in range(_WARM_UP):
                queue.enqueue("stamp", {"n": n}, queue="pickup").result("30s")
            handles: list[Any] = []
            calls = _paced(
                jobs, lambda: handles.append(queue.enqueue("stamp", {"n": len(handles)}, queue="pickup"))
            )
            return _figures(calls, [handle.result("30s") for handle in handles])
    finally:
        process.terminate()
        process.wait(timeout=60)


def _raw(place: Place, jobs: int) -> Figures:
    place.settle()
    command = [sys.executable, "-m", "benchmarks.pickup", place.dsn]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
    try:
        with psycopg.connect(place.dsn, autocommit=True) as conn:
            for n in range(1, _WARM_UP + 1):
                conn.execute(_INSERT)
                _started(conn, n)
            calls = _paced(jobs, lambda: conn.execute(_INSERT))
            return _figures(calls, _started(conn, _WARM_UP + jobs)[_WARM_UP:])
    finally:
        process.terminate()
        process.wait(timeout=60)


def _paced(jobs: int, enqueue: Callable[[], object]) -> list[tuple[int, int]]:
    """Enqueue at a steady pace; return when each call began and returned."""
    time.sleep(1.0)
    calls = []
    due = time.monotonic()
    for _ in range(jobs):
        called_ns = time.monotonic_ns()
        enqueue()
        calls.append((called_ns, time.monotonic_ns()))
        due += _PAUSE_S
        time.sleep(max(0.0, due - time.monotonic()))
    return calls


def _started(conn: psycopg.Connection[Any], jobs: int) -> list[int]:
    """Wait until so many jobs are complete; return when each started, in the order of their enqueues."""
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        rows = conn.execute("select started_ns from raw.job where state = 2 order by id").fetchall()
        if len(rows) == jobs:
            return [started_ns for (started_ns,) in rows]
        time.sleep(0.02)
    raise RuntimeError(f"the yardstick did not complete {jobs} jobs in time")


def _figures(calls: list[tuple[int, int]], started: list[int]) -> Figures:
    after_return = sorted((at - returned) / 1e6 for (_, returned), at in zip(calls, started, strict=True))
    after_call = sorted((at - called) / 1e6 for (called, _), at in zip(calls, started, strict=True))
    return {
        "p50 ms": after_return[len(after_return) // 2],
        "p99 ms": after_return[len(after_return) * 99 // 100],
        "p50 ms from the call": after_call[len(after_call) // 2],
    }


def _listen(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("listen raw_job")
        while True:
            row = conn.execute(_CLAIM).fetchone()
            if row is None:
                list(conn.notifies(timeout=1.0, stop_after=1))
            else:
                conn.execute(_COMPLETE, (time.monotonic_ns(), row[0]))


if __name__ == "__main__":
    _listen(sys.argv[1])
