"""Experiments: what they take, and that a comparison compares policies and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flowq import Queue
from flowq.errors import ConfigurationError
from flowq.policy import Coalesce, CoDel, Debounce, Flow, RateLimit
from flowsim import Workload, compare, exponential, simulate

CALLS = Workload.poisson("30/s", "1m", seed=2)


def test_a_change_of_policy_leaves_the_calls_and_their_service_times_as_they_were() -> None:
    both = compare(
        {
            "wait": Flow(),
            "shed": Flow(CoDel("50ms", "500ms")),
            "drop": Flow(RateLimit("20/s", on_excess="drop")),
        },
        CALLS,
        service=exponential("35ms"),
        seed=5,
    )
    first = both["wait"]
    for result in both.results.values():
        assert result.calls[["arrival_s", "key"]].equals(first.calls[["arrival_s", "key"]])
        assert result.jobs["service_s"].tolist() == first.jobs["service_s"].tolist()


def test_more_workers_leave_the_service_times_as_they_were() -> None:
    runs = [simulate(Flow(), CALLS, workers=n, service=exponential("35ms"), seed=5) for n in (1, 7)]
    assert runs[0].service_us.tolist() == runs[1].service_us.tolist()
    assert (
        simulate(Flow(), CALLS, service=exponential("35ms"), seed=6).service_us.tolist()
        != runs[0].service_us.tolist()
    )


def test_a_comparison_is_a_table_of_summaries_and_paired_differences() -> None:
    both = compare(
        {"one": Flow(), "two": Flow(RateLimit("25/s", burst=1))}, CALLS, workers=4, service="10ms", slo="1s"
    )
    table = both.table()
    assert table.index.tolist() == ["one", "two"]
    assert table.loc["one"].to_dict() == both["one"].summary().to_dict()
    difference = both.differences().loc["two"]
    waits = [both[name].jobs["start_s"] - both[name].jobs["arrival_s"] for name in ("one", "two")]
    assert difference["wait_mean_s"] == pytest.approx((waits[1] - waits[0]).mean())
    assert difference["low_s"] < difference["wait_mean_s"] < difference["high_s"]
    assert difference["calls"] == len(CALLS)
    assert "\n" not in repr(both)


def test_a_comparison_marks_the_best_in_words() -> None:
    html = compare(
        {"a": Flow(), "<b>": Flow(RateLimit("25/s"))}, CALLS, workers=4, service="10ms", slo="1s"
    )._repr_html_()
    assert "(best)</strong>" in html
    assert "&lt;b&gt;" in html
    assert "met" in html
    assert "<script" not in html


def test_calls_that_share_no_started_job_have_no_difference() -> None:
    calls = Workload(np.array([0, 1]))
    both = compare({"a": Flow(), "b": Flow()}, calls, service="1s", until="0.001ms")
    assert both.differences().loc["b", "calls"] == 1


def test_progress_is_quiet_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    compare({"a": Flow()}, CALLS, service="1ms")
    assert capsys.readouterr() == ("", "")


def queue_of(*names: str) -> Queue:
    queue = Queue("postgresql://nowhere")
    for name in names:
        queue.task(name=name, queue="default")(lambda: None)
    return queue


@pytest.mark.parametrize(
    ("source", "workload", "options", "error", "message"),
    [
        (Flow(), CALLS, {}, ConfigurationError, "poisson 30/s, seed 2 holds no service times: pass service="),
        (Flow(), CALLS, {"service": "1s", "workers": 0}, ConfigurationError, "workers must be >= 1: 0"),
        (Flow(), CALLS, {"service": "1s", "workers": 1.5}, TypeError, "workers must be a whole number"),
        (Flow(), CALLS, {"service": "1s", "until": 0}, ConfigurationError, "until must be > 0"),
        (Flow(), CALLS, {"service": "1s", "seed": -1}, ConfigurationError, "seed must be >= 0"),
        (Flow(Coalesce()), CALLS, {"service": "1s"}, ConfigurationError, "Coalesce goes by key, and poisson .* has none"),
        (Flow(Debounce("1s", "k", "2s")), CALLS, {"service": "1s"}, ConfigurationError, "Debounce goes by key"),
        ("10/s", CALLS, {"service": "1s"}, TypeError, "simulate takes a Flow, a TaskSpec or a flowq.Queue: '10/s'"),
        (Flow(), [1, 2], {"service": "1s"}, TypeError, "workload must be a Workload"),
        (queue_of(), CALLS, {"service": "1s"}, ConfigurationError, "queue must have a declared task"),
        (queue_of("a", "b"), CALLS, {"service": "1s"}, ConfigurationError, "workload must name the calls of each task"),
        (queue_of("a", "b"), {"a": CALLS}, {"service": "1s"}, ConfigurationError, "'b' is missing"),
        (queue_of("a"), {"a": CALLS, "x": CALLS}, {"service": "1s"}, ConfigurationError, "names 'x', which is no task"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused(
    source: Any, workload: Any, options: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        simulate(source, workload, **options)


def test_tasks_of_two_queues_are_refused() -> None:
    queue = queue_of("a")
    queue.task(name="b", queue="mail")(lambda: None)
    with pytest.raises(
        ConfigurationError, match="one queue is simulated at a time, these tasks wait in default, mail"
    ):
        simulate(queue, {"a": CALLS, "b": CALLS}, service="1s")


def test_a_comparison_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="policies must name at least one"):
        compare({}, CALLS, service="1s")


def test_a_queue_is_simulated_with_the_policies_of_its_tasks_and_its_own() -> None:
    queue = Queue("postgresql://nowhere")
    queue.task(name="sync", rate_limit="20/s")(lambda: None)
    queue.set_queue_codel("default", "50ms", "500ms")
    whole = simulate(queue, CALLS, service="40ms")
    flow = simulate(Flow(RateLimit("20/s"), CoDel("50ms", "500ms")), CALLS, service="40ms")
    assert whole.books().shed == flow.books().shed > 0
    assert whole.log.start_us.tolist() == flow.log.start_us.tolist()
