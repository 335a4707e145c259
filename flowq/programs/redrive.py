"""Dead letters, after somebody has looked at them: retry them by hand, or purge them.

A retry is a fresh job each, due now, without a key (rule C2), its failures counted from zero; one that was shed can't
be shed again (rule D5). A purge removes the letter; the job stays in the archive. By ids it is one transaction; by
filter it goes in pages, newest first, each a transaction of its own, so that a long list holds no lock for long.

Rules: X8, D5.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

from flowq.programs.commands import (
    DeadLetter,
    DeadRecord,
    Insert,
    NewJob,
    Program,
    ReadDead,
    Round,
    TakeDead,
)

__all__ = ["DeadFilter", "purge", "purge_matching", "redrive", "redrive_matching"]

_PAGE = 1_000


class DeadFilter(NamedTuple):
    """Which dead letters; what is None matches all."""

    task: str | None = None
    reason: str | None = None
    before_us: int | None = None
    """Only those that died before this instant."""
    limit: int | None = None
    """At most so many, the newest first."""


def redrive(ids: Sequence[int]) -> Program[dict[int, int]]:
    """Enqueue dead letters again; return old id -> new id of those that existed."""
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


def purge(ids: Sequence[int]) -> Program[int]:
    """Remove dead letters; return how many existed."""
    [letters] = yield Round((TakeDead(tuple(sorted(set(ids)))),), True)
    return len(letters)


def redrive_matching(which: DeadFilter) -> Program[dict[int, int]]:
    """Enqueue the dead letters of a filter again; return old id -> new id."""
    renewed: dict[int, int] = {}
    for page in (yield from _pages(which, redrive)):
        renewed |= page
    return renewed


def purge_matching(which: DeadFilter) -> Program[int]:
    """Remove the dead letters of a filter; return how many there were."""
    return sum((yield from _pages(which, purge)))


def _pages(
    which: DeadFilter, act: Callable[[Sequence[int]], Program[Any]]
) -> Generator[Round, list[Any], list[Any]]:
    """Read the letters of a filter page by page and let ``act`` end each page's transaction."""
    done: list[Any] = []
    left, before_id = which.limit, None
    while left is None or left > 0:
        [reply] = yield Round((ReadDead(_PAGE, before_id, which.task, which.reason),), True)
        page: list[DeadRecord] = reply
        ids = [row.id for row in page if which.before_us is None or row.finished_us < which.before_us][:left]
        if ids:
            done.append((yield from act(ids)))
        if len(page) < _PAGE:
            break
        before_id = page[-1].id
        left = None if left is None else left - len(ids)
    return done
