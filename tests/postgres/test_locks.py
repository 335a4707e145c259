"""Two connections at once, made deterministic: the second is started and seen to wait before the first goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from flowq.errors import KeyLockTimeout, StoreError
from flowq.job import Outcome
from flowq.policy import CoDel, Debounce
from flowq.postgres import PostgresStore
from flowq.postgres.driver import ATTEMPTS
from flowq.programs import Request, claim, declare, enqueue, key_hash
from flowq.programs.commands import (
    Beat,
    GateWrite,
    Insert,
    LockDeclared,
    NewJob,
    OpenQueue,
    Program,
    ReadJobs,
    ReadLapsed,
    Register,
    Round,
    Start,
    Take,
    WriteGates,
)
from postgres.support import rounds, wait_until_blocked

Conn = psycopg.Connection[Any]
Open = Callable[[], Conn]
CODEL = CoDel("1h", "2h").to_json()


def keyed(namespace: str, key: str, **changes: Any) -> Request:
    return Request(
        NewJob("q", "t", unique_hash=key_hash("unique", namespace, "t", "", key))._replace(**changes)
    )


def debounced(namespace: str, key: str) -> Request:
    return Request(
        NewJob("q", "t", window_hash=key_hash("window", namespace, "t", "", key)), Debounce("1s", "{k}", "5s")
    )


@contextmanager
def transaction(conn: Conn) -> Iterator[None]:
    """The caller's own transaction."""
    with conn.transaction():
        yield


def worker_of(store: PostgresStore, conn: Conn) -> int:
    return int(store.run(conn, rounds(Register("w", ("q",), 9, 1 << 50)))[0])


# --- keys ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [True, False])
def test_the_second_call_of_a_key_waits_for_the_first(
    store: PostgresStore, open_connection: Open, elsewhere: ThreadPoolExecutor, commits: bool
) -> None:
    """C7: it coalesces onto the winner, or inserts after a rollback; never an id that does not exist."""
    first, second, watcher = open_connection(), open_connection(), open_connection()

    def call(conn: Conn, own: bool) -> Any:
        return store.run(conn, lambda: enqueue([keyed(store.namespace, "k")]), own_transaction=own)[0]

    with transaction(first):
        winner = call(first, own=False)
        waiting = elsewhere.submit(call, second, own=True)
        wait_until_blocked(watcher, second)
        if not commits:
            raise psycopg.Rollback
    receipt = waiting.result(20)
    assert receipt.outcome is (Outcome.COALESCED if commits else Outcome.ACCEPTED)
    assert (receipt.id == winner.id) is commits
    assert receipt.id in store.run(watcher, rounds(ReadJobs((receipt.id,))))[0]


@pytest.mark.parametrize("commits", [True, False])
def test_the_second_call_of_a_window_waits_for_the_first(
    store: PostgresStore, open_connection: Open, elsewhere: ThreadPoolExecutor, commits: bool
) -> None:
    first, second, watcher = open_connection(), open_connection(), open_connection()

    def call(conn: Conn, own: bool) -> Any:
        return store.run(conn, lambda: enqueue([debounced(store.namespace, "k")]), own_transaction=own)[0]

    with transaction(first):
        winner = call(first, own=False)
        waiting = elsewhere.submit(call, second, own=True)
        wait_until_blocked(watcher, second)
        if not commits:
            raise psycopg.Rollback
    receipt = waiting.result(20)
    assert (receipt.outcome, receipt.hits) == ((Outcome.MERGED, 2) if commits else (Outcome.ACCEPTED, 1))
    assert (receipt.id == winner.id) is commits


def test_batches_in_opposite_orders_do_not_deadlock(
    store: PostgresStore, open_connection: Open, elsewhere: ThreadPoolExecutor
) -> None:
    """I4: both lock the keys in the same order, so the second waits with none of the first's keys in its hands."""
    first, second, watcher = open_connection(), open_connection(), open_connection()
    keys = [str(n) for n in range(50)]

    def call(conn: Conn, order: list[str], own: bool) -> Any:
        calls = [keyed(store.namespace, key) for key in order] + [
            debounced(store.namespace, key) for key in order
        ]
        return store.run(conn, lambda: enqueue(calls), own_transaction=own)

    with transaction(first):
        call(first, keys, own=False)
        waiting = elsewhere.submit(call, second, keys[::-1], own=True)
        wait_until_blocked(watcher, second)
        call(first, keys, own=False)
    outcomes = {receipt.outcome for receipt in waiting.result(20)}
    assert outcomes == {Outcome.COALESCED, Outcome.MERGED}


