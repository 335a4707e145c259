"""The codec: literals that PostgreSQL reads back as they were, chunks, merged slides, and a method for every command."""

from __future__ import annotations

import inspect
from typing import Any

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq.postgres import PostgresStore, codec
from flowq.postgres.codec import Codec
from flowq.programs import commands
from flowq.programs.commands import Insert, Inserted, NewJob, ReadJobs, Settle, Slide, SucceededJob
from postgres.support import rounds, statements

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
TYPES = {
    "text[]": (codec._quoted, texts),
    "bytea[]": (codec._hex, st.binary(max_size=20)),
    "bigint[]": (str, numbers),
    "boolean[]": (codec._flag, st.booleans()),
}


@pytest.mark.parametrize("type_name", TYPES)
def test_arrays_are_read_as_they_were(conn: psycopg.Connection[Any], type_name: str) -> None:
    literal, values = TYPES[type_name]
    query = b"select $1::" + type_name.encode()

    @given(st.lists(st.none() | values, max_size=8))
    def holds(given_values: list[Any]) -> None:
        array = codec._sparse(given_values, literal)
        row = psycopg.RawCursor(conn).execute(query, (array,)).fetchone()
        assert row is not None
        if any(value is not None for value in given_values):
            assert row[0] == given_values
        else:
            assert row[0] == []

    holds()


def test_defaults_travel_as_an_empty_array() -> None:
    assert codec._sparse([1, 1], str, 1) == "{}"
    assert codec._sparse([1, 2], str, 1) == "{NULL,2}"
    assert codec._sparse([False, True], codec._flag, False) == "{NULL,t}"


def _is_command(member: Any) -> bool:
    return inspect.isclass(member) and "Reply" in (member.__doc__ or "")


def test_every_command_has_a_method() -> None:
    named = {member for _, member in inspect.getmembers(commands, _is_command)}
    encoders = Codec("default", True, None)._encoders
    known = {*encoders, Slide} - {codec._Slides}
    assert named - known == set()
    assert {kind.__name__ for kind in known} <= set(dir(commands))


def test_consecutive_slides_are_one_statement() -> None:
    slides = [Slide(id, 1, 1, 2, None) for id in range(3)]
    one = Codec("default", True, None).encode(slides, None, set())
    assert len(one.statements) == 1
    assert one.decode([[(3, 0)]]) == [None, None, None]


def test_an_empty_settlement_is_no_statement() -> None:
    encoded = Codec("default", True, None).encode([Settle((), (), ())], None, set())
    assert encoded.statements == []
    assert encoded.decode([]) == [set()]


@pytest.mark.parametrize(
    ("payloads", "sizes"),
    [
        ([2] * 3, [3]),
        ([2] * (codec.CHUNK_JOBS + 1), [codec.CHUNK_JOBS, 1]),
        ([codec.CHUNK_BYTES, 2, 2], [1, 2]),
        ([2, codec.CHUNK_BYTES, 2], [2, 1]),
    ],
)
def test_chunks(payloads: list[int], sizes: list[int]) -> None:
    jobs = [NewJob("q", "t", payload="x" * size) for size in payloads]
    chunks = list(codec._chunks(jobs))
    assert [len(chunk) for chunk in chunks] == sizes
    assert [job for chunk in chunks for job in chunk] == jobs


def test_ids_are_in_the_order_of_the_batch(conn: psycopg.Connection[Any], store: PostgresStore) -> None:
    jobs = [
        NewJob("q", f"t{n % 7}", n % 3, payload=f"[[{n}],{{}}]", run_at_us=n % 11)
        for n in range(2 * codec.CHUNK_JOBS + 1)
    ]
    [inserted] = store.run(conn, rounds(Insert(jobs)), now_us=100)
    assert [row.run_at_us for row in inserted] == [job.run_at_us for job in jobs]
    assert [row.id for row in inserted] == sorted(row.id for row in inserted)
    ids = tuple(row.id for row in inserted)
    [records] = store.run(conn, rounds(ReadJobs(ids)))
    assert [(records[id].task, records[id].payload) for id in ids] == [
        (job.task, job.payload) for job in jobs
    ]


