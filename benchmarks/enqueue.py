"""Enqueue, one by one and in bulk, beside plain inserts and COPY."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg.rows import tuple_row

from benchmarks.yardstick import Contender, Figures, Place, Sizes, Subject
from flowq import Queue

__all__ = ["bulk", "single"]

_INSERT: Final = "insert into raw.job (task, args) values ('noop', %s) returning id"
_INSERT_MANY: Final = (
    "insert into raw.job (task, args) select 'noop', a from unnest(%s::jsonb[]) a returning id"
)
_ROWS_A_STATEMENT: Final = 1_000


@contextmanager
def single(place: Place, sizes: Sizes) -> Iterator[Subject]:
    """One call after another from one thread, each committed when it returns."""
    with psycopg.connect(place.dsn, autocommit=True) as conn, _declared(place) as queue:

        def insert() -> None:
            for n in range(sizes.single):
                conn.execute(_INSERT, (f'{{"n": {n}}}',)).fetchone()

        def enqueue() -> None:
            for n in range(sizes.single):
                queue.enqueue("noop", {"n": n})

        yield Subject(
            "single",
            f"1. Single enqueue, durable, one thread, {sizes.single:,} calls",
            (
                Contender("raw INSERT, autocommit", _timed(place, sizes.single, insert)),
                Contender("flowq `Queue.enqueue`", _timed(place, sizes.single, enqueue), "≥ 0.6"),
            ),
        )


@contextmanager
def bulk(place: Place, sizes: Sizes) -> Iterator[Subject]:
    """Many calls in one transaction; flowq and the insert return the ids."""
    texts = [f'{{"n": {n}}}' for n in range(sizes.bulk)]
    calls = [{"task": "noop", "payload": {"n": n}} for n in range(sizes.bulk)]
    with (
        psycopg.connect(place.dsn, autocommit=True, row_factory=tuple_row) as conn,
        _declared(place) as queue,
    ):

        def copy() -> None:
            with (
                conn.transaction(),
                conn.cursor() as cursor,
                cursor.copy("copy raw.job (task, args) from stdin") as rows,
            ):
                for text in texts:
                    rows.write_row(("noop", text))

        def insert() -> None:
            with conn.transaction():
                for begin in range(0, len(texts), _ROWS_A_STATEMENT):
                    conn.execute(_INSERT_MANY, (texts[begin : begin + _ROWS_A_STATEMENT],)).fetchall()

        def enqueue() -> None:
            jobs = queue.enqueue_many(calls)
            assert len({job.id for job in jobs}) == len(calls)

        yield Subject(
            "bulk",
            f"2. Bulk enqueue of {sizes.bulk:,}, one transaction",
            (
                Contender("raw COPY, no ids", _timed(place, sizes.bulk, copy)),
                Contender(
                    f"raw INSERT, {_ROWS_A_STATEMENT:,} rows a statement", _timed(place, sizes.bulk, insert)
                ),
                Contender("flowq `Queue.enqueue_many`", _timed(place, sizes.bulk, enqueue), "≥ 0.25"),
            ),
        )


@contextmanager
def _declared(place: Place) -> Iterator[Queue]:
    with Queue(place.dsn, namespace="enqueue") as queue:

        @queue.task
        def noop(n: int) -> None: ...

        yield queue


def _timed(place: Place, jobs: int, work: Callable[[], None]) -> Callable[[], Figures]:
    def run() -> Figures:
        place.settle()
        begun = time.perf_counter()
        work()
        return {"jobs/s": jobs / (time.perf_counter() - begun)}

    return run
