"""Query plans over seeded tables: what each statement reads, counted, not guessed.

The store's connections ask for generic plans, so a statement's plan is made once. It must be right whatever the
planner knew: nothing (``never``), a table that was empty (``empty``), or the truth (``true``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from flowq.postgres import PostgresStore, connect
from flowq.postgres.codec import Statement
from flowq.postgres.server import Server, create_database, drop_database
from flowq.programs.commands import (
    Beat,
    DeadJob,
    Insert,
    LockDeclared,
    LockKeys,
    NewJob,
    OpenQueue,
    ReadCostly,
    ReadDead,
    ReadJobs,
    ReadLapsed,
    ReadLine,
    Register,
    RetriedJob,
    Settle,
    Shed,
    ShedJob,
    Slide,
    Start,
    SucceededJob,
    Take,
    TakeDead,
)
from postgres.support import nodes, plan, rounds, rows_read, scans, statements

Conn = psycopg.Connection[Any]
NOW_US = 1_000_000_000
NAMESPACE = "plans"
SIZES = [1, 2, 10, 100, 1000]
LINES = [("q", task, priority) for task in ("t0", "t1", "t2") for priority in (0, 5)]

_SEED = """
    insert into flowq.job (
        eligible_us, enqueued_us, cost, queue_id, line_id, priority, hits, exempt, namespace, payload, token, state,
        started_us, worker_id, unique_hash, window_hash, first_seen_us, deadline_us
    )
    select
        case %(kind)s when 'scheduled' then %(now)s + 1000 + n else n end, 0,
        case when n %% 1000 = 0 then 3 else 1 end, l.queue_id, l.id, l.priority, 1, false, %(namespace)s, '[[],{}]',
        (%(kind)s = 'running')::integer, case %(kind)s when 'running' then 'running' else 'pending' end,
        case %(kind)s when 'running' then n end, case %(kind)s when 'running' then %(worker)s::bigint end,
        case when %(kind)s = 'keyed' then decode(lpad(to_hex(n), 16, '0'), 'hex') end,
        case when %(kind)s = 'keyed' then decode(lpad(to_hex(n), 16, '0'), 'hex') end,
        case when %(kind)s = 'keyed' then 0 end, case when %(kind)s = 'keyed' then n end
    from generate_series(1, %(count)s) n
    join lateral (
        select l.* from flowq.line l join flowq.queue q on q.id = l.queue_id
        where q.namespace = %(namespace)s and q.name = %(queue)s
        order by l.id offset n %% %(lines)s limit 1
    ) l on true
