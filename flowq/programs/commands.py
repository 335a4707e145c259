"""The commands that programs yield and the replies they receive.

Theory of operation
-------------------
A *program* is a generator. It yields a :class:`Round` of commands, and is sent the list of their replies, in order.
A store answers a round in one go (PostgreSQL: one pipeline, one round trip). The first round of a program opens a
transaction and the round marked ``last`` commits it; a further round opens another. A driver reads the clock once a
round, after the round's last lock (rule T2), and every command of the round sees that instant.

Commands say *what* to read or write and never *whether*: all judgement is in the programs. So a store is an index
over jobs, and nothing more. Instants are integer microseconds; a job's place in its queue is
``(-priority, eligible_us, id)``.

A *line* is the FIFO of the jobs of one (queue, task, priority). A *lane* (rule R3) is the lines of one
(queue, task): they share one set of gates. Lines are what stores index; lanes are what programs judge.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Round(NamedTuple):
    """Commands to answer in one round trip; ``last`` commits after them."""

    commands: tuple[Any, ...]
    last: bool


Program = Generator[Round, list[Any], T]


# --- enqueue -------------------------------------------------------------------------------------------------------


class NewJob(NamedTuple):
    """A job to insert. Eligible at ``run_at_us``, or where that is None ``delay_us`` after the store's clock."""

    queue: str
    task: str
    priority: int = 0
    payload: str = "[[],{}]"
    """JSON text: ``[args, kwargs]``."""
    run_at_us: int | None = None
    delay_us: int = 0
    cost: int = 1
    max_retries: int | None = None
    """None: as the task declares."""
    metadata: str | None = None
    """JSON text of the job's own metadata."""
    key: str | None = None
    """The rendered key, for people; identity is in the hashes below."""
    unique_hash: bytes | None = None
    window_hash: bytes | None = None
    """Set while the job's debounce window is open, that is until its first start."""
    first_seen_us: int | None = None
    deadline_us: int | None = None
    hits: int = 1
    exempt: bool = False
    """A manual retry of a shed job: it can't be shed again (rule D5)."""


class Insert(NamedTuple):
    """Insert jobs. Reply: list[:class:`Inserted`], in order."""

    jobs: Sequence[NewJob]


class Inserted(NamedTuple):
    id: int
    run_at_us: int


class LockKeys(NamedTuple):
    """Lock keys in one sorted order, then read who holds them. Reply: :class:`HeldKeys`.

    After the reply no other transaction can enqueue under these keys, nor start or move the returned open windows,
    before this one ends.
    """

    unique: tuple[bytes, ...]
    windows: tuple[bytes, ...]


class Holder(NamedTuple):
    """The live job that holds a unique key."""

    id: int
    run_at_us: int


class OpenWindow(NamedTuple):
    """The pending, never started job whose debounce window is open."""

    id: int
    first_seen_us: int
    deadline_us: int
    eligible_us: int
    hits: int


class HeldKeys(NamedTuple):
    now_us: int
    unique: dict[bytes, Holder]
    windows: dict[bytes, OpenWindow]


class Slide(NamedTuple):
    """Move an open debounce window. ``payload`` None keeps the stored one. Reply: None."""

    id: int
    deadline_us: int
    eligible_us: int
    hits: int
    payload: str | None


# --- claim ---------------------------------------------------------------------------------------------------------


class Take(NamedTuple):
    """Start the first ``n`` due jobs of a queue that has no gates. Reply: :class:`Taken`.

    If the queue has a gate, nothing is started and the reply says so.
    """

    queue: str
    n: int
    worker: int


class Started(NamedTuple):
    """A job as its handler gets it. ``token`` is the fencing token of this start: 1, 2, 3 ..."""

    id: int
    task: str
    payload: str
    token: int
    failures: int
    crashes: int
    max_retries: int | None
    eligible_us: int
    priority: int


class Taken(NamedTuple):
    now_us: int
    gated: bool
    started: list[Started]
    next_due_us: int | None
    """The earliest future eligibility in the queue (or an instant at or before it that is still future)."""


