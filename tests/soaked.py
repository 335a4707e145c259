"""The service that the workers of the soak import: a task that notes each run in a table."""

from __future__ import annotations

import os
import threading

import psycopg

from flowq import Queue

queue = Queue(os.environ.get("SOAK_DSN"))
_own = threading.local()


@queue.task(max_retries=10, retry_delays=["100ms"])
def soaked(n: int) -> None:
    """Note that job ``n`` ran; a connection that was ended fails the attempt, and the next one makes another."""
    db = getattr(_own, "db", None)
    if db is None or db.closed:
        db = _own.db = psycopg.connect(os.environ["SOAK_DSN"], autocommit=True)
    db.execute("insert into public.ran (n) values (%s)", [n])


@queue.task(queue="alone", max_concurrent=1, max_retries=10, retry_delays=["100ms"])
def alone(n: int) -> None:
    """As `soaked`, one at a time."""
    soaked(n)
