"""What the PostgreSQL tests share: programs of one round, plans, and how to see that a connection waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
from psycopg import sql

from flowq.postgres.codec import Codec, Statement
from flowq.programs.commands import Program, Round

_PATIENCE_S = 20.0


def rounds(*commands: Any, last: bool = True) -> Callable[[], Program[list[Any]]]:
    """A program of one round; its result is the replies."""

    def program() -> Program[list[Any]]:
        replies = yield Round(commands, last)
        return replies

    return program


def wait_until_blocked(
    watcher: psycopg.Connection[Any], *waiting: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]
) -> None:
    """Return once the server says that each of these connections waits for a lock."""
    ends = time.monotonic() + _PATIENCE_S
    pids = [conn.info.backend_pid for conn in waiting]
    while time.monotonic() < ends:
        row = watcher.execute(
            "select bool_and(cardinality(pg_blocking_pids(pid)) > 0) from unnest(%s::integer[]) pid", (pids,)
        ).fetchone()
        if row is not None and row[0]:
            return
    raise AssertionError(f"not blocked within {_PATIENCE_S} s: {pids}")


def statements(namespace: str, *commands: Any, now_us: int | None = None) -> list[Statement]:
    """The statements of commands, without those that create lines."""
    codec = Codec(namespace, True, None)
    ensuring = codec.encode(commands, now_us, lines := set()).statements
    codec.known |= lines
    return codec.encode(commands, now_us, set()).statements if lines else ensuring


def plan(conn: psycopg.Connection[Any], statement: Statement, analyze: bool = True) -> dict[str, Any]:
    """The plan of a prepared statement as the store runs it, executed and rolled back."""
    arguments = sql.SQL(", ").join(sql.Literal(param) for param in statement.params)
    call = (
        sql.SQL("execute planned ({})").format(arguments) if statement.params else sql.SQL("execute planned")
    )
    options = sql.SQL("analyze, format json" if analyze else "format json")
    with conn.transaction(force_rollback=True):
        conn.execute(b"prepare planned as " + statement.sql)
        try:
            row = conn.execute(sql.SQL("explain ({}) {}").format(options, call)).fetchone()
        finally:
            conn.execute("deallocate planned")
    assert row is not None
    found: dict[str, Any] = row[0][0]["Plan"]
    return found


def nodes(found: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every node of a plan."""
    yield found
    for child in found.get("Plans", ()):
        yield from nodes(child)


def scans(found: dict[str, Any], relation: str) -> list[dict[str, Any]]:
    """The nodes of a plan that read a table."""
    return [
        node for node in nodes(found) if node.get("Relation Name") == relation and "Scan" in node["Node Type"]
    ]


def rows_read(node: dict[str, Any]) -> int:
    """Rows that a scan fetched, those included that its filter removed."""
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node.get("Actual Rows", 0) + removed) * node.get("Actual Loops", 0))
