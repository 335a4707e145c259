"""Conformance: the same world once over memory and once over PostgreSQL, compared job by job.

What a simulation says of production rests on one claim: both decide alike. Here it is checked on *your* flow and *your*
workload. The world, the calls and the virtual instants are the same; only the store differs. Compared are what became
of each call, and of each job when it was eligible, started and ended, and why; first as the programs reported it, then
as the store holds it. No difference is expected; each is a finding, told with both sides.

The run in PostgreSQL has a namespace of its own, under a random name, and removes its rows at the end.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flowq.programs.commands import JobRecord, Program, ReadJobs, Round
from flowsim.experiment import plan
from flowsim.result import Result
from flowsim.workload import Workload
from flowsim.world import CALL_OUTCOMES, JOB_OUTCOMES, NEVER, Drive, Log, over_memory

if TYPE_CHECKING:
    from flowq.units import Duration

__all__ = ["ConformanceReport", "conformance", "over_postgres"]

T = TypeVar("T")

_PAGE: Final = 1_000
_COLUMNS: Final = ("of", "number", "field", "memory", "postgres")
_SHOWN: Final = 20
_NEVER_TEXT: Final = "never"


@dataclass(frozen=True, eq=False, repr=False)
class ConformanceReport:
    """What two runs of the same world over two stores differ in; nothing, one hopes.

    Parameters
    ----------
    memory, postgres : Result
        The two runs.
    server : str
        Which PostgreSQL it was.
    differences : DataFrame
        One row a difference: ``of`` (``call``, ``job``, ``stored job``, ``run``), ``number``, ``field``, and both
        sides, ``memory`` and ``postgres``. Instants are in µs.
    """

    memory: Result
    postgres: Result
    server: str
    differences: pd.DataFrame

    @property
    def ok(self) -> bool:
        """Whether there is no difference."""
        return self.differences.empty

    def first(self) -> str:
        """Return the first difference in words, with what is known of the call; empty if there is none."""
        if self.ok:
            return ""
        row = self.differences.iloc[0]
        where = f"{row['of']} {row['number']}"
        if row["of"] != "run":
            run = self.memory
            number = int(row["number"])
            calls = [number] if row["of"] == "call" else run.log.job_call.tolist()[number : number + 1]
            if calls:
                key = "" if run.keys is None else f", key {run.keys[calls[0]]!r}"
                opened = "" if row["of"] == "call" else f"opened by call {calls[0]} "
                where += f" ({opened}at {run.arrivals_us[calls[0]] / 1e6:.6f} s{key})"
        return f"{where}: {row['field']} is {row['memory']} in memory and {row['postgres']} in PostgreSQL"

    def _headline(self) -> str:
        sizes = f"{len(self.memory.log.call_outcome):,} calls and {len(self.memory.log.job_call):,} jobs"
        if self.ok:
            return f"{sizes}, no difference"
        return f"{sizes}, {len(self.differences):,} differences; the first: {self.first()}"

    def __repr__(self) -> str:
        return f"ConformanceReport({self._headline()})"

    def _repr_html_(self) -> str:
        verdict = "Memory and PostgreSQL agree" if self.ok else "Memory and PostgreSQL differ"
        rows = "" if self.ok else self.differences.head(_SHOWN).to_html(index=False, border=0)
        return (
            '<div style="border:1px solid #8886;border-radius:4px;padding:8px 12px;display:inline-block;max-width:48em">'
            f'<div style="font-weight:600">{verdict}</div><div>{escape(self._headline())}</div>'
            f'<div style="opacity:.7;font-size:85%">{escape(self.memory.policy)}; {escape(self.memory.caption())};'
            f" {escape(self.server)}</div>{rows}</div>"
        )


def conformance(
    source: Any,
    workload: Workload | Mapping[str, Workload],
    *,
    workers: int = 1,
    service: Any = None,
    seed: int = 0,
    until: Duration | None = None,
    dsn: str | None = None,
) -> ConformanceReport:
    """Run the same world over memory and over PostgreSQL, and compare.

    Parameters
    ----------
    source, workload, workers, service, seed, until
        As for `flowsim.simulate`. A thousand jobs take some seconds.
    dsn : str, optional
        A PostgreSQL URL; None: what the environment names, else an embedded server. A server that is named must have
        the schema (``flowq migrate``).

    Returns
    -------
    ConformanceReport

    Raises
    ------
    DatabaseUnreachable, SchemaMismatch, ServerUnavailable
        There is no such server, or not with this schema.

    Examples
    --------
    >>> from flowq.policy import CoDel, Flow
    >>> calls = Workload.poisson("40/s", "10s", seed=1)
    >>> conformance(Flow(CoDel("50ms", "500ms")), calls, service="30ms")  # doctest: +SKIP
    ConformanceReport(415 calls and 415 jobs, no difference)
    """
    planned = plan(source, workload, workers=workers, service=service, seed=seed, until=until)
    drive = over_memory()
    memory = planned.run(drive)
    records = _records(drive, memory.log)
    with over_postgres(dsn) as (there, namespace, server):
        postgres = planned.run(there, namespace)
        stored = _records(there, postgres.log)
    differences = pd.concat(
        [_compared(memory.log, postgres.log), _compared_records(records, stored)], ignore_index=True
    )
    return ConformanceReport(memory, postgres, server, differences)


@contextmanager
def over_postgres(dsn: str | None = None) -> Iterator[tuple[Drive, str, str]]:
    """Open a drive over PostgreSQL, in a namespace of its own whose rows are removed at the end.

    Yields
    ------
    (Drive, str, str)
        The drive, its namespace, and which server it is, in words.
    """
    from flowq.postgres import PostgresStore, connect
    from flowq.postgres.migrate import check, migrate
    from flowq.postgres.server import resolve_server

    namespace = f"conformance-{secrets.token_hex(8)}"
    store = PostgresStore(namespace, notify=False)
    server = resolve_server(dsn)
    latest_us = 0
    try:
        with connect(server.dsn) as conn:
            if server.embedded:
                migrate(conn)
            else:
                check(conn)
            # Virtual time: nothing here needs to survive a crash.
            conn.execute("set synchronous_commit = off")

            def drive(factory: Callable[[], Program[T]], now_us: int, /) -> T:
                nonlocal latest_us
                latest_us = max(latest_us, now_us)
                return store.run(conn, factory, now_us=now_us)

            try:
                yield drive, namespace, server.describe()
            finally:
                if not conn.closed:
                    _remove(conn, namespace, latest_us)
    finally:
        server.release()


_REMOVALS: Final = (
    "delete from flowq.dead_letter where namespace = %(namespace)s",
    # The instants are virtual, so they name the few partitions that can hold rows of this run.
    "delete from flowq.archive where namespace = %(namespace)s and finished_us between 0 and %(latest_us)s",
    "delete from flowq.job where namespace = %(namespace)s",
    "delete from flowq.line where queue_id in (select id from flowq.queue where namespace = %(namespace)s)",
    "delete from flowq.queue where namespace = %(namespace)s",
    "delete from flowq.gate where namespace = %(namespace)s",
    "delete from flowq.worker where namespace = %(namespace)s",
)


def _remove(conn: Any, namespace: str, latest_us: int) -> None:
    with conn.transaction():
        for removal in _REMOVALS:
            conn.execute(removal, {"namespace": namespace, "latest_us": latest_us})


# --- compare -------------------------------------------------------------------------------------------------------


def _read(ids: tuple[int, ...]) -> Program[dict[int, JobRecord]]:
    [records] = yield Round((ReadJobs(ids),), True)
    return dict(records)


def _records(drive: Drive, log: Log) -> list[JobRecord | None]:
    """What the store holds of each job, in the order of creation."""
    found: dict[int, JobRecord] = {}
    ids = log.job_id.tolist()
    for first in range(0, len(ids), _PAGE):
        page = tuple(ids[first : first + _PAGE])
        found.update(drive(lambda page=page: _read(page), log.end_of_run_us))  # type: ignore[misc]
    return [found.get(id) for id in ids]


def _compared(memory: Log, postgres: Log) -> pd.DataFrame:
    """Differences of what the programs reported."""
    parts = []
    for of, fields in (("call", _CALL_FIELDS), ("job", _JOB_FIELDS)):
        for field, column in fields.items():
            parts.append(_differing(of, field, column(memory), column(postgres)))
    if memory.end_of_run_us != postgres.end_of_run_us:
        row = ("run", 0, "end_us", memory.end_of_run_us, postgres.end_of_run_us)
        parts.append(pd.DataFrame([row], columns=list(_COLUMNS)))
    found = pd.concat(parts, ignore_index=True)
    found["calls first"] = found["of"] != "call"
    return found.sort_values(["calls first", "number"], kind="stable", ignore_index=True)[list(_COLUMNS)]


def _differing(of: str, field: str, memory: NDArray[Any], postgres: NDArray[Any]) -> pd.DataFrame:
    n = min(len(memory), len(postgres))
    at = np.flatnonzero(memory[:n] != postgres[:n])
    rows = [(of, int(i), field, memory[i], postgres[i]) for i in at]
    if len(memory) != len(postgres):
        rows.append((of, n, "exists", len(memory) > n, len(postgres) > n))
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _compared_records(memory: list[JobRecord | None], postgres: list[JobRecord | None]) -> pd.DataFrame:
    """Differences of what the stores hold; ids apart, which only name."""
    rows: list[tuple[str, int, str, object, object]] = []
    for number, (one, other) in enumerate(zip(memory, postgres, strict=False)):
        if one is None or other is None:
            if one is not other:
                rows.append(("stored job", number, "exists", one is not None, other is not None))
            continue
        if one._replace(id=0) == other._replace(id=0):
            continue
        rows += [
            ("stored job", number, field, mine, theirs)
            for field, mine, theirs in zip(JobRecord._fields, one, other, strict=True)
            if field != "id" and mine != theirs
        ]
    return pd.DataFrame(rows, columns=list(_COLUMNS))


def _instants(name: str) -> Callable[[Log], NDArray[Any]]:
    def column(log: Log) -> NDArray[Any]:
        values = np.array(getattr(log, name).tolist(), dtype=object)
        values[values == NEVER] = _NEVER_TEXT
        return values

    return column


def _whole(name: str) -> Callable[[Log], NDArray[Any]]:
    return lambda log: np.array(getattr(log, name).tolist(), dtype=object)


_CALL_FIELDS: Final[dict[str, Callable[[Log], NDArray[Any]]]] = {
    "outcome": lambda log: np.array([CALL_OUTCOMES[code] for code in log.call_outcome], dtype=object),
    "job": _whole("call_job"),
}
_JOB_FIELDS: Final[dict[str, Callable[[Log], NDArray[Any]]]] = {
    "call": _whole("job_call"),
    "outcome": lambda log: np.array([JOB_OUTCOMES[code] for code in log.outcome], dtype=object),
    "reason": lambda log: np.array([log.reasons[code] for code in log.reason], dtype=object),
    "eligible_us": _whole("eligible_us"),
    "start_us": _instants("start_us"),
    "end_us": _instants("end_us"),
    "calls": _whole("calls"),
}
