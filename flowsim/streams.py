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

from flowq.units import whole_number

__all__ = ["Floats", "Integers", "Purpose", "seeds", "stream"]

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
