"""Commands to statements, rows to replies: all that PostgreSQL adds to the programs, without I/O.

Theory of operation
-------------------
A :class:`Codec` turns the commands of one round into statements to send in order, and the rows that come back
into the replies. The statements are files of ``flowq/postgres/statements``, one each, loaded once. A dispatch
table maps each command to the method that encodes it; the method returns the statements and the function that
reads their rows.

Parameters travel as text of unknown type, and the statements cast them. So a statement has one prepared form
whatever the size of a number, and arrays are literals joined here: psycopg's own list dumpers cost a Python
call an element. A column of which every job has the default travels as an empty array, which ``unnest`` pads
with NULL.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any, NamedTuple

from flowq.programs.commands import (
    Beat,
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
    NewJob,
    Opened,
    OpenQueue,
    OpenWindow,
    Page,
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

__all__ = ["CHUNK_BYTES", "CHUNK_JOBS", "Codec", "Encoded", "LineKey", "Row", "Statement", "statement"]

CHUNK_JOBS = 5_000
"""Jobs of one insert statement."""
CHUNK_BYTES = 4 << 20
"""Payload after which an insert statement takes no further job."""

Row = tuple[Any, ...]
LineKey = tuple[str, str, int]
"""(queue, task, priority)."""
Rows = Sequence[Row]


class Statement(NamedTuple):
    """SQL with ``$1``-style parameters, each text or None."""

    sql: bytes
    params: tuple[str | None, ...] = ()
    returns: bool = True
    """Rows, if only to be fetched: all but transaction control does."""


class _Part(NamedTuple):
    """The statements of one command, and how their rows become its reply."""

    statements: list[Statement]
    read: Callable[[Sequence[Rows]], Any]


class _Frame(NamedTuple):
    """What all commands of a round are encoded with."""

    now: str | None
    notify: str
    """Whom writes that make jobs due notify: ``off``, ``sleepers`` or ``workers``."""
    ensured: set[LineKey]


class Encoded(NamedTuple):
    """One round: statements to send in order, and how their rows become its replies."""

    statements: list[Statement]
    decode: Callable[[Sequence[Rows]], list[Any]]


@cache
def _text(name: str) -> bytes:
    """The SQL of a statement's file, without its header comment."""
    text = resources.files("flowq.postgres").joinpath("statements", f"{name}.sql").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().encode()


def statement(name: str, *params: str | None) -> Statement:
    """Return a statement of :mod:`flowq.postgres.statements` with its parameters."""
    return Statement(_text(name), params)


# --- literals -----------------------------------------------------------------------------------------------


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _flag(value: bool) -> str:
    return "t" if value else "f"


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bytes(value: bytes | None) -> str | None:
    return None if value is None else "\\x" + value.hex()


def _hex(value: bytes) -> str:
    return '"\\\\x' + value.hex() + '"'


def _array(values: Iterable[str]) -> str:
    return "{" + ",".join(values) + "}"


def _numbers(values: Iterable[int]) -> str:
    return _array(map(str, values))


def _texts(values: Iterable[str]) -> str:
    return _array(map(_quoted, values))


def _flags(values: Iterable[bool]) -> str:
    return _array(map(_flag, values))


def _sparse(values: Sequence[Any], literal: Callable[[Any], str], default: Any = None) -> str:
    """An array in which the default stands as NULL; empty if nothing else is in it."""
    if values.count(default) == len(values):
        return "{}"
    return _array("NULL" if value == default else literal(value) for value in values)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _json_or_null(values: Iterable[Any]) -> str:
    return _array("NULL" if value is None else _quoted(_json(value)) for value in values)


def _parsed(value: str | None) -> Any:
    return None if value is None else json.loads(value)


# --- replies ------------------------------------------------------------------------------------------------


def _nothing(_: Sequence[Rows]) -> None:
    return None


def _started(results: Sequence[Rows]) -> list[Started]:
    return [Started._make(row) for row in results[0]]


def _taken(results: Sequence[Rows]) -> Taken:
    rows = results[0]
    *_, now_us, gated, next_due_us = rows[0]
    started = [] if rows[0][0] is None else [Started._make(row[:9]) for row in rows]
    return Taken(now_us, gated, started, None if gated else next_due_us)


