"""Claim due jobs of a queue: settle what has finished, judge, start.

Theory of operation
-------------------
A queue without gates is one statement: take the first *n* due jobs. A queue with gates is two rounds in one
transaction: lock and read, then write what :class:`~flowq.programs.selection.Selection` judged. A worker that knows
from its last claim that the queue is gated says so and spares the first try; a queue that became gated meanwhile
answers ``gated`` and is claimed the other way.

Rules: R3, R4, D1, A4, A5, A5a, O3, O5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flowq.programs.commands import (
    OpenQueue,
    Program,
    Round,
    SaveGates,
    Shed,
    ShedJob,
    Start,
    Started,
    Take,
)
from flowq.programs.selection import Selection
from flowq.programs.settle import Ended, settlement

__all__ = ["Claimed", "claim"]

_new = tuple.__new__
"""Makes a named tuple at half the price of its class; for what every claim needs."""

_LEAST_PAGE, _MOST_PAGE = 8, 128


class Claimed(NamedTuple):
    """What a claim did, and when to come back."""

    now_us: int
    started: list[Started]
    sheds: Sequence[ShedJob]
    come_back_us: int | None
    """The next instant at which a claim could start or shed something with no event between; None: only an enqueue,
    a finished job or a changed limit can."""
    gated: bool
    """Pass this to the next claim of the queue."""
    more: bool
    """This claim reached the bound of one transaction: claim again at once, at the same instant."""
    settled: frozenset[int]
    """Of ``ended``: the ids whose lease was still held. The others' outcomes were discarded (rule X5)."""


def claim(
    queue: str, n: int, worker: int, *, gated: bool = False, ended: Sequence[Ended] = ()
) -> Program[Claimed]:
    """Settle ``ended``, then start up to ``n`` due jobs of a queue, and shed what its policies shed.

    ``n`` may be 0: a claim that neither starts nor sheds; it says when to come back (rule D1a).
    """
    settled: frozenset[int] = frozenset()
    lead = (settlement(ended),) if ended else ()
    if not gated:
        replies = yield _new(Round, ((*lead, Take(queue, n, worker)), True))
        taken = replies[-1]
        if lead:
            settled, lead = frozenset(replies[0]), ()
        if not taken.gated:
            return Claimed(taken.now_us, taken.started, (), taken.next_due_us, False, False, settled)

    replies = yield _new(Round, ((*lead, OpenQueue(queue, page_of(n))), False))
    if lead:
        settled = frozenset(replies[0])
    selection = Selection(replies[-1], n)
    while missing := selection.advance():
        pages = yield Round(missing, False)
        selection.supply(pages)
    writes: tuple[Start | Shed | SaveGates, ...] = selection.writes(worker)
    replies = yield _new(Round, (writes, True))
    started = replies[0] if selection.starts else []
    return Claimed(
        selection.now_us, started, selection.sheds, selection.come_back_us(), True, selection.more, settled
    )


def page_of(n: int) -> int:
    """Rows to read of each line at first: what the slots may take and one to judge by; no decision depends on it."""
    return min(max(n + 1, _LEAST_PAGE), _MOST_PAGE)
