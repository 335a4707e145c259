"""Oracles: plain recursions that know nothing of programs and stores."""

from __future__ import annotations

import heapq
from collections.abc import Sequence


def fifo_starts_us(arrivals_us: Sequence[int], service_us: Sequence[int], workers: int) -> list[int]:
    """When each job starts: first come, first served, by the worker that is free first."""
    free_at = [0] * workers
    starts = []
    for arrival_us, service in zip(arrivals_us, service_us, strict=True):
        start_us = max(arrival_us, heapq.heappop(free_at))
        heapq.heappush(free_at, start_us + service)
        starts.append(start_us)
    return starts