def _opened(results: Sequence[Rows]) -> Opened:
    rows = results[-1]
    now_us, next_due_us, gates = rows[0][:3]
    lines = [
        Line(id, task, priority, list(map(Due, ids, eligible, costs, firsts, exempts)), complete, max_cost)
        for _, _, _, id, task, priority, ids, eligible, costs, firsts, exempts, complete, max_cost in rows
        if id is not None
    ]
    return Opened(now_us, [Gate._make(gate) for gate in _parsed(gates) or ()], lines, next_due_us)


def _page(limit: int) -> Callable[[Sequence[Rows]], Page]:
    def read(results: Sequence[Rows]) -> Page:
        rows = results[0]
        return Page([Due._make(row) for row in rows[:limit]], len(rows) <= limit)

    return read


# --- the codec ----------------------------------------------------------------------------------------------


class Codec:
    """Encodes rounds for one namespace.

    Parameters
    ----------
    namespace
        That of every job, key, gate and worker of the commands.
    notify
        Whether writes that make jobs due wake sleeping workers.
    lock_timeout_us
        Longest wait for keys that another open transaction holds; None: the server's setting.
    """

    def __init__(self, namespace: str, notify: bool, lock_timeout_us: int | None) -> None:
        self.namespace = namespace
        self.known: set[LineKey] = set()
        """Lines that are committed, so that inserts needn't ensure them."""
        self._notify = notify
        self._lock_timeout_us = lock_timeout_us
        self._encoders: dict[type, Callable[[Any, _Frame], _Part]] = {
            Insert: self._insert,
            LockKeys: self._lock_keys,
            _Slides: self._slides,
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

    def encode(
        self, commands: Sequence[Any], now_us: int | None, ensured: set[LineKey], own: bool = True
    ) -> Encoded:
        """Encode one round.

        Parameters
        ----------
        commands
            Of one round, in order.
        now_us
            The instant of the round; None: the server's clock.
        ensured
            Lines that this transaction ensured; extended here, to become known once it commits.
        own
            Whether the transaction commits with the program. In a caller's, which may commit much later, a worker
            that is awake now may be asleep by then, so it is notified too.
        """
        notify = "off" if not self._notify else "sleepers" if own else "workers"
        frame = _Frame(_number(now_us), notify, ensured)
        encoders = self._encoders
        if len(commands) == 1 and type(commands[0]) is not Slide:
            part = encoders[type(commands[0])](commands[0], frame)
            return Encoded(part.statements, lambda results: [part.read(results)])
        statements: list[Statement] = []
        parts: list[tuple[_Part, int, int, int]] = []
        for command, replies in _merged(commands):
            part = encoders[type(command)](command, frame)
            begin = len(statements)
            statements += part.statements
            parts.append((part, begin, len(statements), replies))

        def decode(results: Sequence[Rows]) -> list[Any]:
            answers: list[Any] = []
            for part, begin, end, replies in parts:
                answers += [part.read(results[begin:end])] * replies
            return answers

        return Encoded(statements, decode)

    def channel_names(self, queues: Sequence[str]) -> Statement:
        """The statement that reads the channels of queues."""
        return statement("channel_names", self.namespace, _texts(queues))

    # --- enqueue ---

    def _ensure(
        self, lines: Collection[LineKey], queues: Iterable[str], ensured: set[LineKey]
    ) -> list[Statement]:
        """Statements that create what is missing of these lines, in sorted order, and of these queues.

        Another transaction that needs a line created here waits until this one ends. So where a transaction is
        the caller's, and may be long, lines are better declared before.
        """
        missing = sorted(line for line in lines if line not in self.known and line not in ensured)
        names = sorted({*queues, *(queue for queue, _, _ in missing)})
        statements = [statement("ensure_queues", self.namespace, _texts(names))] if names else []
        if missing:
            ensured.update(missing)
            columns = zip(*missing, strict=True)
            statements.append(statement("ensure_lines", self.namespace, *_line_columns(*columns)))
        return statements

    def _insert(self, command: Insert, frame: _Frame) -> _Part:
        jobs = command.jobs
        lines = dict.fromkeys((job.queue, job.task, job.priority) for job in jobs)
        statements = [] if self.known.issuperset(lines) else self._ensure(lines, (), frame.ensured)
        ensuring = len(statements)
        statements += [self._insert_chunk(chunk, frame) for chunk in _chunks(jobs)]

        def read(results: Sequence[Rows]) -> list[Inserted]:
            return [Inserted(id, run_at_us) for rows in results[ensuring:] for id, run_at_us, _ in rows]

        return _Part(statements, read)

    def _insert_one(self, job: NewJob, frame: _Frame) -> Statement:
        (
            queue, task, priority, payload, run_at_us, delay_us, cost, max_retries, metadata, key, unique,
            window, first_seen_us, deadline_us, hits, exempt,
        ) = job  # fmt: skip
        return statement(
            "insert_one",
            frame.now,
            self.namespace,
            frame.notify,
            queue,
            task,
            str(priority),
            payload,
            _number(run_at_us),
            str(delay_us),
            str(cost),
            _number(max_retries),
            metadata,
            key,
            _bytes(unique),
            _bytes(window),
            _number(first_seen_us),
            _number(deadline_us),
            str(hits),
            _flag(exempt),
        )

    def _insert_chunk(self, jobs: Sequence[NewJob], frame: _Frame) -> Statement:
        if len(jobs) == 1:
            return self._insert_one(jobs[0], frame)
        (
            queues, tasks, priorities, payloads, run_at, delays, costs, max_retries, metadata, keys, unique,
            windows, first_seen, deadlines, hits, exempt,
        ) = zip(*jobs, strict=True)  # fmt: skip
        lines = dict.fromkeys(zip(queues, tasks, priorities, strict=True))
        numbers = "{}"
        if len(lines) > 1:
            number = {line: str(n) for n, line in enumerate(lines, 1)}
            numbers = _array(number[line] for line in zip(queues, tasks, priorities, strict=True))
        return statement(
            "insert",
            frame.now,
            self.namespace,
            frame.notify,
            *_line_columns(*zip(*lines, strict=True)),
            numbers,
            _texts(payloads),
            _sparse(run_at, str),
            _sparse(delays, str, 0),
            _sparse(costs, str, 1),
            _sparse(max_retries, str),
            _sparse(metadata, _quoted),
            _sparse(keys, _quoted),
            _sparse(unique, _hex),
            _sparse(windows, _hex),
            _sparse(first_seen, str),
            _sparse(deadlines, str),
            _sparse(hits, str, 1),
            _sparse(exempt, _flag, False),
        )

    def _lock_keys(self, command: LockKeys, frame: _Frame) -> _Part:
        unique, windows = command
        locks = sorted({int.from_bytes(key[:8], signed=True) for key in (*unique, *windows)})
        holders = [statement("keys_unique", self.namespace, _array(map(_hex, unique)))] if unique else []
        opened = [statement("keys_windows", self.namespace, _array(map(_hex, windows)))] if windows else []
        statements = [statement("keys_lock", _numbers(locks)), *holders, *opened]
        begin, end = 1, len(statements)
        if self._lock_timeout_us is not None:
            # Whole milliseconds, rounded up: 0 would mean no limit.
            timeout = f"{-(-self._lock_timeout_us // 1_000)}ms"
            statements = [
                statement("lock_timeout_set", timeout),
                *statements,
                statement("lock_timeout_reset"),
            ]
            begin, end = begin + 1, end + 1
        statements.append(statement("clock", frame.now))

        def read(results: Sequence[Rows]) -> HeldKeys:
            rows = results[begin:end]
            return HeldKeys(
                results[-1][0][0],
                {key: Holder(id, run_at_us) for key, id, run_at_us in (rows[0] if unique else ())},
                {key: OpenWindow(*window) for key, *window in (rows[-1] if windows else ())},
            )

        return _Part(statements, read)

    def _slides(self, command: _Slides, frame: _Frame) -> _Part:
        ids, deadlines, eligible, hits, payloads = zip(*command.slides, strict=True)
        sliding = statement(
            "slide",
            frame.now,
            self.namespace,
            frame.notify,
            _numbers(ids),
            _numbers(deadlines),
            _numbers(eligible),
            _numbers(hits),
            _sparse(payloads, _quoted),
        )
        return _Part([sliding], _nothing)

    # --- claim ---

    def _take(self, command: Take, frame: _Frame) -> _Part:
        queue, n, worker = command
        return _Part([statement("take", frame.now, self.namespace, queue, str(n), str(worker))], _taken)

    def _open_queue(self, command: OpenQueue, frame: _Frame) -> _Part:
        queue, page = command
        statements = [
            statement("open_queue", self.namespace, queue),
            statement("open_gates", frame.now, self.namespace, queue),
            statement("open_lines", frame.now, self.namespace, queue, str(page)),
        ]
        return _Part(statements, _opened)

    def _read_line(self, command: ReadLine, frame: _Frame) -> _Part:
        return _Part([statement("read_line", frame.now, *map(str, command))], _page(command.limit))

    def _read_costly(self, command: ReadCostly, frame: _Frame) -> _Part:
        return _Part([statement("read_costly", frame.now, *map(str, command))], _page(command.limit))

    def _start(self, command: Start, frame: _Frame) -> _Part:
        ids, eligible, worker, now_us = command
        return _Part(
            [statement("start", str(now_us), self.namespace, str(worker), _numbers(ids), _numbers(eligible))],
            _started,
        )

    def _shed(self, command: Shed, frame: _Frame) -> _Part:
        ids, eligible, reasons, errors, markers = zip(*command.sheds, strict=True)
        shedding = statement(
            "shed",
            str(command.now_us),
            self.namespace,
            _numbers(ids),
            _numbers(eligible),
            _texts(reasons),
            _texts(errors),
            _texts(markers),
        )
        return _Part([shedding], _nothing)

    def _save_gates(self, command: SaveGates, frame: _Frame) -> _Part:
        ids, states, wakes = zip(*command.saves, strict=True)
        return _Part(
            [statement("save_gates", _numbers(ids), _json_or_null(states), _numbers(wakes))], _nothing
        )

    # --- settle and maintain ---

    def _settle(self, command: Settle, frame: _Frame) -> _Part:
        succeeded, retried, dead = command
        statements = []
        if succeeded or dead:
            final = sorted(
                [(id, token, result, None, None, False) for id, token, result in succeeded]
                + [(job.id, job.token, None, job.error, job.metadata, job.crashed) for job in dead],
                key=_by_id,
            )
            ids, tokens, results, errors, markers, crashed = zip(*final, strict=True)
            statements.append(
                statement(
                    "settle_final",
                    frame.now,
                    self.namespace,
                    _numbers(ids),
                    _numbers(tokens),
                    _sparse(results, _quoted),
                    _sparse(errors, _quoted),
                    _sparse(markers, _quoted),
                    _sparse(crashed, _flag, False),
                    frame.notify,
                )
            )
        if retried:
            ids, tokens, delays, errors, crashed = zip(*sorted(retried, key=_by_id), strict=True)
            statements.append(
                statement(
                    "settle_retried",
                    frame.now,
                    self.namespace,
                    frame.notify,
                    _numbers(ids),
                    _numbers(tokens),
                    _numbers(delays),
                    _texts(errors),
                    _flags(crashed),
                )
            )
        return _Part(statements, lambda results: {row[0] for rows in results for row in rows})

    def _read_lapsed(self, command: ReadLapsed, frame: _Frame) -> _Part:
        return _Part(
            [statement("read_lapsed", frame.now, self.namespace, str(command.limit))],
            lambda results: [LapsedJob._make(row) for row in results[0]],
        )

    def _register(self, command: Register, frame: _Frame) -> _Part:
        name, queues, slots, lease_us = command
        entering = statement(
            "register", frame.now, self.namespace, name, _texts(queues), str(slots), str(lease_us)
        )
        return _Part([entering], lambda results: results[0][0][0])

    def _beat(self, command: Beat, frame: _Frame) -> _Part:
        beating = statement("beat", frame.now, self.namespace, str(command.worker), str(command.lease_us))
        return _Part([beating], lambda results: bool(results[0]))

    def _sleep(self, command: Sleep, frame: _Frame) -> _Part:
        return _Part(
            [statement("sleep", self.namespace, str(command.worker), _number(command.until_us))], _nothing
        )

    def _unregister(self, command: Unregister, frame: _Frame) -> _Part:
        return _Part([statement("unregister", self.namespace, str(command.worker))], _nothing)

    # --- declare, dead letters, read ---

    def _lock_declared(self, command: LockDeclared, frame: _Frame) -> _Part:
        queues, lines, gates = command
        statements = self._ensure(lines, queues, frame.ensured)
        if gates:
            kinds, names = (_texts(column) for column in zip(*sorted(gates), strict=True))
            statements.append(statement("declare_lock", self.namespace, kinds, names))
            statements.append(statement("declare_read", self.namespace, kinds, names))
        statements.append(statement("clock", frame.now))

        def read(results: Sequence[Rows]) -> Declared:
            stored = {
                (kind, name): StoredGate(id, declared_us, _parsed(params), _parsed(state))
                for kind, name, id, declared_us, params, state in (results[-2] if gates else ())
            }
            return Declared(results[-1][0][0], {gate: stored[gate] for gate in gates if gate in stored})

        return _Part(statements, read)

    def _write_gates(self, command: WriteGates, frame: _Frame) -> _Part:
        writes = sorted(command.writes, key=lambda write: (write.kind, write.name))
        kinds, names, declared, params, states, wakes, drops = zip(*writes, strict=True)
        writing = statement(
            "write_gates",
            self.namespace,
            _texts(kinds),
            _texts(names),
            _numbers(declared),
            _json_or_null(params),
            _json_or_null(states),
            _numbers(wakes),
            _flags(drops),
        )
        return _Part([writing], _nothing)

    def _take_dead(self, command: TakeDead, frame: _Frame) -> _Part:
        def read(results: Sequence[Rows]) -> list[DeadLetter]:
            letters = {row[0]: DeadLetter._make(row) for row in results[0]}
            return [letters[id] for id in dict.fromkeys(command.ids) if id in letters]

        return _Part([statement("take_dead", self.namespace, _numbers(command.ids))], read)

    def _read_jobs(self, command: ReadJobs, frame: _Frame) -> _Part:
        def read(results: Sequence[Rows]) -> dict[int, JobRecord]:
            records = {row[0]: JobRecord._make(row) for row in results[0]}
            return {id: records[id] for id in command.ids if id in records}

        return _Part([statement("read_jobs", self.namespace, _numbers(command.ids))], read)

    def _read_dead(self, command: ReadDead, frame: _Frame) -> _Part:
        limit, before_id, task, reason = command
        reading = statement("read_dead", self.namespace, str(limit), _number(before_id), task, reason)
        return _Part([reading], lambda results: [DeadRecord._make(row) for row in results[0]])


class _Slides(NamedTuple):
    """Consecutive slides of a round: one statement."""

    slides: tuple[Slide, ...]


def _merged(commands: Sequence[Any]) -> Iterable[tuple[Any, int]]:
    """The commands with consecutive slides as one, each with the number of replies it stands for."""
    for kind, group in groupby(commands, type):
        if kind is Slide:
            slides = tuple(group)
            yield _Slides(slides), len(slides)
        else:
            for command in group:
                yield command, 1


def _line_columns(
    queues: Iterable[str], tasks: Iterable[str], priorities: Iterable[int]
) -> tuple[str, str, str]:
    return _texts(queues), _texts(tasks), _numbers(priorities)


def _chunks(jobs: Sequence[NewJob]) -> Iterable[Sequence[NewJob]]:
    """Jobs in runs of at most ``CHUNK_JOBS``, each ended early once its payloads pass ``CHUNK_BYTES``."""
    begin = size = 0
    for n, job in enumerate(jobs):
        if n > begin and (n - begin == CHUNK_JOBS or size >= CHUNK_BYTES):
            yield jobs[begin:n]
            begin, size = n, 0
        size += len(job.payload)
    if begin < len(jobs):
        yield jobs[begin:]


def _by_id(row: Any) -> int:
    id: int = row[0]
    return id
