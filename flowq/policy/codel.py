"""CoDel: controlled delay. Shed jobs when even the *best-served* job of an interval has waited too long.

A queue may be long because a burst came, which drains, or because more arrives than leaves, which does not.
Length does not tell them apart; the minimum sojourn over an interval does (Nichols and Jacobson, RFC 8289
section 3). While it stays above ``target`` for a whole ``interval``, jobs are shed, and the rest are served
fresh.

Two laws, one surface: one candidate at a time, one verdict each.

``"rfc8289"``
    The control law of RFC 8289 (sections 3.3, 5.5 and 5.6): the first shed after one interval above target,
    then at intervals shrinking with the square root of the count. It is gentle, and *relies on producers that
    slow down* when something is shed, as TCP does: against a constant excess of d jobs a second it takes some
    ``2 * interval**2 * d`` seconds until it sheds as fast as they come.
``"slough"``
    The bounded variant of folly (``folly/executors/Codel.cpp``): an interval whose minimum was above target
    makes the next one *overloaded*, and in it every job older than twice the target is shed. Choose it
    **where producers do not slow down**, which is most job queues: the wait of what is served stays near
    twice the target.

::

    rfc8289, per candidate                              slough, per candidate
    below target, or little left:  disarm, keep         interval over: overloaded := min > target; re-arm
    not armed:                     arm for interval     first of an interval: min := sojourn, keep
    armed and the interval over:   start dropping       else min := min(min, sojourn);
    dropping and now >= drop_next: shed, next sooner      shed if overloaded and sojourn > 2 * target
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, cast

from flowq.policy.stored import checked
from flowq.units import Duration, choice, duration_text, duration_us, whole_number

__all__ = ["CoDel", "CoDelState", "Law", "Rfc8289", "Slough"]

Law = Literal["rfc8289", "slough"]


class Rfc8289(NamedTuple):
    """State of the law of RFC 8289 (section 5.2), with the run of sheds that bounds catch-up.

    `first_above_us` is the instant from which a candidate above target may be shed, or None when not armed;
    `drop_next_us` the instant of the next shed while `dropping`; `count` the sheds of this episode and
    `lastcount` the count at its start; `shed_run` the sheds since the last start; `at_us` the latest instant
    seen.
    """

    first_above_us: int | None
    dropping: bool
    drop_next_us: int
    count: int  # type: ignore[assignment]  # RFC 8289's name; tuple.count is not missed
    lastcount: int
    shed_run: int
    at_us: int


class Slough(NamedTuple):
    """State of folly's law.

    `end_us` is the end of the interval and `min_us` its minimum sojourn; `fresh` says that it waits for its
    first candidate, `overloaded` that the interval before was; `at_us` is the latest instant seen.
    """

    end_us: int
    min_us: int
    fresh: bool
    overloaded: bool
    at_us: int


CoDelState: TypeAlias = Rfc8289 | Slough

_new = tuple.__new__


@dataclass(frozen=True, slots=True, init=False, repr=False)
class CoDel:
    """Shed the oldest jobs of a queue while its wait stays above a target.

    Use it where late work is worth less than no work: requests with a caller waiting, cache refreshes, feeds.
    Not where every job must run. Choose ``law="slough"`` where producers do not slow down when jobs are shed,
    and ``"rfc8289"`` where they do, or where shedding must begin gently. Set the target to the wait that is
    still fine, at least twice the poll interval, and the interval to 10 to 20 times that.

    Parameters
    ----------
    target : duration
        The wait that is acceptable for long; a sojourn equal to it counts as above.
    interval : duration
        How long the wait must stay above target before the first shed.
    law : {"rfc8289", "slough"}
        The control law.
    exempt_backlog : int
        Nothing is shed while at most this many jobs are left waiting, >= 0. 0: the last waiting job is never
        shed. RFC 8289 itself, with jobs of one size, is 1 (its "at most one MTU", section 5.6).
    max_shed : int or None
        Most sheds between two starts under ``rfc8289``, >= 1; None lifts the bound, and then an hour's outage
        can empty a backlog at its end. ``slough`` is bounded by its own definition and ignores it.

    Attributes
    ----------
    target_us, interval_us : int
    law : str
    exempt_backlog : int
    max_shed : int or None

    Raises
    ------
    TypeError
        If a value has the wrong type.
    ConfigurationError
        If a duration is outside 1 µs to 365 days, a word is unknown or a count is too small.

    References
    ----------
    RFC 8289, "Controlled Delay Active Queue Management": sections 3.1 to 3.3 (estimator, setpoint, control
    loop), 4.2 and 4.3 (choice of interval and target), 5.2 (state), 5.5 and 5.6 (pseudocode).
    Nichols, Jacobson, "Controlling Queue Delay", ACM Queue 10(5), 2012.
    folly, ``executors/Codel.cpp``; Maurer, "Fail at Scale", ACM Queue 13(8), 2015.

    Examples
    --------
    One candidate each 100 ms, always 500 ms old, with many behind it: armed at 100, sheds from 200 on.

    >>> codel = CoDel("5ms", "100ms")
    >>> state = codel.initial()
    >>> for now_ms in (100, 200, 300, 370, 371):
    ...     state, shed = codel.judge(state, 500_000, 9, now_ms * 1000)
    ...     print(now_ms, "shed" if shed else "keep")
    100 keep
    200 shed
    300 shed
    370 keep
    371 shed
    """

    target_us: int
    interval_us: int
    law: Law
    exempt_backlog: int
    max_shed: int | None

    policy: ClassVar[str] = "codel"

    def __init__(
        self,
        target: Duration,
        interval: Duration,
        law: Law = "rfc8289",
        exempt_backlog: int = 0,
        max_shed: int | None = 100,
    ) -> None:
        assign = object.__setattr__
        assign(self, "target_us", duration_us(target, "target"))
        assign(self, "interval_us", duration_us(interval, "interval"))
        assign(self, "law", choice(law, "law", ("rfc8289", "slough")))
        assign(self, "exempt_backlog", whole_number(exempt_backlog, "exempt_backlog", 0))
        assign(self, "max_shed", None if max_shed is None else whole_number(max_shed, "max_shed", 1))

    def __repr__(self) -> str:
        parts = [repr(duration_text(self.target_us)), repr(duration_text(self.interval_us))]
        if self.law != "rfc8289":
            parts.append(f"law={self.law!r}")
        if self.exempt_backlog != 0:
            parts.append(f"exempt_backlog={self.exempt_backlog}")
        if self.max_shed != 100:
            parts.append(f"max_shed={self.max_shed}")
        return f"CoDel({', '.join(parts)})"

    def initial(self) -> CoDelState:
        """Return the state of a queue that has judged nothing yet."""
        if self.law == "rfc8289":
            return Rfc8289(None, False, 0, 0, 0, 0, 0)
        return Slough(0, 0, True, False, 0)

    def judge(self, state: CoDelState, sojourn_us: int, left: int, now_us: int) -> tuple[CoDelState, bool]:
        """Judge one candidate: keep it, which means that it starts, or shed it.

        Parameters
        ----------
        state : Rfc8289 or Slough
            The queue's state, of this law.
        sojourn_us : int
            How long the oldest waiting job has waited since it became eligible.
        left : int
            How many wait once the candidate is taken; only compared with `exempt_backlog`, so a bounded count
            does.
        now_us : int
            The instant; clamped to the latest that the state has seen.

        Returns
        -------
        (state, bool)
            The state after, and whether the candidate is shed.
        """
        if isinstance(state, Rfc8289):
            return self._judge_rfc8289(state, sojourn_us, left, now_us)
        return self._judge_slough(state, sojourn_us, left, now_us)

    def _judge_rfc8289(self, state: Rfc8289, sojourn_us: int, left: int, now_us: int) -> tuple[Rfc8289, bool]:
        first_above_us, dropping, drop_next_us, count, lastcount, shed_run, at_us = state
        if now_us < at_us:
            now_us = at_us
        shed = False
        if sojourn_us < self.target_us or left <= self.exempt_backlog:
            first_above_us = None
            dropping = False
        elif first_above_us is None:
            first_above_us = now_us + self.interval_us
            dropping = False
        elif now_us < first_above_us:
            dropping = False
        elif not dropping:
            delta = count - lastcount
            recent = now_us - drop_next_us < 16 * self.interval_us
            count = delta if delta > 1 and recent else 1
            lastcount = count
            drop_next_us = now_us + self.step_us(count)
            dropping = shed = True
        elif now_us >= drop_next_us:
            if self.max_shed is not None and shed_run >= self.max_shed:
                drop_next_us = now_us + self.step_us(count)
            else:
                count += 1
                drop_next_us += self.step_us(count)
                shed = True
        shed_run = shed_run + 1 if shed else 0
        after = (first_above_us, dropping, drop_next_us, count, lastcount, shed_run, now_us)
        return _new(Rfc8289, after), shed

    def _judge_slough(self, state: Slough, sojourn_us: int, left: int, now_us: int) -> tuple[Slough, bool]:
        end_us, min_us, fresh, overloaded, at_us = state
        if now_us < at_us:
            now_us = at_us
        if now_us > end_us and not fresh:
            overloaded = min_us > self.target_us
            end_us = now_us + self.interval_us
            fresh = True
        if fresh:
            return _new(Slough, (end_us, sojourn_us, False, overloaded, now_us)), False
        if sojourn_us < min_us:
            min_us = sojourn_us
        shed = overloaded and sojourn_us > 2 * self.target_us and left > self.exempt_backlog
        return _new(Slough, (end_us, min_us, False, overloaded, now_us)), shed

    def step_us(self, count: int) -> int:
        """Return interval / sqrt(count), rounded down to a microsecond (``control_law`` of RFC 8289)."""
        return isqrt(self.interval_us * self.interval_us // count)

    def started(self, state: CoDelState) -> CoDelState:
        """Return the state after a start without judgement (a job retried by hand): the run of sheds ends."""
        if isinstance(state, Rfc8289) and state.shed_run:
            return state._replace(shed_run=0)
        return state

    def disarm(self, state: CoDelState) -> CoDelState:
        """Return the state after the queue was seen without a due job: armed no more."""
        if isinstance(state, Rfc8289):
            if state.first_above_us is None and not state.dropping:
                return state
            return state._replace(first_above_us=None, dropping=False)
        return state if state.min_us == 0 else state._replace(min_us=0)

    def overloaded(self, state: CoDelState) -> bool:
        """Return whether the queue is overloaded: dropping (rfc8289), or so marked (slough)."""
        return state.dropping if isinstance(state, Rfc8289) else state.overloaded

    def state_to_json(self, state: CoDelState) -> list[int | bool | None]:
        """Return a state as a flat list: seven values for rfc8289, five for slough."""
        return list(state)

    def state_from_json(self, values: Sequence[Any]) -> CoDelState:
        """Return the state that `state_to_json` wrote; a list of the other law gives the initial state."""
        if self.law == "rfc8289" and len(values) == len(Rfc8289._fields):
            return Rfc8289(*values)
        if self.law == "slough" and len(values) == len(Slough._fields):
            return Slough(*values)
        return self.initial()

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object."""
        return {
            "policy": self.policy,
            "target_us": self.target_us,
            "interval_us": self.interval_us,
            "law": self.law,
            "exempt_backlog": self.exempt_backlog,
            "max_shed": self.max_shed,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CoDel:
        """Return the policy that `to_json` wrote."""
        checked(data, cls.policy, "target_us", "interval_us", "law", "exempt_backlog", "max_shed")
        return cls(
            duration_text(data["target_us"]),
            duration_text(data["interval_us"]),
            law=cast(Law, data["law"]),
            exempt_backlog=data["exempt_backlog"],
            max_shed=data["max_shed"],
        )

    def describe(self) -> str:
        """Return the policy in a few words."""
        return (
            f"shed while the wait stays above {duration_text(self.target_us)}"
            f" for {duration_text(self.interval_us)} ({self.law})"
        )
