"""Retry dead letters by hand: a fresh job each; one that was shed can't be shed again (rule D5)."""

from __future__ import annotations

from collections.abc import Sequence

from flowq.programs.commands import DeadLetter, Insert, NewJob, Program, Round, TakeDead

__all__ = ["redrive"]


def redrive(ids: Sequence[int]) -> Program[dict[int, int]]:
    """Enqueue dead letters again; return old id -> new id of those that existed.

    The new job is due now, has no key (rule C2) and counts its failures from zero.
    """
    [reply] = yield Round((TakeDead(tuple(sorted(set(ids)))),), False)
    letters: list[DeadLetter] = reply
    jobs = [
        NewJob(
            queue=letter.queue,
            task=letter.task,
            priority=letter.priority,
            payload=letter.payload,
            cost=letter.cost,
            max_retries=letter.max_retries,
            metadata=letter.metadata,
            exempt=letter.shed,
        )
        for letter in letters
    ]
    replies = yield Round((Insert(jobs),) if jobs else (), True)
    return {letter.id: row.id for letter, row in zip(letters, replies[0] if jobs else [], strict=True)}
