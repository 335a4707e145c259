"""Enqueue a batch of calls: insert, coalesce, or slide an open debounce window.

Theory of operation
-------------------
A batch without keys is one round: insert. A batch with keys is two: lock the keys (sorted, so that overlapping
batches never deadlock) and read who holds them; then judge each call in order, as if it stood alone, and write all
of it. A call may meet a job that an earlier call of the same batch opened; such a job is still only planned, so it
is changed in the plan (rules C6, B7).

Rules: C1-C7, B1-B8, I4.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from flowq.job import Outcome
from flowq.policy.coalesce import Join
from flowq.policy.coalesce import decide as decide_coalesce
from flowq.policy.debounce import Debounce, Window
from flowq.programs.commands import HeldKeys, Insert, Inserted, LockKeys, NewJob, Program, Round, Slide

__all__ = ["Receipt", "Request", "enqueue", "key_hash"]

_new = tuple.__new__
"""Makes a named tuple at half the price of its class; for what every job needs."""


class Request(NamedTuple):
    """One call, resolved: a job to insert, unless a job that holds its key takes the call.

    ``job.unique_hash`` set: coalesce. ``debounce`` set (then ``job.window_hash`` is too): debounce.
    """

    job: NewJob
    debounce: Debounce | None = None


class Receipt(NamedTuple):
    """What one call did."""

    id: int
    outcome: Outcome
    run_at_us: int
    hits: int = 1
    """Calls that the job serves so far, this one included (debounce only)."""
    window_ends_at_us: int | None = None


def key_hash(space: str, namespace: str, task: str, scope: str, key: str) -> bytes:
    """Return the 16-byte identity of a key (rules C3, T7, T8); ``space`` keeps unique keys apart from windows."""
    parts = [part.encode() for part in (space, namespace, task, scope, key)]
    framed = b"".join(len(part).to_bytes(4) + part for part in parts)
    return hashlib.sha256(framed).digest()[:16]


class _Planned:
    """An insert of this batch that a later call may still change."""

    __slots__ = ("job", "window")

    def __init__(self, job: NewJob, window: Window | None) -> None:
        self.job = job
        self.window = window


class _Stored:
    """An open window of the store, with what this batch does to it."""

    __slots__ = ("id", "payload", "window")

    def __init__(self, id: int, window: Window) -> None:
        self.id = id
        self.window = window
        self.payload: str | None = None


def enqueue(requests: Sequence[Request]) -> Program[list[Receipt]]:
    """Enqueue calls in order, all or none; return one receipt a call."""
    for job, debounce in requests:
        if debounce is not None or job.unique_hash is not None:
            break
    else:
        [inserted] = yield _new(Round, ((Insert([job for job, _ in requests]),), True))
        accepted = Outcome.ACCEPTED
        return [_new(Receipt, (id, accepted, run_at_us, 1, None)) for id, run_at_us in inserted]

    unique = {job.unique_hash for job, _ in requests if job.unique_hash is not None}
    windows = {
        job.window_hash for job, debounce in requests if debounce is not None and job.window_hash is not None
    }
    [held] = yield Round((LockKeys(tuple(sorted(unique)), tuple(sorted(windows))),), False)
    batch = _Batch(held)
    for request in requests:
        batch.judge(request)
    replies = yield Round(batch.commands(), True)
    return batch.receipts(replies[0] if batch.inserts else [])


class _Batch:
    """The judgement of one keyed batch, call by call."""

    def __init__(self, held: HeldKeys) -> None:
        self.now_us = held.now_us
        self.inserts: list[_Planned] = []
        self.calls: list[tuple[Outcome, _Planned | _Stored | Inserted, Window | None]] = []
        self.unique: dict[bytes, Inserted | _Planned] = {
            key: Inserted(holder.id, holder.run_at_us) for key, holder in held.unique.items()
        }
        self.windows: dict[bytes, _Stored | _Planned] = {
            key: _Stored(row.id, Window(row.first_seen_us, row.deadline_us, row.eligible_us, row.hits))
            for key, row in held.windows.items()
        }
        self.slid: dict[int, _Stored] = {}

    def judge(self, request: Request) -> None:
        job, debounce = request
        if debounce is not None and job.window_hash is not None:
            self._judge_debounce(job, job.window_hash, debounce)
            return
        if job.unique_hash is not None:
            holder = self.unique.get(job.unique_hash)
            if holder is not None and isinstance(decide_coalesce(_holder_id(holder)), Join):
                self.calls.append((Outcome.COALESCED, holder, None))
                return
        planned = self._open(job, None)
        if job.unique_hash is not None:
            self.unique[job.unique_hash] = planned

    def _judge_debounce(self, job: NewJob, key: bytes, debounce: Debounce) -> None:
        target = self.windows.get(key)
        window = debounce.decide(None if target is None else target.window, self.now_us)
        if target is None:
            self.windows[key] = self._open(job, window)
            return
        target.window = window
        if isinstance(target, _Stored):
            self.slid[target.id] = target
            if debounce.replace_payload:
                target.payload = job.payload
        elif debounce.replace_payload:
            target.job = target.job._replace(payload=job.payload)
        self.calls.append((Outcome.MERGED, target, window))

    def _open(self, job: NewJob, window: Window | None) -> _Planned:
        if job.run_at_us is None:
            job = job._replace(run_at_us=self.now_us + job.delay_us)
        planned = _Planned(job, window)
        self.inserts.append(planned)
        self.calls.append((Outcome.ACCEPTED, planned, window))
        return planned

    def commands(self) -> tuple[Insert | Slide, ...]:
        jobs = [
            planned.job
            if planned.window is None
            else planned.job._replace(
                run_at_us=planned.window.eligible_us,
                first_seen_us=planned.window.first_seen_us,
                deadline_us=planned.window.deadline_us,
                hits=planned.window.hits,
            )
            for planned in self.inserts
        ]
        slides = (
            Slide(row.id, row.window.deadline_us, row.window.eligible_us, row.window.hits, row.payload)
            for row in self.slid.values()
        )
        return (*((Insert(jobs),) if jobs else ()), *slides)

    def receipts(self, inserted: Sequence[Inserted]) -> list[Receipt]:
        """Name each call's job, now that the planned ones have ids; the windows are those each call saw."""
        rows = {id(planned): row for planned, row in zip(self.inserts, inserted, strict=True)}
        receipts = []
        for outcome, target, window in self.calls:
            row = target if isinstance(target, Inserted) else rows.get(id(target))
            job_id = target.id if isinstance(target, _Stored) else row.id if row is not None else 0
            if window is not None:
                receipts.append(Receipt(job_id, outcome, window.eligible_us, window.hits, window.deadline_us))
            elif row is not None:
                receipts.append(Receipt(job_id, outcome, row.run_at_us))
        return receipts


def _holder_id(holder: Inserted | _Planned) -> int:
    """The holder's id; a planned one has none yet, and which it is changes no decision."""
    return holder.id if isinstance(holder, Inserted) else 0
