"""Concurrency: at most so many jobs of a task, or of a queue, run at once, cluster-wide.

The cap has no state. How many run is counted from live leases each time it is judged, never kept in a counter, which
could drift: a job whose worker's lease has lapsed does not count, even before it is given back (rule A1). So a dead
worker frees its slots at the end of its lease by itself.

A full cap is never excess: its jobs wait, whatever the rate limit's ``on_excess`` says (rule D4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flowq.policy.stored import checked
from flowq.units import whole_number

__all__ = ["Concurrency"]


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Concurrency:
    """Let at most so many jobs run at once.

    Use it to protect what the jobs use: connections of a database, seats of a licence, one job at a time for what must
    not overlap. To bound how often jobs start, use `RateLimit`; a cap bounds how many have started and not ended.

    Parameters
    ----------
    max_concurrent : int
        The cap, >= 1.

    Attributes
    ----------
    max_concurrent : int

    Raises
    ------
    TypeError
        If it is no whole number.
    ConfigurationError
        If it is below 1.

    Examples
    --------
    >>> cap = Concurrency(2)
    >>> [cap.has_room(running) for running in (0, 1, 2, 3)]
    [True, True, False, False]
    """

    max_concurrent: int

    policy: ClassVar[str] = "concurrency"

    def __init__(self, max_concurrent: int) -> None:
        value = whole_number(max_concurrent, "max_concurrent", 1, 2**31 - 1)
        object.__setattr__(self, "max_concurrent", value)

    def __repr__(self) -> str:
        return f"Concurrency({self.max_concurrent})"

    def has_room(self, running: int) -> bool:
        """Return whether one more may start while so many run under live leases.

        Parameters
        ----------
        running : int
            Above the cap only after it was lowered: then none starts until enough have ended.
        """
        return running < self.max_concurrent

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object."""
        return {"policy": self.policy, "max_concurrent": self.max_concurrent}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Concurrency:
        """Return the policy that `to_json` wrote."""
        return cls(checked(data, cls.policy, "max_concurrent")["max_concurrent"])

    def describe(self) -> str:
        """Return the policy in a few words."""
        return f"at most {self.max_concurrent} at once"
