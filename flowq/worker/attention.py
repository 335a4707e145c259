"""Whether enqueues shall notify a worker, and how it rests meanwhile.

Theory of operation
-------------------
Enqueues notify only workers that said they sleep, because NOTIFY takes a global lock at commit. So before its first
rest a worker says that it sleeps, and then claims once more: what was enqueued before that claim is found by it, what
comes after notifies.

Its word stays good over many short rests: saying so again for each job would cost more than a few hints too many. It
is taken back when hints come so fast that looking is cheaper (*flood*), and when no slot has been free for a while
(*full*). An awake worker that rests looks again every few milliseconds, as long as that finds something (*linger*).

The decisions are values, and instants are seconds of the worker's own monotonic clock, given as arguments.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["NEVER", "Attention", "Look", "Say", "Wait"]

NEVER: Final = float("inf")
GLANCE_S: Final = 0.002
LINGER_S: Final = 0.010
FULL_S: Final = 0.050
FLOOD_S: Final = 0.1
FLOOD_CLAIMS: Final = 20


class Say(NamedTuple):
    """Say that it sleeps for so long from now, or (None) that it is awake; then look at the store once more."""

    for_s: float | None


class Look(NamedTuple):
    """Rest so long, then look at the store again."""

    after_s: float


class Wait(NamedTuple):
    """Rest, at the longest until then."""

    until_s: float


class Attention:
    """What a worker has said of itself, and how often it was right to.

    Parameters
    ----------
    notify
        Whether there are notifications at all; without them it never says anything.
    poll_s
        The longest rest.

    Examples
    --------
    >>> attention = Attention(notify=True, poll_s=5.0)
    >>> attention.decide(100.0, attentive=True)
    Say(for_s=10.0)
    >>> attention.said(100.0, 10.0)
    >>> attention.decide(100.001, attentive=True)
    Wait(until_s=inf)
    """

    def __init__(self, notify: bool, poll_s: float) -> None:
        self._notify = notify
        self._poll_s = poll_s
        self._asleep_until_s: float | None = None
        self._found_s = -NEVER
        self._flood_began_s = -NEVER
        self._flood = 0
        self._full_since_s = NEVER

    @property
    def awake(self) -> bool:
        """Whether nobody tells it of new jobs."""
        return self._asleep_until_s is None

    def found(self, now_s: float) -> None:
        """Note that a claim started something."""
        self._found_s = now_s
        if now_s - self._flood_began_s > FLOOD_S:
            self._flood_began_s, self._flood = now_s, 0
        self._flood += 1

    def said(self, now_s: float, for_s: float | None) -> None:
        """Note what the store was told."""
        self._asleep_until_s = None if for_s is None else now_s + for_s

    def decide(self, now_s: float, attentive: bool) -> Say | Look | Wait:
        """Decide how to rest.

        Parameters
        ----------
        now_s
            The instant.
        attentive
            Whether a new job would matter now: a slot is free.
        """
        if attentive:
            self._full_since_s = NEVER
        elif self._full_since_s == NEVER:
            self._full_since_s = now_s
        if not self._notify:
            return Wait(NEVER)
        if not attentive:
            if self._asleep_until_s is None:
                return Wait(NEVER)
            full_s = self._full_since_s + FULL_S
            return Say(None) if now_s >= full_s else Wait(full_s)
        if self._asleep_until_s is None:
            return Look(GLANCE_S) if now_s - self._found_s < LINGER_S else Say(2 * self._poll_s)
        if self._flood > FLOOD_CLAIMS and now_s - self._flood_began_s <= FLOOD_S:
            return Say(None)
        if self._asleep_until_s < now_s + self._poll_s:
            return Say(2 * self._poll_s)
        return Wait(NEVER)
