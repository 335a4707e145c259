"""What the subjects share: a database of their own, rounds in which contenders take turns, and the table at the end.

Every run of a contender starts on the same line: empty tables, fresh statistics, no checkpoint due. The order changes
from round to round, so that a machine that drifts treats all alike, and each ratio is taken within its own round.
"""

from __future__ import annotations

import contextlib
import os
import platform
import secrets
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final, NamedTuple

import psycopg

from flowq.postgres.migrate import migrate
from flowq.postgres.server import Server, create_database, drop_database, resolve_server

__all__ = ["Contender", "Place", "Sizes", "Subject", "measure", "place", "table"]

Figures = Mapping[str, float]
"""Unit -> what one run measured."""

_RAW: Final = """
    create schema raw;
    create table raw.job (
        id bigint generated always as identity primary key, queue text not null default 'default', task text not null,
        args jsonb not null, state smallint not null default 0, priority integer not null default 0,
        run_at timestamptz not null default now(), attempt smallint not null default 0, started_ns bigint
    );
    create index job_ready on raw.job (queue, priority, id) where state = 0;
"""
"""The yardstick's table: one narrow row a job, no lease, no history, no retry."""
_EMPTY: Final = "truncate raw.job, flowq.job, flowq.archive, flowq.dead_letter"
_SETTINGS: Final = ("fsync", "synchronous_commit", "wal_sync_method", "shared_buffers", "max_wal_size")


class Sizes(NamedTuple):
    """How much one run does."""

    single: int = 2_000
    bulk: int = 20_000
    drain: int = 20_000
    pickups: int = 100
    simulated: int = 100_000


class Place(NamedTuple):
    """A database of this run's own."""

    server: Server
    dsn: str
    conn: psycopg.Connection[Any]

    def settle(self) -> None:
        """Bring all tables to the starting line."""
        self.conn.execute(_EMPTY)
        self.refresh()

    def refresh(self) -> None:
        """Bring the planner's statistics up to date, and have no checkpoint due soon."""
        self.conn.execute("vacuum (analyze)")
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self.conn.execute("checkpoint")

    def describe(self) -> list[str]:
        """Say where figures were measured."""
        shown = [f"{name} {self.conn.execute(f'show {name}').fetchall()[0][0]}" for name in _SETTINGS]
        libraries = [f"{name} {version(name)}" for name in ("psycopg", "simpy")]
        return [
            self.server.describe(),
            ", ".join(shown),
            f"Python {platform.python_version()}, {', '.join(libraries)}, {platform.system()} {platform.machine()},"
            f" {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; clients and server share them",
        ]


@contextlib.contextmanager
def place(url: str | None) -> Iterator[Place]:
    """Create a database on the given server, or on the embedded one; drop it afterwards."""
    server = resolve_server(url)
    name = f"flowq_bench_{secrets.token_hex(4)}"
    try:
        dsn = create_database(server, name)
        try:
            migrate(dsn)
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute(_RAW)
                if conn.execute("show fsync").fetchall()[0][0] != "on":
                    raise SystemExit(
                        "benchmarks: fsync is off on this server, so no figure would mean anything"
                    )
                yield Place(server, dsn, conn)
        finally:
            drop_database(server, name)
    finally:
        server.release()


class Contender(NamedTuple):
    """One way to do a subject's work."""

    name: str
    run: Callable[[], Figures]
    aim: str = ""


class Subject(NamedTuple):
    """What is measured; the first contender is the yardstick."""

    name: str
    title: str
    contenders: Sequence[Contender]


def measure(subject: Subject, rounds: int) -> dict[str, list[Figures]]:
    """Run all contenders in turn, once to warm up and then for so many rounds; return the figures of each."""
    figures: dict[str, list[Figures]] = {contender.name: [] for contender in subject.contenders}
    for n in range(rounds + 1):
        shift = n % len(subject.contenders)
        for name, run, _ in (*subject.contenders[shift:], *subject.contenders[:shift]):
            if sys.stderr.isatty():
                print(f"\r{subject.name}: round {n} of {rounds}, {name:50}", end="\r", file=sys.stderr)
            figures[name].append(run())
    return {name: runs[1:] for name, runs in figures.items()}


def table(subject: Subject, figures: Mapping[str, Sequence[Figures]]) -> str:
    """Return the figures as a Markdown table: median (min-max), and the median of each round's ratio."""
    units = list(figures[subject.contenders[0].name][0])
    lines = [
        f"### {subject.title}",
        f"| | {' | '.join(units)} | ratio | aim |",
        f"|---|{'---|' * len(units)}---|---|",
    ]
    yardstick = [run[units[0]] for run in figures[subject.contenders[0].name]]
    for name, _, aim in subject.contenders:
        columns = [[run[unit] for run in figures[name]] for unit in units]
        ratios = [own / other for own, other in zip(columns[0], yardstick, strict=True)]
        cells = [*map(_spread, columns), _spread(ratios), aim]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    middle = statistics.median(values)
    text = "{:,.0f}" if middle >= 100 else "{:.2f}"
    return f"{text.format(middle)} ({text.format(min(values))}-{text.format(max(values))})"
