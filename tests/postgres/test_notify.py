"""NOTIFY: only while a worker of the queue sleeps past what was written, at most once a queue and commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from flowq.postgres import PostgresStore
from flowq.programs.commands import (
    Insert,
    NewJob,
    Register,
    RetriedJob,
    Settle,
    Sleep,
    Slide,
    Take,
    Unregister,
)
from postgres.support import rounds

Conn = psycopg.Connection[Any]
Heard = Callable[[], list[str]]
LONG_US = 1 << 50


@pytest.fixture
def worker(store: PostgresStore, conn: Conn) -> int:
    """A worker of queues a and b that sleeps until the instant 100."""
    [worker] = store.run(conn, rounds(Register("w", ("a", "b"), 1, LONG_US)), now_us=0)
    store.run(conn, rounds(Sleep(worker, 100)))
    return int(worker)


@pytest.fixture
def heard(store: PostgresStore, conn: Conn, open_connection: Callable[[], Conn]) -> Heard:
    """The queues notified since the last call, in the order of arrival."""
    store.run(conn, rounds(Insert([NewJob(queue, "t", run_at_us=LONG_US) for queue in "abc"])), now_us=0)
    listener = open_connection()
    names = {
        channel: queue for queue, channel in store.channel_names(conn, ["a", "b", "c", "unknown"]).items()
    }
    assert sorted(names.values()) == ["a", "b", "c"]
    for channel in names:
        listener.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel)))
    end = psycopg.sql.SQL("select pg_notify('flowq_end_of_test', '')")
    listener.execute("listen flowq_end_of_test")

    def since() -> list[str]:
        conn.execute(end)
        queues = []
        for note in listener.notifies(timeout=20):
            if note.channel == "flowq_end_of_test":
                return queues
            assert note.payload == ""
            queues.append(names[note.channel])
        raise AssertionError("the mark was not heard")

    return since


def insert(store: PostgresStore, conn: Conn, *jobs: NewJob) -> list[int]:
    return [row.id for row in store.run(conn, rounds(Insert(jobs)), now_us=50)[0]]


def test_nobody_sleeps(store: PostgresStore, conn: Conn, heard: Heard) -> None:
    insert(store, conn, NewJob("a", "t"))
    assert heard() == []


@pytest.mark.parametrize("copies", [1, 3])
def test_a_sleeping_worker_is_notified_once_a_queue(
    store: PostgresStore, conn: Conn, worker: int, heard: Heard, copies: int
) -> None:
    insert(store, conn, *[NewJob("a", "t")] * copies)
    assert heard() == ["a"]
    insert(store, conn, *[NewJob(queue, task) for queue in "abc" for task in "tuv"])
    assert sorted(heard()) == ["a", "b"]
    insert(store, conn, NewJob("c", "t"))
    assert heard() == []


@pytest.mark.parametrize("copies", [1, 2])
def test_what_falls_due_after_the_sleep_notifies_nobody(
    store: PostgresStore, conn: Conn, worker: int, heard: Heard, copies: int
) -> None:
    insert(store, conn, *[NewJob("a", "t", run_at_us=100)] * copies)
    assert heard() == []
    insert(store, conn, *[NewJob("a", "t", run_at_us=100)] * copies, NewJob("a", "t", run_at_us=99))
    assert heard() == ["a"]


def test_one_transaction_notifies_once_a_queue(
    store: PostgresStore, conn: Conn, worker: int, heard: Heard
) -> None:
    with conn.transaction():
        for _ in range(3):
            store.run(conn, rounds(Insert([NewJob("a", "t")])), now_us=50, own_transaction=False)
    assert heard() == ["a"]
    with conn.transaction(force_rollback=True):
        store.run(conn, rounds(Insert([NewJob("a", "t")])), now_us=50, own_transaction=False)
    assert heard() == []


def test_awake_or_gone(store: PostgresStore, conn: Conn, worker: int, heard: Heard) -> None:
    store.run(conn, rounds(Sleep(worker, None)))
    insert(store, conn, NewJob("a", "t"))
    store.run(conn, rounds(Sleep(worker, 100)))
    store.run(conn, rounds(Unregister(worker)))
    insert(store, conn, NewJob("a", "t"), NewJob("b", "t"))
    assert heard() == []


def test_a_worker_of_another_namespace(store: PostgresStore, conn: Conn, heard: Heard) -> None:
    other = PostgresStore(store.namespace + "other")
    [worker] = other.run(conn, rounds(Register("w", ("a",), 1, LONG_US)), now_us=0)
    other.run(conn, rounds(Sleep(worker, 100)))
    insert(store, conn, NewJob("a", "t"))
    assert heard() == []


def test_a_callers_transaction_notifies_who_may_be_asleep_by_its_commit(
    store: PostgresStore, conn: Conn, worker: int, heard: Heard
) -> None:
    store.run(conn, rounds(Sleep(worker, None)))
    for jobs in ([NewJob("a", "t")], [NewJob("b", "t"), NewJob("c", "t")]):
        with conn.transaction():
            store.run(conn, rounds(Insert(jobs)), now_us=50, own_transaction=False)
        assert heard() == [jobs[0].queue]
    with conn.transaction():
        store.run(conn, rounds(Insert([NewJob("a", "t")])), now_us=LONG_US, own_transaction=False)
    assert heard() == []  # its lease is over


def test_switched_off(store: PostgresStore, conn: Conn, worker: int, heard: Heard) -> None:
    silent = PostgresStore(store.namespace, notify=False)
    insert(silent, conn, NewJob("a", "t"))
    insert(silent, conn, NewJob("a", "t"), NewJob("b", "t"))
    assert heard() == []


def test_a_retry_and_a_slide(store: PostgresStore, conn: Conn, worker: int, heard: Heard) -> None:
    store.run(conn, rounds(Sleep(worker, None)))
    [first] = insert(store, conn, NewJob("a", "t"))
    store.run(conn, rounds(Take("a", 1, worker)), now_us=50)
    store.run(conn, rounds(Sleep(worker, 100)))
    store.run(conn, rounds(Settle((), (RetriedJob(first, 1, 50, "x"),), ())), now_us=50)
    assert heard() == []
    store.run(conn, rounds(Take("a", 1, worker)), now_us=100)
    store.run(conn, rounds(Settle((), (RetriedJob(first, 2, 49, "x"),), ())), now_us=50)
    assert heard() == ["a"]
    window = NewJob("b", "t", run_at_us=200, window_hash=b"w", first_seen_us=0, deadline_us=200)
    [second] = insert(store, conn, window)
    assert heard() == []
    store.run(conn, rounds(Slide(second, 100, 100, 2, None)), now_us=50)
    assert heard() == []
    store.run(conn, rounds(Slide(second, 99, 99, 3, None)), now_us=50)
    assert heard() == ["b"]
