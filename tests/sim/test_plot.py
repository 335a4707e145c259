"""Plots: they return their axes, draw what the tables say, and touch nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("agg")
import matplotlib.pyplot as plt

from flowq.policy import CoDel, Flow, RateLimit
from flowsim import Comparison, Result, Workload, compare, plot, simulate

CALLS = Workload.bursts("60/s", "1m", on="5s", off="10s", seed=1)
EVERY = pytest.mark.parametrize("draw", [plot.cumulative, plot.depth, plot.sojourn_cdf, plot.shed_timeline])


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def shedding() -> Result:
    return simulate(Flow(CoDel("50ms", "500ms")), CALLS, workers=2, service="50ms", slo="300ms")


@pytest.fixture(scope="module")
def both() -> Comparison:
    return compare({"codel": Flow(CoDel("50ms", "500ms")), "drop": Flow(RateLimit("30/s", on_excess="drop"))}, CALLS,
                   workers=2, service="50ms", slo="300ms")  # fmt: skip


@EVERY
def test_axes_come_back_with_units_and_a_caption(draw, shedding: Result, both: Comparison) -> None:  # type: ignore[no-untyped-def]
    before = dict(mpl.rcParams)
    for results in (shedding, both, dict(both.results)):
        own = plt.figure().add_subplot()
        assert draw(results, ax=own) is own
        assert "(s)" in own.get_xlabel() or "second" in own.get_ylabel()
        assert own.get_ylabel()
        assert any("seed 1" in text.get_text() and "seed 0" in text.get_text() for text in own.texts)
        own.figure.canvas.draw()
    assert draw(shedding) is not own
    assert dict(mpl.rcParams) == before


@EVERY
def test_curves_of_a_comparison_differ_without_colour(draw, both: Comparison) -> None:  # type: ignore[no-untyped-def]
    ax = draw(both)
    looks = [
        (line.get_linestyle(), line.get_marker()) for line in ax.get_lines() if line.get_label()[0] != "_"
    ]
    assert len(set(map(str, looks))) >= 2
    assert ax.get_legend() is not None


def test_cumulative_counts_calls_and_starts(shedding: Result) -> None:
    arrivals, starts = plot.cumulative(shedding).get_lines()
    assert arrivals.get_drawstyle() == starts.get_drawstyle() == "steps-post"
    assert arrivals.get_ydata()[-1] == len(shedding.calls)
    assert starts.get_ydata()[-1] == shedding.jobs["start_s"].notna().sum()
    x, y = starts.get_data()
    at = 20.0
    drawn = y[np.searchsorted(x, at, side="right") - 1]
    assert drawn == (shedding.jobs["start_s"] <= at).sum()


def test_depth_keeps_its_peak_however_many_steps_there_are(shedding: Result) -> None:
    [line] = plot.depth(shedding).get_lines()
    assert max(line.get_ydata()) == shedding.summary()["depth_max"]
    long = simulate(Flow(), Workload.poisson("90/s", "3m", seed=1), service="10ms")
    assert len(long.depth()) > 4_000
    [line] = plot.depth(long).get_lines()
    assert len(line.get_xdata()) <= 2_000
    assert max(line.get_ydata()) == long.summary()["depth_max"]


def test_sojourns_are_shown_of_served_and_of_all(shedding: Result) -> None:
    ax = plot.sojourn_cdf(shedding)
    served, everything = ax.get_lines()[:2]
    assert served.get_ydata()[-1] == 1
    assert everything.get_ydata()[-1] == pytest.approx(shedding.summary()["run"] / len(shedding.jobs))
    assert served.get_xdata()[-1] == pytest.approx(shedding.summary()["sojourn_max_s"])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert any("of served" in label for label in labels)
    assert any("of all" in label for label in labels)
    assert any("SLO p99 sojourn <= 300ms" in label for label in labels)
    verticals = [line.get_xdata() for line in ax.get_lines() if len(set(line.get_xdata())) == 1]
    assert [0.3, 0.3] in [list(x) for x in verticals]
    assert plot.sojourn_cdf(shedding, log=True).get_xscale() == "log"


def test_sheds_are_counted_by_reason(shedding: Result, both: Comparison) -> None:
    n = shedding.books().shed
    ax = plot.shed_timeline(shedding)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [f"codel: {n:,} shed"]
    rates = ax.get_lines()[0]
    width = np.diff(rates.get_xdata())[0]
    assert np.asarray(rates.get_ydata())[:-1].sum() * width == pytest.approx(n)
    assert len(ax.get_lines()[1].get_xdata()) == n
    assert len(plot.shed_timeline(both).get_legend().get_texts()) == 2


def test_nothing_shed_is_said() -> None:
    ax = plot.shed_timeline(simulate(Flow(), Workload.poisson(1, "9s"), service="1ms"))
    assert any("nothing was shed" in text.get_text() for text in ax.texts)


@EVERY
def test_an_empty_run_can_be_drawn(draw) -> None:  # type: ignore[no-untyped-def]
    empty = simulate(Flow(), Workload(np.array([5_000_000])), service="1s", until="1s", slo="1s")
    draw(empty).figure.canvas.draw()


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(TypeError, match="a plot takes a Result"):
        plot.depth([1, 2])  # type: ignore[arg-type]
