"""The demonstration's report: one HTML file, pictures inside, no script, nothing fetched from anywhere."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flowsim import plot
from flowsim.result import Result, seconds_text

if TYPE_CHECKING:
    from pathlib import Path

    from flowsim.scene import Demonstration

__all__ = ["burst_figure", "live_row", "simulated_row", "write_report"]

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1a1a1a; background: #fff; max-width: 70rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { margin-top: 2.5rem; font-size: 1.2rem }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; text-align: right; white-space: nowrap }
th:first-child, td:first-child, .left td, .left th { text-align: left } .left td + td { font-family: ui-monospace, monospace; font-size: .9em } thead th { border-bottom: 2px solid #666 }
figure { margin: 1rem 0 } img { max-width: 100%; height: auto } figcaption, .note { color: #555; font-size: .9rem }
code { background: #f3f3f3; padding: .1rem .3rem }
"""


def write_report(found: Demonstration, path: Path) -> None:
    """Write what a demonstration found to one HTML file."""
    results = found.simulated.results
    scene, live = found.scene, found.live
    agreed = sum(report.ok for report in found.conformance.values())
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>One burst, seven policies</title>",
        "<meta name='viewport' content='width=device-width'>",
        f"<style>{_STYLE}</style></head><body><h1>One burst, seven policies</h1>",
        f"<p>{escape(repr(scene.workload))}; {scene.workers} workers; "
        f"{'service as recorded' if scene.service is None else escape(f'service {scene.service}')}. {escape(found.server)}.</p>",
        "<h2>1. What each policy does to the burst</h2>",
        "<p>Simulated, on the same calls with the same service times. <em>Sojourn</em> is the wait from the instant a job "
        "may start to its start; shed and merged calls have none. <em>Drain</em> is from the last call to the last end.</p>",
        _table(_SIMULATED_HEAD, ((name, *simulated_row(result)) for name, result in results.items())),
        _image(burst_figure(results), "Calls (grey) and starts (black) as they add up: the vertical gap is what waits, was merged or shed."),
        _image(_sojourn_figure(results), "Which share of the served jobs started within a time; the faint lines count the shed jobs too, and end below 1."),
        _image(_single(plot.depth, results), "Jobs that wait."),
        _image(_single(plot.shed_timeline, results), "What was shed, and when."),
        "<h2>2. Does production decide the same?</h2>",
        f"<p>The same calls at the same virtual instants through the simulator and through PostgreSQL, compared job by job: "
        f"<strong>{agreed} of {len(found.conformance)} policies without a differing decision</strong>.</p>",
        _table(("policy", "differing decisions", "verdict"), (
            (name, f"{len(report.differences):,}", "identical" if report.ok else report.first()) for name, report in found.conformance.items()
        )),
        "<h2>3. Real workers, in real time</h2>",
        f"<p>{escape(repr(live.workload))}, played as it stands; for each policy a worker process with {live.workers} slots on "
        "PostgreSQL, all at the same time, beside the model's prediction.</p>",
        _table(_LIVE_HEAD, ((name, *live_row(found.predicted[name], real)) for name, real in found.measured.items())),
        _image(_live_figure(found), "Sojourn of served jobs: model (dashed) and production (solid)."),
        "<h2>The policies, to paste into production</h2><p>With <code>from flowq.policy import Coalesce, CoDel, Debounce, Flow, RateLimit</code>; <code>{key}</code> becomes the name of your task's parameter.</p>",
        _table(("policy", "what to write"), ((name, f"@queue.task(flow={flow!r})" if flow.codel is None else f"queue.set_queue_codel('default', {flow.codel!r})") for name, flow in scene.flows.items()), left=True),
        "<p class='note'>Arrivals are open-loop: calls come whatever became of those before. One seed; the notebooks show "
        "intervals over many.</p></body></html>",
    ]  # fmt: skip
    path.write_text("\n".join(parts), encoding="utf-8")


_SIMULATED_HEAD = (
    "policy",
    "offered",
    "run",
    "merged",
    "shed",
    "p50 sojourn",
    "p95",
    "p99",
    "worst depth",
    "drain",
)
_LIVE_HEAD = ("policy", "run: model / real", "merged", "shed", "mean sojourn", "p95 sojourn")