"""


class Seeded:
    """A database of 100,000 due, as many scheduled, 20,000 keyed and 2,000 running jobs."""

    def __init__(self, dsn: str, scheduled: int) -> None:
        self.dsn = dsn
        self.store = PostgresStore(NAMESPACE)
        with connect(dsn) as conn:
            for table in ("job", "gate", "line", "queue", "worker", "dead_letter"):
                conn.execute(
                    psycopg.sql.SQL("alter table flowq.{} set (autovacuum_enabled = off)").format(
                        psycopg.sql.Identifier(table)
                    )
                )
            conn.execute("alter table flowq.archive_default set (autovacuum_enabled = off)")
            queues = ("idle", "q", "future", "running")
            lines = (*LINES, ("future", "t", 0), ("running", "t", 0))
            self.store.run(conn, rounds(LockDeclared(queues, lines, ())))
            self.worker, self.dead_worker = (
                self.store.run(conn, rounds(Register("w", ("q",), 9, lease_us)), now_us=0)[0]
                for lease_us in (1 << 60, 1)
            )
            conn.execute("analyze")
            self.seed(conn, "due", "q", 100_000)
            self.seed(conn, "scheduled", "future", scheduled)
            self.seed(conn, "keyed", "future", 20_000)
            conn.execute("update flowq.job set eligible_us = %s where unique_hash is not null", (NOW_US * 2,))
            self.seed(conn, "running", "running", 2_000, self.worker)
            self.running = [
                id
                for (id,) in conn.execute(
                    "select id from flowq.job where state = 'running' order by id"
                ).fetchall()
            ]
            self.due = conn.execute(
                "select id, eligible_us from flowq.job where eligible_us <= 3000 and state = 'pending' order by id"
            ).fetchall()
            self.keyed = conn.execute(
                "select id, unique_hash from flowq.job where unique_hash is not null order by id limit 1000"
            ).fetchall()

    def seed(self, conn: Conn, kind: str, queue: str, count: int, worker: int | None = None) -> None:
        lines = 6 if queue == "q" else 1
        conn.execute(
            _SEED,
            {
                "kind": kind,
                "queue": queue,
                "count": count,
                "worker": worker,
                "now": NOW_US,
                "namespace": NAMESPACE,
                "lines": lines,
            },
        )


@pytest.fixture(scope="module", params=["never", "empty", "true"])
def known(request: pytest.FixtureRequest) -> str:
    """What the planner knows of the tables."""
    return str(request.param)


@pytest.fixture(scope="module")
def seeded(postgres_server: Server, database_template: str, known: str) -> Iterator[Seeded]:
    with _seeded(postgres_server, database_template, known, 100_000) as seeded:
        yield seeded


@contextmanager
def _seeded(server: Server, template: str, known: str, scheduled: int) -> Iterator[Seeded]:
    name = f"flowq_test_plans_{uuid4().hex[:16]}"
    try:
        seeded = Seeded(create_database(server, name, template), scheduled)
        with connect(seeded.dsn) as conn:
            if known == "never":
                conn.execute("update pg_class set reltuples = -1 where relnamespace = 'flowq'::regnamespace")
                conn.execute("delete from pg_statistic where starelid = 'flowq.job'::regclass")
            if known == "true":
                conn.execute("analyze")
        yield seeded
    finally:
        drop_database(server, name)


@pytest.fixture
def conn(seeded: Seeded) -> Iterator[Conn]:
    with connect(seeded.dsn) as conn:
        yield conn


def reads(conn: Conn, *commands: Any) -> list[tuple[Statement, dict[str, Any]]]:
    """The plans of the statements of commands, executed in one transaction that is rolled back."""
    found = []
    with conn.transaction(force_rollback=True):
        for each in statements(NAMESPACE, *commands, now_us=NOW_US):
            found.append((each, plan(conn, each)))
            psycopg.RawCursor(conn).execute(each.sql, each.params)
    return found


def job_rows(found: dict[str, Any]) -> int:
    """Rows of flowq.job that a plan read; and none of it by reading the table from end to end."""
    assert not [
        node for node in scans(found, "job") if "Seq" in node["Node Type"] or "Bitmap" in node["Node Type"]
    ]
    return sum(rows_read(node) for node in scans(found, "job"))


def job_indexes(found: dict[str, Any]) -> set[str]:
    return {node["Index Name"] for node in scans(found, "job")}


@pytest.mark.parametrize("n", SIZES)
def test_take_reads_what_it_starts(seeded: Seeded, conn: Conn, n: int) -> None:
    [(_, found)] = reads(conn, Take("q", n, seeded.worker))
    assert found["Actual Rows"] == n
    assert job_rows(found) <= 2 * n + 2  # by job_ready, by the primary key, and a probe a priority
    assert job_indexes(found) == {"job_ready", "job_pkey"}
    sorts = [node["Actual Rows"] for node in nodes(found) if node["Node Type"] == "Sort"]
    assert max(sorts) <= max(n, len(LINES))


@pytest.mark.parametrize("queue", ["future", "idle", "never seen"])
def test_take_does_not_walk_what_is_scheduled(seeded: Seeded, conn: Conn, queue: str) -> None:
    [(_, found)] = reads(conn, Take(queue, 100, seeded.worker))
    assert job_rows(found) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("known", ["empty", "true"])
def test_take_does_not_walk_a_million(postgres_server: Server, database_template: str, known: str) -> None:
    with _seeded(postgres_server, database_template, known, 1_000_000) as seeded, connect(seeded.dsn) as conn:
        for command in (Take("future", 100, seeded.worker), OpenQueue("future", 100)):
            for _, found in reads(conn, command):
                assert job_rows(found) <= 3


def test_take_locks_a_lower_priority_only_if_it_must(seeded: Seeded, conn: Conn) -> None:
    [(_, found)] = reads(conn, Take("q", 10, seeded.worker))
    [locking] = [node for node in nodes(found) if node["Node Type"] == "LockRows"]
    assert locking["Actual Rows"] * locking["Actual Loops"] == 10


@pytest.mark.parametrize("page", SIZES)
def test_open_queue_reads_a_page_of_each_line(seeded: Seeded, conn: Conn, page: int) -> None:
    queue, gates, lines = (found for _, found in reads(conn, OpenQueue("q", page)))
    assert job_rows(queue) == 0
    assert job_rows(gates) == len(LINES)
    assert job_indexes(gates) == {"job_line"}
    assert lines["Actual Rows"] == len(LINES)
    # Of each line a page, a probe and the highest cost; of each priority what falls due.
    assert job_rows(lines) <= len(LINES) * (page + 3) + 2
    assert job_indexes(lines) == {"job_line", "job_costly", "job_ready", "job_worker"} | (
        {"job_pkey"} & job_indexes(lines)
    )


def test_read_on_in_a_line(seeded: Seeded, conn: Conn) -> None:
    line = conn.execute("select min(line_id) from flowq.job where eligible_us = 50000").fetchall()[0][0]
    [(_, found)] = reads(conn, ReadLine(line, 50_000, 0, 10))
    assert job_rows(found) <= 11
    [(_, found)] = reads(conn, ReadCostly(line, 1, -1, 0, 10))
    assert job_rows(found) <= 100


@pytest.mark.parametrize("size", SIZES)
def test_settle_uses_the_primary_key_at_every_size(seeded: Seeded, conn: Conn, size: int) -> None:
    ids = seeded.running[:size]
    some = Settle(
        tuple(SucceededJob(id, 1, None) for id in ids[::2]),
        (),
        tuple(DeadJob(id, 1, "x") for id in ids[1::2]),
    )
    again = Settle((), tuple(RetriedJob(id, 1, 0, "x") for id in ids), ())
    for command in (some, again):
        [(_, found)] = reads(conn, command)
        assert found["Actual Rows"] == size
        assert job_rows(found) == size
        assert job_indexes(found) == {"job_pkey"}


@pytest.mark.parametrize("size", SIZES)
def test_start_and_shed_use_the_primary_key_at_every_size(seeded: Seeded, conn: Conn, size: int) -> None:
    ids, eligible = zip(*seeded.due[:size], strict=True)
    shed = Shed(tuple(ShedJob(id, at, "codel", "e", "{}") for id, at in seeded.due[:size]), 0)
    for command in (Start(ids, eligible, seeded.worker, 0), shed):
        [(_, found)] = reads(conn, command)
        assert job_rows(found) == size
        assert job_indexes(found) == {"job_pkey"}


@pytest.mark.parametrize("size", SIZES)
def test_keys_are_found_by_their_indexes(seeded: Seeded, conn: Conn, size: int) -> None:
    keys = tuple(key for _, key in seeded.keyed[:size])
    _, unique, windows, _ = (found for _, found in reads(conn, LockKeys(keys, keys)))
    assert (job_rows(unique), job_indexes(unique)) == (size, {"job_unique_key"})
    assert (job_rows(windows), job_indexes(windows)) == (size, {"job_window_key"})
    slides = [Slide(id, 1, NOW_US, 2, None) for id, _ in seeded.keyed[:size]]
    [(_, found)] = reads(conn, *slides)
    assert (job_rows(found), job_indexes(found)) == (size, {"job_pkey"})


def test_inserts_read_no_job(seeded: Seeded, conn: Conn) -> None:
    for jobs in ([NewJob(*LINES[0])], [NewJob(*line) for line in LINES] * 100):
        [(_, found)] = reads(conn, Insert(jobs))
        assert job_rows(found) == 0
        assert sum(rows_read(node) for node in scans(found, "line")) <= len(LINES)


def test_the_sweep_does_not_read_the_jobs_of_live_workers(seeded: Seeded, conn: Conn) -> None:
    with conn.transaction(force_rollback=True):
        moved = "update flowq.job set worker_id = %s where id = any (%s)"
        conn.execute(moved, (seeded.dead_worker, seeded.running[:5]))
        conn.execute(moved, (1 << 40, seeded.running[5:9]))
        [(_, found)] = reads(conn, ReadLapsed(100))
        assert found["Actual Rows"] == 9
        assert job_rows(found) <= 9 + 4
        assert job_indexes(found) == {"job_worker"}


def test_jobs_and_dead_letters_are_read_by_id(seeded: Seeded, conn: Conn) -> None:
    [(_, found)] = reads(conn, ReadJobs(tuple(seeded.running[:10])))
    assert (job_rows(found), job_indexes(found)) == (10, {"job_pkey"})
    for command in (ReadDead(10), TakeDead((1, 2))):
        [(_, found)] = reads(conn, command)
        assert not [node for node in scans(found, "dead_letter") if "Seq" in node["Node Type"]]


def test_a_heartbeat_touches_one_row(seeded: Seeded, conn: Conn) -> None:
    [(_, found)] = reads(conn, Beat(seeded.worker, 5))
    assert found["Actual Rows"] == 1
    assert job_rows(found) == 0
    assert sum(rows_read(node) for node in scans(found, "worker")) == 2


CALLERS: list[Callable[[Seeded], tuple[Any, ...]]] = [
    lambda seeded: (
        LockKeys(tuple(key for _, key in seeded.keyed[:10]), tuple(key for _, key in seeded.keyed[:10])),
    ),
    lambda seeded: tuple(Slide(id, 1, NOW_US, 2, None) for id, _ in seeded.keyed[:10]),
    lambda seeded: (Settle(tuple(SucceededJob(id, 1, None) for id in seeded.running[:10]), (), ()),),
]


@pytest.mark.parametrize("commands", CALLERS)
def test_the_callers_own_connection_needs_no_settings(
    seeded: Seeded, commands: Callable[[Seeded], tuple[Any, ...]]
) -> None:
    """S3: what is written in the caller's transaction is planned as the caller's server plans, also by bitmaps."""
    with psycopg.connect(seeded.dsn, autocommit=True) as conn:
        for _, found in reads(conn, *commands(seeded)):
            assert sum(rows_read(node) for node in scans(found, "job")) <= 10