full_jobs = st.builds(
    NewJob,
    queue=texts.filter(bool),
    task=texts.filter(bool),
    priority=st.integers(-(1 << 31), (1 << 31) - 1),
    payload=st.sampled_from(["[[],{}]", '[[1e16, "\\u00e9\\\\\\""],{"a": null}]', '[[],{"ключ":1.0}]']),
    run_at_us=st.none() | st.integers(0, 1 << 60),
    delay_us=st.integers(0, 1 << 50),
    cost=st.integers(1, (1 << 63) - 1),
    max_retries=st.none() | st.integers(0, 1000),
    metadata=st.none() | st.just('{"b" : [1 ]}'),
    key=st.none() | texts,
    unique_hash=st.none(),
    window_hash=st.none(),
    first_seen_us=st.none(),
    deadline_us=st.none() | st.integers(0, 1 << 60),
    hits=st.integers(1, 1000),
    exempt=st.booleans(),
)


def test_a_job_is_stored_as_it_was_given(conn: psycopg.Connection[Any], namespace: str) -> None:
    store = PostgresStore(namespace)
    query = """
        select q.name, l.task, j.priority, j.payload::text, j.eligible_us, j.cost, j.max_retries, j.metadata::text,
            j.key, j.hits, j.exempt, j.enqueued_us, j.namespace
        from flowq.job j join flowq.line l on l.id = j.line_id join flowq.queue q on q.id = j.queue_id
        where j.id = any (%s) order by j.id
    """

    @given(st.lists(full_jobs, min_size=1, max_size=4))
    def holds(jobs: list[NewJob]) -> None:
        [inserted] = store.run(conn, rounds(Insert(jobs)), now_us=7)
        stored = conn.execute(query.encode(), ([row.id for row in inserted],)).fetchall()
        run_at = [7 + job.delay_us if job.run_at_us is None else job.run_at_us for job in jobs]
        assert inserted == [Inserted(row.id, at) for row, at in zip(inserted, run_at, strict=True)]
        assert stored == [
            (
                job.queue, job.task, job.priority, job.payload, at, job.cost, job.max_retries, job.metadata, job.key,
                job.hits, job.exempt, 7, namespace,
            )
            for job, at in zip(jobs, run_at, strict=True)
        ]  # fmt: skip

    holds()


def test_one_job_and_many_are_stored_alike(conn: psycopg.Connection[Any], store: PostgresStore) -> None:
    job = NewJob(
        "q", "t", 3, '[[],{"a": 1}]', None, 5, 2, 4, '{"m":1}', "k", b"u" * 16, b"w" * 16, 1, 9, 2, True
    )  # fmt: skip
    other = job._replace(unique_hash=b"v" * 16, window_hash=b"x" * 16)
    third = NewJob("q", "t", 3)
    store.run(conn, rounds(Insert([job])), now_us=1)
    store.run(conn, rounds(Insert([other, third])), now_us=1)
    rows = conn.execute(
        "select to_jsonb(j) - '{id,unique_hash,window_hash}'::text[] from flowq.job j where j.namespace = %s order by id",
        (store.namespace,),
    ).fetchall()
    assert rows[0] == rows[1]


def test_the_header_of_a_statement_stays_behind() -> None:
    [take] = statements("n", commands.Take("q", 1, 1))
    assert b"--" not in take.sql
    assert take.sql.startswith(b"with clock")


def test_results_of_settle_are_ids() -> None:
    encoded = Codec("n", True, None).encode(
        [Settle((SucceededJob(3, 1, None), SucceededJob(1, 1, None)), (), ())], None, set()
    )
    [statement] = encoded.statements
    assert statement.params[2] == "{1,3}"
    assert encoded.decode([[(1,), (3,)]]) == [{1, 3}]
