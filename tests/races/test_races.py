"""Races on a real server: the law holds, and a key has one row, however many connections call at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import combinations
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowq.memory import MemoryStore
from flowq.policy import Coalesce, Concurrency, Debounce, Flow, RateLimit
from flowq.postgres.driver import PostgresStore, connect
from flowq.programs import Receipt, Request, Succeeded, claim, declare, enqueue, settle
from flowq.programs.commands import Program, Register, Round
from flowq.task import TaskSpec

S = 1_000_000
DEBOUNCED = TaskSpec("report", flow=Flow(Debounce("10s", "{k}", "60s", replace_payload=True)))
COALESCED = TaskSpec("charge", flow=Flow(Coalesce()))


def at_once(url: str, n: int, act: Callable[[psycopg.Connection[Any], int], Any]) -> list[Any]:
    """Let ``n`` connections act at the same instant; return what each got."""
    barrier = threading.Barrier(n)

    def one(index: int) -> Any:
        with connect(url) as connection:
            barrier.wait()
            return act(connection, index)

    with ThreadPoolExecutor(n) as pool:
        return list(pool.map(one, range(n)))


def assert_law(limit: RateLimit, starts_us: Sequence[int]) -> None:
    """R2: j - i + 1 <= burst + rate * (t_j - t_i) for every pair of starts, exactly."""
    rate = Fraction(limit.rate.count) / limit.rate.per_us
    times = sorted(starts_us)
    for (i, first), (j, last) in combinations(enumerate(times), 2):
        assert j - i + 1 <= limit.burst + rate * (last - first), f"starts {i} to {j}"


limits = st.builds(
    RateLimit,
    st.sampled_from(["10/s", "1.5/s", "7/m", "20 per 3s"]),
    burst=st.sampled_from([None, 1, 2.5, 4]),
)


@given(limits, st.lists(st.tuples(st.integers(0, 700_000), st.integers(1, 4)), min_size=1, max_size=60))
@settings(max_examples=200)
def test_the_law_holds_in_memory(limit: RateLimit, takers: list[tuple[int, int]]) -> None:  # R2
    store, spec = MemoryStore(), TaskSpec("task", flow=Flow(limit))
    store.run(declare(spec.declarations(), lines=[spec.line]), 0)
    store.run(enqueue([spec.keyed_request()] * 100), 0)
    now_us, starts = 0, []
    for wait_us, n in takers:
        now_us += wait_us
        starts += [now_us] * len(store.run(claim("default", n, worker=1), now_us).started)
    assert_law(limit, starts)


@pytest.mark.parametrize("limit", [RateLimit("50/s", burst=5), RateLimit("40/s", burst=1), RateLimit("1/m")])
def test_the_law_holds_with_twelve_takers(
    database_url: str, limit: RateLimit
) -> None:  # R2, F19, B47, B55, B67
    store, spec = PostgresStore(), TaskSpec("task", flow=Flow(limit))
    with connect(database_url) as connection:
        store.run(connection, lambda: declare(spec.declarations(), lines=[spec.line]))
        store.run(connection, lambda: enqueue([spec.keyed_request()] * 200))

    def take(connection: psycopg.Connection[Any], index: int) -> int:
        return sum(
            len(store.run(connection, lambda: claim("default", 3, worker=index)).started) for _ in range(25)
        )

    taken = sum(at_once(database_url, 12, take))
    with connect(database_url) as connection:
        rows = connection.execute("select started_us from flowq.job where state = 'running'").fetchall()
    assert len(rows) == taken >= int(limit.burst)
    assert_law(limit, [row[0] for row in rows])


@pytest.mark.parametrize("round_", range(10))
def test_concurrent_first_events_open_one_window(database_url: str, round_: int) -> None:  # B35, F87
    store = PostgresStore()
    for key in range(10):
        receipts: list[Receipt] = []
        for got in at_once(
            database_url, 10, lambda conn, _, key=key: _call(store, conn, DEBOUNCED, str(key))
        ):
            receipts += got
        assert len({receipt.id for receipt in receipts}) == 1
        assert sorted(receipt.hits for receipt in receipts) == list(range(1, 11))
        assert sum(receipt.outcome == "accepted" for receipt in receipts) == 1


def test_thirty_two_identical_calls_are_one_row(database_url: str) -> None:  # C7, F75
    store = PostgresStore()
    got = at_once(database_url, 32, lambda conn, _: _call(store, conn, COALESCED, "k"))
    assert len({receipts[0].id for receipts in got}) == 1
    assert sum(receipts[0].outcome == "accepted" for receipts in got) == 1
    with connect(database_url) as connection:
        assert connection.execute("select count(*) from flowq.job").fetchone() == (1,)


def test_a_window_is_claimed_or_merged_into_never_both(database_url: str) -> None:  # B2, B34
    """Callers race claimers over one key that is always due: each call lands in exactly one job that runs after it."""
    store = PostgresStore()
    spec = TaskSpec("report", flow=Flow(Debounce("1ms", "k", "1ms", replace_payload=True)))
    with connect(database_url) as connection:
        store.run(connection, lambda: declare(spec.declarations(), lines=[spec.line]))

    def act(connection: psycopg.Connection[Any], index: int) -> tuple[list[int], list[tuple[int, str]]]:
        calls, starts = [], []
        for turn in range(40):
            if index % 2:
                claimed = store.run(connection, lambda: claim("default", 1, worker=index))
                starts += [(job.id, job.payload) for job in claimed.started]
            else:
                [receipt] = _call(store, connection, spec, "k", payload=f"[[{index}, {turn}], {{}}]")
                calls.append(receipt.id)
        return calls, starts

    called: set[int] = set()
    started: list[int] = []
    for calls, starts in at_once(database_url, 6, act):
        called |= set(calls)
        started += [job_id for job_id, _ in starts]
    assert len(started) == len(set(started)), "no job started twice"
    assert set(started) <= called
    with connect(database_url) as connection:
        open_windows = connection.execute(
            "select count(*) from flowq.job where state = 'pending' and window_hash is not null"
        ).fetchone()
    assert open_windows is not None
    assert open_windows[0] <= 1


def test_batches_in_opposite_orders_do_not_deadlock(database_url: str) -> None:  # I4
    store = PostgresStore()
    keys = [str(key) for key in range(20)]

    def act(connection: psycopg.Connection[Any], index: int) -> list[list[Receipt]]:
        order = keys if index % 2 else keys[::-1]
        requests = [DEBOUNCED.keyed_request(key) for key in order]
        return [store.run(connection, lambda: enqueue(requests)) for _ in range(10)]

    at_once(database_url, 6, act)
    with connect(database_url) as connection:
        rows = connection.execute("select hits from flowq.job").fetchall()
    assert [row[0] for row in rows] == [60] * 20


def test_every_job_of_an_open_queue_starts_once(database_url: str) -> None:  # A5, X6
    store = PostgresStore()
    with connect(database_url) as connection:
        spec = TaskSpec("plain")
        store.run(connection, lambda: enqueue([spec.keyed_request()] * 2_000))

    def drain(connection: psycopg.Connection[Any], index: int) -> list[int]:
        ids: list[int] = []
        while claimed := store.run(connection, lambda: claim("default", 7, worker=index)).started:
            ids += [job.id for job in claimed]
        return ids

    ids = [job_id for got in at_once(database_url, 8, drain) for job_id in got]
    assert len(ids) == len(set(ids)) == 2_000


def _call(
    store: PostgresStore, connection: psycopg.Connection[Any], spec: TaskSpec, key: str, **job: Any
) -> list[Receipt]:
    request = spec.keyed_request(key)
    request = Request(request.job._replace(**job), request.debounce)
    return store.run(connection, lambda: enqueue([request]))


def test_a_cap_of_one_holds_with_eight_workers(database_url: str) -> None:  # A1, B83, B88
    """Each claims, and ends what it started, until all is done; the server says how many ever ran at once."""
    spec = TaskSpec("alone", flow=Flow(Concurrency(1)))
    store = PostgresStore()
    with connect(database_url) as conn:
        store.run(conn, lambda: declare(spec.declarations(), lines=[spec.line]))
        store.run(conn, lambda: enqueue([spec.keyed_request()] * 60))
    most, lock, running = 0, threading.Lock(), 0

    def work(conn: psycopg.Connection[Any], index: int) -> int:
        nonlocal most, running
        worker = store.run(conn, lambda: registered(index))
        done = 0
        while conn.execute("select exists (select from flowq.job)").fetchone() == (True,):
            for job in store.run(conn, lambda: claim("default", 5, worker, gated=True)).started:
                with lock:
                    running += 1
                    most = max(most, running)
                with lock:
                    running -= 1
                store.run(conn, lambda job=job: settle([Succeeded(job.id, job.token)]))  # type: ignore[misc]
                done += 1
        return done

    assert sum(at_once(database_url, 8, work)) == 60
    assert most == 1
    with psycopg.connect(database_url) as conn:
        overlapping = conn.execute("""
            select count(*) from flowq.archive a join flowq.archive b
            on a.id < b.id and a.started_us < b.finished_us and b.started_us < a.finished_us
        """).fetchone()
    assert overlapping == (0,)


def registered(index: int) -> Program[int]:
    [id] = yield Round((Register(f"w{index}", ("default",), 5, 60 * S),), True)
    return int(id)
