"""Results: tables with a specified schema, numbers in short, and a card."""

from __future__ import annotations

import pickle
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flowq.errors import ConfigurationError
from flowq.policy import CoDel, Debounce, Flow, RateLimit
from flowsim import Result, Slo, Workload, exponential, simulate
from flowsim.result import CALL_COLUMNS, JOB_COLUMNS

JOB_TYPES = {
    "job": "int64", "key": "object", "task": "category", "arrival_s": "float64", "eligible_s": "float64",
    "start_s": "float64", "end_s": "float64", "service_s": "float64", "sojourn_s": "float64", "outcome": "category",
    "reason": "category", "calls": "int64",
}  # fmt: skip
CALL_TYPES = {
    "call": "int64", "arrival_s": "float64", "key": "object", "task": "category", "outcome": "category", "job": "int64",
}  # fmt: skip


@pytest.fixture(scope="module")
def shedding() -> Result:
    calls = Workload.bursts("60/s", "1m", on="5s", off="10s", seed=1)
    return simulate(
        Flow(CoDel("50ms", "500ms")), calls, workers=2, service=exponential("50ms"), seed=2, slo="300ms"
    )


def empty() -> Result:
    return simulate(Flow(), Workload(np.array([5_000_000])), service="1s", until="1s", slo="1s")


@pytest.mark.parametrize(
    "make", [lambda: empty(), lambda: simulate(Flow(), Workload.poisson(9, "9s"), service="1s")]
)
def test_the_schema_is_the_same_with_and_without_rows(make: Any) -> None:
    result = make()
    assert tuple(JOB_TYPES) == JOB_COLUMNS
    assert tuple(CALL_TYPES) == CALL_COLUMNS
    assert {name: str(kind) for name, kind in result.jobs.dtypes.items()} == JOB_TYPES
    assert {name: str(kind) for name, kind in result.calls.dtypes.items()} == CALL_TYPES
    assert result.jobs["outcome"].cat.categories.tolist() == [
        "pending",
        "running",
        "succeeded",
        "failed",
        "shed",
    ]
    assert result.jobs["reason"].cat.categories.tolist() == ["rate_limit", "codel"]
    assert result.calls["outcome"].cat.categories.tolist() == ["accepted", "coalesced", "merged"]


def test_an_empty_run_has_numbers_and_a_card() -> None:
    result = empty()
    summary = result.summary()
    assert summary["offered"] == summary["run"] == summary["depth_max"] == 0
    assert np.isnan(summary["sojourn_p99_s"])
    assert result.mean_interval() is None
    assert result.slo_met is None
    assert "none" in result._repr_html_()
    assert "0 calls" in repr(result)


def test_jobs_are_consistent_with_each_other(shedding: Result) -> None:
    jobs = shedding.jobs
    started = jobs["outcome"] == "succeeded"
    shed = jobs["outcome"] == "shed"
    assert started.sum() + shed.sum() == len(jobs)
    assert shed.sum() > 100
    assert np.allclose(jobs["sojourn_s"][started], (jobs["start_s"] - jobs["eligible_s"])[started])
    assert np.allclose(jobs["end_s"][started], (jobs["start_s"] + jobs["service_s"])[started])
    assert jobs["reason"].isna().equals(started)
    assert jobs["sojourn_s"].isna().equals(shed)
    assert (jobs["eligible_s"] == jobs["arrival_s"]).all()


def test_joined_calls_name_the_job_that_answers_them() -> None:
    calls = Workload.poisson("20/s", "1m", seed=1, keys=5)
    result = simulate(Flow(Debounce("1s", "{k}", "4s")), calls, workers=5, service="10ms")
    table = result.calls.merge(
        result.jobs[["job", "key", "arrival_s", "start_s"]], on="job", suffixes=("", "_job")
    )
    assert (table["key"] == table["key_job"]).all()
    assert (table["arrival_s"] >= table["arrival_s_job"]).all()
    assert (table["arrival_s"] < table["start_s"]).all()
    assert result.calls.groupby("job", observed=True).size().tolist() == result.jobs["calls"].tolist()
    assert result.books().merged == len(result.calls) - len(result.jobs)


