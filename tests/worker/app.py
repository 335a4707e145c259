"""The service that worker processes of the tests import."""

from __future__ import annotations

import os
import time

from flowq import Queue

queue = Queue(os.environ.get("APP_DSN"), namespace=os.environ.get("APP_NAMESPACE", "default"))


@queue.task()
def add(a: int, b: int) -> int:
    return a + b


@queue.task()
def hold(seconds: float) -> int:
    """Keep a thread busy; its process's id tells who ran it."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        os.sched_yield()
    return os.getpid()


@queue.task(rate_limit="10/s", burst=1)
def paced() -> None: ...
