"""Queueing theory: what is known of M/M/c, M/G/1 and their kin, within four standard errors at fixed seeds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

from flowq.policy import Flow
from flowsim import Result, Workload, batch_means, constant, exponential, lognormal, simulate

SEED = 11
# Which run, and what its mean wait is: load, workers, service with mean 1 s, wait in s. Kleinrock, Queueing Systems 1;
# Erlang C for several workers; Pollaczek and Khinchine for general service.
QUEUES = [
    ("M/M/1 at 0.5", 0.5, 1, exponential(1), 1.0),
    ("M/M/1 at 0.8", 0.8, 1, exponential(1), 4.0),
    ("M/M/2 at 0.9", 0.9, 2, exponential(1), 4.26315789),
    ("M/M/4 at 0.75", 0.75, 4, exponential(1), 0.509433962),
    ("M/M/10 at 0.8", 0.8, 10, exponential(1), 0.204590075),
    ("M/D/1 at 0.5", 0.5, 1, constant(1), 0.5),
    ("M/D/1 at 0.8", 0.8, 1, constant(1), 2.0),
    ("M/E2/1 at 0.8", 0.8, 1, stats.gamma(2, scale=0.5), 3.0),
    ("M/U/1 at 0.8", 0.8, 1, stats.uniform(0, 2), 2.66666667),
    ("M/LN/1 at 0.8", 0.8, 1, lognormal(1, 2**0.5), 6.0),
]


def run(load: float, workers: int, service: Any, calls: int) -> Result:
    rate = load * workers
    return simulate(
        Flow(), Workload.poisson(rate, calls / rate, seed=SEED), workers=workers, service=service, seed=SEED
    )


@pytest.mark.parametrize(
    "calls", [40_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
@pytest.mark.parametrize(
    ("load", "workers", "service", "wait_s"),
    [queue[1:] for queue in QUEUES],
    ids=[queue[0] for queue in QUEUES],
)
def test_the_mean_wait_is_that_of_theory(
    load: float, workers: int, service: Any, wait_s: float, calls: int
) -> None:
    result = run(load, workers, service, calls)
    interval = batch_means(result.sojourns_s)
    assert interval.distance(wait_s) <= 4, f"{interval} against {wait_s}"
    assert result.summary()["utilisation"] == pytest.approx(load, abs=0.03)


def test_time_in_an_mm1_system_is_exponential() -> None:
    jobs = run(0.5, 1, exponential(1), 100_000).jobs
    time_s = (jobs["end_s"] - jobs["arrival_s"]).to_numpy()
    for quantile in (0.5, 0.9, 0.99):
        limit = np.log(1 / (1 - quantile)) / 0.5
        assert batch_means(time_s <= limit).distance(quantile) <= 4
    waits = jobs["sojourn_s"].to_numpy()
    for t in (0.0, 1.0, 4.0):
        assert batch_means(waits > t).distance(0.5 * np.exp(-0.5 * t)) <= 4


def test_bursts_of_a_modulated_process_wait_as_theory_says() -> None:
    """MMPP/M/1, Heffes and Lucantoni 1986: rates 1.5 and 0.1 per s, mean stays 10 s each, mean service 1 s."""
    calls = Workload.mmpp([1.5, 0.1], ["10s", "10s"], 150_000, seed=SEED)
    result = simulate(Flow(), calls, service=exponential(1), seed=SEED)
    interval = batch_means(result.sojourns_s)
    assert interval.distance(16.1463284) <= 4, str(interval)
    result = simulate(Flow(), calls, service=constant(1))
    interval = batch_means(result.sojourns_s)
    assert interval.distance(13.7671779) <= 4, str(interval)