def test_lock_timeout_is_a_typed_error(namespace: str, store: PostgresStore, open_connection: Open) -> None:
    first, second = open_connection(), open_connection()
    hasty = PostgresStore(namespace, lock_timeout_us=1_500)
    call = [keyed(namespace, "k")]
    with transaction(first):
        store.run(first, lambda: enqueue(call), own_transaction=False)
        with pytest.raises(KeyLockTimeout) as caught:
            hasty.run(second, lambda: enqueue(call))
    assert isinstance(caught.value.__cause__, psycopg.errors.LockNotAvailable)
    assert second.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert hasty.run(second, lambda: enqueue(call))[0].outcome is Outcome.COALESCED


def test_the_callers_transaction_survives_a_lock_timeout(
    namespace: str, store: PostgresStore, open_connection: Open
) -> None:
    """S3: with what it wrote before, and with its own lock_timeout as it was."""
    first, second = open_connection(), open_connection()
    hasty = PostgresStore(namespace, lock_timeout_us=1_500)
    store.run(first, rounds(Insert([NewJob("q", "t")])))

    def call(key: str) -> Outcome:
        outcome: Outcome = hasty.run(second, lambda: enqueue([keyed(namespace, key)]), own_transaction=False)[
            0
        ].outcome
        assert second.execute("show lock_timeout").fetchone() == ("7s",)
        return outcome

    with transaction(first):
        store.run(first, lambda: enqueue([keyed(namespace, "k")]), own_transaction=False)
        with transaction(second):
            second.execute("set local lock_timeout = '7s'")
            assert call("before") is Outcome.ACCEPTED
            with pytest.raises(KeyLockTimeout):
                call("k")
            assert call("before") is Outcome.COALESCED
            assert call("after") is Outcome.ACCEPTED
    calls = [keyed(namespace, key) for key in ("before", "k", "after")]
    outcomes = {receipt.outcome for receipt in store.run(second, lambda: enqueue(calls))}
    assert outcomes == {Outcome.COALESCED}


def test_a_start_under_way_closes_the_window_for_a_call_that_waits(
    store: PostgresStore, open_connection: Open, elsewhere: ThreadPoolExecutor
) -> None:
    """B2: a job that has started is not touched; the call opens a new window behind it."""
    first, second, watcher = open_connection(), open_connection(), open_connection()
    worker = worker_of(store, first)
    [opened] = store.run(first, lambda: enqueue([debounced(store.namespace, "k")]))
    first.execute("update flowq.job set eligible_us = 0 where id = %s", (opened.id,))
    with transaction(first):
        [taken] = store.run(first, rounds(Take("q", 1, worker)), own_transaction=False)
        assert [job.id for job in taken.started] == [opened.id]
        waiting = elsewhere.submit(store.run, second, lambda: enqueue([debounced(store.namespace, "k")]))
        wait_until_blocked(watcher, second)
    [receipt] = waiting.result(20)
    assert (receipt.outcome, receipt.hits) == (Outcome.ACCEPTED, 1)
    assert receipt.id != opened.id


# --- claims --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True])
def test_a_claim_passes_over_a_job_whose_window_a_caller_holds(
    store: PostgresStore, open_connection: Open, gated: bool
) -> None:
    """S3: a caller may hold a key for long; the queue does not wait for it."""
    first, second = open_connection(), open_connection()
    worker = worker_of(store, first)
    if gated:
        store.run(first, rounds(WriteGates((GateWrite("queue_codel", "q", 1, CODEL, None, 0, False),))))
    [held] = store.run(first, lambda: enqueue([debounced(store.namespace, "k")]))
    [free] = store.run(first, lambda: enqueue([Request(NewJob("q", "t", delay_us=1))]))
    first.execute("update flowq.job set eligible_us = 0 where namespace = %s", (store.namespace,))
    with transaction(first):
        store.run(first, lambda: enqueue([debounced(store.namespace, "k")]), own_transaction=False)
        claimed = store.run(second, lambda: claim("q", 9, worker, gated=gated))
        assert [job.id for job in claimed.started] == [free.id]
        raise psycopg.Rollback
    claimed = store.run(second, lambda: claim("q", 9, worker, gated=gated))
    assert [job.id for job in claimed.started] == [held.id]