def simulated_row(result: Result) -> list[str]:
    """Return the cells of one policy: counts, quantiles of the sojourn, worst depth, drain time."""
    summary = result.summary()
    return [
        *(f"{summary[name]:,.0f}" for name in ("offered", "run")),
        f"{summary['coalesced'] + summary['merged']:,.0f}",
        f"{summary['shed']:,.0f}",
        *(seconds_text(summary[f"sojourn_{q}_s"]) for q in ("p50", "p95", "p99")),
        f"{summary['depth_max']:,.0f}",
        seconds_text(summary["drain_s"]),
    ]


def live_row(predicted: Result, real: Result) -> list[str]:
    """Return the cells of one policy, each ``model / real``."""
    both = (predicted.summary(), real.summary())
    counts = [
        [f"{sum(each[name] for name in names):,.0f}" for each in both]
        for names in (("run",), ("coalesced", "merged"), ("shed",))
    ]
    times = [[seconds_text(each[name]) for each in both] for name in ("sojourn_mean_s", "sojourn_p95_s")]
    return [" / ".join(pair) for pair in (*counts, *times)]


def burst_figure(results: Mapping[str, Result]) -> Figure:
    """Draw arrivals against starts, one small picture for each policy."""
    columns = 4
    rows = -(-len(results) // columns)
    figure = _figure(3.1 * columns, 2.5 * rows)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    ends_s = max(float(result.jobs["start_s"].max()) for result in results.values()) * 1.02
    for ax, (name, result) in zip(axes.flat, results.items(), strict=False):
        arrivals_s = result.calls["arrival_s"].to_numpy()
        starts_s = np.sort(result.jobs["start_s"].dropna().to_numpy())
        for instants, style in (
            (arrivals_s, {"color": "0.6", "linewidth": 2.4}),
            (starts_s, {"color": "black", "linewidth": 1.3}),
        ):
            steps = np.concatenate([[0.0], instants, [ends_s]])
            counts = np.concatenate([np.arange(len(instants) + 1), [len(instants)]])
            ax.step(steps, counts, where="post", **style)
        ax.set_title(name, fontsize=10, loc="left")
        ax.grid(alpha=0.25)
        ax.set(xlim=(0, ends_s), ylim=(0, None))
    for ax in list(axes.flat)[len(results) :]:
        ax.set_visible(False)
    for row in axes:
        row[0].set_ylabel("calls (grey)\nstarts (black)")
    for n, ax in enumerate(axes.flat):
        if n < len(results) <= n + columns:
            ax.set_xlabel("time (s)")
            ax.tick_params(labelbottom=True)
    return figure


def _sojourn_figure(results: Mapping[str, Result]) -> Figure:
    figure = _figure(9, 4)
    plot.sojourn_cdf(dict(results), figure.subplots())
    return figure


def _single(draw: object, results: Mapping[str, Result]) -> Figure | None:
    if not results:
        return None
    figure = _figure(9, 3.6)
    draw(dict(results), figure.subplots())  # type: ignore[operator]
    return figure


def _live_figure(found: Demonstration) -> Figure:
    columns = 4
    rows = -(-len(found.measured) // columns)
    figure = _figure(3.1 * columns, 2.5 * rows)
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    for ax, (name, real) in zip(axes.flat, found.measured.items(), strict=False):
        for result, style in ((found.predicted[name], "--"), (real, "-")):
            waits = np.sort(result.sojourns_s)
            ax.step(waits, np.arange(1, len(waits) + 1) / max(1, len(waits)), style, where="post", color="black" if style == "-" else "#D55E00", linewidth=1.5)  # fmt: skip
        ax.set_title(name, fontsize=10, loc="left")
        ax.grid(alpha=0.25)
        ax.set(xlim=(0, None), ylim=(0, 1.02), xlabel="sojourn (s)")
    for ax in list(axes.flat)[len(found.measured) :]:
        ax.set_visible(False)
    for row in axes:
        row[0].set_ylabel("share of served jobs")
    return figure


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _image(figure: Figure | None, caption: str) -> str:
    if figure is None:
        return ""
    data = BytesIO()
    figure.savefig(data, format="png", dpi=110)
    text = base64.b64encode(data.getvalue()).decode()
    return f"<figure><img alt='{escape(caption, quote=True)}' src='data:image/png;base64,{text}'><figcaption>{escape(caption)}</figcaption></figure>"


def _table(head: Iterable[str], rows: Iterable[Sequence[str]], *, left: bool = False) -> str:
    cells = "".join(f"<th scope='col'>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    kind = " class='left'" if left else ""
    return f"<table{kind}><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"
