"""Each command's contract, as flowq.programs.commands words it, against a server. Instants are given, not awaited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flowq.postgres import PostgresStore
from flowq.programs.commands import (
    Beat,
    DeadJob,
    DeadRecord,
    Due,
    GateSave,
    GateWrite,
    Holder,
    Insert,
    LapsedJob,
    LockDeclared,
    LockKeys,
    NewJob,
    OpenQueue,
    OpenWindow,
    ReadCostly,
    ReadDead,
    ReadJobs,
    ReadLapsed,
    ReadLine,
    Register,
    RetriedJob,
    SaveGates,
    Settle,
    Shed,
    ShedJob,
    Sleep,
    Slide,
    Start,
    Started,
    StoredGate,
    SucceededJob,
    Take,
    TakeDead,
    Unregister,
    WriteGates,
)
from postgres.support import rounds

Do = Callable[..., Any]
HOUR_US = 3_600_000_000
PARAMS = {"rate": "10/s", "burst": 1.5}


@pytest.fixture
def do(conn: psycopg.Connection[Any], store: PostgresStore) -> Do:
    """Answer commands of one round at an instant: one reply for one command, else all."""

    def answer(*commands: Any, at: int = 0) -> Any:
        replies = store.run(conn, rounds(*commands), now_us=at)
        return replies[0] if len(commands) == 1 else replies

    return answer


@pytest.fixture
def worker(do: Do) -> int:
    return int(do(Register("w", ("q",), 10, HOUR_US)))


def insert(do: Do, *jobs: NewJob, at: int = 0) -> list[int]:
    return [row.id for row in do(Insert(jobs), at=at)]


def gate(name: str, kind: str = "task_rate", **changes: Any) -> GateWrite:
    return GateWrite(kind, name, 1, PARAMS, None, 0, False)._replace(**changes)


# --- enqueue -------------------------------------------------------------------------------------------------


def test_insert_says_when_a_job_is_eligible(do: Do) -> None:
    rows = do(Insert([NewJob("q", "t"), NewJob("q", "t", delay_us=5), NewJob("q", "t", run_at_us=3)]), at=10)
    assert [row.run_at_us for row in rows] == [10, 15, 3]


def test_lock_keys_reads_who_holds_them(do: Do, worker: int) -> None:
    window = NewJob("q", "t", run_at_us=9, window_hash=b"w", first_seen_us=1, deadline_us=9, hits=2)
    unique, opened = insert(do, NewJob("q", "t", unique_hash=b"u", run_at_us=4), window)
    held = do(LockKeys((b"u", b"x"), (b"w", b"y")), at=3)
    assert held == (3, {b"u": Holder(unique, 4)}, {b"w": OpenWindow(opened, 1, 9, 9, 2)})
    do(Take("q", 2, worker), at=20)
    held = do(LockKeys((b"u",), (b"w",)), at=21)
    assert held == (
        21,
        {b"u": Holder(unique, 4)},
        {},
    )  # the start closed the window; the key holds until the end
    do(Settle((SucceededJob(unique, 1, None),), (), ()))
    assert do(LockKeys((b"u",), ()), at=22).unique == {}


def test_keys_of_another_namespace_are_others(conn: psycopg.Connection[Any], do: Do, namespace: str) -> None:
    other = PostgresStore(namespace + "other")
    insert(do, NewJob("q", "t", unique_hash=b"u"))
    other.run(conn, rounds(Insert([NewJob("q", "t", unique_hash=b"u")])))
    with pytest.raises(psycopg.errors.UniqueViolation):
        conn.execute("update flowq.job set namespace = %s where namespace = %s", (namespace, other.namespace))


def test_slide_moves_the_window(do: Do) -> None:
    first, second = insert(
        do,
        NewJob("q", "t", payload='["old"]', window_hash=b"a", first_seen_us=0, deadline_us=5, run_at_us=5),
        NewJob("q", "t", payload='["old"]', window_hash=b"b", first_seen_us=0, deadline_us=5, run_at_us=5),
    )
    assert do(Slide(first, 7, 8, 2, None), Slide(second, 17, 18, 3, '["new"]')) == [None, None]
    windows = do(LockKeys((), (b"a", b"b"))).windows
    assert windows == {b"a": OpenWindow(first, 0, 7, 8, 2), b"b": OpenWindow(second, 0, 17, 18, 3)}
    records = do(ReadJobs((first, second)))
    assert [records[id].payload for id in (first, second)] == ['["old"]', '["new"]']


# --- claim ---------------------------------------------------------------------------------------------------


def test_take_starts_in_dispatch_order(do: Do, worker: int) -> None:
    low, late, early, tie, high = insert(
        do,
        NewJob("q", "t", -1, run_at_us=0),
        NewJob("q", "t", run_at_us=5),
        NewJob("q", "u", run_at_us=1),
        NewJob("q", "t", run_at_us=1),
        NewJob("q", "t", 9, run_at_us=5),
    )
    insert(do, NewJob("q", "t", run_at_us=11), NewJob("q", "t", 9, run_at_us=30), NewJob("other", "t"))
    taken = do(Take("q", 4, worker), at=10)
    assert [job.id for job in taken.started] == [high, early, tie, late]
    assert taken.started[1] == Started(early, "u", "[[],{}]", 1, 0, 0, None, 1, 0)
    assert (taken.now_us, taken.gated, taken.next_due_us) == (10, False, 11)
    taken = do(Take("q", 4, worker), at=10)
    assert [job.id for job in taken.started] == [low]
    assert do(Take("q", 4, worker), at=10) == (10, False, [], 11)


def test_take_of_nothing(do: Do, worker: int) -> None:
    assert do(Take("never seen", 4, worker), at=10) == (10, False, [], None)
    [id] = insert(do, NewJob("q", "t"))
    assert do(Take("q", 0, worker), at=10) == (10, False, [], None)
    assert do(ReadJobs((id,)))[id].state == "pending"


@pytest.mark.parametrize("kind", ["task_rate", "queue_rate", "queue_codel"])
def test_take_of_a_gated_queue_starts_nothing(do: Do, worker: int, kind: str) -> None:
    insert(do, NewJob("q", "q"), NewJob("other", "other"))
    do(WriteGates((gate("q", kind),)))
    assert do(Take("q", 4, worker), at=10) == (10, True, [], None)
    assert len(do(Take("other", 4, worker), at=10).started) == 1
    do(WriteGates((gate("q", kind, params=None),)))
    assert len(do(Take("q", 4, worker), at=10).started) == 1


def test_a_gate_of_another_namespace_is_no_gate(
    conn: psycopg.Connection[Any], do: Do, worker: int, namespace: str
) -> None:
    insert(do, NewJob("q", "t"))
    PostgresStore(namespace + "other").run(conn, rounds(WriteGates((gate("t"), gate("q", "queue_rate")))))
    assert not do(Take("q", 1, worker)).gated


def test_open_queue_reads_lines_and_gates(do: Do) -> None:
    first, second, third, costly, lone = insert(
        do,
        *(NewJob("q", "open", run_at_us=n) for n in (1, 2, 2)),
        NewJob("q", "closed", run_at_us=0, cost=7, exempt=True),
        NewJob("q", "drops", 5, run_at_us=3),
    )
    insert(
        do,
        NewJob("q", "closed", cost=9, run_at_us=99),
        NewJob("q", "closed", run_at_us=4),
        NewJob("q", "idle", run_at_us=50),
    )
    do(
        WriteGates(
            (
                gate("open", wake_us=10, state=[1, 2]),
                gate("closed", wake_us=11),
                gate("drops", wake_us=11, drops=True),
                gate("idle"),
                gate("absent", params=None),
                gate("q", "queue_codel", wake_us=99),
            )
        )
    )
    opened = do(OpenQueue("q", 2), at=10)
    assert (opened.now_us, opened.next_due_us) == (10, 50)
    gates = {g.name: (g.kind, g.params, g.state, g.locked) for g in opened.gates}
    assert gates == {
        "open": ("task_rate", PARAMS, [1, 2], True),
        "closed": ("task_rate", PARAMS, None, False),
        "drops": ("task_rate", PARAMS, None, True),
        "q": ("queue_codel", PARAMS, None, True),
    }
    lines = {line.task: line[2:] for line in opened.lines}
    assert lines == {
        "drops": (5, [Due(lone, 3, 1, True, False)], True, 1),
        "open": (0, [Due(first, 1, 1, True, False), Due(second, 2, 1, True, False)], False, 1),
        "closed": (0, [Due(costly, 0, 7, True, True)], False, 9),
    }
    line = next(line.id for line in opened.lines if line.task == "open")
    assert do(ReadLine(line, 2, second, 5), at=10) == ([Due(third, 2, 1, True, False)], True)
    assert do(ReadLine(line, 0, 0, 3), at=10).complete
    assert not do(ReadLine(line, 0, 0, 2), at=10).complete
    assert do(ReadLine(line, 0, 0, 5), at=1) == ([Due(first, 1, 1, True, False)], True)


def test_open_queue_of_nothing(do: Do) -> None:
    assert do(OpenQueue("never seen", 2), at=10) == (10, [], [], None)


def test_reads_see_the_instant_at_which_the_queue_was_opened(
    conn: psycopg.Connection[Any], store: PostgresStore
) -> None:
    from flowq.programs.commands import Program, Round

    def program() -> Program[Any]:
        [rows] = yield Round((Insert([NewJob("q", "t")]),), False)
        [opened] = yield Round((OpenQueue("q", 1),), False)
        conn.execute("select pg_sleep(0.001)")
        at = opened.now_us
        yield Round((Insert([NewJob("q", "t", run_at_us=at), NewJob("q", "t", run_at_us=at + 1)]),), False)
        line = opened.lines[0].id
        [page] = yield Round((ReadLine(line, rows[0].run_at_us, rows[0].id, 9),), True)
        return at, page

    at, page = store.run(conn, program)
    assert [due.eligible_us for due in page.due] == [at]


def test_read_costly(do: Do, worker: int) -> None:
    ids = insert(
        do,
        *(NewJob("q", "t", cost=cost, run_at_us=1) for cost in (1, 5, 2, 3)),
        NewJob("q", "t", cost=5, run_at_us=0),
        NewJob("q", "t", cost=5, run_at_us=99),
        NewJob("q", "t", cost=5, exempt=True),
        NewJob("q", "t", cost=5, priority=1),
    )
    do(Settle((), (RetriedJob(do(Take("q", 1, worker)).started[0].id, 1, 0, "x"),), ()))
    line = next(line.id for line in do(OpenQueue("q", 1), at=10).lines if line.priority == 0)
    five = Due(ids[4], 0, 5, True, False)
    assert do(ReadCostly(line, 2, -1, 0, 9), at=10) == (
        [five, Due(ids[1], 1, 5, True, False), Due(ids[3], 1, 3, True, False)],
        True,
    )
    assert do(ReadCostly(line, 2, -1, 0, 1), at=10) == ([five], False)
    assert do(ReadCostly(line, 2, 1, ids[1], 9), at=10) == ([Due(ids[3], 1, 3, True, False)], True)


def test_start_in_the_order_of_the_ids(do: Do, worker: int) -> None:
    ids = insert(
        do,
        *(
            NewJob("q", "t", run_at_us=n, window_hash=bytes([n]), first_seen_us=0, deadline_us=n)
            for n in (1, 2, 3)
        ),
    )
    started = do(Start((ids[2], ids[0]), (3, 1), worker, 8), at=8)
    assert [(job.id, job.token) for job in started] == [(ids[2], 1), (ids[0], 1)]
    records = do(ReadJobs(tuple(ids)))
    assert [records[id].state for id in ids] == ["running", "pending", "running"]
    assert records[ids[0]].started_us == 8
    assert set(do(LockKeys((), (b"\1", b"\2", b"\3"))).windows) == {b"\2"}


def test_shed_leaves_a_dead_letter_and_the_jobs_own_metadata(do: Do) -> None:
    [id] = insert(
        do,
        NewJob(
            "q",
            "t",
            2,
            '["p"]',
            metadata='{"own": 1}',
            unique_hash=b"u",
            window_hash=b"w",
            first_seen_us=0,
            deadline_us=0,
        ),
    )
    do(Shed((ShedJob(id, 0, "rate_limit", "over", '{"shed": "rate_limit"}'),), 5), at=5)
    record = do(ReadJobs((id,)))[id]
    assert (record.state, record.reason, record.error, record.metadata) == (
        "shed",
        "rate_limit",
        "over",
        '{"own": 1}',
    )
    assert (record.started_us, record.finished_us) == (None, 5)
    assert do(LockKeys((b"u",), (b"w",)))[1:] == ({}, {})
    assert do(ReadDead(9)) == [
        DeadRecord(id, "q", "t", "over", "rate_limit", '{"shed": "rate_limit"}', '["p"]', 0, None, 5)
    ]


def test_a_shed_retry_keeps_the_start_of_its_last_attempt(do: Do, worker: int) -> None:
    """D2, O6: the count of retries as it stood; only a job that never started has no start."""
    [id] = insert(do, NewJob("q", "t"))
    do(Take("q", 1, worker), at=1)
    do(Settle((), (RetriedJob(id, 1, 0, "x"),), ()), at=3)
    do(Shed((ShedJob(id, 3, "codel", "codel: late", '{"codel": true}'),), 5), at=5)
    [letter] = do(ReadDead(9))
    assert (letter.started_us, letter.retry_count, letter.reason) == (1, 1, "codel")


def test_save_gates(do: Do) -> None:
    do(WriteGates((gate("a"), gate("b"))))
    stored = do(LockDeclared((), (), (("task_rate", "a"), ("task_rate", "b")))).gates
    do(SaveGates((GateSave(stored["task_rate", "b"].id, [1 << 62, {"x": None}], 5),)))
    again = do(LockDeclared((), (), (("task_rate", "a"), ("task_rate", "b")))).gates
    assert [again["task_rate", name].state for name in "ab"] == [None, [1 << 62, {"x": None}]]


# --- settle and maintain -------------------------------------------------------------------------------------


def test_settle(do: Do, worker: int) -> None:
    ids = insert(do, *(NewJob("q", "t", metadata='{"own":1}', unique_hash=bytes([n])) for n in range(6)))
    do(Take("q", 5, worker), at=1)
    good, again, crash, dead, lost, pending = ids
    settled = do(
        Settle(
            (
                SucceededJob(good, 1, '{"r": 1e16}'),
                SucceededJob(lost, 2, None),
                SucceededJob(pending, 0, None),
            ),
            (RetriedJob(again, 1, 7, "boom"), RetriedJob(crash, 1, 0, "lost", True)),
            (DeadJob(dead, 1, "end", '{"m":1}'),),
        ),
        at=10,
    )
    assert settled == {good, again, crash, dead}
    records = do(ReadJobs(tuple(ids)))
    view = {
        id: (r.state, r.run_at_us, r.finished_us, r.failures, r.crashes, r.error, r.result)
        for id, r in records.items()
    }
    assert view == {
        good: ("succeeded", 0, 10, 0, 0, None, '{"r": 1e16}'),
        again: ("pending", 17, None, 1, 0, "boom", None),
        crash: ("pending", 10, None, 0, 1, "lost", None),
        dead: ("failed", 0, 10, 1, 0, "end", None),
        lost: ("running", 0, None, 0, 0, None, None),
        pending: ("pending", 0, None, 0, 0, None, None),
    }
    assert all(record.metadata == '{"own":1}' for record in records.values())
    assert [(r.id, r.error, r.metadata, r.reason, r.started_us) for r in do(ReadDead(9))] == [
        (dead, "end", '{"m":1}', None, 1)
    ]
    assert set(do(LockKeys(tuple(bytes([n]) for n in range(6)), ())).unique) == {b"\1", b"\2", b"\4", b"\5"}
    assert (
        do(Settle((SucceededJob(good, 1, None),), (RetriedJob(again, 1, 0, "x"),), (DeadJob(dead, 1, "x"),)))
        == set()
    )
    restarted = do(Take("q", 9, worker), at=17).started
    assert {(job.id, job.token, job.failures, job.crashes) for job in restarted} == {
        (again, 2, 1, 0), (crash, 2, 0, 1), (pending, 1, 0, 0)
    }  # fmt: skip


def test_a_dead_crash_counts_as_a_crash(do: Do, worker: int) -> None:
    [id] = insert(do, NewJob("q", "t"))
    do(Take("q", 1, worker))
    do(Settle((), (), (DeadJob(id, 1, "lost", None, True),)))
    record = do(ReadJobs((id,)))[id]
    assert (record.failures, record.crashes) == (0, 1)


def test_a_worker_and_its_lease(do: Do) -> None:
    worker = do(Register("w", ("q",), 1, 10), at=5)
    ids = insert(do, NewJob("q", "t"), NewJob("q", "t"))
    do(Take("q", 2, worker), at=6)
    assert do(ReadLapsed(9), at=14) == []
    assert do(Beat(worker, 10), at=14) is True
    assert do(Beat(worker, 1), at=23) is True
    assert do(Beat(worker, 10), at=24) is False  # lease_until <= now is lapsed (T4)
    assert do(ReadLapsed(9), at=23) == []
    assert do(ReadLapsed(9), at=24) == [LapsedJob(id, 1, 0, worker) for id in ids]
    assert do(ReadLapsed(1), at=24) == [LapsedJob(ids[0], 1, 0, worker)]
    assert do(Beat(worker + 1, 10), at=0) is False


def test_jobs_of_a_worker_that_is_gone_lapse_at_once(do: Do, worker: int) -> None:
    other = do(Register("o", ("q",), 1, HOUR_US))
    ids = insert(do, *(NewJob("q", "t") for _ in range(4)))
    for owner in (worker, other, worker, other):
        do(Take("q", 1, owner))
    assert do(ReadLapsed(9)) == []
    do(Unregister(worker))
    do(Unregister(worker))
    assert do(ReadLapsed(9)) == [LapsedJob(ids[0], 1, 0, worker), LapsedJob(ids[2], 1, 0, worker)]
    assert do(Beat(worker, HOUR_US)) is False


def test_lapsed_jobs_of_another_namespace_are_not_ours(
    conn: psycopg.Connection[Any], do: Do, worker: int, namespace: str
) -> None:
    insert(do, NewJob("q", "t"))
    do(Take("q", 1, worker))
    do(Unregister(worker))
    assert PostgresStore(namespace + "other").run(conn, rounds(ReadLapsed(9))) == [[]]
    assert len(do(ReadLapsed(9))) == 1


def test_sleep(conn: psycopg.Connection[Any], do: Do, worker: int) -> None:
    for until_us in (7, None):
        assert do(Sleep(worker, until_us)) is None
        row = conn.execute("select asleep_until_us from flowq.worker where id = %s", (worker,)).fetchone()
        assert row == (until_us,)


# --- declare, dead letters, read -----------------------------------------------------------------------------


def test_declare(conn: psycopg.Connection[Any], do: Do, namespace: str) -> None:
    lines = (("q", "t", 0), ("q", "t", 5))
    keys = (("queue_rate", "q"), ("task_rate", "t"))
    assert do(LockDeclared(("q", "r"), lines, keys), at=3) == (3, {})
    assert do(LockDeclared(("q", "r"), lines, ()), at=4) == (4, {})
    made = conn.execute(
        "select q.name, l.task, l.priority from flowq.queue q left join flowq.line l on l.queue_id = q.id"
        " where q.namespace = %s order by 1, 2, 3",
        (namespace,),
    ).fetchall()
    assert made == [("q", "t", 0), ("q", "t", 5), ("r", None, None)]
    do(WriteGates((gate("t", state=[1]), gate("q", "queue_rate", params=None))))
    declared = do(LockDeclared((), (), keys), at=5)
    task, queue = declared.gates["task_rate", "t"], declared.gates["queue_rate", "q"]
    assert task == StoredGate(task.id, 1, PARAMS, [1])
    assert queue == StoredGate(queue.id, 1, None, None)
    do(WriteGates((gate("t", declared_us=2, params={"other": 1}, wake_us=8, drops=True),)))
    assert do(LockDeclared((), (), keys)).gates["task_rate", "t"] == StoredGate(
        task.id, 2, {"other": 1}, None
    )


def test_take_dead(do: Do, worker: int) -> None:
    ids = insert(
        do,
        NewJob("q", "t", 4, '["p"]', cost=2, max_retries=7, metadata='{"own": 1}'),
        NewJob("r", "u"),
        NewJob("q", "t"),
    )
    do(Start((ids[0],), (0,), worker, 0))
    do(Settle((), (), (DeadJob(ids[0], 1, "end", '{"m":1}'),)))
    do(Shed((ShedJob(ids[1], 0, "codel", "late", '{"codel":true}'),), 0))
    letters = do(TakeDead((ids[1], 999_999_999, ids[0], ids[2])))
    assert letters == [
        (ids[1], "r", "u", 0, "[[],{}]", 1, None, None, True),
        (ids[0], "q", "t", 4, '["p"]', 2, 7, '{"own": 1}', False),
    ]
    assert do(TakeDead(tuple(ids))) == []
    assert do(ReadDead(9)) == []
    assert do(ReadJobs((ids[0],)))[ids[0]].state == "failed"


def test_read_dead_pages_and_filters(do: Do) -> None:
    ids = insert(do, *(NewJob("q", "tu"[n % 2]) for n in range(6)))
    do(
        Shed(
            tuple(ShedJob(id, 0, "codel" if n < 3 else "rate_limit", "e", "{}") for n, id in enumerate(ids)),
            0,
        )
    )
    found = lambda *args: [letter.id for letter in do(ReadDead(*args))]  # noqa: E731
    assert found(9) == ids[::-1]
    assert found(2) == ids[:3:-1]
    assert found(2, ids[4]) == [ids[3], ids[2]]
    assert found(9, None, "t") == [ids[4], ids[2], ids[0]]
    assert found(9, None, "t", "codel") == [ids[2], ids[0]]
    assert found(9, None, None, "age") == []


def test_read_jobs_of_this_namespace_only(conn: psycopg.Connection[Any], do: Do, namespace: str) -> None:
    [id] = insert(do, NewJob("q", "t"))
    assert list(do(ReadJobs((999_999_999, id)))) == [id]
    assert PostgresStore(namespace + "other").run(conn, rounds(ReadJobs((id,)))) == [{}]


def test_registering_clears_away_workers_that_died_a_day_ago(do: Do, conn: psycopg.Connection[Any]) -> None:
    day_us = 86_400_000_000
    dead = do(Register("dead", ("q",), 1, 10), at=0)
    late = do(Register("late", ("q",), 1, 10), at=day_us)
    do(Register("new", ("q",), 1, 10), at=day_us + 11)
    left = {row[0] for row in conn.execute("select id from flowq.worker").fetchall()}
    assert dead not in left
    assert late in left