def test_a_start_of_jobs_that_moved_is_run_again(store: PostgresStore, open_connection: Open) -> None:
    conn, other = open_connection(), open_connection()
    worker = worker_of(store, conn)
    [[row]] = store.run(conn, rounds(Insert([NewJob("q", "t", run_at_us=1)])))
    attempts = []

    def program() -> Program[Any]:
        [opened] = yield Round((OpenQueue("q", 9),), False)
        due = opened.lines[0].due[0]
        attempts.append(due.eligible_us)
        if len(attempts) < 3:
            other.execute("update flowq.job set eligible_us = eligible_us + 1 where id = %s", (row.id,))
        [started] = yield Round((Start((due.id,), (due.eligible_us,), worker, due.eligible_us),), True)
        return started

    [started] = store.run(conn, program)
    assert attempts == [1, 2, 3]
    assert (started.id, started.token, started.eligible_us) == (row.id, 1, 3)


@pytest.mark.parametrize("own", [True, False])
def test_conflicts_without_end_become_an_error(store: PostgresStore, conn: Conn, own: bool) -> None:
    worker = worker_of(store, conn)
    attempts = []

    def program() -> Program[Any]:
        yield Round((OpenQueue("q", 9),), False)
        attempts.append(1)
        yield Round((Insert([NewJob("q", "t")]), Start((1 << 60,), (0,), worker, 0)), True)

    def run() -> None:
        with pytest.raises(StoreError, match=f"conflict in each of {ATTEMPTS} attempts") as caught:
            store.run(conn, program, own_transaction=own)
        assert caught.value.__cause__.sqlstate == "FQ001"  # type: ignore[union-attr]

    if own:
        run()
    else:
        with conn.transaction():
            run()
            assert conn.execute("select 1").fetchone() == (1,)
    assert len(attempts) == ATTEMPTS
    count = conn.execute("select count(*) from flowq.job where namespace = %s", (store.namespace,)).fetchone()
    assert count == (0,)


def test_what_was_committed_before_a_conflict_is_not_done_again(
    store: PostgresStore, open_connection: Open
) -> None:
    conn, other = open_connection(), open_connection()
    worker = worker_of(store, conn)
    attempts = []

    def program() -> Program[Any]:
        [[inserted]] = yield Round((Insert([NewJob("q", "t", run_at_us=1)]),), True)
        [opened] = yield Round((OpenQueue("q", 9),), False)
        attempts.append(inserted.id)
        if len(attempts) < 2:
            other.execute("update flowq.job set eligible_us = 2 where id = %s", (inserted.id,))
        due = opened.lines[0].due
        [started] = yield Round(
            (Start((due[0].id,), (due[0].eligible_us,), worker, due[0].eligible_us),), True
        )
        return len(due), started[0].id

    assert store.run(conn, program) == (1, attempts[0])
    assert attempts == [attempts[0]] * 2


def test_gated_claims_of_a_queue_follow_each_other(
    store: PostgresStore, open_connection: Open, elsewhere: ThreadPoolExecutor
) -> None:
    first, second, watcher = open_connection(), open_connection(), open_connection()
    worker = worker_of(store, first)
    store.run(first, rounds(Insert([NewJob("q", "t", run_at_us=n) for n in range(4)])))
    store.run(first, rounds(WriteGates((GateWrite("queue_codel", "q", 1, CODEL, None, 0, False),))))

    def take_two(conn: Conn, own: bool) -> Any:
        return store.run(conn, lambda: claim("q", 2, worker, gated=True), own_transaction=own).started

    with transaction(first):
        mine = take_two(first, own=False)
        waiting = elsewhere.submit(take_two, second, own=True)
        wait_until_blocked(watcher, second)
    assert len({job.id for job in (*mine, *waiting.result(20))}) == 4


def test_ungated_claims_do_not_wait_for_each_other(store: PostgresStore, open_connection: Open) -> None:
    first, second = open_connection(), open_connection()
    worker = worker_of(store, first)
    store.run(first, rounds(Insert([NewJob("q", "t", run_at_us=n) for n in range(4)])))
    with transaction(first):
        [mine] = store.run(first, rounds(Take("q", 2, worker)), own_transaction=False)
        [theirs] = store.run(second, rounds(Take("q", 9, worker)))
    assert len(mine.started) == len(theirs.started) == 2
    assert {job.id for job in mine.started}.isdisjoint(job.id for job in theirs.started)


# --- declarations, lines, leases -----------------------------------------------------------------------------


