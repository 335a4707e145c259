"""Retry: how long a failed job waits before its next attempt, or that it has none left.

After failure n (the first is 1) the wait is drawn evenly from ``[0, min(cap, base * 2**n))``: exponential
back-off with full jitter, which spreads a crowd of jobs that failed together. The drawn number is an
argument, so a simulation and a service decide alike. Exact delays are the other form: ``delays=[0.5, 1]``
waits 0.5 s, then 1 s each time.

A retry is a start like any other: it takes a token of the rate limit and waits at the same gates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from flowq.errors import ConfigurationError
from flowq.policy.stored import checked
from flowq.units import Duration, duration_text, duration_us, shown, whole_number

__all__ = ["Retry"]

_MAX_RETRIES: Final = 2**31 - 1
_GRAIN: Final = 53  # the bits of a drawn float: u * 2**53 is a whole number


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Retry:
    """Try a failed job again after a while, a bounded number of times.

    Use the default where the cause may pass (a network, a lock, a busy service); exact `delays` where the
    rhythm is known; ``Retry(0)`` where a second attempt could do harm.

    Parameters
    ----------
    max_retries : int
        Attempts after the first, >= 0. 0 is a value: at most once.
    base : duration
        Unit of the back-off: failure n waits up to ``base * 2**n``.
    cap : duration
        The most that any wait is drawn from; >= base.
    delays : iterable of durations, optional
        Exact waits instead, without jitter; 0 is legal, and the last repeats.

    Attributes
    ----------
    max_retries : int
    base_us, cap_us : int
    delays_us : tuple of int, or None

    Raises
    ------
    TypeError
        If a value has the wrong type.
    ConfigurationError
        If a value is out of range, ``cap < base``, or `delays` is empty.

    References
    ----------
    Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015 ("full jitter").

    Examples
    --------
    >>> retry = Retry(max_retries=3, base="1s")
    >>> [retry.decide(failures, 0.5) for failures in (1, 2, 3, 4)]
    [1000000, 2000000, 4000000, None]
    >>> [Retry(4, delays=[0.5, 1]).decide(failures, 0.5) for failures in (1, 2, 3, 4, 5)]
    [500000, 1000000, 1000000, 1000000, None]
    """

    max_retries: int
    base_us: int
    cap_us: int
    delays_us: tuple[int, ...] | None

    policy: ClassVar[str] = "retry"

    def __init__(
        self,
        max_retries: int = 3,
        base: Duration = "1s",
        cap: Duration = "5m",
        delays: Iterable[Duration] | None = None,
    ) -> None:
        base_us = duration_us(base, "retry base")
        cap_us = duration_us(cap, "retry cap")
        if cap_us < base_us:
            raise ConfigurationError(
                f"retry cap must be >= base {duration_text(base_us)}: {duration_text(cap_us)}"
            )
        assign = object.__setattr__
        assign(self, "max_retries", whole_number(max_retries, "max_retries", 0, _MAX_RETRIES))
        assign(self, "base_us", base_us)
        assign(self, "cap_us", cap_us)
        assign(self, "delays_us", None if delays is None else _delays_us(delays))

    def __repr__(self) -> str:
        parts = []
        if self.max_retries != 3:
            parts.append(f"max_retries={self.max_retries}")
        if self.base_us != 1_000_000:
            parts.append(f"base={duration_text(self.base_us)!r}")
        if self.cap_us != 300_000_000:
            parts.append(f"cap={duration_text(self.cap_us)!r}")
        if self.delays_us is not None:
            parts.append(f"delays={[duration_text(us) for us in self.delays_us]!r}")
        return f"Retry({', '.join(parts)})"

    def bound_us(self, failures: int) -> int:
        """Return what the wait after this many failures is drawn from: ``min(cap, base * 2**failures)``.

        >>> Retry(base="1s", cap="5m").bound_us(100_000)
        300000000
        """
        if failures >= self.cap_us.bit_length():
            return self.cap_us
        return min(self.cap_us, self.base_us << failures)

    def decide(self, failures: int, u: float, max_retries: int | None = None) -> int | None:
        """Return the wait before the next attempt, or None when there is none.

        Parameters
        ----------
        failures : int
            Failed attempts so far, this one included; >= 1.
        u : float
            The drawn number, in [0, 1).
        max_retries : int, optional
            The job's own number, where a call has set one.

        Returns
        -------
        int or None
            Microseconds; None when the retries are used up.

        Raises
        ------
        ConfigurationError
            If `failures` or `u` is out of range.
        """
        if failures < 1:
            raise ConfigurationError(f"failures must be >= 1: {failures}")
        if failures > (self.max_retries if max_retries is None else max_retries):
            return None
        if self.delays_us is not None:
            return self.delays_us[min(failures, len(self.delays_us)) - 1]
        if not 0 <= u < 1:
            raise ConfigurationError(f"u must be in [0, 1): {shown(u)}")
        return self.bound_us(failures) * int(u * (1 << _GRAIN)) >> _GRAIN

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object."""
        return {
            "policy": self.policy,
            "max_retries": self.max_retries,
            "base_us": self.base_us,
            "cap_us": self.cap_us,
            "delays_us": None if self.delays_us is None else list(self.delays_us),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Retry:
        """Return the policy that `to_json` wrote."""
        checked(data, cls.policy, "max_retries", "base_us", "cap_us", "delays_us")
        delays_us = data["delays_us"]
        return cls(
            data["max_retries"],
            base=duration_text(data["base_us"]),
            cap=duration_text(data["cap_us"]),
            delays=None if delays_us is None else [duration_text(us) for us in delays_us],
        )

    def describe(self) -> str:
        """Return the policy in a few words."""
        if self.max_retries == 0:
            return "no retry"
        if self.delays_us is not None:
            waits = ", ".join(duration_text(us) for us in self.delays_us)
            return f"up to {self.max_retries} retries after {waits}"
        return (
            f"up to {self.max_retries} retries, back-off from {duration_text(self.base_us)}"
            f" to {duration_text(self.cap_us)}, full jitter"
        )


def _delays_us(delays: Iterable[Duration]) -> tuple[int, ...]:
    if isinstance(delays, str):
        raise TypeError(f"retry delays must be a list of durations: {shown(delays)}")
    waits = tuple(
        duration_us(delay, f"retry delays[{index}]", allow_zero=True) for index, delay in enumerate(delays)
    )
    if not waits:
        raise ConfigurationError("retry delays must not be empty: [] (for no retry, max_retries=0)")
    return waits
