"""The main job: one burst through every policy, in the simulator, on PostgreSQL, and in real time.

It answers three questions in this order. What would each policy do to the burst? Does production decide the same, call
by call? And do real workers, in real time, come out where the model said? The answers are printed, and written to one
HTML file with its pictures inside.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from flowq.policy import Coalesce, CoDel, Debounce, Flow, Rate, RateLimit
from flowq.postgres.server import resolve_server
from flowq.units import duration_text
from flowsim.experiment import Comparison, compare
from flowsim.realtime import in_real_time
from flowsim.report import live_row, simulated_row, write_report
from flowsim.result import Result
from flowsim.service import Service, exponential
from flowsim.validate import ConformanceReport, conformance
from flowsim.workload import Workload

__all__ = ["Demonstration", "Scene", "burst_scene", "demo", "trace_scene"]

_SEED = 1
_WIDTH = 100
"""Columns that the tables need; a narrower terminal folds their lines itself."""
_CONFORMANCE_CALLS = 1_000
_LIVE_CALLS, _LIVE_S = 80, 4.0


class Scene(NamedTuple):
    """Calls, and what serves them."""

    flows: dict[str, Flow]
    workload: Workload
    workers: int
    service: Service | None
    """None: as recorded."""


class Demonstration(NamedTuple):
    """All that the demonstration found."""

    server: str
    scene: Scene
    simulated: Comparison
    conformance: dict[str, ConformanceReport]
    live: Scene
    predicted: Comparison
    measured: dict[str, Result]


def flows_for(limit: RateLimit, window_us: int, target_us: int) -> dict[str, Flow]:
    """Return one flow of each kind, from three numbers: a rate, a quiet time, and a sojourn one can live with."""
    window, max_wait = duration_text(window_us), duration_text(4 * window_us)
    target, interval = duration_text(target_us), duration_text(4 * target_us)
    return {
        "no control": Flow(),
        "throttle": Flow(limit),
        "coalesce": Flow(Coalesce("{key}")),
        "debounce": Flow(Debounce(window, "{key}", max_wait)),
        "CoDel, rfc8289": Flow(CoDel(target, interval)),
        "CoDel, slough": Flow(CoDel(target, interval, law="slough")),
        "throttle, drop": Flow(RateLimit(limit.rate, limit.burst, on_excess="drop")),
    }


_FLOWS = flows_for(RateLimit("15/s", burst=5), 1_000_000, 250_000)


def burst_scene() -> Scene:
    """Half a minute of calls with a spike of 60 a second, for workers that can do 20."""
    workload = Workload.spike("8/s", "60/s", "30s", at="5s", length="5s", seed=_SEED, keys=40, zipf=1.0)
    return Scene(_FLOWS, workload, 2, exponential("100ms"))


def live_scene() -> Scene:
    """A burst of a few seconds, to be played in real time."""
    workload = Workload.spike("8/s", "50/s", "4s", at="1s", length="1.5s", seed=_SEED, keys=12, zipf=1.0)
    return Scene(_FLOWS, workload, 2, exponential("100ms"))


def trace_scene(workload: Workload) -> Scene:
    """Recorded calls, with policies sized from them by rules of thumb that are printed with the answers.

    The limit is 1.25 times the mean rate with a burst of 10; the quiet time is ten mean gaps, at least a second; the
    target is five mean service times; workers carry the mean load at 70 %.
    """
    rate = workload.mean_rate * 1.25
    limit = RateLimit(f"{rate:.3f}/s" if rate >= 1 else Rate(1, f"{1 / rate:.3f}s"), burst=10)
    if workload.service_us is None:
        service_s, service = 0.7 / workload.mean_rate, exponential(f"{0.7 / workload.mean_rate:.6f}s")
        workers = 1
    else:
        service_s, service = float(np.mean(workload.service_us)) / 1e6, None
        workers = max(1, math.ceil(workload.mean_rate * service_s / 0.7))
    window_us = max(1_000_000, round(10e6 / workload.mean_rate))
    return Scene(flows_for(limit, window_us, max(1_000, round(5e6 * service_s))), workload, workers, service)


def busiest(workload: Workload) -> Workload:
    """Return the busiest stretch of a recording, sped up or slowed down to a few seconds."""
    arrivals = workload.arrivals_us
    n = min(_LIVE_CALLS, len(arrivals))
    begin = int(np.argmin(arrivals[n - 1 :] - arrivals[: len(arrivals) - n + 1]))
    stretch = slice(begin, begin + n)
    span_us = max(1, int(arrivals[stretch][-1] - arrivals[begin]))
    scaled = np.round((arrivals[stretch] - arrivals[begin]) * (_LIVE_S * 1e6 / span_us)).astype(np.int64)
    keys = None if workload.keys is None else workload.keys[stretch]
    return Workload(scaled, keys, None, f"{workload.name}, its busiest {n} calls in {_LIVE_S:g} s")


def demo(
    trace: Workload | None = None, *, report: Path = Path("report.html"), dsn: str | None = None
) -> Demonstration:
    """Run the demonstration, print its tables, and write the report.

    Parameters
    ----------
    trace : Workload, optional
        Recorded calls in place of the synthetic burst.
    report : Path
        Where the HTML goes.
    dsn : str, optional
        A PostgreSQL URL; None: as `flowq.Queue` finds one.
    """
    console = Console()
    if console.width < _WIDTH:
        console = Console(width=_WIDTH)
    server = resolve_server(dsn)
    try:
        console.print(server.describe(), highlight=False)
        scene = burst_scene() if trace is None else trace_scene(trace)
        console.print(f"\n[bold]1. In the simulator[/bold]: {scene.workload!r}, {_serving(scene)}")
        compared = simulated(scene)
        console.print(simulated_table(compared))

        first = _first_calls(scene.workload)
        console.print(
            f"\n[bold]2. The same calls on PostgreSQL[/bold], at the same virtual instants: {len(first)} calls"
        )
        reports = {}
        for name, flow in tqdm(scene.flows.items(), desc="conformance", unit="flow", disable=None):
            reports[name] = conformance(
                flow, first, workers=scene.workers, service=scene.service, seed=_SEED, dsn=dsn
            )
        console.print(conformance_table(reports))

        live = live_scene() if trace is None else live_scene()._replace(workload=busiest(scene.workload))
        console.print(
            f"\n[bold]3. In real time[/bold], real workers beside the model: {live.workload!r}, {_serving(live)}"
        )
        given: dict[str, Any] = {"workers": live.workers, "service": live.service, "seed": _SEED}
        predicted = simulated(live)
        measured = in_real_time(live.flows, live.workload, **given, dsn=dsn)
        console.print(live_table(predicted, measured))

        found = Demonstration(server.describe(), scene, compared, reports, live, predicted, measured)
        write_report(found, report)
        console.print(f"\nThe report, with pictures: [bold]{report}[/bold]")
        return found
    finally:
        server.release()


def _first_calls(workload: Workload) -> Workload:
    if len(workload) <= _CONFORMANCE_CALLS:
        return workload
    n = slice(0, _CONFORMANCE_CALLS)
    keys = None if workload.keys is None else workload.keys[n]
    service_us = None if workload.service_us is None else workload.service_us[n]
    return Workload(
        workload.arrivals_us[n], keys, service_us, f"{workload.name}, its first {_CONFORMANCE_CALLS} calls"
    )


def _serving(scene: Scene) -> str:
    service = "service as recorded" if scene.service is None else f"service {scene.service}"
    return f"{scene.workers} worker{'s' if scene.workers > 1 else ''}, {service}"


def simulated(scene: Scene | None = None) -> Comparison:
    """Run a scene in the simulator; by default the synthetic burst's."""
    scene = scene or burst_scene()
    return compare(scene.flows, scene.workload, workers=scene.workers, service=scene.service, seed=_SEED)


def simulated_table(simulated: Comparison) -> Table:
    """Return the main table: what each policy did to the burst."""
    table = _table("offered", "run", "merged", "shed", "p50", "p95", "p99", "worst depth", "drain")
    for name, result in simulated.results.items():
        table.add_row(name, *simulated_row(result))
    return table


def conformance_table(reports: dict[str, ConformanceReport]) -> Table:
    """Return what the comparison of the two worlds found."""
    table = _table("differing decisions", "verdict")
    for name, report in reports.items():
        table.add_row(name, f"{len(report.differences):,}", "identical" if report.ok else report.first())
    return table


def live_table(predicted: Comparison, measured: dict[str, Result]) -> Table:
    """Return model and production side by side, each cell ``model / real``."""
    table = _table("run", "merged", "shed", "mean sojourn", "p95", title="model / real")
    for name, real in measured.items():
        table.add_row(name, *live_row(predicted[name], real))
    return table


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, padding=(0, 1))
    table.add_column("policy", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    return table
