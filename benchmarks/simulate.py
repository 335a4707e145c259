"""Simulated jobs a second, beside the textbook's SimPy: a process for each job and a Resource.

In CPU seconds of one process. flowsim's time includes drawing the workload and its frame of one row a job; the
yardstick draws as it goes and appends one row a job to a list.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import simpy

from benchmarks.yardstick import Contender, Figures, Place, Sizes, Subject
from flowq.policy import CoDel, Flow, RateLimit
from flowsim import Workload, exponential
from flowsim import simulate as simulated

__all__ = ["simulate"]

_LOAD: Final = 0.8
_SERVICE_S: Final = 0.01
_GATED: Final = Flow(RateLimit("1000000/s"), CoDel("10m", "1h"))
"""Judged at each start, and never binding: all contenders run the same jobs."""


@contextmanager
def simulate(_place: Place, sizes: Sizes) -> Iterator[Subject]:
    """A queue at load 0.8."""
    jobs = sizes.simulated
    yield Subject(
        "simulate",
        f"5. Simulated jobs per CPU second, M/M/c at load {_LOAD}, about {jobs:,} jobs, one row each",
        (
            Contender("plain SimPy, M/M/1", lambda: _textbook(1, jobs)),
            Contender("flowsim, M/M/1", lambda: _flowsim(Flow(), 1, jobs), "≥ 0.5"),
            Contender("flowsim, M/M/1, rate limit and CoDel", lambda: _flowsim(_GATED, 1, jobs)),
            Contender("flowsim, M/M/4, rate limit and CoDel", lambda: _flowsim(_GATED, 4, jobs)),
        ),
    )


def _flowsim(flow: Flow, workers: int, jobs: int) -> Figures:
    begun = time.process_time()
    rate = _LOAD * workers / _SERVICE_S
    calls = Workload.poisson(rate, jobs / rate, seed=1)
    result = simulated(flow, calls, workers=workers, service=exponential(_SERVICE_S), seed=2)
    rows = len(result.jobs)
    return {"jobs/s": rows / (time.process_time() - begun)}


def _textbook(workers: int, jobs: int) -> Figures:
    begun = time.process_time()
    draw = random.Random(1)
    environment = simpy.Environment()
    servers = simpy.Resource(environment, workers)
    rows: list[tuple[float, float, float]] = []

    def job() -> Iterator[Any]:
        arrived = environment.now
        with servers.request() as request:
            yield request
            started = environment.now
            yield environment.timeout(draw.expovariate(1 / _SERVICE_S))
        rows.append((arrived, started, environment.now))

    def source() -> Iterator[Any]:
        for _ in range(jobs):
            yield environment.timeout(draw.expovariate(_LOAD * workers / _SERVICE_S))
            environment.process(job())  # type: ignore[arg-type]

    environment.process(source())  # type: ignore[arg-type]
    environment.run()
    return {"jobs/s": len(rows) / (time.process_time() - begun)}
