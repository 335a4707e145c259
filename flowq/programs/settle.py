"""Settle finished attempts: success, retry, or dead letter.

The lease of every outcome is checked by the store (id and fencing token); an outcome that lost its lease changes
nothing. The random number of a back-off is drawn by the caller and is part of the outcome (rule X1).

Rules: X1, X5, C2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowq.policy.retry import Retry
from flowq.programs.commands import DeadJob, Program, RetriedJob, Round, Settle, SucceededJob

_new = tuple.__new__

__all__ = ["Ended", "Failed", "Succeeded", "settle", "settlement"]


class Succeeded(NamedTuple):
    """The handler returned; ``result`` is JSON text or None."""

    id: int
    token: int
    result: str | None = None


class Failed(NamedTuple):
    """The handler raised. ``retry`` None: this failure must not be retried."""

    id: int
    token: int
    error: str
    failures: int = 0
    """Failures before this one."""
    retry: Retry | None = None
    max_retries: int | None = None
    """The job's own, in place of its task's."""
    u: float = 0.0
    """Drawn from [0, 1)."""


Ended = Succeeded | Failed


def settle(ended: Sequence[Ended]) -> Program[frozenset[int]]:
    """Write outcomes; return the ids whose lease was still held."""
    [settled] = yield _new(Round, ((settlement(ended),), True))
    return frozenset(settled)


def settlement(ended: Sequence[Ended]) -> Settle:
    """Judge outcomes: the command that writes them."""
    succeeded: list[SucceededJob] = []
    retried: list[RetriedJob] = []
    dead: list[DeadJob] = []
    for outcome in ended:
        if isinstance(outcome, Succeeded):
            succeeded.append(_new(SucceededJob, outcome))
            continue
        retry = outcome.retry
        delay_us = (
            None if retry is None else retry.decide(outcome.failures + 1, outcome.u, outcome.max_retries)
        )
        if delay_us is None:
            dead.append(DeadJob(outcome.id, outcome.token, outcome.error))
        else:
            retried.append(RetriedJob(outcome.id, outcome.token, delay_us, outcome.error))
    return Settle(tuple(succeeded), tuple(retried), tuple(dead))
