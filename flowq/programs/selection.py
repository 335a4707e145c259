"""Which due jobs of a queue start, and which are shed: gates, then CoDel, one job at a time.

Theory of operation
-------------------
:class:`Selection` is given what a store read of one queue under its locks and replays, in memory, the law of rule
A5a: a claim of *n* is *n* claims of one at the same instant. Each turn of the loop is one of these, in this order:

1. **excess** (D1): of a drop task, every due first attempt that a bucket refuses is shed;
2. nothing waits in an open lane, or the slots are full: the end;
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

from flowq.policy.codel import CoDel
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

    __slots__ = ("dirty", "gate", "limit", "state")

    def __init__(self, gate: Gate, now_us: int) -> None:
        self.gate = gate
        self.limit = _rate_limit(tuple(gate.params.items()))
        self.state = (
            self.limit.initial(now_us) if gate.state is None else self.limit.state_from_json(gate.state)
        )
        self.dirty = False

    def subject(self) -> str:
        return f"{'queue' if self.gate.kind == 'queue_rate' else 'task'} '{self.gate.name}'"

    def save(self, now_us: int) -> GateSave:
        wake_us = self.limit.opens_at_us(self.state, 1, now_us)
        return GateSave(self.gate.id, self.limit.state_to_json(self.state), wake_us)


class _Line:
    """What was read of a line and still waits."""

    __slots__ = (
        "complete", "costly_after", "costly_over", "head", "id", "lane", "last", "max_cost", "priority", "rows"
    )  # fmt: skip

    def __init__(self, line: Line, lane: _Lane) -> None:
        self.id = line.id
        self.lane = lane
        self.priority = line.priority
        self.rows = line.due
        self.head = 0
        self.last = line.due[-1]
        self.complete = line.complete
        self.max_cost = line.max_cost
        self.costly_over = line.max_cost
        """What costs more than this, and is before ``costly_after``, is shed already."""
        self.costly_after: tuple[int, int] | None = None

    def waiting(self) -> int:
        return len(self.rows) - self.head

    def exhausted(self) -> bool:
        return self.head == len(self.rows)

    def hides(self) -> bool:
        """Nothing read is left, but there is more to read."""
        return self.head == len(self.rows) and not self.complete

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

    __slots__ = ("buckets", "drops", "judged", "lines", "open", "spent")

    def __init__(self, buckets: list[_Bucket]) -> None:
        self.buckets = buckets
        self.lines: list[_Line] = []
        self.drops = any(bucket.limit.on_excess == "drop" for bucket in buckets)
        self.judged = False
        self.open = False
        self.spent: list[Bucket] = []
        """The buckets' states once the lane's first job has started."""

    def first_line(self) -> _Line | None:
        """The line that holds the lane's first job in dispatch order; None if nothing is due."""
        for line in self.lines:
            if not (line.exhausted() and line.complete):
                return line
        return None

    def judge(self, cost: int, now_us: int) -> None:
        """Whether a job of this cost passes every gate (R4).

        A cost above the burst, as a limit lowered after the enqueue leaves behind, takes the whole bucket.
        """
        self.judged = True
        self.open = False
        spent = []
        for bucket in self.buckets:
            if not bucket.gate.locked:
                return
            state, taken = bucket.limit.take(bucket.state, min(cost, bucket.limit.max_cost), now_us)
            if not taken:
                return
            spent.append(state)
        self.spent = spent
        self.open = True

    def spend(self) -> None:
        for bucket, state in zip(self.buckets, self.spent, strict=True):
            bucket.state = state
            bucket.dirty = True

    def tokens(self, now_us: int) -> int:
        """Whole tokens that every bucket has."""
        return min(bucket.limit.tokens(bucket.state, now_us) for bucket in self.buckets)

    def opens_at_us(self, cost: int, now_us: int) -> int:
        return max(b.limit.opens_at_us(b.state, min(cost, b.limit.max_cost), now_us) for b in self.buckets)


