"""The main job: tables, conformance, real workers beside the model, and a report that needs nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from flowq.errors import ConfigurationError
from flowq.policy import Coalesce, CoDel, Debounce, Flow, RateLimit
from flowsim import Workload, compare, constant
from flowsim.cli.commands import read_trace
from flowsim.crew import Crew
from flowsim.demo import demo
from flowsim.realtime import in_real_time
from flowsim.result import CALL_COLUMNS, JOB_COLUMNS
from flowsim.scene import busiest, flows_for, trace_scene


@pytest.mark.slow
def test_the_demonstration_agrees_with_production_and_writes_a_report(
    database_url: str, tmp_path: Path
) -> None:
    found = demo(report=tmp_path / "report.html", dsn=database_url)
    assert all(report.ok for report in found.conformance.values())
    assert list(found.measured) == list(found.scene.flows)
    for name, real in found.measured.items():
        books = real.books()
        assert books.offered == found.predicted[name].books().offered
        assert books.pending == books.running == books.failed == 0
    text = (tmp_path / "report.html").read_text()
    assert len(re.findall("<img ", text)) == 5
    assert not re.search(r"(src|href)=['\"](?!data:)", text), "the report asks nobody for anything"
    assert "<script" not in text


def test_real_workers_do_what_the_model_says(database_url: str) -> None:
    """Counts that do not hang on milliseconds are equal; what is recorded has the simulation's columns."""
    calls = Workload(
        np.array([0, 0, 0, 0, 100_000, 200_000]), np.array(["a", "a", "b", "b", "a", "c"]), None, "six calls"
    )
    flows = {
        "plain": Flow(),
        "throttle": Flow(RateLimit("10/s", burst=1)),
        "drop": Flow(RateLimit("1/m", burst=2, on_excess="drop")),
        "coalesce": Flow(Coalesce()),
        "debounce": Flow(Debounce("700ms", "any:{user}", "2s")),
        "codel": Flow(CoDel("5s", "50s")),
    }
    given = {"workers": 2, "service": constant("400ms"), "seed": 0}
    model = compare(flows, calls, **given)
    real = in_real_time(flows, calls, **given, dsn=database_url)
    for name, result in real.items():
        assert result.books() == model[name].books(), name
        assert tuple(result.jobs.columns) == JOB_COLUMNS
        assert tuple(result.calls.columns) == CALL_COLUMNS
        assert result.calls["outcome"].tolist() == model[name].calls["outcome"].tolist()
    starts_s = np.sort(real["throttle"].jobs["start_s"])
    assert (np.diff(starts_s) >= 0.1 - 1e-9).all()
    assert set(real["drop"].jobs["reason"].dropna()) == {"rate_limit"}


def test_a_crew_survives_its_journey_to_a_worker_process() -> None:
    for flow in flows_for(RateLimit("15/s", burst=5), 1_000_000, 250_000).values():
        crew = Crew("postgresql://x", "n", flow, 2)
        assert Crew.from_json(crew.to_json()) == crew


def test_a_trace_is_sized_by_rules_of_thumb() -> None:
    frame = pd.DataFrame({"t_s": np.arange(0, 100, 0.5), "service_s": 1.0})
    scene = trace_scene(Workload.from_frame(frame, service="service_s"))
    assert (scene.workers, scene.service) == (3, None)
    limit = scene.flows["throttle"].rate_limit
    assert limit is not None
    assert (str(limit.rate), limit.burst) == (f"{1.25 * scene.workload.mean_rate:.3f}/s", 10)
    slow = trace_scene(Workload.from_frame(frame.assign(t_s=frame["t_s"] * 1000)))
    limit = slow.flows["throttle"].rate_limit
    assert limit is not None
    per_s = float(limit.rate.count / limit.rate.per_us * 1_000_000)
    assert per_s == pytest.approx(1.25 * slow.workload.mean_rate, rel=1e-3)


def test_the_busiest_stretch_is_played_in_seconds() -> None:
    arrivals = np.concatenate([np.arange(0, 50), 60 + np.arange(0, 10, 0.1), 100 + np.arange(0, 50)])
    stretch = busiest(Workload.from_frame(pd.DataFrame({"t_s": arrivals})))
    assert len(stretch) == 80
    assert (stretch.arrivals_us[0], stretch.arrivals_us[-1]) == (0, 4_000_000)


def test_the_usual_columns_of_a_trace_are_found(tmp_path: Path) -> None:
    path = tmp_path / "calls.csv"
    pd.DataFrame({"t_s": [0.0, 1.0], "user": [7, 8], "service_s": [0.5, 0.25]}).to_csv(path, index=False)
    workload = read_trace(path, "t_s", None, None)
    assert workload.keys is not None
    assert workload.service_us is not None
    assert workload.service_us.tolist() == [500_000, 250_000]
    with pytest.raises(ConfigurationError, match="trace must be a file"):
        read_trace(tmp_path / "none.csv", "t_s", None, None)
