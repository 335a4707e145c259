"""Which due jobs of a queue start, and which are shed: gates, then CoDel, one job at a time.

Theory of operation
-------------------
:class:`Selection` is given what a store read of one queue under its locks and replays, in memory, the law of rule
A5a: a claim of *n* is *n* claims of one at the same instant. Each turn of the loop is one of these, in this order:

1. **excess** (D1): while a slot is free, of a drop task, every due first attempt that a bucket refuses is shed;
2. nothing waits in an open lane, or the slots are full: the end. What waits for a slot only is no excess (D1a);
3. **CoDel** (O3): fed the sojourn of the oldest waiting job; *shed* takes the oldest job of the lowest priority;
4. **start**: the first job in dispatch order spends its tokens, and its lane may close.

Rows are read in pages. Whenever a turn would need a row beyond what was read, :meth:`Selection.advance` returns the
reads that are missing and goes on once they are supplied; so no decision ever depends on the size of a page.

A bucket that refuses changes no state, and states are written only if they changed (R4). A lane is closed while its
first job lacks its whole cost (R3); what waits behind is neither judged nor rewritten.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from flowq.policy.codel import CoDel, CoDelState, Rfc8289, Slough
from flowq.policy.concurrency import Concurrency
from flowq.policy.rate_limit import Bucket, RateLimit
from flowq.programs.commands import (
    Due,
    Gate,
    GateSave,
    Line,
    Opened,
    Page,
    ReadCostly,
    ReadLine,
    SaveGates,
    Shed,
    ShedJob,
    Start,
)
from flowq.units import duration_text

__all__ = ["PAGE_LIMIT", "SHED_LIMIT", "Selection"]

SHED_LIMIT = 1_000
"""Sheds of one transaction (D1); a claim that left some says "come back now"."""
PAGE_LIMIT = 1_000
"""Rows of one further read of a line."""
_BEFORE_ALL = (-(1 << 62), 0)


class _Bucket:
    """A rate gate within this claim."""

    __slots__ = ("dirty", "drops", "id", "kind", "limit", "locked", "name", "state")

    def __init__(self, gate: Gate, now_us: int) -> None:
        self.id, self.kind, self.name, params, state, self.locked, _, _ = gate
        self.limit = limit = _rate_limit(tuple(params.items()))
        self.drops = limit.on_excess == "drop"
        if type(state) is not Bucket:
            state = limit.initial(now_us) if state is None else limit.state_from_json(state)
        self.state: Bucket = state
        self.dirty = False

    def bounded(self, cost: int) -> int:
        """What a job takes: its cost, at most a full bucket."""
        return min(cost, self.limit.max_cost)

    def subject(self) -> str:
        return f"{'queue' if self.kind == 'queue_rate' else 'task'} '{self.name}'"

    def save(self, now_us: int) -> GateSave:
        return GateSave(self.id, self.state, self.limit.opens_at_us(self.state, 1, now_us))


class _Cap:
    """A concurrency gate within this claim."""

    __slots__ = ("lapses_us", "locked", "policy", "running")

    def __init__(self, gate: Gate) -> None:
        self.policy = Concurrency.from_json(gate.params)
        self.locked = gate.locked
        self.running = gate.running
        self.lapses_us = gate.lapses_us

    def full(self) -> bool:
        return not self.locked or not self.policy.has_room(self.running)


class _Line:
    """What was read of a line and still waits."""

    __slots__ = (
        "complete", "costly_after", "costly_over", "head", "id", "lane", "last", "max_cost", "priority", "rows"
    )  # fmt: skip

    def __init__(self, line: Line, lane: _Lane) -> None:
        self.id, _, self.priority, self.rows, self.complete, self.max_cost = line
        self.lane = lane
        self.head = 0
        self.last = self.rows[-1]
        self.costly_over = self.max_cost
        """What costs more than this, and is before ``costly_after``, is shed already."""
        self.costly_after: tuple[int, int] | None = None

    def hides(self) -> bool:
        """Nothing read is left, but there is more to read."""
        return self.head == len(self.rows) and not self.complete

    def is_over(self) -> bool:
        """Nothing waits in it any more, read or unread."""
        return self.head == len(self.rows) and self.complete

    def first_judged(self) -> Due | None:
        """The oldest row that CoDel judges; None if all that wait are exempt."""
        rows, index = self.rows, self.head
        while index < len(rows):
            if not rows[index].exempt:
                return rows[index]
            index += 1
        return None

    def remove(self, row: Due) -> None:
        if self.rows[self.head] is row:
            self.head += 1
        else:
            self.rows.remove(row)
        self.lane.judged = False

    def supply(self, page: Page, gone: set[int]) -> None:
        self.rows = self.rows[self.head :] + [row for row in page.due if row.id not in gone]
        self.head = 0
        self.complete = page.complete
        if page.due:
            self.last = page.due[-1]


class _Lane:
    """The lines of one task, first priority first: one set of gates."""

    __slots__ = ("buckets", "caps", "cost", "drops", "first", "judged", "lines", "open", "spent")

    def __init__(self, buckets: list[_Bucket], caps: list[_Cap]) -> None:
        self.buckets = buckets
        self.caps = caps
        self.lines: list[_Line] = []
        self.drops = False
        for bucket in buckets:
            if bucket.drops:
                self.drops = True
        self.judged = False
        """Whether the rest is as of now."""
        self.first: _Line | None = None
        """The line that holds the lane's first job in dispatch order; None if nothing is due."""
        self.cost = 1
        """What that job costs; 1 if it isn't read."""
        self.open = False
        """Whether it passes every gate."""
        self.spent: list[tuple[_Bucket, Bucket]] = []
        """The buckets' states once it has started."""

    def judge(self, now_us: int) -> None:
        """Find the lane's first job, and whether it passes every gate (R4).

        A cost above the burst, as a limit lowered after the enqueue leaves behind, takes the whole bucket.
        """
        self.judged = True
        self.open = False
        for line in self.lines:
            if line.head < len(line.rows):
                cost = line.rows[line.head].cost
                break
            if not line.complete:
                cost = 1
                break
        else:
            self.first = None
            return
        self.first = line
        self.cost = cost
        if self.full():
            return
        spent = []
        for bucket in self.buckets:
            if not bucket.locked:
                return
            state, taken = bucket.limit.take(
                bucket.state, cost if cost == 1 else bucket.bounded(cost), now_us
            )
            if not taken:
                return
            spent.append((bucket, state))
        self.spent = spent
        self.open = True

    def full(self) -> bool:
        """Whether a concurrency cap lets nothing more start: never excess, its jobs wait (rule D4)."""
        for cap in self.caps:  # noqa: SIM110 - a generator costs what a lane without caps shall not
            if cap.full():
                return True
        return False

    def tokens(self, now_us: int) -> int:
        """Whole tokens that every bucket has."""
        return min(bucket.limit.tokens(bucket.state, now_us) for bucket in self.buckets)

    def opens_at_us(self, now_us: int) -> int | None:
        """When its first job may pass with no event between; None: only an event can let it.

        A full cap opens when a job ends, which is an event, or when the lease of one that runs lapses.
        """
        opens_us = now_us
        for cap in self.caps:
            if cap.locked and cap.full():
                if cap.lapses_us is None:
                    return None
                opens_us = max(opens_us, cap.lapses_us)
        for bucket in self.buckets:
            opens_us = max(
                opens_us, bucket.limit.opens_at_us(bucket.state, bucket.bounded(self.cost), now_us)
            )
        return opens_us