class OpenQueue(NamedTuple):
    """Lock a queue and the gates that may open, then read them and its due jobs. Reply: :class:`Opened`.

    Locks the queue's row, then, ordered by id, its own gates and the gates of the tasks that have a due job here,
    those excepted that are closed (``wake_us > now``) and do not drop. ``page`` bounds the due jobs read of each
    line; of a line behind an unlocked gate only the first is read.
    """

    queue: str
    page: int


class Gate(NamedTuple):
    """A stored gate: its declared parameters and its state, both as JSON-able values."""

    id: int
    kind: str
    """``task_rate``, ``queue_rate``, ``task_concurrency``, ``queue_concurrency`` or ``queue_codel``."""
    name: str
    params: dict[str, Any]
    state: Sequence[Any] | None
    """None: never used yet, so the policy's initial state."""
    locked: bool
    running: int = 0
    """Of a concurrency gate: jobs that run under a live lease, over all queues for a task's."""
    lapses_us: int | None = None
    """When the first of those leases ends unless it is extended; None if none runs."""


class Due(NamedTuple):
    """A due job, as much of it as judgement needs."""

    id: int
    eligible_us: int
    cost: int
    first: bool
    """Never started."""
    exempt: bool


class Line(NamedTuple):
    """The due jobs of a line, oldest first: all of them if ``complete``, else a first page with at least one more behind.

    A line that is returned has at least one.
    """

    id: int
    task: str
    priority: int
    due: list[Due]
    complete: bool
    max_cost: int
    """No pending job of the line costs more than this."""


class Opened(NamedTuple):
    now_us: int
    gates: list[Gate]
    lines: list[Line]
    """Only lines that have a due job."""
    next_due_us: int | None


class ReadLine(NamedTuple):
    """Read on in a line. Reply: :class:`Page`, the due jobs after ``(eligible_us, id)``."""

    line: int
    after_us: int
    after_id: int
    limit: int


class ReadCostly(NamedTuple):
    """Read the due, never started, not exempt jobs of a line that cost more than ``over`` (>= 1).

    Reply: :class:`Page`, those after ``(eligible_us, id)``, in that order.
    """

    line: int
    over: int
    after_us: int
    after_id: int
    limit: int


class Page(NamedTuple):
    due: list[Due]
    complete: bool
    """False: at least one more row follows."""


class Start(NamedTuple):
    """Start these pending jobs. Reply: list[:class:`Started`], in the order of ``ids``.

    If any of them is no longer pending with that eligibility, nothing of the transaction stays, and the driver runs
    the whole program again.
    """

    ids: tuple[int, ...]
    eligible_us: tuple[int, ...]
    worker: int
    now_us: int
    """The instant of the judgement, which is when they start: a later reading of the clock would bend the law."""


class Shed(NamedTuple):
    """Shed these pending jobs: archive each as ``shed`` and dead-letter it. Reply and conflicts: as ``Start``."""

    sheds: tuple[ShedJob, ...]
    now_us: int
    """The instant of the judgement."""


class ShedJob(NamedTuple):
    id: int
    eligible_us: int
    reason: str
    """``rate_limit`` or ``codel``."""
    error: str
    metadata: str
    """JSON text: the dead letter's marker."""


class SaveGates(NamedTuple):
    """Write gate states. Reply: None. ``wake_us``: before this instant the gate lets nothing pass."""

    saves: tuple[GateSave, ...]


class GateSave(NamedTuple):
    id: int
    state: Sequence[Any]
    wake_us: int


# --- settle and maintain -------------------------------------------------------------------------------------------


class Settle(NamedTuple):
    """Write how attempts ended. Reply: set[int], the ids whose lease (id, token) was still held; others are no-ops."""

    succeeded: tuple[SucceededJob, ...]
    retried: tuple[RetriedJob, ...]
    dead: tuple[DeadJob, ...]


class SucceededJob(NamedTuple):
    id: int
    token: int
    result: str | None
    """JSON text."""


