"""The schema, compared with a stored description of it, and with the words of flowq.job."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import psycopg

from flowq.job import FINAL, LIVE, JobState

STORED = Path(__file__).with_name("schema.txt")
_PARTITION = re.compile(r"archive_\d{4}_\d\d_\d\d")

_TABLES = """
    select c.relname,
        case c.relkind when 'p' then 'partitioned table' else 'table' end
        || coalesce(' with (' || array_to_string(c.reloptions, ', ') || ')', '')
        || coalesce(' partition ' || pg_get_expr(c.relpartbound, c.oid), '')
    from pg_class c
    where c.relnamespace = 'flowq'::regnamespace and c.relkind in ('r', 'p')
"""
_COLUMNS = """
    select c.relname, a.attnum,
        a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
        || case when a.attnotnull then ' not null' else '' end
        || case a.attidentity when 'a' then ' identity' else '' end
        || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '')
    from pg_class c
    join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
    where c.relnamespace = 'flowq'::regnamespace and c.relkind in ('r', 'p')
"""
_CONSTRAINTS = """
    select c.relname, k.conname || ' ' || pg_get_constraintdef(k.oid, true)
    from pg_constraint k
    join pg_class c on c.oid = k.conrelid
    where c.relnamespace = 'flowq'::regnamespace and k.contype <> 'n'
"""
_INDEXES = "select tablename, indexdef from pg_indexes where schemaname = 'flowq'"
_FUNCTIONS = """
    select p.proname || '(' || pg_get_function_identity_arguments(p.oid) || ') '
        || pg_get_function_result(p.oid) || ' ' || case p.provolatile when 'v' then 'volatile' else 'stable' end
    from pg_proc p
    where p.pronamespace = 'flowq'::regnamespace
"""


def described(conn: psycopg.Connection[Any]) -> str:
    """The schema as text, the same from every version of PostgreSQL; weekly partitions are left out."""

    def rows(query: bytes) -> list[Any]:
        return sorted(row for row in conn.execute(query).fetchall() if not _PARTITION.fullmatch(row[0]))

    lines = []
    columns, constraints, indexes = (
        rows(_COLUMNS.encode()),
        rows(_CONSTRAINTS.encode()),
        rows(_INDEXES.encode()),
    )
    for table, kind in rows(_TABLES.encode()):
        lines.append(f"{table}: {kind}")
        lines += [f"    {column}" for name, _, column in columns if name == table]
        lines += [f"    {constraint}" for name, constraint in constraints if name == table]
        lines += [f"    {index}" for name, index in indexes if name == table]
    lines += [f"function {function}" for (function,) in rows(_FUNCTIONS.encode())]
    return "\n".join(lines) + "\n"


def test_the_schema_is_as_stored(conn: psycopg.Connection[Any]) -> None:
    """A change here is a new migration; then write the new description to schema.txt."""
    assert described(conn) == STORED.read_text()


def _states(conn: psycopg.Connection[Any], table: str, constraint: str) -> set[JobState]:
    row = conn.execute(
        "select pg_get_constraintdef(oid) from pg_constraint where conrelid = %s::regclass and conname = %s",
        (f"flowq.{table}", constraint),
    ).fetchone()
    assert row is not None
    return {JobState(word) for word in re.findall(r"'(\w+)'", row[0])}


def test_states_are_those_of_the_transition_table(conn: psycopg.Connection[Any]) -> None:
    assert _states(conn, "job", "job_state") == LIVE
    assert _states(conn, "archive", "archive_state_check") == FINAL


def test_states_change_in_place(conn: psycopg.Connection[Any]) -> None:
    """No index on what heartbeats and policies update."""
    hot = {"gate": {"state", "wake_us"}, "worker": {"lease_until_us", "asleep_until_us"}}
    for table, columns in hot.items():
        for (definition,) in conn.execute(
            "select indexdef from pg_indexes where schemaname = 'flowq' and tablename = %s", (table,)
        ).fetchall():
            assert not any(column in definition for column in columns), definition