class Selection:
    """The judgement of one claim of ``n`` over one queue; pure.

    Call :meth:`advance` and answer its reads by :meth:`supply` until it asks for none; then :meth:`writes` are the
    commands that make the judgement true.
    """

    def __init__(self, opened: Opened, n: int) -> None:
        self.now_us, gates, lines, self.next_due_us = opened
        self.slots = n
        self.starts: list[int] = []
        self._starts_eligible_us: list[int] = []
        self.sheds: list[ShedJob] = []
        self.more = False
        self.codel: CoDel | None = None
        self.codel_gate = 0
        self.codel_state: Any = None
        self.codel_before: Any = None
        own: dict[str, _Bucket] = {}
        shared: list[_Bucket] = []
        own_caps: dict[str, _Cap] = {}
        shared_caps: list[_Cap] = []
        for gate in gates:
            id, kind, name, params, state, _, _, _ = gate
            if kind == "queue_codel":
                self.codel = _codel(tuple(params.items()))
                self.codel_gate = id
                self.codel_state = self.codel_before = _codel_state(self.codel, state)
            elif kind == "queue_rate":
                shared.append(_Bucket(gate, self.now_us))
            elif kind == "queue_concurrency":
                shared_caps.append(_Cap(gate))
            elif kind == "task_concurrency":
                own_caps[name] = _Cap(gate)
            else:
                own[name] = _Bucket(gate, self.now_us)
        self.buckets = [*own.values(), *shared]
        self.shared = bool(shared or shared_caps)
        if len(lines) > 1:
            lines = sorted(lines, key=lambda line: (-line.priority, line.task))
        self.lanes: list[_Lane] = []
        self.drop_lanes: list[_Lane] = []
        self.partial = False
        """Whether more jobs are due than were read."""
        lanes: dict[str, _Lane] = {}
        for read in lines:
            _, task, _, _, complete, _ = read
            lane = lanes.get(task)
            if lane is None:
                # The task's bucket before the queue's: where both refuse, the reason names the task (D4).
                lane = lanes[task] = _Lane(
                    [own[task], *shared] if task in own else shared,
                    [own_caps[task], *shared_caps] if task in own_caps else shared_caps,
                )
                self.lanes.append(lane)
                if lane.drops:
                    self.drop_lanes.append(lane)
            lane.lines.append(_Line(read, lane))
            if not complete:
                self.partial = True
        self._asked: list[_Line] = []
        self._costly: _Line | None = None
        self._gone: set[int] = set()
        """Ids judged already: until this claim's writes, the store still lists them as due."""

    # --- the loop ---

    def advance(self) -> tuple[ReadLine | ReadCostly, ...]:
        """Judge on until done (returns no reads), or until rows are missing (returns the reads)."""
        while not self.more:
            if self.slots > 0:
                missing = self._shed_excess() if self.drop_lanes else ()
                if missing:
                    return missing
                if self.more:
                    break
            lines = self._open_lines()
            unread = [line for line in lines if line.hides()] if self.partial and self.slots > 0 else []
            if unread:
                return self._ask(unread)
            waiting = [line for line in lines if line.head < len(line.rows)]
            if self.slots == 0 or not waiting:
                hidden = self._hidden_heads() if self.partial else []
                if hidden:
                    return self._ask(hidden)
                self._disarm_if_idle()
                break
            line = waiting[0] if len(waiting) == 1 else min(waiting, key=_dispatch_order)
            first = line.rows[line.head]
            if self.codel is not None:
                if first.exempt:
                    self.codel_state = self.codel.started(self.codel_state)
                else:
                    unread = self._unread_for_codel(waiting, self.codel) if self.partial else []
                    if unread:
                        return self._ask(unread)
                    if self._codel_sheds(waiting, self.codel):
                        continue
            self._start(line, first)
        return ()

    def supply(self, pages: Sequence[Page]) -> None:
        """Take the replies to the reads that :meth:`advance` asked for."""
        if self._costly is not None:
            line, self._costly = self._costly, None
            self._shed_costly(line, pages[0])
            return
        for line, page in zip(self._asked, pages, strict=True):
            line.supply(page, self._gone)
            line.lane.judged = False

    def _ask(self, lines: list[_Line]) -> tuple[ReadLine, ...]:
        self._asked = lines
        return tuple(ReadLine(line.id, line.last.eligible_us, line.last.id, PAGE_LIMIT) for line in lines)

    # --- 1: excess ---

    def _shed_excess(self) -> tuple[ReadLine | ReadCostly, ...]:
        for lane in self.drop_lanes:
            if lane.full():
                continue
            tokens = lane.tokens(self.now_us)
            for line in lane.lines:
                if tokens >= line.max_cost:
                    continue
                if tokens >= 1 and not line.complete:
                    # Most of the line passes: the few jobs that cost more are read through an index of their own.
                    if tokens < line.costly_over:
                        line.costly_over = tokens
                        line.costly_after = _BEFORE_ALL
                    if line.costly_after is not None:
                        self._costly = line
                        return (ReadCostly(line.id, tokens, *line.costly_after, PAGE_LIMIT),)
                    continue
                for row in [row for row in line.rows[line.head :] if _is_excess(row, tokens)]:
                    if not self._shed_drop(line, row, row):
                        return ()  # the fill of this transaction
                if not line.complete:
                    return self._ask([line])
        return ()

    def _shed_costly(self, line: _Line, page: Page) -> None:
        read = {row.id: row for row in line.rows[line.head :]}
        for row in page.due:
            if row.id not in self._gone and not self._shed_drop(line, row, read.get(row.id)):
                return
        line.costly_after = None if page.complete else (page.due[-1].eligible_us, page.due[-1].id)

    def _shed_drop(self, line: _Line, row: Due, read: Due | None) -> bool:
        """Shed one job as excess; False when this transaction has shed its fill."""
        if len(self.sheds) >= SHED_LIMIT:
            self.more = True
            return False
        refusing = next(b for b in line.lane.buckets if b.limit.tokens(b.state, self.now_us) < row.cost)
        error = f"rate_limit: {refusing.subject()} is over its dispatch rate limit, and its on_excess is drop"
        self.sheds.append(ShedJob(row.id, row.eligible_us, "rate_limit", error, '{"shed": "rate_limit"}'))
        self._gone.add(row.id)
        if read is not None:
            line.remove(read)
        return True

    # --- 2: which lanes are open ---

    def _open_lines(self) -> list[_Line]:
        """Judge the lanes that changed; return the lines of those that are open."""
        lines: list[_Line] = []
        for lane in self.lanes:
            if not lane.judged:
                lane.judge(self.now_us)
            if lane.open:
                lines += lane.lines
        return lines

    def _hidden_heads(self) -> list[_Line]:
        """The lines that may hold the first job of their lane and aren't read that far.

        Whether a lane holds a job, and when it opens to it, is part of the answer; so no lane ends a claim unread.
        """
        heads = (next((line for line in lane.lines if not line.is_over()), None) for lane in self.lanes)
        return [line for line in heads if line is not None and line.hides()]

    # --- 3: CoDel ---

    def _unread_for_codel(self, waiting: list[_Line], codel: CoDel) -> list[_Line]:
        """The lines without whose further rows the verdict, or its victim, is not known."""
        unread = [line for line in waiting if not line.complete]
        if sum(len(line.rows) - line.head for line in waiting) > codel.exempt_backlog + 1:
            unread = [line for line in unread if line.first_judged() is None]
        return unread

    def _codel_sheds(self, waiting: list[_Line], codel: CoDel) -> bool:
        """Ask the law once; shed and return True, or return False: the first in dispatch order starts."""
        left = -1
        oldest_us = self.now_us
        for line in waiting:
            left += len(line.rows) - line.head
            row = line.first_judged()
            if row is not None and row.eligible_us < oldest_us:
                oldest_us = row.eligible_us
        sojourn_us = self.now_us - oldest_us
        state, shed = codel.judge(self.codel_state, sojourn_us, left, self.now_us)
        if shed and len(self.sheds) >= SHED_LIMIT:
            self.more = True
            return True
        self.codel_state = state
        if not shed:
            return False
        line, victim = _victim(waiting)
        error = f"codel: sojourn {duration_text(sojourn_us)} is above target {duration_text(codel.target_us)}"
        self.sheds.append(ShedJob(victim.id, victim.eligible_us, "codel", error, '{"codel": true}'))
        self._gone.add(victim.id)
        line.remove(victim)
        return True

    def _disarm_if_idle(self) -> None:
        if self.codel is None:
            return
        for lane in self.lanes:
            if lane.first is not None:
                return
        self.codel_state = self.codel.disarm(self.codel_state)

    # --- 4: start ---

    def _start(self, line: _Line, row: Due) -> None:
        id, eligible_us, _, _, _ = row
        for bucket, state in line.lane.spent:
            bucket.state = state
            bucket.dirty = True
        for cap in line.lane.caps:
            cap.running += 1
        line.remove(row)
        self.starts.append(id)
        self._starts_eligible_us.append(eligible_us)
        self._gone.add(id)
        self.slots -= 1
        if self.shared:
            for lane in self.lanes:
                lane.judged = False

    # --- what it comes to ---

    def writes(self, worker: int) -> tuple[Start | Shed | SaveGates, ...]:
        """The commands that make the judgement true; none if it changed nothing."""
        commands: list[Start | Shed | SaveGates] = []
        if self.starts:
            started = (tuple(self.starts), tuple(self._starts_eligible_us), worker, self.now_us)
            commands.append(Start(*started))
        if self.sheds:
            commands.append(Shed(tuple(self.sheds), self.now_us))
        saves = [bucket.save(self.now_us) for bucket in self.buckets if bucket.dirty]
        if self.codel is not None and self.codel_state != self.codel_before:
            saves.append(GateSave(self.codel_gate, self.codel_state, 0))
        if saves:
            commands.append(SaveGates(tuple(saves)))
        return tuple(commands)

    def come_back_us(self) -> int | None:
        """The next instant at which a claim can do more with no event between; None: only an event can."""
        if self.more:
            return self.now_us
        come_back_us = self.next_due_us
        for lane in self.lanes:
            if lane.first is not None and not lane.open:
                opens_us = lane.opens_at_us(self.now_us)
                if opens_us is not None and (come_back_us is None or opens_us < come_back_us):
                    come_back_us = opens_us
        return come_back_us


