"""The connection dies between any two statements of every program, or after the last one, before its reply.

Statements travel in pipelines; here they are sent one by one, so that there is a place between any two. Time is given,
so what the database holds afterwards is compared exactly: either nothing of the program is there, or all of it (X5, X6).
Then the work goes on: each accepted job ends once, and in one state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg
import pytest

from flowq.errors import DatabaseUnreachable
from flowq.policy import Coalesce, CoDel, Debounce, Flow, RateLimit, Retry
from flowq.postgres.codec import Row, Statement
from flowq.postgres.driver import PostgresStore, connect
from flowq.programs import Declaration, Failed, Succeeded, claim, declare, enqueue, maintain, redrive, settle
from flowq.programs.commands import Program, Register, Round
from flowq.task import TaskSpec

S: Final = 1_000_000
LEASE_US: Final = 10 * S
Factory = Callable[[], Program[Any]]
Run = Callable[[Factory, int], Any]

PLAIN = TaskSpec("plain")
OTHER = TaskSpec("other", priority=5)
CHARGE = TaskSpec("charge", flow=Flow(Coalesce()))
REPORT = TaskSpec("report", flow=Flow(Debounce("5s", "{k}", "60s", replace_payload=True)))
DROPPED = TaskSpec("dropped", queue="gated", flow=Flow(RateLimit("2/s", burst=2, on_excess="drop")))
SLOW = TaskSpec("slow", queue="gated", flow=Flow(RateLimit("1/s", burst=1)))
AGAIN = Retry(1, delays=["1s"])


class Dying(PostgresStore):
    """A store whose connection dies before statement ``at``, or after the last one was answered (``at`` None)."""

    def __init__(self, namespace: str, at: int | None, admin: psycopg.Connection[Any]) -> None:
        super().__init__(namespace)
        self.at, self.admin, self.sent = at, admin, 0

    def _send(self, conn: psycopg.Connection[Any], statements: Sequence[Statement]) -> list[Sequence[Row]]:
        rows: list[Sequence[Row]] = []
        for each in statements:
            if self.sent == self.at:
                self.admin.execute("select pg_terminate_backend(%s, 10000)", [conn.info.backend_pid])
            rows += super()._send(conn, [each])
            self.sent += 1
        return rows


def registered() -> Program[int]:
    [id] = yield Round((Register("w", ("default", "gated"), 10, LEASE_US),), True)
    return int(id)


def calls(spec: TaskSpec, n: int, key: str | None = None) -> Factory:
    return lambda: enqueue([spec.keyed_request(key)] * n)


def started(run: Run, queue: str, n: int, now_us: int) -> tuple[int, list[Any]]:
    worker = run(registered, now_us)
    return worker, run(lambda: claim(queue, n, worker, gated=queue == "gated"), now_us).started


def gates(run: Run) -> None:
    codel = Declaration("queue_codel", "gated", CoDel("10ms", "100ms", law="slough"))
    run(lambda: declare([*DROPPED.declarations(), *SLOW.declarations(), codel], version_us=1), 0)


# --- each prepares a database, and returns the program that is to die and its instant ------------------------------


def one_job(run: Run) -> tuple[Factory, int]:
    run(calls(PLAIN, 1), 0)
    return calls(PLAIN, 1), S


def a_batch_on_new_lines(run: Run) -> tuple[Factory, int]:
    return lambda: enqueue([PLAIN.keyed_request(), OTHER.keyed_request(), PLAIN.keyed_request()]), S


def a_batch_that_coalesces(run: Run) -> tuple[Factory, int]:
    run(calls(CHARGE, 1, "a"), 0)
    return lambda: enqueue([CHARGE.keyed_request("a"), CHARGE.keyed_request("b")]), S


def a_call_that_slides(run: Run) -> tuple[Factory, int]:
    run(calls(REPORT, 1, "a"), 0)
    return calls(REPORT, 2, "a"), S


def a_claim(run: Run) -> tuple[Factory, int]:
    run(calls(PLAIN, 5), 0)
    worker, jobs = started(run, "default", 2, S)
    ended = [Succeeded(jobs[0].id, jobs[0].token, "1"), Failed(jobs[1].id, jobs[1].token, "boom", 0, AGAIN)]
    return lambda: claim("default", 2, worker, ended=ended), 2 * S


def a_gated_claim(run: Run) -> tuple[Factory, int]:
    gates(run)
    run(calls(SLOW, 3), 0)
    worker, jobs = started(run, "gated", 1, 0)
    run(calls(DROPPED, 5), S)
    ended = [Succeeded(jobs[0].id, jobs[0].token)]
    return lambda: claim("gated", 3, worker, gated=True, ended=ended), S


def outcomes(run: Run) -> tuple[Factory, int]:
    run(calls(PLAIN, 3), 0)
    _, jobs = started(run, "default", 3, S)
    ended = [
        Succeeded(jobs[0].id, jobs[0].token, "1"),
        Failed(jobs[1].id, jobs[1].token, "boom", 0, AGAIN),
        Failed(jobs[2].id, jobs[2].token, "boom"),
    ]
    return lambda: settle(ended), 2 * S


def upkeep_after_a_crash(run: Run) -> tuple[Factory, int]:
    run(calls(PLAIN, 3), 0)
    started(run, "default", 2, 0)
    return lambda: maintain(crash_limit=1), LEASE_US


def a_changed_limit(run: Run) -> tuple[Factory, int]:
    gates(run)
    changed = TaskSpec("slow", queue="gated", flow=Flow(RateLimit("5/s")))
    return lambda: declare(changed.declarations(), lines=[changed.line], version_us=2), S


def dead_letters_again(run: Run) -> tuple[Factory, int]:
    ids = [receipt.id for receipt in run(calls(PLAIN, 2), 0)]
    _, jobs = started(run, "default", 2, 0)
    run(lambda: settle([Failed(job.id, job.token, "boom") for job in jobs]), S)
    return lambda: redrive(ids), 2 * S


PROGRAMS: Final = (
    *(one_job, a_batch_on_new_lines, a_batch_that_coalesces, a_call_that_slides, a_claim, a_gated_claim),
    *(outcomes, upkeep_after_a_crash, a_changed_limit, dead_letters_again),
)


# --- the matrix ----------------------------------------------------------------------------------------------------

_TABLES: Final = ("job", "archive", "dead_letter", "gate")
_IDS: Final = ("id", "job_id", "line_id", "queue_id", "worker_id", "namespace")


def contents(conn: psycopg.Connection[Any], namespace: str) -> list[Any]:
    """All that a namespace holds, without the numbers that only name."""
    found: list[Any] = []
    for table in _TABLES:
        key = "job_id" if table == "dead_letter" else "id"
        sql = f"select to_jsonb(t) - %s::text[] from flowq.{table} t where namespace = %s order by {key}"
        rows = conn.execute(sql, [list(_IDS), namespace]).fetchall()
        found.append((table, [row[0] for row in rows]))
    return found


@pytest.mark.parametrize("prepare", PROGRAMS, ids=lambda prepare: prepare.__name__)
def test_a_program_that_dies_did_nothing_or_all(
    prepare: Callable[[Run], tuple[Factory, int]], database_url: str
) -> None:  # X5, X6, C2
    with psycopg.connect(database_url, autocommit=True) as admin:

        def world(name: str) -> tuple[Factory, int]:
            with connect(database_url) as conn:
                store = PostgresStore(name)
                return prepare(lambda factory, now_us: store.run(conn, factory, now_us=now_us))

        whole = Dying("whole", None, admin)
        factory, now_us = world("whole")
        before = contents(admin, "whole")
        with connect(database_url) as conn:
            whole.run(conn, factory, now_us=now_us)
        after = contents(admin, "whole")
        assert before != after

        for at in range(whole.sent):
            name = f"dies before {at}"
            factory, now_us = world(name)
            store = Dying(name, at, admin)
            with connect(database_url) as conn, pytest.raises(DatabaseUnreachable):
                store.run(conn, factory, now_us=now_us)
            assert contents(admin, name) == before, name
            goes_on(database_url, name, now_us)

        # The reply of the last statement is lost: all is there, and what a worker had claimed starts again.
        goes_on(database_url, "whole", now_us)


def goes_on(url: str, namespace: str, now_us: int) -> None:
    """Let the work go on after the lease of the dead; every accepted job ends once and in one state."""
    with connect(url) as conn:
        store = PostgresStore(namespace)

        def run(factory: Factory) -> Any:
            return store.run(conn, factory, now_us=now_us)

        accepted = all_ids(conn, namespace)
        now_us += LEASE_US
        run(maintain)
        worker = run(registered)
        for queue in ("default", "gated"):
            for _ in range(100):
                now_us += S
                claimed = run(lambda queue=queue: claim(queue, 10, worker))
                ended = [Succeeded(job.id, job.token) for job in claimed.started]
                assert run(lambda ended=ended: settle(ended)) == {job.id for job in claimed.started}
                if not claimed.started and claimed.come_back_us is None:
                    break
        assert all_ids(conn, namespace) == accepted
        live = conn.execute("select count(*) from flowq.job where namespace = %s", [namespace]).fetchone()
        assert live == (0,)


def all_ids(conn: psycopg.Connection[Any], namespace: str) -> Counter[int]:
    """How often each job is stored, live or archived; once, one hopes."""
    sql = """
        select id from flowq.job where namespace = %(namespace)s
        union all
        select id from flowq.archive where namespace = %(namespace)s
    """
    ids = Counter(id for (id,) in conn.execute(sql, {"namespace": namespace}).fetchall())
    assert set(ids.values()) <= {1}
    return ids
