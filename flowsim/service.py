"""Service times: how long a worker is busy with a call.

A service time belongs to the *call*, drawn before anything is decided, and never to the server: a job takes that of
the call which opened it. Otherwise a policy that starts other jobs would change the times of all that follow, and
neither a paired comparison nor the replay of a recording would mean anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowq.errors import ConfigurationError
from flowq.units import Duration, duration_text, duration_us, exact_number, shown

if TYPE_CHECKING:
    from flowsim.streams import Floats, Integers

__all__ = ["Service", "constant", "exponential", "lognormal", "service_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """A distribution of service times.

    Use one of `exponential`, `constant`, `lognormal`, or hand `flowsim.simulate` a frozen scipy distribution of seconds.

    Parameters
    ----------
    caption : str
        Its name in captions.
    sample : callable
        ``sample(rng, n)``: n service times in seconds, each >= 0.

    Examples
    --------
    >>> exponential("200ms")
    Service('exponential, mean 200ms')
    """

    caption: str
    sample: Callable[[np.random.Generator, int], Floats] = field(repr=False)

    def __repr__(self) -> str:
        return f"Service({self.caption!r})"

    def draw_us(self, rng: np.random.Generator, n: int) -> Integers:
        """Draw ``n`` service times, in whole µs.

        Raises
        ------
        ConfigurationError
            If one is negative or not finite.
        """
        seconds = np.asarray(self.sample(rng, n), dtype=np.float64)
        if not (np.isfinite(seconds).all() and (seconds >= 0).all()):
            bad = seconds[~(np.isfinite(seconds) & (seconds >= 0))][0]
            raise ConfigurationError(f"service must be >= 0 seconds and finite: {self.caption} gave {bad}")
        drawn: Integers = np.rint(seconds * 1e6).astype(np.int64)
        return drawn


def exponential(mean: Duration) -> Service:
    """Return exponential service times: memoryless, the textbook's M.

    Parameters
    ----------
    mean : duration
        ``"200ms"`` or seconds.

    Examples
    --------
    >>> exponential(1.5).caption
    'exponential, mean 1.5s'
    """
    mean_us = duration_us(mean, "service mean")
    return Service(f"exponential, mean {duration_text(mean_us)}", partial(_exponential, mean_us / 1e6))


def constant(time: Duration) -> Service:
    """Return service times that are all the same, 0 allowed: the textbook's D.

    Examples
    --------
    >>> constant("30ms").draw_us(np.random.default_rng(0), 2).tolist()
    [30000, 30000]
    """
    time_us = duration_us(time, "service", allow_zero=True)
    return Service(f"constant {duration_text(time_us)}", partial(_constant, time_us / 1e6))


def lognormal(mean: Duration, cv: float) -> Service:
    """Return lognormal service times: long-tailed, as people's calls and many requests are.

    Parameters
    ----------
    mean : duration
        The mean.
    cv : float
        Coefficient of variation: standard deviation / mean, > 0.

    Raises
    ------
    ConfigurationError
        If a value is out of range.

    Examples
    --------
    >>> lognormal("3m", cv=1.2).caption
    'lognormal, mean 3m, cv 1.2'
    """
    mean_us = duration_us(mean, "service mean")
    if exact_number(cv, "cv") <= 0:
        raise ConfigurationError(
            f"cv must be > 0: {shown(cv)}; for times that are all the same use constant()"
        )
    variance = math.log1p(float(cv) ** 2)
    sample = partial(_lognormal, math.log(mean_us / 1e6) - variance / 2, math.sqrt(variance))
    return Service(f"lognormal, mean {duration_text(mean_us)}, cv {cv}", sample)


def service_of(service: Any) -> Service:
    """Return a `Service`: itself, a duration as `constant`, or a frozen scipy distribution of seconds.

    Raises
    ------
    TypeError
        If it is none of them.

    Examples
    --------
    >>> from scipy import stats
    >>> service_of(stats.gamma(2, scale=0.05)), service_of("50ms")
    (Service('scipy gamma(2, scale=0.05)'), Service('constant 50ms'))
    """
    if isinstance(service, Service):
        return service
    if hasattr(service, "rvs") and hasattr(service, "dist"):
        shape = [*map(repr, service.args), *(f"{name}={value!r}" for name, value in service.kwds.items())]
        return Service(f"scipy {service.dist.name}({', '.join(shape)})", partial(_frozen, service))
    if isinstance(service, str | int | float) and not isinstance(service, bool):
        return constant(service)
    raise TypeError(
        f"service must be exponential(...), constant(...), lognormal(...), a duration or a frozen scipy distribution:"
        f" {shown(service)}"
    )


def _exponential(mean_s: float, rng: np.random.Generator, n: int) -> Floats:
    return rng.exponential(mean_s, n)


def _constant(time_s: float, _rng: np.random.Generator, n: int) -> Floats:
    return np.full(n, time_s)


def _lognormal(mu: float, sigma: float, rng: np.random.Generator, n: int) -> Floats:
    return rng.lognormal(mu, sigma, n)


def _frozen(distribution: Any, rng: np.random.Generator, n: int) -> Floats:
    drawn: Floats = distribution.rvs(size=n, random_state=rng)
    return drawn
