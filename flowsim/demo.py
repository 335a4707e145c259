"""The main job: one burst through every policy, in the simulator, on PostgreSQL, and in real time.

It answers three questions in this order. What would each policy do to the burst? Does production decide the same, call
by call? And do real workers, in real time, come out where the model said? The answers are printed, and written to one
HTML file with its pictures inside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from flowq.policy import RateLimit
from flowq.postgres.server import resolve_server
from flowsim.experiment import Comparison
from flowsim.realtime import in_real_time
from flowsim.report import live_row, simulated_row, write_report
from flowsim.result import Result
from flowsim.scene import (
    SEED,
    Demonstration,
    burst_scene,
    busiest,
    first_calls,
    live_scene,
    simulated,
    trace_scene,
)
from flowsim.validate import ConformanceReport, conformance
from flowsim.workload import Workload

__all__ = ["demo"]

_WIDTH = 100
"""Columns that the tables need; a narrower terminal folds their lines itself."""
_CONFORMANCE_CALLS = 1_000


def demo(
    trace: Workload | None = None,
    *,
    report: Path = Path("report.html"),
    dsn: str | None = None,
    limit: RateLimit | None = None,
    workers: int | None = None,
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
    limit : RateLimit, optional
        That of the throttled policies; None: as the scene has it.
    workers : int, optional
        How many serve the simulated calls; None: as the scene has it.
    """
    console = Console()
    if console.width < _WIDTH:
        console = Console(width=_WIDTH)
    server = resolve_server(dsn)
    try:
        console.print(server.describe(), highlight=False)
        scene = (burst_scene() if trace is None else trace_scene(trace)).with_(limit, workers)
        console.print(f"\n[bold]1. In the simulator[/bold]: {scene.workload!r}, {scene.serving}")
        compared = simulated(scene)
        console.print(simulated_table(compared))
        console.print(
            "sojourn: from the instant a job may start (a debounced one: its deadline) to its start"
        )
        for name, flow in scene.flows.items():
            console.print(f"  {name}: {flow.describe()}", highlight=False)

        first = first_calls(scene.workload, _CONFORMANCE_CALLS)
        console.print(
            f"\n[bold]2. The same calls on PostgreSQL[/bold], at the same virtual instants: {len(first)} calls"
        )
        reports = {}
        for name, flow in tqdm(scene.flows.items(), desc="conformance", unit="flow", disable=None):
            reports[name] = conformance(
                flow, first, workers=scene.workers, service=scene.service, seed=SEED, dsn=dsn
            )
        console.print(conformance_table(reports))

        live = live_scene() if trace is None else live_scene()._replace(workload=busiest(scene.workload))
        console.print(
            f"\n[bold]3. In real time[/bold], real workers beside the model: {live.workload!r}, {live.serving}"
        )
        given: dict[str, Any] = {"workers": live.workers, "service": live.service, "seed": SEED}
        if trace is not None:
            console.print(
                "(your calls at their busiest, stretched or squeezed to seconds; their own times would take too long)"
            )
        predicted = simulated(live)
        measured = in_real_time(live.flows, live.workload, **given, dsn=dsn)
        console.print(live_table(predicted, measured))

        found = Demonstration(server.describe(), scene, compared, reports, live, predicted, measured)
        write_report(found, report)
        console.print(f"\nThe report, with pictures: [bold]{report}[/bold]")
        return found
    finally:
        server.release()


def simulated_table(simulated: Comparison) -> Table:
    """Return the main table: what each policy did to the burst."""
    table = _table("offered", "run", "merged", "shed", "p50 sojourn", "p95", "p99", "worst depth", "drain")
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
