"""Results: what a run did, as tables with a specified schema, a summary, and a card for notebooks.

``jobs`` has one row a job, ``calls`` one row a call; the same columns can be had from a live queue, so what is drawn
from the one can be drawn from the other. Instants are seconds since the workload's origin.

=============  ============  ==================================================================================
jobs           dtype         meaning
=============  ============  ==================================================================================
job            int64         its number, in the order of creation
key            as the calls  the key of the call that opened it; None: none
task           category
arrival_s      float64       when the call came that opened it
eligible_s     float64       when it was to start at the earliest (a debounced job: its last deadline)
start_s        float64       NaN: never started
end_s          float64       when it ended, or was shed; NaN: not yet
service_s      float64       how long it takes, of the call that opened it; known even if it never started
sojourn_s      float64       start - eligible; NaN: never started
outcome        category      succeeded, failed, shed; at the end of the run: pending, running
reason         category      of a shed job: rate_limit, codel; else NaN
calls          int64         how many calls it answers, its own included
=============  ============  ==================================================================================

=============  ============  ==================================================================================
calls          dtype         meaning
=============  ============  ==================================================================================
call           int64         its number, in the order of arrival
arrival_s      float64
key            as given      None: none
task           category
outcome        category      accepted: a new job; coalesced: returned the live job; merged: slid its deadline
job            int64         the job that answers it
=============  ============  ==================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flowq.errors import ConfigurationError
from flowq.units import Duration, duration_text, duration_us
from flowsim import world
from flowsim.statistics import Interval, batch_means
from flowsim.streams import Floats, Integers

__all__ = ["CALL_COLUMNS", "FEW", "JOB_COLUMNS", "Books", "Result", "Slo", "seconds_text"]

JOB_COLUMNS: Final = (
    "job", "key", "task", "arrival_s", "eligible_s", "start_s", "end_s", "service_s", "sojourn_s", "outcome", "reason",
    "calls",
)  # fmt: skip
CALL_COLUMNS: Final = ("call", "arrival_s", "key", "task", "outcome", "job")
FEW: Final = 1_000
"""A p99 of fewer values is hardly a p99."""

_REASONS: Final = ("rate_limit", "codel")
_BATCHES: Final = 20
_LEAST_FOR_INTERVAL: Final = 10 * _BATCHES
_WIDTH, _HEIGHT = 260, 44


def seconds_text(seconds: float) -> str:
    """Return seconds in the unit that reads best.

    >>> [seconds_text(x) for x in (0.0000042, 0.0312, 5.25, 754, 7300, float("nan"))]
    ['4.2 µs', '31.2 ms', '5.25 s', '12.6 min', '2.03 h', 'none']
    """
    if not np.isfinite(seconds):
        return "none"
    if seconds == 0:
        return "0 s"
    for limit, unit, name in ((1e-3, 1e-6, "µs"), (1, 1e-3, "ms"), (120, 1, "s"), (7200, 60, "min")):
        if abs(seconds) < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 3600:,.3g} h" if seconds < 3.6e6 else f"{seconds / 3600:,.0f} h"


class Books(NamedTuple):
    """Where the calls went: offered = coalesced + merged + succeeded + failed + shed + pending + running."""

    offered: int
    coalesced: int
    merged: int
    succeeded: int
    failed: int
    shed: int
    pending: int
    running: int


class Slo(NamedTuple):
    """A promise about sojourn: a quantile of the jobs starts within a limit."""

    quantile: float
    limit_us: int

    @classmethod
    def of(cls, slo: Duration | tuple[float, Duration] | Slo) -> Slo:
        """Read ``"30s"`` (for p99), or ``(0.95, "30s")``.

        >>> str(Slo.of("30s")), str(Slo.of((0.95, 2)))
        ('p99 sojourn <= 30s', 'p95 sojourn <= 2s')
        """
        if isinstance(slo, Slo):
            return slo
        quantile, limit = slo if isinstance(slo, tuple) else (0.99, slo)
        if not 0 < quantile < 1:
            raise ConfigurationError(f"slo quantile must be > 0 and < 1: {quantile}")
        return cls(float(quantile), duration_us(limit, "slo"))

    def __str__(self) -> str:
        return f"p{100 * self.quantile:g} sojourn <= {duration_text(self.limit_us)}"


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What one run did.

    `flowsim.simulate` makes it; as the last line of a cell it shows itself.

    Parameters
    ----------
    policy : str
        What was simulated, in words.
    workload : str
        What was offered: name and seed.
    service : str
        Where the service times come from.
    workers : int
        Jobs that could run at once.
    seed : int
        Of what was drawn.
    slo : Slo or None
        The promise, if one was given.
    until_us : int or None
        When the run was stopped; None: when nothing was left to do.
    log : flowsim.world.Log
        The columns.
    arrivals_us, keys, service_us, task_of
        Of the calls; ``tasks`` names what ``task_of`` counts.

    Examples
    --------
    >>> from flowq.policy import Flow, RateLimit
    >>> from flowsim.experiment import simulate
    >>> from flowsim.workload import Workload
    >>> result = simulate(
    ...     Flow(RateLimit("5/s", burst=1)), Workload.poisson("4/s", "1m", seed=1), workers=4, service="50ms"
    ... )
    >>> result.books().offered == len(result.calls) == len(result.jobs)
    True
    """

    policy: str
    workload: str
    service: str
    workers: int
    seed: int
    slo: Slo | None
    until_us: int | None
    log: world.Log
    arrivals_us: Integers
    keys: NDArray[Any] | None
    service_us: Integers
    tasks: tuple[str, ...]
    task_of: Integers | None

    # --- tables ---

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """One row a job; see the module's text for the columns."""
        log = self.log
        call = _ints(log.job_call)
        start_s, eligible_s = _instants_s(log.start_us), _ints(log.eligible_us) / 1e6
        reason = np.frombuffer(bytes(log.reason), dtype=np.int8).astype(np.int64)
        columns = {
            "job": np.arange(len(call)),
            "key": self._keys(call),
            "task": self._tasks(call),
            "arrival_s": self.arrivals_us[call] / 1e6,
            "eligible_s": eligible_s,
            "start_s": start_s,
            "end_s": _instants_s(log.end_us),
            "service_s": self.service_us[call] / 1e6,
            # From whole microseconds: a difference of two floats would not be 0.1 where 0.1 is meant.
            "sojourn_s": np.where(
                np.isnan(start_s), np.nan, (_ints(log.start_us) - _ints(log.eligible_us)) / 1e6
            ),
            "outcome": _category(np.frombuffer(bytes(log.outcome), dtype=np.int8), world.JOB_OUTCOMES),
            "reason": _reasons(reason, log.reasons),
            "calls": _ints(log.calls),
        }
        return pd.DataFrame(columns, columns=list(JOB_COLUMNS))

    @cached_property
    def calls(self) -> pd.DataFrame:
        """One row a call; see the module's text for the columns."""
        log = self.log
        call = np.arange(len(log.call_outcome))
        columns = {
            "call": call,
            "arrival_s": self.arrivals_us[call] / 1e6,
            "key": self._keys(call),
            "task": self._tasks(call),
            "outcome": _category(np.frombuffer(bytes(log.call_outcome), dtype=np.int8), world.CALL_OUTCOMES),
            "job": _ints(log.call_job),
        }
        return pd.DataFrame(columns, columns=list(CALL_COLUMNS))

    def _keys(self, call: Integers) -> NDArray[Any]:
        return np.full(len(call), None, dtype=object) if self.keys is None else self.keys[call]

    def _tasks(self, call: Integers) -> pd.Categorical[str]:
        return _category(
            np.zeros(len(call), np.int64) if self.task_of is None else self.task_of[call], self.tasks
        )

    # --- columns ---

    @cached_property
    def sojourns_s(self) -> Floats:
        """Start - eligible of the jobs that started, in the order of their creation, in seconds."""
        start_us = _ints(self.log.start_us)
        started = start_us != world.NEVER
        sojourns: Floats = (start_us[started] - _ints(self.log.eligible_us)[started]) / 1e6
        return sojourns

    @cached_property
    def duration_s(self) -> float:
        """The instant of the last event, or of ``until``."""
        return self.log.end_of_run_us / 1e6

    def depth(self) -> pd.DataFrame:
        """Return how many jobs waited, and ran, as steps.

        Returns
        -------
        DataFrame
            ``time_s``; ``depth``: jobs that are eligible and have neither started nor been shed; ``running``. A row
            holds from its instant to the next row's; the last is the end of the run. All that happens at one instant
            is one row. A debounced job counts from its last deadline.
        """
        log = self.log
        end_us = log.end_of_run_us
        eligible_us, start_us, finish_us = _ints(log.eligible_us), _ints(log.start_us), _ints(log.end_us)
        leave_us = np.where(start_us != world.NEVER, start_us, finish_us)
        left = leave_us != world.NEVER
        waited = left | (eligible_us <= end_us)
        started = start_us != world.NEVER
        ended = started & (finish_us != world.NEVER)
        moves = [
            (np.array([0, end_us], dtype=np.int64), 0, 0),
            (np.minimum(eligible_us, np.where(left, leave_us, eligible_us))[waited], 1, 0),
            (leave_us[left], -1, 0),
            (start_us[started], 0, 1),
            (finish_us[ended], 0, -1),
        ]
        times, at = np.unique(np.concatenate([instants for instants, _, _ in moves]), return_inverse=True)
        frame = {"time_s": times / 1e6}
        for name, which in (("depth", 1), ("running", 2)):
            steps = np.concatenate([np.full(len(move[0]), move[which]) for move in moves])
            frame[name] = np.cumsum(np.bincount(at, weights=steps, minlength=len(times))).astype(np.int64)
        return pd.DataFrame(frame)

    # --- in short ---

    def books(self) -> Books:
        """Return where the calls went; the run has checked that they balance."""
        outcome, joined = self.log.outcome, self.log.call_outcome
        by_name = {name: outcome.count(code) for code, name in enumerate(world.JOB_OUTCOMES)}
        return Books(
            len(joined), joined.count(world.COALESCED), joined.count(world.MERGED), by_name["succeeded"],
            by_name["failed"], by_name["shed"], by_name["pending"], by_name["running"],
        )  # fmt: skip

    def quantile(self, q: float) -> float:
        """Return a quantile of the sojourns in seconds; NaN if no job started."""
        return float(np.quantile(self.sojourns_s, q)) if len(self.sojourns_s) else float("nan")

    def mean_interval(self) -> Interval | None:
        """Return the mean sojourn with its 95 % interval by batch means; None for fewer than 200 started jobs."""
        sojourns = self.sojourns_s
        return batch_means(sojourns, _BATCHES) if len(sojourns) >= _LEAST_FOR_INTERVAL else None

    def summary(self) -> pd.Series:
        """Return the run in numbers.

        Returns
        -------
        Series
            ``offered``, ``coalesced``, ``merged`` calls; ``jobs``; ``run`` (started), ``shed``, ``failed``,
            ``pending``, ``running`` jobs; ``sojourn_n`` and ``sojourn_{p50,p95,p99,max,mean}_s`` of the jobs that
            started; ``sojourn_mean_{low,high}_s``, the 95 % interval of the mean by batch means (NaN for fewer than
            200); ``depth_max``; ``drain_s``, from the last call to the end of the run; ``utilisation``, the share of
            the workers' time from the first call to the end of the run that was spent on jobs.
        """
        books, sojourns, interval = self.books(), self.sojourns_s, self.mean_interval()
        p50, p95, p99 = np.quantile(sojourns, [0.5, 0.95, 0.99]) if len(sojourns) else [float("nan")] * 3
        return pd.Series(
            {
                "offered": books.offered,
                "coalesced": books.coalesced,
                "merged": books.merged,
                "jobs": books.offered - books.coalesced - books.merged,
                "run": len(sojourns),
                "shed": books.shed,
                "failed": books.failed,
                "pending": books.pending,
                "running": books.running,
                "sojourn_n": len(sojourns),
                "sojourn_p50_s": float(p50),
                "sojourn_p95_s": float(p95),
                "sojourn_p99_s": float(p99),
                "sojourn_max_s": float(sojourns.max()) if len(sojourns) else float("nan"),
                "sojourn_mean_s": float(sojourns.mean()) if len(sojourns) else float("nan"),
                "sojourn_mean_low_s": float("nan") if interval is None else interval.low,
                "sojourn_mean_high_s": float("nan") if interval is None else interval.high,
                "depth_max": int(self.depth()["depth"].max()),
                "drain_s": self._drain_s(),
                "utilisation": self._utilisation(),
            },
            dtype=object,
        )

    def _drain_s(self) -> float:
        offered = len(self.log.call_outcome)
        last_us = int(self.arrivals_us[offered - 1]) if offered else 0
        return max(0, self.log.end_of_run_us - last_us) / 1e6

    def _utilisation(self) -> float:
        log = self.log
        start_us, end_us = _ints(log.start_us), _ints(log.end_us)
        started = start_us != world.NEVER
        busy_us = np.where(end_us == world.NEVER, log.end_of_run_us, end_us)[started] - start_us[started]
        span_us = log.end_of_run_us - int(self.arrivals_us[0])
        return float(busy_us.sum()) / (self.workers * span_us) if span_us > 0 else float("nan")

    def slo_text(self) -> str:
        """Return in words whether the promise was kept; empty without one.

        A shed job keeps no promise: the share of all jobs that started in time is told too.
        """
        if self.slo is None:
            return ""
        value, limit_s = self.quantile(self.slo.quantile), self.slo.limit_us / 1e6
        in_time = int((self.sojourns_s <= limit_s).sum())
        jobs = len(self.log.job_call)
        verdict = "met" if value <= limit_s else "missed"
        share = f", {in_time / jobs:.1%} of all {jobs:,} jobs started in time" if jobs else ""
        return f"SLO {self.slo}: {verdict} ({seconds_text(value)}){share}"

    @property
    def slo_met(self) -> bool | None:
        """Whether the jobs that started kept the promise; None without one, or without jobs."""
        if self.slo is None or not len(self.sojourns_s):
            return None
        return self.quantile(self.slo.quantile) <= self.slo.limit_us / 1e6

    def caption(self) -> str:
        """Return what a reader needs to run this again: workload, service times, workers, seed."""
        workers = f"{self.workers:,} worker{'' if self.workers == 1 else 's'}"
        until = "" if self.until_us is None else f", until {duration_text(self.until_us)}"
        return f"{self.workload}; service {self.service}; {workers}; seed {self.seed}{until}"

    def __repr__(self) -> str:
        books = self.books()
        joined = f", {books.coalesced + books.merged:,} joined" if books.coalesced + books.merged else ""
        shed = f", {books.shed:,} shed" if books.shed else ""
        left = f", {books.pending + books.running:,} left" if books.pending + books.running else ""
        return (
            f"Result({self.policy}: {books.offered:,} calls{joined}, {len(self.sojourns_s):,} run{shed}{left},"
            f" p99 sojourn {seconds_text(self.quantile(0.99))})"
        )

    def _repr_html_(self) -> str:
        summary = self.summary()
        n = int(summary["sojourn_n"])
        few = "" if n >= FEW else f", too few for a p99 (n = {n:,})"
        rows = [
            (
                "calls",
                f"{summary['offered']:,} offered, {summary['coalesced']:,} coalesced, {summary['merged']:,} merged",
            ),
            (
                "jobs",
                f"{summary['run']:,} run, {summary['shed']:,} shed, {summary['pending']:,} pending,"
                f" {summary['running']:,} running",
            ),
            (
                "sojourn",
                f"p50 {seconds_text(summary['sojourn_p50_s'])}, p95 {seconds_text(summary['sojourn_p95_s'])},"
                f" p99 {seconds_text(summary['sojourn_p99_s'])}, n = {n:,}{few}",
            ),
            ("mean sojourn", self._mean_text(summary)),
            (
                "worst depth",
                f"{summary['depth_max']:,} waiting; drained {seconds_text(summary['drain_s'])} after the last call;"
                f" workers {summary['utilisation']:.1%} busy",
            ),
        ]
        if self.slo is not None:
            rows.append(("SLO", self.slo_text()))
        body = "".join(
            f'<tr><th scope="row" style="text-align:left;padding:1px 12px 1px 0;font-weight:600">{escape(name)}</th>'
            f'<td style="text-align:left;padding:1px 0">{escape(text)}</td></tr>'
            for name, text in rows
        )
        return (
            '<div style="border:1px solid #8886;border-radius:4px;padding:8px 12px;display:inline-block;max-width:48em">'
            f'<div style="font-weight:600">{escape(self.policy)}</div>'
            f'<div style="opacity:.7;font-size:85%">{escape(self.caption())}</div>'
            f'<table style="margin:6px 0;border-collapse:collapse">{body}</table>{self._sparkline()}</div>'
        )

    @staticmethod
    def _mean_text(summary: pd.Series) -> str:
        text = seconds_text(summary["sojourn_mean_s"])
        if np.isnan(summary["sojourn_mean_low_s"]):
            return text
        low, high = (seconds_text(max(0.0, summary[f"sojourn_mean_{end}_s"])) for end in ("low", "high"))
        return f"{text} (95 %: {low} to {high}, {_BATCHES} batches)"

    def _sparkline(self) -> str:
        """Depth over time: the maximum of each pixel, so that no peak is lost."""
        frame = self.depth()
        time_s, depth = frame["time_s"].to_numpy(), frame["depth"].to_numpy()
        edges = np.linspace(0, max(self.duration_s, 1e-6), _WIDTH + 1)
        peaks = []
        for left, right in pairwise(edges):
            first = max(0, int(np.searchsorted(time_s, left, side="right")) - 1)
            last = max(first + 1, int(np.searchsorted(time_s, right, side="left")))
            peaks.append(int(depth[first:last].max()))
        worst = max(peaks)
        points = " ".join(
            f"{x},{_HEIGHT - 2 - (_HEIGHT - 4) * y / max(worst, 1):.1f}" for x, y in enumerate(peaks)
        )
        label = f"jobs waiting over {seconds_text(self.duration_s)}, at most {worst:,}"
        return (
            f'<svg role="img" aria-label="{escape(label)}" width="{_WIDTH}" height="{_HEIGHT}"'
            f' viewBox="0 0 {_WIDTH} {_HEIGHT}"><title>{escape(label)}</title>'
            f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1"/></svg>'
            f'<div style="opacity:.7;font-size:85%">{escape(label)}</div>'
        )


def _ints(column: Any) -> Integers:
    return np.frombuffer(column, dtype=np.int64) if len(column) else np.empty(0, dtype=np.int64)


def _instants_s(column: Any) -> Floats:
    instants_us = _ints(column)
    return np.where(instants_us == world.NEVER, np.nan, instants_us / 1e6)


def _category(codes: NDArray[Any], names: tuple[str, ...]) -> pd.Categorical[str]:
    return pd.Categorical.from_codes(codes, categories=pd.Index(names))


def _reasons(codes: Integers, names: list[str]) -> pd.Categorical[str]:
    known = [*_REASONS, *(name for name in names if name and name not in _REASONS)]
    of = np.array([-1 if not name else known.index(name) for name in names])
    return pd.Categorical.from_codes(of[codes], categories=pd.Index(known))
