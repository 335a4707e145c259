"""Plots: each takes results and axes, draws what was computed elsewhere, and returns the axes.

Every function takes a `flowsim.Result`, a `flowsim.Comparison`, or a dict of results by name; ``ax`` None draws on new
axes. Line styles differ as well as colours (Okabe and Ito's), so the plots can be told apart in grey. No global style
is touched. The caption, top right, says what a reader needs to run it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flowq.units import shown
from flowsim.experiment import Comparison
from flowsim.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["cumulative", "depth", "shed_timeline", "sojourn_cdf"]

Results: TypeAlias = Result | Comparison | Mapping[str, Result]

_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES: Final[tuple[Any, ...]] = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)))
_GREY: Final = "0.35"
_PIXELS: Final = 2_000
_RATE_BINS: Final = 60


def cumulative(results: Results, ax: Axes | None = None) -> Axes:
    """Draw arrivals and starts as they add up.

    The vertical gap is what waits, was joined or was shed; the horizontal gap is the wait of jobs that start in order.

    Parameters
    ----------
    results : Result, Comparison or dict of str to Result
        Arrivals are drawn once: a comparison's are the same.
    ax : matplotlib Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from flowq.policy import Flow, RateLimit
    >>> from flowsim import Workload, simulate
    >>> result = simulate(Flow(RateLimit("5/s")), Workload.poisson("8/s", "30s"), workers=10, service="1s")
    >>> ax = cumulative(result)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('time (s)', 'calls and jobs, so far')
    """
    ax = _axes(ax)
    named = _named(results)
    first = named[0][1]
    arrivals_s = first.calls["arrival_s"].to_numpy()
    ax.step(
        *_counted(arrivals_s, first.duration_s), where="post", color=_GREY, linewidth=1.0, label="arrivals"
    )
    for (name, result), style in zip(named, _looks(), strict=False):
        starts_s = np.sort(result.jobs["start_s"].dropna().to_numpy())
        label = "starts" if name is None else f"starts, {name}"
        ax.step(*_counted(starts_s, result.duration_s), where="post", label=label, **style)
    ax.set(xlabel="time (s)", ylabel="calls and jobs, so far", ylim=(0, None))
    return _finish(ax, named, "upper left")


def depth(results: Results, ax: Axes | None = None) -> Axes:
    """Draw how many jobs wait: eligible and not started.

    Parameters
    ----------
    results, ax
        As for `cumulative`.

    Notes
    -----
    Of many steps, each pixel shows its largest: a peak is never lost.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from flowq.policy import CoDel, Flow
    >>> from flowsim import Workload, simulate
    >>> result = simulate(Flow(CoDel("50ms", "500ms")), Workload.poisson("30/s", "20s"), service="40ms")
    >>> depth(result).get_ylabel()
    'jobs waiting'
    """
    ax = _axes(ax)
    named = _named(results)
    for (name, result), style in zip(named, _looks(), strict=False):
        frame = result.depth()
        times_s, waiting = _peaks(frame["time_s"].to_numpy(), frame["depth"].to_numpy())
        ax.step(times_s, waiting, where="post", label=name or "waiting", **style)
    ax.set(xlabel="time (s)", ylabel="jobs waiting", ylim=(0, None))
    return _finish(ax, named, "upper left", legend=len(named) > 1)


def sojourn_cdf(results: Results, ax: Axes | None = None, *, log: bool = False) -> Axes:
    """Draw which share of the jobs started within which time.

    Where jobs were shed or still wait there are two curves: "of served" counts the jobs that started, "of all" every
    job, so that what was shed can't flatter it. A promise (``slo``) is a vertical line; the horizontal is its quantile.

    Parameters
    ----------
    results, ax
        As for `cumulative`.
    log : bool
        A logarithmic axis, without the jobs that started at once.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from flowq.policy import CoDel, Flow
    >>> from flowsim import Workload, simulate
    >>> result = simulate(Flow(CoDel("50ms", "500ms")), Workload.poisson("30/s", "20s"), service="40ms")
    >>> sojourn_cdf(result).get_ylabel()
    'share of jobs'
    """
    ax = _axes(ax)
    named = _named(results)
    for (name, result), style in zip(named, _looks(), strict=False):
        waits_s = np.sort(result.sojourns_s)
        n = len(waits_s)
        jobs = len(result.log.job_call)
        prefix = "" if name is None else f"{name}, "
        if n:
            x = np.concatenate([[0.0], waits_s])
            y = np.concatenate([[0.0], np.arange(1, n + 1)])
            ax.step(x, y / n, where="post", label=f"{prefix}of served, n = {n:,}", **style)
            if n < jobs:
                faint = {**style, "linewidth": 0.9, "alpha": 0.7}
                ax.step(
                    x,
                    y / jobs,
                    where="post",
                    label=f"{prefix}of all, n = {jobs:,}",
                    marker=".",
                    markevery=0.1,
                    **faint,
                )
    slos = {result.slo for _, result in named if result.slo is not None}
    for slo in sorted(slos):
        ax.axvline(slo.limit_us / 1e6, color=_GREY, linewidth=0.9, linestyle=(0, (2, 2)))
        ax.axhline(slo.quantile, color=_GREY, linewidth=0.5, linestyle=(0, (2, 2)), label=f"SLO {slo}")
    if log:
        ax.set_xscale("log")
    ax.set(xlabel="sojourn: start - eligible (s)", ylabel="share of jobs", ylim=(0, 1.02))
    return _finish(ax, named, "lower right")


def shed_timeline(results: Results, ax: Axes | None = None) -> Axes:
    """Draw when jobs were shed, and why: a rug of single sheds, and their rate, one look a reason.

    Parameters
    ----------
    results, ax
        As for `cumulative`.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("agg")
    >>> from flowq.policy import CoDel, Flow
    >>> from flowsim import Workload, simulate
    >>> result = simulate(Flow(CoDel("50ms", "500ms")), Workload.poisson("30/s", "20s"), service="40ms")
    >>> shed_timeline(result).get_ylabel()
    'sheds per second (bins of 0.335 s)'
    """
    ax = _axes(ax)
    named = _named(results)
    series = []
    # One look a policy, as in the other pictures; of a single result, one a reason.
    for (name, result), look in zip(named, _looks(), strict=False):
        shed = result.jobs[result.jobs["outcome"] == "shed"]
        for reason, own in zip(shed["reason"].cat.categories, _looks(), strict=False):
            instants_s = np.sort(shed.loc[shed["reason"] == reason, "end_s"].to_numpy())
            if len(instants_s):
                label = reason if name is None else f"{name}, {reason}"
                series.append((label, instants_s, own if name is None else look))
    end_s = max(result.duration_s for _, result in named)
    edges = np.linspace(0, end_s if end_s > 0 else 1.0, _RATE_BINS + 1)
    width_s = edges[1]
    top = 1.0
    for label, instants_s, style in series:
        rates = np.histogram(instants_s, edges)[0] / width_s
        top = max(top, float(rates.max()))
        steps = np.concatenate([rates, rates[-1:]])
        ax.step(edges, steps, where="post", label=f"{label}: {len(instants_s):,} shed", **style)
    ticks = [tick for tick in ax.get_yticks() if 0 <= tick <= top]
    for row, (_, instants_s, style) in enumerate(series):
        level = -top * 0.05 * (row + 1)
        ax.plot(
            instants_s, np.full(len(instants_s), level), "|", color=style["color"], markersize=5, alpha=0.5
        )
    if series:
        ax.set_yticks(ticks)  # below 0 is the rug
    if not series:
        ax.text(0.5, 0.5, "nothing was shed", transform=ax.transAxes, ha="center", color=_GREY)
    ax.axhline(0, color=_GREY, linewidth=0.5)
    ax.set(xlabel="time (s)", ylabel=f"sheds per second (bins of {width_s:.3g} s)", xlim=(0, edges[-1]))
    return _finish(ax, named, "upper right", legend=bool(series))


# --- what they share -----------------------------------------------------------------------------------------------


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(7.0, 3.6), layout="constrained")[1]


def _named(results: Results) -> list[tuple[str | None, Result]]:
    if isinstance(results, Result):
        return [(None, results)]
    if isinstance(results, Comparison):
        results = results.results
    if not isinstance(results, Mapping) or not results:
        raise TypeError(f"a plot takes a Result, a Comparison or a dict of results by name: {shown(results)}")
    return [(str(name), result) for name, result in results.items()]


def _looks() -> Iterator[dict[str, Any]]:
    index = 0
    while True:
        yield {
            "color": _COLOURS[index % len(_COLOURS)],
            "linestyle": _STYLES[index % len(_STYLES)],
            "linewidth": 1.5,
        }
        index += 1


def _counted(
    instants_s: NDArray[np.float64], end_s: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Instants and how many there were so far, from 0 to the end."""
    x = np.concatenate([[0.0], instants_s, [max(end_s, instants_s[-1] if len(instants_s) else 0.0)]])
    y = np.concatenate([[0.0], np.arange(1.0, len(instants_s) + 1), [len(instants_s)]])
    return x, y


def _peaks(
    times_s: NDArray[np.float64], values: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """At most so many steps as can be seen, each the largest of those it stands for."""
    if len(times_s) <= _PIXELS:
        return times_s, values
    edges = np.linspace(times_s[0], times_s[-1], _PIXELS + 1)[:-1]
    first = np.searchsorted(times_s, edges, side="right") - 1
    # A bin without a step of its own shows the step that holds through it.
    return edges, np.maximum.reduceat(values, first)


def _finish(ax: Axes, named: list[tuple[str | None, Result]], where: Any, *, legend: bool = True) -> Axes:
    if legend:
        ax.legend(loc=where, fontsize="small", frameon=False)
    result = named[0][1]
    caption = result.caption() if len(named) > 1 else f"{result.policy}\n{result.caption()}"
    ax.text(1.0, 1.01, caption, transform=ax.transAxes, ha="right", va="bottom", fontsize=7.5, color=_GREY)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax
