"""Intervals: honest where values depend on each other."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from flowq.errors import ConfigurationError
from flowsim import batch_means, replications, t_interval


def waits(n: int, seed: int) -> np.ndarray:
    """Waits of an M/M/1 queue at load 0.5, by Lindley's recursion."""
    rng = np.random.default_rng(seed)
    steps = np.concatenate([[0.0], rng.exponential(1, n - 1) - rng.exponential(2, n - 1)])
    path = np.cumsum(steps)
    return path - np.minimum.accumulate(path)


def test_batch_means_cover_what_they_say_and_an_interval_of_single_waits_does_not() -> None:
    truth = 1.0
    runs = [waits(20_000, seed) for seed in range(200)]
    held = sum(interval.low <= truth <= interval.high for interval in map(batch_means, runs))
    naive = sum(interval.low <= truth <= interval.high for interval in map(t_interval, runs))
    assert held >= 176  # 95 % of 200 within 4.5 standard errors
    assert naive < 120


def test_t_interval_is_that_of_the_textbook() -> None:
    interval = t_interval([1, 2, 3, 4, 5])
    assert interval.mean == 3
    assert interval.high - interval.mean == pytest.approx(2.776445 * (2.5 / 5) ** 0.5, rel=1e-6)
    assert interval.n == 5


def test_batches_leave_out_the_rest() -> None:
    values = np.arange(205.0)
    assert batch_means(values, 20).mean == values[:200].mean()


def test_too_little_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 200 for 20 batches: 199"):
        batch_means(np.zeros(199))
    with pytest.raises(ConfigurationError, match="at least 2"):
        t_interval([1.0])
    with pytest.raises(ConfigurationError, match="must be finite: nan"):
        t_interval([1.0, float("nan")])
    with pytest.raises(ConfigurationError, match="confidence must be > 0 and < 1"):
        t_interval([1.0, 2.0], 1.0)


def _run(seed: int) -> pd.Series:
    return pd.Series({"seed_again": seed, "x": float(np.random.default_rng(seed).normal())}, dtype=object)


def test_replications_have_seeds_of_their_own_and_the_same_ones_again() -> None:
    runs = replications(_run, 12, seed=3)
    assert runs.index.tolist() == runs["seed_again"].tolist()
    assert len(set(runs.index)) == 12
    assert runs.equals(replications(_run, 12, seed=3))
    assert runs["x"].dtype == np.float64
    assert t_interval(runs["x"]).distance(0) < 4
