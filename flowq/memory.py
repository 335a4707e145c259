"""The store of dicts: answers the same commands as PostgreSQL, for simulations and users' tests.

It holds no rule of its own: programs decide, a store finds and writes. The conformance suite drives the same calls
through this store and through PostgreSQL and demands equal replies.

A line's pending jobs are a list sorted by ``(eligible_us, id)``. Jobs mostly arrive in that order and leave from the
front, so an insert is an append and a start moves a head index; only delays and slides pay for a shift.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flowq.job import JobEvent, JobState, next_state
from flowq.programs.commands import (
    Beat,
    DeadJob,
    DeadLetter,
    DeadRecord,
    Declared,
    Due,
    Gate,
    HeldKeys,
    Holder,
    Insert,
    Inserted,
    JobRecord,
    LapsedJob,
    Line,
    LockDeclared,
    LockKeys,
    Opened,
    OpenQueue,
    OpenWindow,
    Page,
    Program,
    ReadCostly,
    ReadDead,
    ReadJobs,
    ReadLapsed,
    ReadLine,
    Register,
    SaveGates,
    Settle,
    Shed,
    Sleep,
    Slide,
    Start,
    Started,
    StoredGate,
    Take,
    TakeDead,
    Taken,
    Unregister,
    WriteGates,
)

__all__ = ["MemoryStore"]

T = TypeVar("T")
_FAR_US = 1 << 62
_TRIM = 4_096
_new = tuple.__new__
"""Makes a named tuple without the call that its class costs; for replies that every job needs."""


class _Job:
    __slots__ = (
        "cost", "crashes", "deadline_us", "eligible_us", "enqueued_us", "error", "exempt", "failures", "finished_us", "first_seen_us",
        "hits", "id", "line", "max_retries", "metadata", "payload", "reason", "result", "started_us", "state", "token",
        "unique_hash", "window_hash", "worker",
    )  # fmt: skip

    def __init__(self, id: int, line: _Line, now_us: int, eligible_us: int, payload: str, cost: int) -> None:
        self.id = id
        self.enqueued_us = now_us
        self.line = line
        self.eligible_us = eligible_us
        self.payload = payload
        self.cost = cost
        self.state: JobState = JobState.PENDING
        self.token = self.failures = self.crashes = self.worker = 0
        self.max_retries: int | None = None
        self.metadata: str | None = None
        self.unique_hash: bytes | None = None
        self.window_hash: bytes | None = None
        self.first_seen_us = self.deadline_us = 0
        self.hits = 1
        self.exempt = False
        self.started_us: int | None = None
        self.finished_us: int | None = None
        self.result: str | None = None
        self.error: str | None = None
        self.reason: str | None = None


class _Line:
    """The pending jobs of one (queue, task, priority)."""

    __slots__ = ("costly", "head", "id", "keys", "priority", "queue", "task")

    def __init__(self, id: int, queue: str, task: str, priority: int) -> None:
        self.id = id
        self.queue = queue
        self.task = task
        self.priority = priority
        self.keys: list[tuple[int, int]] = []
        self.head = 0
        self.costly: dict[int, int] = {}
        """id -> cost of the pending jobs that cost more than 1."""

    def add(self, job: _Job) -> None:
        key = (job.eligible_us, job.id)
        keys = self.keys
        if not keys or key > keys[-1]:
            keys.append(key)
        else:
            insort(keys, key, self.head)
        if job.cost > 1:
            self.costly[job.id] = job.cost

    def remove(self, job: _Job) -> None:
        key = (job.eligible_us, job.id)
        if self.keys[self.head] == key:
            self.head += 1
            if self.head > _TRIM and self.head * 2 > len(self.keys):
                del self.keys[: self.head]
                self.head = 0
        else:
            del self.keys[bisect_left(self.keys, key, self.head)]
        if job.cost > 1:
            del self.costly[job.id]

    def due_end(self, now_us: int) -> int:
        """The index behind the last due job."""
        keys = self.keys
        if keys and keys[-1][0] <= now_us:
            return len(keys)
        return bisect_right(keys, (now_us, _FAR_US), self.head)

    def next_due_us(self, now_us: int) -> int | None:
        end = self.due_end(now_us)
        return self.keys[end][0] if end < len(self.keys) else None


class _Gate:
    __slots__ = ("declared_us", "drops", "id", "kind", "name", "params", "state", "wake_us")

    def __init__(self, id: int, kind: str, name: str) -> None:
        self.id = id
        self.kind = kind
        self.name = name
        self.declared_us = 0
        self.params: dict[str, Any] | None = None
        self.state: Sequence[Any] | None = None
        self.wake_us = 0
        self.drops = False


class _Worker:
    __slots__ = ("asleep_until_us", "lease_until_us", "queues")

    def __init__(self, queues: tuple[str, ...], lease_until_us: int) -> None:
        self.queues = queues
        self.lease_until_us = lease_until_us
        self.asleep_until_us: int | None = None


class MemoryStore:
    """A whole store in this process, for one namespace, driven by the same programs as PostgreSQL.

    Use it to simulate and to test; nothing survives the process and nothing is shared with others. The clock is the
    caller's: every call of :meth:`run` names its instant.

    Examples
    --------
    >>> from flowq.programs import Request, claim, enqueue
    >>> from flowq.programs.commands import NewJob
    >>> store = MemoryStore()
    >>> [receipt] = store.run(enqueue([Request(NewJob("default", "greet"))]), now_us=0)
    >>> store.run(claim("default", 1, worker=1), now_us=5).started[0].id == receipt.id
    True
    """

    def __init__(self) -> None:
        self._now_us = 0
        self._last_id = 0
        self._jobs: dict[int, _Job] = {}
        self._running: dict[int, _Job] = {}
        self._archive: dict[int, _Job] = {}
        self._dead: dict[int, _Job] = {}
        self._lines: dict[tuple[str, str, int], _Line] = {}
        self._lines_by_id: list[_Line] = []
        self._queue_lines: dict[str, list[_Line]] = {}
        self._gates: dict[tuple[str, str], _Gate] = {}
        self._unique: dict[bytes, _Job] = {}
        self._windows: dict[bytes, _Job] = {}
        self._workers: dict[int, _Worker] = {}
        self._gates_by_id: list[_Gate] = []
        self._queue_gates: dict[str, list[_Gate]] = {}
        """The gates that bear on each queue, until one is declared or a line is new."""
        self._markers: dict[int, str | None] = {}
        self._answers: dict[type, Callable[[Any], Any]] = {
            Insert: self._insert,
            LockKeys: self._lock_keys,
            Slide: self._slide,
            Take: self._take,
            OpenQueue: self._open_queue,
            ReadLine: self._read_line,
            ReadCostly: self._read_costly,
            Start: self._start,
            Shed: self._shed,
            SaveGates: self._save_gates,
            Settle: self._settle,
            ReadLapsed: self._read_lapsed,
            Register: self._register,
            Beat: self._beat,
            Sleep: self._sleep,
            Unregister: self._unregister,
            LockDeclared: self._lock_declared,
            WriteGates: self._write_gates,
            TakeDead: self._take_dead,
            ReadJobs: self._read_jobs,
            ReadDead: self._read_dead,
        }

    def run(self, program: Program[T], now_us: int) -> T:
        """Drive a program to its end at one instant; return its result."""
        self._now_us = now_us
        answers = self._answers
        try:
            commands, _ = next(program)
            while True:
                commands, _ = program.send([answers[type(command)](command) for command in commands])
        except StopIteration as stop:
            result: T = stop.value
            return result

    def queue_names(self) -> list[str]:
        """Return the queues that jobs were ever enqueued to, sorted."""
        return sorted(self._queue_lines)

    # --- enqueue ---

    def _line(self, queue: str, task: str, priority: int) -> _Line:
        line = self._lines.get((queue, task, priority))
        if line is None:
            line = _Line(len(self._lines_by_id), queue, task, priority)
            self._lines[queue, task, priority] = line
            self._lines_by_id.append(line)
            lines = self._queue_lines.setdefault(queue, [])
            lines.append(line)
            lines.sort(key=lambda line: (-line.priority, line.task))
            self._queue_gates.clear()
        return line

    def _insert(self, command: Insert) -> list[Inserted]:
        now_us = self._now_us
        inserted = []
        for new in command.jobs:
            (
                queue, task, priority, payload, run_at_us, delay_us, cost, max_retries, metadata, _, unique_hash,
                window_hash, first_seen_us, deadline_us, hits, exempt,
            ) = new  # fmt: skip
            self._last_id = id = self._last_id + 1
            eligible_us = now_us + delay_us if run_at_us is None else run_at_us
            line = self._lines.get((queue, task, priority)) or self._line(queue, task, priority)
            job = _Job(id, line, now_us, eligible_us, payload, cost)
            job.max_retries = max_retries
            job.metadata = metadata
            job.exempt = exempt
            if unique_hash is not None:
                job.unique_hash = unique_hash
                self._unique[unique_hash] = job
            if window_hash is not None and first_seen_us is not None and deadline_us is not None:
                job.window_hash = window_hash
                job.first_seen_us = first_seen_us
                job.deadline_us = deadline_us
                job.hits = hits
                self._windows[window_hash] = job
            self._jobs[id] = job
            line.add(job)
            inserted.append(_new(Inserted, (id, eligible_us)))
        return inserted

    def _lock_keys(self, command: LockKeys) -> HeldKeys:
        unique = {key: self._unique[key] for key in command.unique if key in self._unique}
        windows = {key: self._windows[key] for key in command.windows if key in self._windows}
        return HeldKeys(
            self._now_us,
            {key: Holder(job.id, job.eligible_us) for key, job in unique.items()},
            {
                key: OpenWindow(job.id, job.first_seen_us, job.deadline_us, job.eligible_us, job.hits)
                for key, job in windows.items()
            },
        )

    def _slide(self, command: Slide) -> None:
        job = self._jobs[command.id]
        job.state = next_state(job.state, JobEvent.MERGE)
        job.line.remove(job)
        job.deadline_us = command.deadline_us
        job.eligible_us = command.eligible_us
        job.hits = command.hits
        if command.payload is not None:
            job.payload = command.payload
        job.line.add(job)

    # --- claim ---

    def _gates_of(self, queue: str) -> list[_Gate]:
        gates = self._queue_gates.get(queue)
        if gates is None:
            names = [(kind, queue) for kind in ("queue_codel", "queue_rate", "queue_concurrency")]
            for line in self._queue_lines.get(queue, ()):
                names += [("task_rate", line.task), ("task_concurrency", line.task)]
            declared = [self._gates[name] for name in dict.fromkeys(names) if name in self._gates]
            gates = self._queue_gates[queue] = [gate for gate in declared if gate.params is not None]
        return gates

    def _take(self, command: Take) -> Taken:
        queue, n, worker = command
        now_us = self._now_us
        if self._gates_of(queue):
            return Taken(now_us, True, [], None)
        lines = self._queue_lines.get(queue, ())
        started: list[Started] = []
        while len(started) < n:
            best: _Line | None = None
            for line in lines:
                if best is not None and line.priority < best.priority:
                    break
                if line.head == len(line.keys) or line.keys[line.head][0] > now_us:
                    continue
                if best is None or line.keys[line.head] < best.keys[best.head]:
                    best = line
            if best is None:
                break
            started.append(self._start_job(self._jobs[best.keys[best.head][1]], worker))
        next_due_us = None
        for line in lines:
            due_us = line.next_due_us(now_us)
            if due_us is not None and (next_due_us is None or due_us < next_due_us):
                next_due_us = due_us
        return Taken(now_us, False, started, next_due_us)

    def _open_queue(self, command: OpenQueue) -> Opened:
        queue, page = command
        now_us = self._now_us
        due_lines: list[tuple[_Line, int]] = []
        due_tasks: set[str] = set()
        next_due_us: int | None = None
        for line in self._queue_lines.get(queue, ()):
            end = line.due_end(now_us)
            if line.head < end:
                due_lines.append((line, end))
                due_tasks.add(line.task)
            if end < len(line.keys) and (next_due_us is None or line.keys[end][0] < next_due_us):
                next_due_us = line.keys[end][0]
        gates = []
        closed: set[str] = set()
        for gate in self._gates_of(queue):
            locked = True
            if gate.kind.endswith("_concurrency"):
                if gate.kind == "task_concurrency" and gate.name not in due_tasks:
                    continue
                running = self._running_under(gate)
                own = (gate.id, gate.kind, gate.name, gate.params, None, True, *running)
                gates.append(_new(Gate, own))
                continue
            if gate.kind == "task_rate":
                if gate.name not in due_tasks:
                    continue
                locked = gate.wake_us <= now_us or gate.drops
                if not locked:
                    closed.add(gate.name)
            gates.append(
                _new(Gate, (gate.id, gate.kind, gate.name, gate.params, gate.state, locked, 0, None))
            )
        lines = []
        for line, end in due_lines:
            due, complete = self._page(line, line.head, end, 1 if line.task in closed else page)
            max_cost = max(line.costly.values()) if line.costly else 1
            lines.append(_new(Line, (line.id, line.task, line.priority, due, complete, max_cost)))
        return _new(Opened, (now_us, gates, lines, next_due_us))

    def _running_under(self, gate: _Gate) -> tuple[int, int | None]:
        """How many jobs run under a live lease and the gate, and when the first of those leases ends."""
        count, lapses_us = 0, None
        of_task = gate.kind == "task_concurrency"
        for job in self._running.values():
            if gate.name != (job.line.task if of_task else job.line.queue):
                continue
            worker = self._workers.get(job.worker)
            if worker is None or worker.lease_until_us <= self._now_us:
                continue
            count += 1
            if lapses_us is None or worker.lease_until_us < lapses_us:
                lapses_us = worker.lease_until_us
        return count, lapses_us

    def _page(self, line: _Line, begin: int, end: int, limit: int) -> tuple[list[Due], bool]:
        """Read at most ``limit`` of the jobs from ``begin`` to ``end``, and whether these are all."""
        jobs = self._jobs
        due = []
        for eligible_us, id in line.keys[begin : min(end, begin + limit)]:
            job = jobs[id]
            due.append(_new(Due, (id, eligible_us, job.cost, job.token == 0, job.exempt)))
        return due, begin + limit >= end

    def _read_line(self, command: ReadLine) -> Page:
        line = self._lines_by_id[command.line]
        begin = bisect_right(line.keys, (command.after_us, command.after_id), line.head)
        return Page(*self._page(line, begin, line.due_end(self._now_us), command.limit))

    def _read_costly(self, command: ReadCostly) -> Page:
        after = (command.after_us, command.after_id)
        costly = self._lines_by_id[command.line].costly
        jobs = sorted((self._jobs[id].eligible_us, id) for id, cost in costly.items() if cost > command.over)
        due = []
        for key in jobs:
            job = self._jobs[key[1]]
            if after < key and job.eligible_us <= self._now_us and job.token == 0 and not job.exempt:
                due.append(Due(job.id, job.eligible_us, job.cost, True, False))
        return Page(due[: command.limit], len(due) <= command.limit)

    def _start_job(self, job: _Job, worker: int) -> Started:
        job.state = next_state(job.state, JobEvent.START)
        job.line.remove(job)
        job.token += 1
        job.worker = worker
        self._running[job.id] = job
        job.started_us = self._now_us
        if job.window_hash is not None:
            del self._windows[job.window_hash]
            job.window_hash = None
        line = job.line
        started = (
            job.id, line.task, job.payload, job.token, job.failures, job.crashes, job.max_retries, job.eligible_us,
            line.priority,
        )  # fmt: skip
        return _new(Started, started)

    def _start(self, command: Start) -> list[Started]:
        ids, _, worker, _ = command
        jobs = self._jobs
        return [self._start_job(jobs[id], worker) for id in ids]

    def _shed(self, command: Shed) -> None:
        for shed in command.sheds:
            job = self._jobs[shed.id]
            state = next_state(job.state, JobEvent.SHED)
            job.line.remove(job)
            job.reason = shed.reason
            self._finish(job, state, shed.error)
            self._bury(job, shed.metadata)

    def _save_gates(self, command: SaveGates) -> None:
        for id, state, wake_us in command.saves:
            gate = self._gates_by_id[id]
            gate.state = state
            gate.wake_us = wake_us

    # --- settle and maintain ---

    def _finish(self, job: _Job, state: JobState, error: str | None) -> None:
        job.state = state
        job.error = error
        job.finished_us = self._now_us
        del self._jobs[job.id]
        self._archive[job.id] = job
        if job.unique_hash is not None:
            del self._unique[job.unique_hash]
        if job.window_hash is not None:
            del self._windows[job.window_hash]

    def _bury(self, job: _Job, marker: str | None) -> None:
        self._dead[job.id] = job
        self._markers[job.id] = marker

    def _held(self, id: int, token: int) -> _Job | None:
        """The running job of a lease, which is then over; None if another has it."""
        job = self._jobs.get(id)
        if job is None or job.token != token or job.state is not JobState.RUNNING:
            return None
        del self._running[id]
        return job

    def _settle(self, command: Settle) -> set[int]:
        settled = set()
        succeeded, retries, deaths = command
        for id, token, result in succeeded:
            job = self._held(id, token)
            if job is not None:
                job.result = result
                self._finish(job, next_state(job.state, JobEvent.SUCCEED), None)
                settled.add(id)
        for retried in retries:
            job = self._held(retried.id, retried.token)
            if job is not None:
                self._count(job, retried.crashed)
                job.state = next_state(job.state, JobEvent.LAPSE if retried.crashed else JobEvent.RETRY)
                job.error = retried.error
                job.eligible_us = self._now_us + retried.delay_us
                job.line.add(job)
                settled.add(job.id)
        for dead in deaths:
            job = self._held(dead.id, dead.token)
            if job is not None:
                self._fail(job, dead)
                settled.add(job.id)
        return settled

    def _fail(self, job: _Job, dead: DeadJob) -> None:
        self._count(job, dead.crashed)
        self._finish(job, next_state(job.state, JobEvent.FAIL), dead.error)
        self._bury(job, dead.metadata)

    @staticmethod
    def _count(job: _Job, crashed: bool) -> None:
        if crashed:
            job.crashes += 1
        else:
            job.failures += 1

    def _read_lapsed(self, command: ReadLapsed) -> list[LapsedJob]:
        lapsed = []
        for job in self._running.values():
            worker = self._workers.get(job.worker)
            if worker is None or worker.lease_until_us <= self._now_us:
                lapsed.append(LapsedJob(job.id, job.token, job.crashes, job.worker))
        return sorted(lapsed)[: command.limit]

    def _register(self, command: Register) -> int:
        self._last_id = id = self._last_id + 1
        self._workers[id] = _Worker(command.queues, self._now_us + command.lease_us)
        return id

    def _beat(self, command: Beat) -> bool:
        worker = self._workers.get(command.worker)
        if worker is None or worker.lease_until_us <= self._now_us:
            return False
        worker.lease_until_us = self._now_us + command.lease_us
        return True

    def _sleep(self, command: Sleep) -> None:
        worker = self._workers.get(command.worker)
        if worker is not None:
            worker.asleep_until_us = command.until_us

    def _unregister(self, command: Unregister) -> None:
        self._workers.pop(command.worker, None)

    # --- declare, redrive, read ---

    def _lock_declared(self, command: LockDeclared) -> Declared:
        for queue in command.queues:
            self._queue_lines.setdefault(queue, [])
        for queue, task, priority in command.lines:
            self._line(queue, task, priority)
        gates = {key: self._gates[key] for key in command.gates if key in self._gates}
        return Declared(
            self._now_us,
            {key: StoredGate(g.id, g.declared_us, g.params, g.state) for key, g in gates.items()},
        )

    def _write_gates(self, command: WriteGates) -> None:
        for write in command.writes:
            gate = self._gates.get((write.kind, write.name))
            if gate is None:
                gate = _Gate(len(self._gates_by_id), write.kind, write.name)
                self._gates[write.kind, write.name] = gate
                self._gates_by_id.append(gate)
            gate.declared_us = write.declared_us
            gate.params = write.params
            gate.state = write.state
            gate.wake_us = write.wake_us
            gate.drops = write.drops
        self._queue_gates.clear()

    def _take_dead(self, command: TakeDead) -> list[DeadLetter]:
        letters = []
        for id in command.ids:
            job = self._dead.pop(id, None)
            if job is not None:
                line = job.line
                letters.append(
                    DeadLetter(
                        id,
                        line.queue,
                        line.task,
                        line.priority,
                        job.payload,
                        job.cost,
                        job.max_retries,
                        job.metadata,
                        job.state is JobState.SHED,
                    )
                )
        return letters

    def _read_jobs(self, command: ReadJobs) -> dict[int, JobRecord]:
        records = {}
        for id in command.ids:
            job = self._jobs.get(id) or self._archive.get(id)
            if job is not None:
                records[id] = JobRecord(
                    id, job.line.queue, job.line.task, job.state.value, job.enqueued_us, job.eligible_us, job.started_us,
                    job.finished_us, job.token, job.failures, job.crashes, job.payload, job.metadata, job.result,
                    job.error, job.reason,
                )  # fmt: skip
        return records

    def _read_dead(self, command: ReadDead) -> list[DeadRecord]:
        records = []
        for id in sorted(self._dead, reverse=True):
            job = self._dead[id]
            if command.before_id is not None and id >= command.before_id:
                continue
            if command.task not in (None, job.line.task) or command.reason not in (None, job.reason):
                continue
            records.append(
                DeadRecord(
                    id,
                    job.line.queue,
                    job.line.task,
                    job.error or "",
                    job.reason,
                    self._markers[id],
                    job.payload,
                    job.failures if job.state is JobState.SHED else max(0, job.failures - 1),
                    job.started_us,
                    job.finished_us or 0,
                )
            )
        return records[: command.limit]
