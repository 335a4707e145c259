"""Debounce: one pending job per key; each call moves its deadline, up to a ceiling.

A burst of calls for one key becomes one run, ``window`` after the last call, and never later than
``max_wait`` after the first. The formula is the whole rule (B1)::

    deadline = min(now + window, first_seen + max_wait)

`first_seen` is when the window opened; window and max wait are those of the present call, so a call with a
shorter window may move the deadline earlier. The merge target is the pending job of the key that has never
started (B2): a running job, or one waiting for a retry, is not touched, and the call opens a new window
behind it.

While the job has not started it can be merged into however late it is (B3). Its *eligibility*, from which its
place in the order and its sojourn count, is the new deadline; a job that was not yet due becomes eligible now
at the earliest.

With Poisson calls at rate r, a debounce without ceiling waits (exp(r * window) - 1) / r on average: at five
calls a window, 29 windows. So the ceiling is not optional (B4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from flowq.errors import ConfigurationError
from flowq.policy.key_template import KeyTemplate
from flowq.policy.stored import checked
from flowq.units import Duration, duration_text, duration_us, flag

__all__ = ["Debounce", "Window", "decide_window"]


class Window(NamedTuple):
    """An open window: when its first call came, when it ends, from when its job is eligible, and how many
    calls it holds. The deadline and the eligibility differ only for a job that is late.
    """

    first_seen_us: int
    deadline_us: int
    eligible_us: int
    hits: int


def decide_window(open: Window | None, window_us: int, max_wait_us: int, now_us: int) -> Window:
    """Judge one call: open a window, or slide the open one (rules B1 and B3).

    Parameters
    ----------
    open : Window or None
        The window of the pending job of this key that has never started; None if there is no such job.
    window_us, max_wait_us : int
        Of the present call.
    now_us : int
        The instant of the call; never before the window's first call.

    Returns
    -------
    Window
        ``hits == 1`` if it is new.

    Examples
    --------
    >>> decide_window(Window(0, 5, 5, 1), 5, 30, 2)
    Window(first_seen_us=0, deadline_us=7, eligible_us=7, hits=2)
    """
    if open is None:
        deadline_us = now_us + min(window_us, max_wait_us)
        return Window(now_us, deadline_us, deadline_us, 1)
    first_seen_us, _, eligible_us, hits = open
    if now_us < first_seen_us:
        now_us = first_seen_us
    deadline_us = min(now_us + window_us, first_seen_us + max_wait_us)
    was_due = eligible_us <= now_us
    return Window(first_seen_us, deadline_us, deadline_us if was_due else max(deadline_us, now_us), hits + 1)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Debounce:
    """Turn a burst of calls for one key into one run after the burst.

    Use it where only the last state matters and calls come in bursts: reindex after edits, rebuild after
    pushes, notify after a flurry. To answer at once and ignore repeats, use `Coalesce`; to slow the runs,
    `RateLimit`.

    Parameters
    ----------
    window : duration
        The quiet time after the last call.
    key : str
        A key template over the call's arguments, such as ``"doc:{doc_id}"``; without placeholders, one window
        for the whole task.
    max_wait : duration
        The longest a job may be put off, counted from the call that opened the window; >= window.
    replace_payload : bool
        Run the newest call's payload rather than that of the call which opened the window.

    Attributes
    ----------
    window_us, max_wait_us : int
    key : str
    replace_payload : bool

    Raises
    ------
    TypeError
        If a value has the wrong type.
    ConfigurationError
        If one of window, key and max_wait is missing, ``max_wait < window``, or a value is not legal.

    Examples
    --------
    Calls at 0, 2 and 4 minutes run once, at 9; one a minute would run at 30:

    >>> debounce = Debounce("5m", "doc:{id}", "30m")
    >>> window = None
    >>> for minute in (0, 2, 4):
    ...     window = debounce.decide(window, minute * 60_000_000)
    ...     print(minute, window.deadline_us // 60_000_000, window.hits)
    0 5 1
    2 7 2
    4 9 3
    """

    window_us: int
    key: str
    max_wait_us: int
    replace_payload: bool

    policy: ClassVar[str] = "debounce"

    def __init__(
        self,
        window: Duration | None = None,
        key: str | None = None,
        max_wait: Duration | None = None,
        replace_payload: bool = False,
    ) -> None:
        if max_wait is None:
            raise ConfigurationError(
                "debounce must have a max_wait: an unbounded debounce starves the job"
                " while enqueues keep arriving"
            )
        if key is None:
            raise ConfigurationError(
                "debounce must have a key: a template such as 'doc:{id}',"
                " or plain text for one window for the whole task"
            )
        if window is None:
            raise ConfigurationError(
                "debounce must have a window: the quiet time after the last call, such as '5s'"
            )
        window_us = duration_us(window, "debounce window")
        max_wait_us = duration_us(max_wait, "debounce max_wait")
        if max_wait_us < window_us:
            raise ConfigurationError(
                f"debounce max_wait must be >= window {duration_text(window_us)}:"
                f" {duration_text(max_wait_us)}"
            )
        KeyTemplate.parse(key, name="debounce key")
        assign = object.__setattr__
        assign(self, "window_us", window_us)
        assign(self, "key", key)
        assign(self, "max_wait_us", max_wait_us)
        assign(self, "replace_payload", flag(replace_payload, "debounce replace_payload"))

    def __repr__(self) -> str:
        parts = [repr(duration_text(self.window_us)), repr(self.key), repr(duration_text(self.max_wait_us))]
        if self.replace_payload:
            parts.append("replace_payload=True")
        return f"Debounce({', '.join(parts)})"

    def decide(self, open: Window | None, now_us: int) -> Window:
        """Judge one call: `decide_window` with this policy's window and max wait."""
        return decide_window(open, self.window_us, self.max_wait_us, now_us)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object."""
        return {
            "policy": self.policy,
            "window_us": self.window_us,
            "key": self.key,
            "max_wait_us": self.max_wait_us,
            "replace_payload": self.replace_payload,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Debounce:
        """Return the policy that `to_json` wrote."""
        checked(data, cls.policy, "window_us", "key", "max_wait_us", "replace_payload")
        return cls(
            duration_text(data["window_us"]),
            data["key"],
            duration_text(data["max_wait_us"]),
            replace_payload=data["replace_payload"],
        )

    def describe(self) -> str:
        """Return the policy in a few words."""
        return (
            f"one run per {self.key!r}, {duration_text(self.window_us)} after the last call,"
            f" at most {duration_text(self.max_wait_us)} after the first"
        )
