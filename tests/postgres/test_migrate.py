"""Migrations: once each, in order, also when two processes migrate at once; and what a mismatch says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from flowq.errors import DatabaseUnreachable, SchemaMismatch
from flowq.postgres import connect
from flowq.postgres import migrate as module
from flowq.postgres.migrate import check, create_partitions, migrate, migrations
from postgres.support import wait_until_blocked

WEEK_US = 604_800_000_000


@pytest.fixture
def bare(empty_database_url: str) -> str:
    """A database without the schema."""
    return empty_database_url


def test_migrations_are_numbered_without_a_gap() -> None:
    assert [migration.number for migration in migrations()] == list(range(1, len(migrations()) + 1))


def test_a_second_migration_finds_nothing_to_do(bare: str) -> None:
    assert migrate(bare) == [migration.number for migration in migrations()]
    assert migrate(bare) == []
    with connect(bare) as conn:
        check(conn)


def test_two_processes_that_migrate_at_once(bare: str, elsewhere: ThreadPoolExecutor) -> None:
    with connect(bare) as first, connect(bare) as second, connect(bare) as watcher:
        with first.transaction():
            first.execute("select pg_advisory_xact_lock(%s)", (0x666C6F7771,))
            waiting = elsewhere.submit(migrate, second)
            wait_until_blocked(watcher, second)
            assert migrate(first) == [migration.number for migration in migrations()]
        assert waiting.result(20) == []


def test_a_failed_migration_leaves_nothing(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = migrations()
    broken = (
        *whole,
        whole[0]._replace(number=len(whole) + 1, name="broken", sql=b"select no_such_function()"),
    )
    monkeypatch.setattr(module, "migrations", lambda: broken)
    with pytest.raises(SchemaMismatch):
        migrate(bare)
    with psycopg.connect(bare) as conn:
        assert conn.execute("select to_regclass('flowq.job')").fetchone() == (None,)


def test_a_database_without_the_schema(bare: str) -> None:
    with connect(bare) as conn, pytest.raises(SchemaMismatch) as caught:
        check(conn)
    need = len(migrations())
    assert (
        str(caught.value)
        == f"database is without the schema flowq, this flowq needs {need}: run 'flowq migrate'"
    )


def test_an_older_database(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    migrate(bare)
    later = (*migrations(), migrations()[0]._replace(number=len(migrations()) + 1, name="later"))
    monkeypatch.setattr(module, "migrations", lambda: later)
    have = len(later) - 1
    with connect(bare) as conn, pytest.raises(SchemaMismatch) as caught:
        check(conn)
    assert (
        str(caught.value)
        == f"database is at migration {have}, this flowq needs {have + 1}: run 'flowq migrate'"
    )


def test_a_newer_database_is_refused(bare: str) -> None:
    migrate(bare)
    with connect(bare) as conn:
        conn.execute("insert into flowq.migration (number, name, checksum) values (999, 'future', '')")
        for refused in (check, migrate):
            with pytest.raises(SchemaMismatch, match=r"database is at migration 999, .*upgrade flowq"):
                refused(conn)


def test_a_changed_file_is_noticed(bare: str) -> None:
    migrate(bare)
    with connect(bare) as conn:
        conn.execute("update flowq.migration set checksum = 'other' where number = 1")
        with pytest.raises(SchemaMismatch, match="migration 1 of the database differs"):
            check(conn)


def test_no_server_there() -> None:
    with pytest.raises(DatabaseUnreachable):
        migrate("postgresql://localhost:1/none?connect_timeout=2")


def test_the_archive_has_partitions_ahead(bare: str) -> None:
    migrate(bare)
    with connect(bare) as conn:
        assert create_partitions(conn, 4) == 0
        assert create_partitions(conn, 6) == 2
        now_us = conn.execute("select flowq.now_us(null)").fetchall()[0][0]
        conn.execute(
            "insert into flowq.archive (id, eligible_us, enqueued_us, finished_us, cost, line_id, token, failures,"
            " crashes, namespace, state, payload) select n, 0, 0, %s::bigint + n * %s::bigint, 1, 1, 1, 0, 0, 'n',"
            " 'succeeded', '[]' from generate_series(0, 7) n",
            (now_us, WEEK_US),
        )
        where = conn.execute(
            "select tableoid::regclass::text <> 'flowq.archive_default' from flowq.archive order by id"
        ).fetchall()
        assert where == [(True,)] * 7 + [(False,)]


def test_a_week_that_the_default_partition_has_begun_stays_there(bare: str) -> None:
    migrate(bare)
    with connect(bare) as conn:
        conn.execute(
            "insert into flowq.archive (id, eligible_us, enqueued_us, finished_us, cost, line_id, token, failures,"
            " crashes, namespace, state, payload) values (1, 0, 0, 5, 1, 1, 1, 0, 0, 'n', 'succeeded', '[]')"
        )
        assert create_partitions(conn, 1, now_us=5) == 1
        assert create_partitions(conn, 1, now_us=5) == 0