class Selection:
    """The judgement of one claim of ``n`` over one queue; pure.

    Call :meth:`advance` and answer its reads by :meth:`supply` until it asks for none; then :meth:`writes` are the
    commands that make the judgement true.
    """

    def __init__(self, opened: Opened, n: int) -> None:
        self.now_us = opened.now_us
        self.next_due_us = opened.next_due_us
        self.slots = n
        self.starts: list[Due] = []
        self.sheds: list[ShedJob] = []
        self.more = False
        self.codel: CoDel | None = None
        self.codel_gate = 0
        self.codel_state: Any = None
        self.codel_before: Any = None
        self.buckets: list[_Bucket] = []
        for gate in opened.gates:
            if gate.kind == "queue_codel":
                self.codel = _codel(tuple(gate.params.items()))
                self.codel_gate = gate.id
                state = self.codel.initial() if gate.state is None else self.codel.state_from_json(gate.state)
                self.codel_state = self.codel_before = state
            else:
                self.buckets.append(_Bucket(gate, self.now_us))
        # The task's bucket before the queue's: where both refuse, the reason names the task (D4).
        self.buckets.sort(key=lambda bucket: bucket.gate.kind == "queue_rate")
        self.shared = bool(self.buckets) and self.buckets[-1].gate.kind == "queue_rate"
        lanes: dict[str, _Lane] = {}
        for line in sorted(opened.lines, key=lambda line: (-line.priority, line.task)):
            lane = lanes.get(line.task)
            if lane is None:
                lane = lanes[line.task] = _Lane(
                    [b for b in self.buckets if b.gate.kind == "queue_rate" or b.gate.name == line.task]
                )
            lane.lines.append(_Line(line, lane))
        self.lanes = list(lanes.values())
        self.drop_lanes = [lane for lane in self.lanes if lane.drops]
        self._asked: list[_Line] = []
        self._costly: _Line | None = None
        self._gone: set[int] = set()
        """Ids judged already: until this claim's writes, the store still lists them as due."""

    # --- the loop ---

    def advance(self) -> tuple[ReadLine | ReadCostly, ...]:
        """Judge on until done (returns no reads), or until rows are missing (returns the reads)."""
        while True:
            if self.more:
                return ()
            missing = self._shed_excess() or self._judge_lanes()
            if missing:
                return missing
            if self.more:
                continue
            open_lines = [
                line for lane in self.lanes if lane.open for line in lane.lines if not line.exhausted()
            ]
            if not open_lines or self.slots == 0:
                self._disarm_if_idle()
                return ()
            line = open_lines[0] if len(open_lines) == 1 else min(open_lines, key=_dispatch_order)
            first = line.rows[line.head]
            if self.codel is not None:
                if first.exempt:
                    self.codel_state = self.codel.started(self.codel_state)
                else:
                    missing = self._missing_for_codel(open_lines, self.codel)
                    if missing:
                        return missing
                    if self._codel_sheds(open_lines, self.codel):
                        continue
            self._start(line, first)

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

    def _judge_lanes(self) -> tuple[ReadLine | ReadCostly, ...]:
        unread = []
        for lane in self.lanes:
            if lane.judged:
                continue
            line = lane.first_line()
            if line is None:
                lane.judged, lane.open = True, False
                continue
            lane.judge(1 if line.hides() else line.rows[line.head].cost, self.now_us)
            if lane.open and self.slots > 0:
                unread += [line for line in lane.lines if line.hides()]
        return self._ask(unread) if unread else ()

    # --- 3: CoDel ---

    def _missing_for_codel(self, open_lines: list[_Line], codel: CoDel) -> tuple[ReadLine, ...]:
        """The reads without which the verdict, or its victim, is not known."""
        unread = [line for line in open_lines if not line.complete]
        if not unread:
            return ()
        if sum(line.waiting() for line in open_lines) > codel.exempt_backlog + 1:
            unread = [line for line in unread if all(row.exempt for row in line.rows[line.head :])]
        return self._ask(unread) if unread else ()

    def _codel_sheds(self, open_lines: list[_Line], codel: CoDel) -> bool:
        """Ask the law once; shed and return True, or return False: the first in dispatch order starts."""
        candidates = []
        left = -1
        for line in open_lines:
            left += line.waiting()
            row = next((row for row in line.rows[line.head :] if not row.exempt), None)
            if row is not None:
                candidates.append((line, row))
        sojourn_us = self.now_us - min(row.eligible_us for _, row in candidates)
        state, shed = codel.judge(self.codel_state, sojourn_us, left, self.now_us)
        if shed and len(self.sheds) >= SHED_LIMIT:
            self.more = True
            return True
        self.codel_state = state
        if not shed:
            return False
        lowest = min(line.priority for line, _ in candidates)
        line, victim = min(
            (c for c in candidates if c[0].priority == lowest), key=lambda c: (c[1].eligible_us, c[1].id)
        )
        error = f"codel: sojourn {duration_text(sojourn_us)} is above target {duration_text(codel.target_us)}"
        self.sheds.append(ShedJob(victim.id, victim.eligible_us, "codel", error, '{"codel": true}'))
        self._gone.add(victim.id)
        line.remove(victim)
        return True

    def _disarm_if_idle(self) -> None:
        if self.codel is not None and all(lane.first_line() is None for lane in self.lanes):
            self.codel_state = self.codel.disarm(self.codel_state)

    # --- 4: start ---

    def _start(self, line: _Line, row: Due) -> None:
        line.lane.spend()
        line.remove(row)
        self.starts.append(row)
        self._gone.add(row.id)
        self.slots -= 1
        if self.shared:
            for lane in self.lanes:
                lane.judged = False

    # --- what it comes to ---

    def writes(self, worker: int) -> tuple[Start | Shed | SaveGates, ...]:
        """The commands that make the judgement true; none if it changed nothing."""
        commands: list[Start | Shed | SaveGates] = []
        if self.starts:
            ids = tuple(row.id for row in self.starts)
            commands.append(Start(ids, tuple(row.eligible_us for row in self.starts), worker, self.now_us))
        if self.sheds:
            commands.append(Shed(tuple(self.sheds), self.now_us))
        saves = [bucket.save(self.now_us) for bucket in self.buckets if bucket.dirty]
        if self.codel is not None and self.codel_state != self.codel_before:
            saves.append(GateSave(self.codel_gate, self.codel.state_to_json(self.codel_state), 0))
        if saves:
            commands.append(SaveGates(tuple(saves)))
        return tuple(commands)

    def come_back_us(self) -> int | None:
        """The next instant at which a claim can do more with no event between; None: only an event can."""
        if self.more:
            return self.now_us
        instants = [] if self.next_due_us is None else [self.next_due_us]
        for lane in self.lanes:
            line = lane.first_line()
            if line is not None and lane.buckets and not lane.open:
                cost = 1 if line.hides() else line.rows[line.head].cost
                instants.append(lane.opens_at_us(cost, self.now_us))
        return min(instants, default=None)


def _is_excess(row: Due, tokens: int) -> bool:
    return row.first and not row.exempt and row.cost > tokens


def _dispatch_order(line: _Line) -> tuple[int, int, int]:
    row = line.rows[line.head]
    return (-line.priority, row.eligible_us, row.id)


@lru_cache(maxsize=4096)
def _rate_limit(params: tuple[tuple[str, Any], ...]) -> RateLimit:
    return RateLimit.from_json(dict(params))


@lru_cache(maxsize=4096)
def _codel(params: tuple[tuple[str, Any], ...]) -> CoDel:
    return CoDel.from_json(dict(params))
