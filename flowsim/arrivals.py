"""Arrivals: rates as people write them, and calls drawn at rates that change from piece to piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from flowq.errors import ConfigurationError
from flowq.policy import Rate
from flowq.units import exact_number, shown, whole_number
from flowsim.streams import Floats, Integers, Purpose, stream

__all__ = ["Speed", "draw_keys", "per_second", "pieces", "poisson_us", "speed_text"]

Speed: TypeAlias = str | float | Rate
"""A rate: ``"10/s"``, a `flowq.policy.Rate`, or a number per second."""


def per_second(rate: Speed, name: str = "rate", *, allow_zero: bool = False) -> float:
    """Return a rate as a number per second.

    Examples
    --------
    >>> per_second("90/m"), per_second(0.25)
    (1.5, 0.25)
    """
    if isinstance(rate, str):
        rate = Rate.parse(rate, name)
    if isinstance(rate, Rate):
        return float(rate.count) * 1e6 / rate.per_us
    number = float(exact_number(rate, name))
    if number < 0 or (number == 0 and not allow_zero):
        raise ConfigurationError(f"{name} must be {'>=' if allow_zero else '>'} 0: {shown(rate)}")
    return number


def poisson_us(rng: np.random.Generator, edges_us: Integers, rates: Floats) -> Integers:
    """Draw a Poisson process whose rate is constant between edges, by a change of time.

    Parameters
    ----------
    rng : numpy.random.Generator
        The stream.
    edges_us : array of int
        The pieces' edges, increasing; one more than there are rates.
    rates : array of float
        Arrivals per second of each piece, >= 0.

    Returns
    -------
    array of int64
        Sorted instants in µs, from the first edge (included) to the last (not included).

    Raises
    ------
    ConfigurationError
        If no arrival would be expected.

    Examples
    --------
    >>> rng = stream(1, Purpose.ARRIVALS)
    >>> instants = poisson_us(rng, np.array([0, 1_000_000, 2_000_000]), np.array([0.0, 50.0]))
    >>> bool(instants.min() >= 1_000_000 and instants.max() < 2_000_000)
    True
    """
    mass = np.concatenate([[0.0], np.cumsum(rates * np.diff(edges_us) / 1e6)])
    total = float(mass[-1])
    if not total > 0:
        raise ConfigurationError("rate must be > 0 somewhere: no call would ever arrive")
    block = int(total + 4 * total**0.5) + 16
    points = np.cumsum(rng.standard_exponential(block))
    while points[-1] < total:
        points = np.concatenate([points, points[-1] + np.cumsum(rng.standard_exponential(block))])
    points = points[points < total]
    piece = np.searchsorted(mass, points, side="right") - 1
    instants = edges_us[piece] + (points - mass[piece]) * 1e6 / rates[piece]
    latest: Integers = np.minimum(np.floor(instants).astype(np.int64), edges_us[-1] - 1)
    return latest


def pieces(
    lengths_us: Sequence[int], rates: Sequence[float], end_us: int | None = None
) -> tuple[Integers, Floats]:
    """Edges and rates of consecutive pieces, without empty ones and cut at ``end_us``."""
    edges_us = np.concatenate([[0], np.cumsum(np.array(lengths_us, dtype=np.int64))])
    if end_us is not None:
        edges_us = np.minimum(edges_us, end_us)
    kept = np.diff(edges_us) > 0
    return np.concatenate([[0], edges_us[1:][kept]]), np.array(rates, dtype=np.float64)[kept]


def draw_keys(keys: int | None, zipf: float | None, seed: int, n: int) -> Integers | None:
    """Draw the keys of ``n`` calls among 0 .. keys - 1: all alike, or k with weight 1 / (k + 1) ** zipf."""
    if keys is None:
        if zipf is not None:
            raise ConfigurationError(f"zipf needs keys: how many there are: {shown(zipf)}")
        return None
    count = whole_number(keys, "keys", 1)
    rng = stream(seed, Purpose.KEYS)
    if zipf is None:
        return rng.integers(0, count, n)
    exponent = float(exact_number(zipf, "zipf"))
    if exponent < 0:
        raise ConfigurationError(f"zipf must be >= 0: {shown(zipf)}")
    share = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    drawn: Integers = np.searchsorted(share[:-1] / share[-1], rng.random(n), side="right").astype(np.int64)
    return drawn


def speed_text(rate: Speed) -> str:
    """Return a rate as captions show it."""
    return rate if isinstance(rate, str) else f"{per_second(rate, allow_zero=True):g}/s"