def _is_excess(row: Due, tokens: int) -> bool:
    return row.first and not row.exempt and row.cost > tokens


def _victim(lines: list[_Line]) -> tuple[_Line, Due]:
    """The oldest job of the lowest priority that waits and isn't exempt."""
    candidates = [(line, row) for line in lines if (row := line.first_judged()) is not None]
    lowest = min(line.priority for line, _ in candidates)
    oldest = (candidate for candidate in candidates if candidate[0].priority == lowest)
    return min(oldest, key=lambda candidate: (candidate[1].eligible_us, candidate[1].id))


def _dispatch_order(line: _Line) -> tuple[int, int, int]:
    row = line.rows[line.head]
    return (-line.priority, row.eligible_us, row.id)


@lru_cache(maxsize=4096)
def _rate_limit(params: tuple[tuple[str, Any], ...]) -> RateLimit:
    return RateLimit.from_json(dict(params))


@lru_cache(maxsize=4096)
def _codel(params: tuple[tuple[str, Any], ...]) -> CoDel:
    return CoDel.from_json(dict(params))


def _codel_state(codel: CoDel, stored: Sequence[Any] | None) -> CoDelState:
    if type(stored) is Rfc8289 or type(stored) is Slough:
        return stored
    return codel.initial() if stored is None else codel.state_from_json(stored)