def test_the_summary_is_what_the_tables_say(shedding: Result) -> None:
    summary, jobs = shedding.summary(), shedding.jobs
    waits = jobs["sojourn_s"].dropna()
    assert summary["offered"] == len(shedding.calls)
    assert summary["run"] == summary["sojourn_n"] == len(waits)
    assert summary["shed"] == (jobs["outcome"] == "shed").sum()
    for q in (50, 95, 99):
        assert summary[f"sojourn_p{q}_s"] == pytest.approx(waits.quantile(q / 100))
    assert summary["sojourn_mean_s"] == pytest.approx(waits.mean())
    assert summary["sojourn_mean_low_s"] < summary["sojourn_mean_s"] < summary["sojourn_mean_high_s"]
    busy = jobs.loc[jobs["start_s"].notna(), "service_s"].sum()
    span = shedding.duration_s - shedding.calls["arrival_s"].iloc[0]
    assert summary["utilisation"] == pytest.approx(busy / (2 * span))
    assert summary["drain_s"] == pytest.approx(jobs["end_s"].max() - shedding.calls["arrival_s"].max())


def test_depth_is_littles_law_and_its_peak_is_the_summarys(shedding: Result) -> None:
    depth, jobs = shedding.depth(), shedding.jobs
    width = np.diff(depth["time_s"])
    area = (depth["depth"].to_numpy()[:-1] * width).sum()
    left = jobs["start_s"].fillna(jobs["end_s"])
    assert area == pytest.approx((left - jobs["eligible_s"]).sum())
    running = (depth["running"].to_numpy()[:-1] * width).sum()
    assert running == pytest.approx(jobs.loc[jobs["start_s"].notna(), "service_s"].sum())
    assert depth["depth"].max() == shedding.summary()["depth_max"]
    assert depth["time_s"].is_monotonic_increasing
    assert depth["time_s"].is_unique
    assert depth.iloc[-1].tolist() == [shedding.duration_s, 0, 0]


def test_a_burst_at_one_instant_is_one_step() -> None:
    result = simulate(Flow(), Workload(np.zeros(10, np.int64)), workers=3, service="1s")
    assert result.depth().to_dict("list") == {
        "time_s": [0.0, 1.0, 2.0, 3.0, 4.0],
        "depth": [7, 4, 1, 0, 0],
        "running": [3, 3, 3, 1, 0],
    }


def test_a_promise_is_told_in_words_and_counts_what_was_shed(shedding: Result) -> None:
    met = shedding.quantile(0.99) <= 0.3
    text = shedding.slo_text()
    assert shedding.slo_met is met
    assert ("met" if met else "missed") in text
    share = (shedding.jobs["sojourn_s"] <= 0.3).sum() / len(shedding.jobs)
    assert f"{share:.1%} of all" in text
    easy = simulate(Flow(), Workload.poisson(1, "1m"), workers=9, service="1ms", slo=(0.5, "1s"))
    assert easy.slo == Slo(0.5, 1_000_000)
    assert easy.slo_text().startswith("SLO p50 sojourn <= 1s: met (0 s)")
    with pytest.raises(ConfigurationError, match="slo quantile must be > 0 and < 1: 2"):
        simulate(Flow(), Workload.poisson(1, "1m"), service="1ms", slo=(2, "1s"))


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        self.seen.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_card_is_closed_html_without_scripts_and_escaped(shedding: Result) -> None:
    for result in (
        shedding,
        simulate(Flow(RateLimit("5/s")), Workload(np.array([0]), name="<script>x"), service="1s"),
    ):
        card = result._repr_html_()
        tags = _Tags()
        tags.feed(card)
        assert tags.open == []
        assert "script" not in tags.seen
        assert "svg" in tags.seen
    card = shedding._repr_html_()
    assert "p99" in card
    assert "SLO" in card
    assert re.search(r'aria-label="jobs waiting over [^"]+, at most \d+"', card)


def test_the_repr_is_one_line(shedding: Result) -> None:
    assert "\n" not in repr(shedding)
    assert re.match(r"Result\(.*: [\d,]+ calls, [\d,]+ run, [\d,]+ shed, p99 sojourn .*\)$", repr(shedding))


def test_results_travel_between_processes(shedding: Result) -> None:
    again = pickle.loads(pickle.dumps(shedding))
    pd.testing.assert_frame_equal(again.jobs, shedding.jobs)
    assert again.caption() == shedding.caption()
