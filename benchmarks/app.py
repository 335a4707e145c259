"""What the worker processes of the benchmarks import: a queue in the namespace that the environment names."""

from __future__ import annotations

import os
import time

from flowq import AsyncQueue

__all__ = ["NAMESPACE", "queue"]

NAMESPACE = "FLOWQ_BENCH_NAMESPACE"
"""The environment variable; a namespace whose name starts with ``gated`` has gates that never bind."""

queue = AsyncQueue(namespace=os.environ.get(NAMESPACE, "bench"))
gated = queue.namespace.startswith("gated")


@queue.task(rate_limit="1000000/s" if gated else None)
async def noop(n: int) -> None:
    """Do nothing."""


@queue.task(queue="pickup")
async def stamp(n: int) -> int:
    """Return the instant at which the handler starts, on a clock that all processes of a machine share."""
    return time.monotonic_ns()


if gated:
    queue.set_queue_codel("default", "10m", "1h")