class RetriedJob(NamedTuple):
    """Pending again ``delay_us`` after the store's clock. ``crashed`` counts a crash instead of a failure."""

    id: int
    token: int
    delay_us: int
    error: str
    crashed: bool = False


class DeadJob(NamedTuple):
    id: int
    token: int
    error: str
    metadata: str | None = None
    crashed: bool = False


class ReadLapsed(NamedTuple):
    """Lock running jobs whose worker's lease is over. Reply: list[:class:`LapsedJob`]. Locked rows are passed over."""

    limit: int


class LapsedJob(NamedTuple):
    id: int
    token: int
    crashes: int
    worker: int


class Register(NamedTuple):
    """Enter a worker with a lease of ``lease_us``. Reply: its id."""

    name: str
    queues: tuple[str, ...]
    slots: int
    lease_us: int


class Beat(NamedTuple):
    """Extend a worker's lease from now. Reply: bool, False if the lease was over already (rule T4)."""

    worker: int
    lease_us: int


class Sleep(NamedTuple):
    """Say that a worker sleeps until an instant (None: it is awake), so that enqueues notify it. Reply: None."""

    worker: int
    until_us: int | None


class Unregister(NamedTuple):
    """Remove a worker that stopped; jobs it still runs lapse at once. Reply: None."""

    worker: int


# --- declare, and dead letters -------------------------------------------------------------------------------------


class LockDeclared(NamedTuple):
    """Create the queues and lines that are missing, then lock gates by (kind, name), sorted. Reply: :class:`Declared`."""

    queues: tuple[str, ...]
    lines: tuple[tuple[str, str, int], ...]
    """(queue, task, priority)."""
    gates: tuple[tuple[str, str], ...]


class StoredGate(NamedTuple):
    id: int
    declared_us: int
    params: dict[str, Any] | None
    """None: declared to be absent."""
    state: Sequence[Any] | None


class Declared(NamedTuple):
    now_us: int
    gates: dict[tuple[str, str], StoredGate]


class WriteGates(NamedTuple):
    """Insert or replace declared gates. Reply: None."""

    writes: tuple[GateWrite, ...]


class GateWrite(NamedTuple):
    kind: str
    name: str
    declared_us: int
    params: dict[str, Any] | None
    state: Sequence[Any] | None
    wake_us: int
    drops: bool
    """Its closed lanes must still be read, because their excess is shed."""


class TakeDead(NamedTuple):
    """Remove dead letters for a manual retry. Reply: list[:class:`DeadLetter`] of those that existed."""

    ids: tuple[int, ...]


class DeadLetter(NamedTuple):
    id: int
    queue: str
    task: str
    priority: int
    payload: str
    cost: int
    max_retries: int | None
    metadata: str | None
    shed: bool


# --- read ----------------------------------------------------------------------------------------------------------


class ReadJobs(NamedTuple):
    """Read jobs wherever they are, live or archived. Reply: dict[int, :class:`JobRecord`] of those that exist."""

    ids: tuple[int, ...]


class JobRecord(NamedTuple):
    id: int
    queue: str
    task: str
    state: str
    enqueued_us: int
    run_at_us: int
    started_us: int | None
    """Of the last attempt; None if none ever started."""
    finished_us: int | None
    token: int
    failures: int
    crashes: int
    payload: str
    metadata: str | None
    result: str | None
    error: str | None
    reason: str | None
    """Of a shed job: ``rate_limit`` or ``codel``."""


class ReadDead(NamedTuple):
    """Read dead letters, newest first (by id of the job). Reply: list[:class:`DeadRecord`].

    ``before_id`` pages on: only letters of smaller ids. ``task`` and ``reason`` None: any.
    """

    limit: int
    before_id: int | None = None
    task: str | None = None
    reason: str | None = None


class DeadRecord(NamedTuple):
    id: int
    queue: str
    task: str
    error: str
    reason: str | None
    """Of a shed job, else None."""
    metadata: str | None
    """JSON text: the marker, exactly as stored."""
    payload: str
    retry_count: int
    """Retries that failures were granted."""
    started_us: int | None
    finished_us: int