def test_declarations_of_a_gate_that_does_not_exist_yet_follow_each_other(
    store: PostgresStore, open_connection: Open, elsewhere: ThreadPoolExecutor
) -> None:
    first, second, watcher = open_connection(), open_connection(), open_connection()
    lock = rounds(LockDeclared((), (), (("task_rate", "t"),)), last=True)
    with transaction(first):
        assert store.run(first, lock, own_transaction=False)[0].gates == {}
        waiting = elsewhere.submit(store.run, second, lock)
        wait_until_blocked(watcher, second)
        write = WriteGates((GateWrite("task_rate", "t", 1, {}, None, 0, False),))
        store.run(first, rounds(write), own_transaction=False)
    assert list(waiting.result(20)[0].gates) == [("task_rate", "t")]


def test_a_line_is_created_once(namespace: str, open_connection: Open, elsewhere: ThreadPoolExecutor) -> None:
    """Two processes meet a new line at once: the second waits for the entry, then uses it."""
    first, second, watcher = open_connection(), open_connection(), open_connection()
    insert = rounds(Insert([NewJob("q", "t"), NewJob("q", "u")]))
    with transaction(first):
        PostgresStore(namespace).run(first, insert, own_transaction=False)
        waiting = elsewhere.submit(PostgresStore(namespace).run, second, insert)
        wait_until_blocked(watcher, second)
    assert len(waiting.result(20)[0]) == 2
    lines = "select count(*) from flowq.line l join flowq.queue q on q.id = l.queue_id where q.namespace = %s"
    assert watcher.execute(lines, (namespace,)).fetchone() == (2,)


def test_a_line_of_a_rolled_back_transaction_is_not_known(store: PostgresStore, conn: Conn) -> None:
    insert = rounds(Insert([NewJob("q", "t")]))
    with conn.transaction(force_rollback=True):
        store.run(conn, insert, own_transaction=False)
    store.run(conn, insert)
    store.run(conn, insert)


def test_a_known_line_that_has_gone_is_created_again(store: PostgresStore, conn: Conn) -> None:
    for jobs in (1, 2):
        insert = rounds(Insert([NewJob("q", "t")] * jobs))
        store.run(conn, insert)
        conn.execute(
            "delete from flowq.line where queue_id in (select id from flowq.queue where namespace = %s)",
            (store.namespace,),
        )
        store.run(conn, insert)


def test_a_heartbeat_that_waits_for_the_sweep_finds_its_lease_over(
    store: PostgresStore, open_connection: Open, elsewhere: ThreadPoolExecutor
) -> None:
    """X5: once the sweep has given a worker's jobs away, its heartbeat can't bring the lease back."""
    first, second, watcher = open_connection(), open_connection(), open_connection()
    [worker] = store.run(first, rounds(Register("w", ("q",), 1, 10)), now_us=0)
    with transaction(first):
        store.run(first, rounds(ReadLapsed(9)), now_us=10, own_transaction=False)
        waiting = elsewhere.submit(store.run, second, rounds(Beat(worker, 10)), now_us=10)
        wait_until_blocked(watcher, second)
    assert waiting.result(20) == [False]


def test_the_sweep_passes_over_a_worker_whose_heartbeat_is_under_way(
    store: PostgresStore, open_connection: Open
) -> None:
    first, second = open_connection(), open_connection()
    [worker] = store.run(first, rounds(Register("w", ("q",), 1, 10)), now_us=0)
    store.run(first, rounds(Insert([NewJob("q", "t")])), now_us=0)
    store.run(first, rounds(Take("q", 1, worker)), now_us=0)
    with transaction(first):
        assert store.run(first, rounds(Beat(worker, 10)), now_us=9, own_transaction=False) == [True]
        assert store.run(second, rounds(ReadLapsed(9)), now_us=10) == [[]]
    assert store.run(second, rounds(ReadLapsed(9)), now_us=10) == [[]]


def test_a_claim_meets_a_declaration_at_the_gate(
    store: PostgresStore, open_connection: Open, elsewhere: ThreadPoolExecutor
) -> None:
    first, second, watcher = open_connection(), open_connection(), open_connection()
    worker = worker_of(store, first)
    store.run(first, rounds(Insert([NewJob("q", "t")])))
    store.run(first, rounds(WriteGates((GateWrite("queue_codel", "q", 1, CODEL, None, 0, False),))))
    with transaction(first):
        store.run(first, lambda: claim("q", 1, worker, gated=True), own_transaction=False)
        waiting = elsewhere.submit(store.run, second, lambda: declare([]))
        assert isinstance(waiting.result(20), int)
        lock = rounds(LockDeclared((), (), (("queue_codel", "q"),)))
        waiting = elsewhere.submit(store.run, second, lock)
        wait_until_blocked(watcher, second)
    assert list(waiting.result(20)[0].gates) == [("queue_codel", "q")]
