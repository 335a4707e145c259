"""The queues of a worker, as it sees them: which may have a due job, when, and how they share its slots.

A queue is *ready* while a claim may start something: it was hinted, its instant has come, or its last claim took all
that it asked for. Ready queues share the free slots by smooth weighted round robin (rule A5): one pick a slot, paid for
by what was started.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowq.policy import round_robin
from flowq.programs import Claimed
from flowq.worker.attention import NEVER

__all__ = ["Source", "Sources"]


class Source:
    """One queue."""

    __slots__ = ("at_s", "gated", "hinted", "name", "ready")

    def __init__(self, name: str) -> None:
        self.name = name
        self.gated = False
        self.ready = True
        self.hinted = True
        """Something has happened since the last claim."""
        self.at_s = NEVER
        """When a claim can do more without being told."""

    def hint(self) -> None:
        """Something has happened."""
        self.ready = self.hinted = True

    def claimed(self, claimed: Claimed, n: int, asked_s: float) -> None:
        """Take in what a claim of ``n``, asked for at ``asked_s``, says of the queue.

        Of the server's instants only their distance counts: the clocks are never compared (rule T2). It is counted
        from when the claim was asked for, so the next one comes at its instant or a little before.
        """
        self.gated = claimed.gated
        # What was hinted while the reply was under way, the claim may not have seen.
        self.ready = self.hinted or claimed.more or len(claimed.started) == n
        self.hinted = self.hinted or claimed.more
        come_back_us = claimed.come_back_us
        self.at_s = NEVER if come_back_us is None else asked_s + (come_back_us - claimed.now_us) / 1e6


class Sources:
    """All queues of a worker.

    Parameters
    ----------
    names
        At least one.
    u
        The drawn phase of its round robin, in [0, 1).

    Examples
    --------
    >>> sources = Sources(["busy", "calm"], u=0.0)
    >>> [(source.name, share) for source, share in sources.shares(sources.ready(), 5)]
    [('busy', 3), ('calm', 2)]
    """

    def __init__(self, names: Sequence[str], u: float) -> None:
        self._sources = {name: Source(name) for name in names}
        self._credits = round_robin.phase({}, names, u)

    def hint(self, name: str | None = None) -> None:
        """Something has happened in a queue, or (None) maybe in any."""
        if name is None:
            for source in self._sources.values():
                source.hint()
        elif name in self._sources:
            self._sources[name].hint()

    def hint_ungated(self) -> None:
        """As `hint`, of the queues at which a look costs nothing beside a settlement."""
        for source in self._sources.values():
            if not source.gated:
                source.hint()

    def tick(self, now_s: float) -> None:
        """Hint those whose instant has come."""
        for source in self._sources.values():
            if source.at_s <= now_s:
                source.at_s = NEVER
                source.hint()

    def ready(self) -> list[Source]:
        """Return those that may have a due job."""
        return [source for source in self._sources.values() if source.ready]

    def next_s(self) -> float:
        """Return the next instant of any; NEVER if there is none."""
        return min(source.at_s for source in self._sources.values())

    def drained(self) -> bool:
        """Whether none has a due job, nor will by itself."""
        return not any(source.ready or source.at_s < NEVER for source in self._sources.values())

    def shares(self, ready: list[Source], free: int) -> list[tuple[Source, int]]:
        """Share free slots among ready queues, one pick a slot; those without a share are left out."""
        if len(ready) == 1:
            return [(ready[0], free)]
        names = [source.name for source in ready]
        shares = dict.fromkeys(names, 0)
        credits = self._credits
        for _ in range(free):
            credits, name = round_robin.pick(credits, {}, names)
            shares[name] += 1
        return [(source, shares[source.name]) for source in ready if shares[source.name]]

    def pay(self, starts: Sequence[tuple[Source, int]]) -> None:
        """Enter what the queues of one round of claims started in place of what they were given.

        As in `round_robin.pick`, each start gives one credit to every queue that has a waiting job, which are those
        still ready, and costs its own queue as many. So what a queue didn't take, it neither pays nor is owed.
        """
        credits = dict(self._credits)
        waiting = [source.name for source in self.ready()]
        for source, started in starts:
            candidates = {*waiting, source.name}
            for name in candidates:
                credits[name] = credits.get(name, 0) + started
            credits[source.name] -= started * len(candidates)
        self._credits = credits
