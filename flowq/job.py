"""Jobs: their states, and the one table of how a state may change.

Theory of operation
-------------------
A job is *live* (``blocked``, ``pending``, ``running``) or *final* (``succeeded``, ``failed``, ``shed``,
``cancelled``, ``expired``). Live jobs stand in the live table of a store; a final one has left it for the
archive, which is why a final job can hold no key (rule C2). *Scheduled* and *ready* are both ``pending`` and are
told apart by ``run_at`` alone.

Every program that moves a job does so along :data:`TRANSITIONS`; the database's CHECK constraints and the drawing
in CONTRIBUTING are compared with this table by tests.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

__all__ = ["FINAL", "LIVE", "SHED_REASONS", "TRANSITIONS", "JobEvent", "JobState", "Outcome", "next_state"]


class JobState(StrEnum):
    """Where a job is in its life; the value is what databases and frames show."""

    BLOCKED = "blocked"
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SHED = "shed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class JobEvent(StrEnum):
    """What can happen to a job."""

    UNBLOCK = "unblock"
    MERGE = "merge"
    START = "start"
    SUCCEED = "succeed"
    RETRY = "retry"
    LAPSE = "lapse"
    FAIL = "fail"
    SHED = "shed"
    CANCEL = "cancel"
    EXPIRE = "expire"


class Outcome(StrEnum):
    """What one enqueue call did (rule S1)."""

    ACCEPTED = "accepted"
    """A new job."""
    COALESCED = "coalesced"
    """The call joined the live job that holds its key; nothing moved."""
    MERGED = "merged"
    """The call slid the deadline of its key's open debounce window."""


_B, _P, _R = JobState.BLOCKED, JobState.PENDING, JobState.RUNNING

TRANSITIONS: Final[dict[tuple[JobState, JobEvent], JobState]] = {
    (_B, JobEvent.UNBLOCK): JobState.PENDING,
    (_B, JobEvent.CANCEL): JobState.CANCELLED,
    (_P, JobEvent.MERGE): JobState.PENDING,
    (_P, JobEvent.START): JobState.RUNNING,
    (_P, JobEvent.SHED): JobState.SHED,
    (_P, JobEvent.CANCEL): JobState.CANCELLED,
    (_P, JobEvent.EXPIRE): JobState.EXPIRED,
    (_R, JobEvent.SUCCEED): JobState.SUCCEEDED,
    (_R, JobEvent.RETRY): JobState.PENDING,
    (_R, JobEvent.LAPSE): JobState.PENDING,
    (_R, JobEvent.FAIL): JobState.FAILED,
    (_R, JobEvent.CANCEL): JobState.CANCELLED,
}
"""(state, event) -> next state. A pair that is absent is impossible, and every store must refuse it."""

LIVE: Final[frozenset[JobState]] = frozenset({_B, _P, _R})
FINAL: Final[frozenset[JobState]] = frozenset(JobState) - LIVE
SHED_REASONS: Final = ("rate_limit", "codel", "age")
"""Why a job was shed, as its dead letter says."""


def next_state(state: JobState, event: JobEvent) -> JobState:
    """Return the state that follows, or refuse.

    Raises
    ------
    ValueError
        The event cannot happen in that state.

    Examples
    --------
    >>> next_state(JobState.PENDING, JobEvent.START).value
    'running'
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise ValueError(f"a {state} job can't {event}: see flowq.job.TRANSITIONS") from None
