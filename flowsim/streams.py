"""Random streams: one seed, and of it one independent stream for each purpose.

Streams are told apart by what they are for, never by when they are drawn. So a change of policy, of workers or of
service times leaves the arrivals as they were, byte for byte, and two policies can be compared on the same calls
(common random numbers). Variates are drawn in numpy blocks.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from flowq.errors import ConfigurationError
from flowq.units import whole_number

__all__ = ["Floats", "Integers", "Purpose", "poisson_us", "seeds", "stream"]

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]


class Purpose(IntEnum):
    """What a stream is for."""

    ARRIVALS = 0
    KEYS = 1
    SERVICE = 2
    JITTER = 3


def stream(seed: int, purpose: Purpose) -> np.random.Generator:
    """Return the generator of one purpose.

    Parameters
    ----------
    seed : int
        Whole number >= 0.
    purpose : Purpose
        What is drawn.

    Examples
    --------
    >>> a, b = stream(7, Purpose.ARRIVALS), stream(7, Purpose.ARRIVALS)
    >>> bool(a.random() == b.random()), bool(a.random() == stream(7, Purpose.KEYS).random())
    (True, False)
    """
    sequence = np.random.SeedSequence(whole_number(seed, "seed", 0), spawn_key=(int(purpose),))
    return np.random.default_rng(sequence)


def seeds(seed: int, n: int) -> list[int]:
    """Return the seeds of ``n`` replications: 64-bit numbers that may be used, and shown, on their own.

    Examples
    --------
    >>> seeds(1, 3) == seeds(1, 5)[:3]
    True
    """
    state = np.random.SeedSequence(whole_number(seed, "seed", 0)).generate_state(n, np.uint64)
    return [int(each) for each in state]


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
