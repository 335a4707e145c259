"""Rate limit: a token bucket at dispatch. Every job runs, later; or with ``on_excess="drop"`` is shed.

A bucket holds at most ``burst`` tokens and gains ``count`` of them every period, continuously. A start takes
its whole cost in tokens, or nothing at all. So in every window of length T at most ``burst + rate * T``
starts happen (rule R2).

The level is exact. With a count of p/q tokens every P microseconds and a burst of a/b, one token is
``P * lcm(q, b)`` units, a microsecond adds a whole number of units, and no step rounds. Only an *instant*
that is returned, the next possible start, is rounded: up, to the microsecond at which the token is there.

::

    state   Bucket(level, at_us)            level in units at the instant at_us
    step    level' = min(full, level + (now - at) * gain_per_us)
    take    level' >= cost * unit ?  level' - cost * unit, started  :  the same state, refused

The token bucket and the generic cell rate algorithm of ITU-T I.371 (GCRA: emission interval 1/rate, tolerance
(burst - 1)/rate) decide alike on every input; the tests check it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm
from typing import Any, ClassVar, Final, Literal, NamedTuple, cast

from flowq.errors import ConfigurationError
from flowq.policy.stored import checked
from flowq.units import (
    DAY_US,
    HOUR_US,
    MINUTE_US,
    SECOND_US,
    Duration,
    Number,
    choice,
    duration_text,
    duration_us,
    exact_number,
    number_text,
    shown,
    whole_number,
)

__all__ = ["Bucket", "OnExcess", "Rate", "RateLimit", "Start"]

OnExcess = Literal["defer", "drop"]
Start = Literal["full", "empty"]

_PERIODS_US: Final = {
    **dict.fromkeys(("s", "sec", "second"), SECOND_US),
    **dict.fromkeys(("m", "min", "minute"), MINUTE_US),
    **dict.fromkeys(("h", "hr", "hour"), HOUR_US),
    **dict.fromkeys(("d", "day"), DAY_US),
}
_UNIT_OF: Final = {SECOND_US: "s", MINUTE_US: "m", HOUR_US: "h", DAY_US: "d"}
_COUNT: Final = re.compile(r"-?[0-9]{1,40}(?:\.[0-9]{1,40}|/0*[1-9][0-9]{0,39})?")
_SHORT: Final = re.compile(r"\s*([^\s/]+)\s*/\s*([A-Za-z]+)\s*")
_LONG: Final = re.compile(r"\s*(\S+)\s+per\s+(\S.*)")
_LARGEST_LEVEL: Final = 2**63 - 1

_new = tuple.__new__


class Bucket(NamedTuple):
    """State of one bucket: its level, in units of its `RateLimit`, at the latest instant it has seen."""

    level: int
    at_us: int


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Rate:
    """A count of tokens per period.

    Parameters
    ----------
    count : number
        Tokens a period, >= 1 and finite; may be decimal or a `fractions.Fraction`.
    per : duration
        The period, 1 µs to 365 days: ``"1s"``, a `timedelta` or a number of seconds.

    Attributes
    ----------
    count : Fraction
    per_us : int

    Raises
    ------
    ConfigurationError
        If the count is under 1 or not finite, or the period is no legal duration.

    Notes
    -----
    ``10/s`` and ``600/m`` are the same speed, but not the same rate: a limit's default burst is the count.

    Examples
    --------
    >>> Rate.parse("10/s"), Rate(20, "3s")
    (Rate('10/s'), Rate(20, '3s'))
    >>> str(Rate(20, "3s")), Rate.parse("20 per 3s") == Rate(20, 3)
    ('20 per 3s', True)
    """

    count: Fraction
    per_us: int

    def __init__(self, count: Number | str, per: Duration | None = None) -> None:
        if per is None:
            if not isinstance(count, str):
                raise TypeError(f"per is missing: write Rate({shown(count)}, '1s')")
            parsed = Rate.parse(count)
            exact, per_us = parsed.count, parsed.per_us
        else:
            exact = _exact(count, "rate")
            per_us = duration_us(per, "per")
        if exact < 1:
            raise ConfigurationError(
                f"rate must be {'>= 1 a period' if exact > 0 else '> 0'}: {shown(count)}"
            )
        object.__setattr__(self, "count", exact)
        object.__setattr__(self, "per_us", per_us)

    @classmethod
    def parse(cls, text: str, name: str = "rate") -> Rate:
        """Read ``"10/s"``: count, ``/``, one of s sec second m min minute h hr hour d day; spaces allowed.

        ``"20 per 3s"`` is the long form, for a period that is no single unit.

        Raises
        ------
        TypeError
            If it is not text.
        ConfigurationError
            If it does not have that form, or the count is under 1.
        """
        if not isinstance(text, str):
            raise TypeError(f"{name} must be text such as '10/s', or a Rate: {shown(text)}")
        if match := _SHORT.fullmatch(text):
            per_us = _PERIODS_US.get(match[2])
        elif match := _LONG.fullmatch(text):
            try:
                per_us = duration_us(match[2], name)
            except ConfigurationError:
                per_us = None
        else:
            per_us = None
        if match is None or per_us is None:
            raise ConfigurationError(
                f"{name} must be a count and a unit, such as '10/s', '100/m', '3600/h' or '5/d'"
                f" (for another period, Rate(10, '30s')): {shown(text)}"
            )
        count = _exact(match[1], name)
        if count < 1:
            raise ConfigurationError(
                f"{name} must be {'>= 1 a period' if count > 0 else '> 0'}: {shown(text)}"
            )
        rate = object.__new__(cls)
        object.__setattr__(rate, "count", count)
        object.__setattr__(rate, "per_us", per_us)
        return rate

    def __str__(self) -> str:
        unit = _UNIT_OF.get(self.per_us)
        count = number_text(self.count)
        if unit is not None and "/" not in count:
            return f"{count}/{unit}"
        return f"{count} per {duration_text(self.per_us)}"

    def __repr__(self) -> str:
        text = str(self)
        if "per" not in text:
            return f"Rate({text!r})"
        count = number_text(self.count)
        return f"Rate({repr(count) if '/' in count else count}, {duration_text(self.per_us)!r})"


def _exact(value: Number | str, name: str) -> Fraction:
    if not isinstance(value, str):
        return exact_number(value, name)
    if not _COUNT.fullmatch(value):
        raise ConfigurationError(f"{name} must be a number: {shown(value)}")
    return Fraction(value)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class RateLimit:
    """Start at most ``burst + rate * T`` jobs in every window of length T: a token bucket at dispatch.

    Use it where what is called must not be called faster: an API with a quota, a database that needs rest.
    Jobs over the limit keep their place and wait (``"defer"``), or are shed at once if stale work is
    worthless (``"drop"``). To keep one key from running twice use `Coalesce` or `Debounce`; to bound how many
    run *at once*, a concurrency cap; against a backlog that only grows, `CoDel`.

    Parameters
    ----------
    rate : str or Rate
        ``"10/s" "100/m" "3600/h" "5/d"``, or ``Rate(20, "3s")``.
    burst : number, optional
        Capacity of the bucket in tokens, >= 1, may be fractional (``2.5``, ``"20/3"``); the rate's count by
        default. ``burst=1`` spaces the starts evenly.
    on_excess : {"defer", "drop"}
        What happens to a due first attempt without a token: it waits, or it is shed.
    start : {"full", "empty"}
        Level of a new bucket.

    Attributes
    ----------
    rate : Rate
    burst : Fraction
    on_excess, start : str
    unit : int
        Units of the level in one token.
    gain_per_us : int
        Units gained in a microsecond.
    full : int
        Units in a full bucket; fits in 63 bits.

    Raises
    ------
    TypeError
        If a value has the wrong type.
    ConfigurationError
        If the rate or burst is under 1 or not finite, a word is unknown, or a full level needs more than 63
        bits.

    References
    ----------
    ITU-T I.371 (GCRA): the same decisions with emission interval 1/rate and tolerance (burst - 1)/rate.

    Examples
    --------
    A burst of two, then a token every 100 ms; the refusal at 50 ms leaves no trace:

    >>> limit = RateLimit("10/s", burst=2)
    >>> state = limit.initial(0)
    >>> for now_us in (0, 0, 50_000, 100_000, 150_000):
    ...     state, started = limit.take(state, 1, now_us)
    ...     print(now_us, started, limit.opens_at_us(state, 1, now_us))
    0 True 0
    0 True 100000
    50000 False 100000
    100000 True 200000
    150000 False 200000
    """

    rate: Rate
    burst: Fraction
    on_excess: OnExcess
    start: Start
    unit: int = field(init=False, compare=False)
    gain_per_us: int = field(init=False, compare=False)
    full: int = field(init=False, compare=False)

    policy: ClassVar[str] = "rate_limit"

    def __init__(
        self,
        rate: Rate | str,
        burst: Number | str | None = None,
        on_excess: OnExcess = "defer",
        start: Start = "full",
    ) -> None:
        exact_rate = rate if isinstance(rate, Rate) else Rate.parse(rate, "rate_limit")
        exact_burst = exact_rate.count if burst is None else _exact(burst, "burst")
        if exact_burst < 1:
            raise ConfigurationError(f"burst must be >= 1: {shown(burst)}")
        scale = lcm(exact_rate.count.denominator, exact_burst.denominator)
        unit = exact_rate.per_us * scale
        full = exact_burst * unit
        if full > _LARGEST_LEVEL:
            raise ConfigurationError(
                f"rate_limit must have a full level below 2**63 units (burst * period in microseconds *"
                f" denominators); lower burst, shorten the period or round the decimals:"
                f" {exact_rate}, burst {number_text(exact_burst)}"
            )
        assign = object.__setattr__
        assign(self, "rate", exact_rate)
        assign(self, "burst", exact_burst)
        assign(self, "on_excess", choice(on_excess, "on_excess", ("defer", "drop")))
        assign(self, "start", choice(start, "start", ("full", "empty")))
        assign(self, "unit", unit)
        assign(self, "gain_per_us", int(exact_rate.count * scale))
        assign(self, "full", int(full))

    def __repr__(self) -> str:
        text = repr(self.rate)
        parts = [repr(str(self.rate)) if text.count(",") == 0 else text]
        if self.burst != self.rate.count:
            burst = number_text(self.burst)
            parts.append(f"burst={repr(burst) if '/' in burst else burst}")
        if self.on_excess != "defer":
            parts.append(f"on_excess={self.on_excess!r}")
        if self.start != "full":
            parts.append(f"start={self.start!r}")
        return f"RateLimit({', '.join(parts)})"

    @property
    def max_cost(self) -> int:
        """The largest cost a job may have: the whole tokens of a full bucket."""
        return self.full // self.unit

    def check_cost(self, cost: Any) -> int:
        """Return a job's cost, a whole number from 1 to the burst (rule R7).

        Raises
        ------
        TypeError
            If it is not a whole number.
        ConfigurationError
            If it is under 1, or above the burst so that it could never start.
        """
        whole = whole_number(cost, "cost", 1)
        if whole > self.max_cost:
            raise ConfigurationError(f"cost must be <= burst {number_text(self.burst)}: {shown(whole)}")
        return whole

    def initial(self, now_us: int) -> Bucket:
        """Return a new bucket: full, or empty with ``start="empty"``."""
        return Bucket(self.full if self.start == "full" else 0, now_us)

    def advance(self, state: Bucket, now_us: int) -> Bucket:
        """Return the bucket as it is at an instant; an instant before its latest changes nothing (T3)."""
        level, at_us = state
        if now_us <= at_us:
            return state
        return Bucket(min(self.full, level + (now_us - at_us) * self.gain_per_us), now_us)

    def take(self, state: Bucket, cost: int, now_us: int) -> tuple[Bucket, bool]:
        """Take a whole cost, or nothing.

        Parameters
        ----------
        state : Bucket
            The bucket before.
        cost : int
            Tokens, as `check_cost` passed them.
        now_us : int
            The instant; clamped to the latest that the bucket has seen.

        Returns
        -------
        (Bucket, bool)
            The bucket after and whether the job may start. A refusal returns `state` itself.
        """
        level, at_us = state
        if now_us > at_us:
            level += (now_us - at_us) * self.gain_per_us
            if level > self.full:
                level = self.full
        else:
            now_us = at_us
        level -= cost * self.unit
        if level < 0:
            return state, False
        return _new(Bucket, (level, now_us)), True

    def tokens(self, state: Bucket, now_us: int) -> int:
        """Return the whole tokens in the bucket at an instant."""
        return self.advance(state, now_us).level // self.unit

    def opens_at_us(self, state: Bucket, cost: int, now_us: int) -> int:
        """Return the earliest instant, from `now_us` on, at which ``take`` of this cost succeeds.

        Exact, rounded up to the next microsecond: a microsecond earlier the take is refused.

        Raises
        ------
        ConfigurationError
            If the cost is above the burst: there is no such instant.
        """
        missing = cost * self.unit - state.level
        if missing <= 0:
            return now_us
        if cost * self.unit > self.full:
            raise ConfigurationError(f"cost must be <= burst {number_text(self.burst)}: {cost}")
        return max(now_us, state.at_us - (-missing // self.gain_per_us))

    def rebase(self, old: RateLimit, state: Bucket, now_us: int) -> Bucket:
        """Carry a bucket over from an older limit (rule R5).

        Time until now is credited at the old rate, the tokens are kept, capped to the new burst; what does
        not come out even in the new units is rounded down, so a change never creates a token.
        """
        level, at_us = old.advance(state, now_us)
        return Bucket(min(self.full, level * self.unit // old.unit), at_us)

    def state_to_json(self, state: Bucket) -> list[int]:
        """Return a bucket as ``[level, at_us]``."""
        return list(state)

    def state_from_json(self, values: Sequence[int]) -> Bucket:
        """Return the bucket that `state_to_json` wrote, under this same limit (else `rebase` it)."""
        level, at_us = values
        return Bucket(level, at_us)

    def to_json(self) -> dict[str, Any]:
        """Return the limit as a JSON object."""
        return {
            "policy": self.policy,
            "rate": str(self.rate),
            "burst": number_text(self.burst),
            "on_excess": self.on_excess,
            "start": self.start,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RateLimit:
        """Return the limit that `to_json` wrote."""
        checked(data, cls.policy, "rate", "burst", "on_excess", "start")
        return cls(
            data["rate"],
            burst=data["burst"],
            on_excess=cast(OnExcess, data["on_excess"]),
            start=cast(Start, data["start"]),
        )

    def describe(self) -> str:
        """Return the limit in a few words."""
        text = f"at most {self.rate}, burst {number_text(self.burst)}"
        text += ", excess dropped" if self.on_excess == "drop" else ""
        text += ", starting empty" if self.start == "empty" else ""
        return text
