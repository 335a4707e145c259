"""Migrations: numbered SQL files, applied in order, forward only.

Each file is applied once, in one transaction with its record in ``flowq.migration``, under a
transaction-scoped advisory lock: of two processes that migrate at once, one applies and the other finds
nothing to do. The record keeps a checksum, so that a file that was changed after it was applied is noticed.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import tuple_row

from flowq.errors import SchemaMismatch
from flowq.postgres.codec import statement
from flowq.postgres.driver import connect, translated

__all__ = ["Migration", "check", "create_partitions", "migrate", "migrations"]

_LOCK: Final = 0x666C6F7771
"""The advisory lock of migrations: "flowq"."""
_RECORD: Final = """
    create schema if not exists flowq;
    create table if not exists flowq.migration (
        number integer primary key,
        name text not null,
        checksum text not null,
        applied_at timestamptz not null default clock_timestamp()
    );
"""
_WEEKS_AHEAD: Final = 4


class Migration(NamedTuple):
    """One file of ``flowq/postgres/migrations``."""

    number: int
    name: str
    sql: bytes

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.sql).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """Return the migrations of this flowq, in order."""
    files = resources.files("flowq.postgres").joinpath("migrations").iterdir()
    names = sorted(file.name for file in files if file.name.endswith(".sql"))
    return tuple(
        Migration(
            int(name.partition("_")[0]),
            name.removesuffix(".sql"),
            resources.files("flowq.postgres").joinpath("migrations", name).read_bytes(),
        )
        for name in names
    )


def migrate(target: str | psycopg.Connection[Any]) -> list[int]:
    """Bring a database to the schema of this flowq; return the numbers of the migrations applied now.

    Use it at deploy time. Safe to call again, and from several processes at once.

    Parameters
    ----------
    target
        A DSN, or a connection in autocommit mode.

    Raises
    ------
    SchemaMismatch
        The database is newer than this flowq, or an applied migration differs from its file.
    """
    if isinstance(target, str):
        with connect(target) as conn:
            return migrate(conn)
    try:
        with target.transaction():
            target.execute("select pg_advisory_xact_lock(%s)", (_LOCK,))
            if not _is_recorded(target):
                target.execute(_RECORD)
            missing = _missing(target)
            for migration in missing:
                target.execute(migration.sql)
                target.execute(
                    "insert into flowq.migration (number, name, checksum) values (%s, %s, %s)",
                    (migration.number, migration.name, migration.checksum),
                )
        create_partitions(target, _WEEKS_AHEAD)
    except psycopg.Error as error:
        raise translated(error) from error
    return [migration.number for migration in missing]


def check(conn: psycopg.Connection[Any]) -> None:
    """Refuse a database whose schema is not that of this flowq.

    Raises
    ------
    SchemaMismatch
        It is missing, older, newer or changed; the message says which and what to do.
    """
    try:
        missing = _missing(conn) if _is_recorded(conn) else migrations()
    except psycopg.Error as error:
        raise translated(error) from error
    if missing:
        have, need = missing[0].number - 1, migrations()[-1].number
        at = f"at migration {have}" if have else "without the schema flowq"
        raise SchemaMismatch(f"database is {at}, this flowq needs {need}: run 'flowq migrate'")


def create_partitions(conn: psycopg.Connection[Any], weeks: int, now_us: int | None = None) -> int:
    """Create the archive's weekly partitions of this week and ``weeks`` ahead; return how many were missing.

    Use it from maintenance, at least every ``weeks`` weeks: jobs that end in a week without a partition stand
    in the default one.
    """
    sql, params, _ = statement("create_partitions", None if now_us is None else str(now_us), str(weeks))
    with psycopg.RawCursor(conn, row_factory=tuple_row) as cursor:
        [(created,)] = cursor.execute(sql, params).fetchall()
    return int(created)


def _is_recorded(conn: psycopg.Connection[Any]) -> bool:
    with conn.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute("select to_regclass('flowq.migration') is not null").fetchone()
    return row is not None and bool(row[0])


def _missing(conn: psycopg.Connection[Any]) -> tuple[Migration, ...]:
    """The migrations that the database lacks, after a check of those that it has."""
    with conn.cursor(row_factory=tuple_row) as cursor:
        applied: dict[int, str] = dict(
            cursor.execute("select number, checksum from flowq.migration").fetchall()
        )
    newest, last = max(applied, default=0), migrations()[-1].number
    if newest > last:
        raise SchemaMismatch(f"database is at migration {newest}, this flowq knows {last}: upgrade flowq")
    for migration in migrations():
        checksum = applied.get(migration.number, migration.checksum)
        if checksum != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.number} of the database differs from {migration.name}.sql: another"
                " build of flowq applied it; use that build, or migrate a fresh database"
            )
    return tuple(migration for migration in migrations() if migration.number not in applied)
