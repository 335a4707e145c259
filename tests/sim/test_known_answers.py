"""The known answers through whole simulations: decisions exact, closed forms within four standard errors.

The seeds are fixed, so a failure is a change and no chance. Standard errors are those of batch means. The runs marked
slow are ten times as long, and so three times as sharp.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowq.policy import Coalesce, CoDel, Debounce, Flow, Rate, RateLimit
from flowsim import Result, Workload, batch_means, constant, exponential, simulate

Case = dict[str, Any]

_FILE = Path(__file__).parent.parent / "data" / "known_answers.json"
CASES: list[Case] = json.loads(_FILE.read_text(encoding="utf-8"))["cases"]
UNLIMITED = 100_000
"""Workers that are never all busy; calls that take no time need but a few."""
FOREVER = "365d"
SEED = 20


def cases(prefix: str) -> list[Any]:
    chosen = [case for case in CASES if case["id"].startswith(prefix)]
    assert chosen, prefix
    return [pytest.param(case, id=case["id"]) for case in chosen]


def exactly(prefix: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases(prefix))


def statistically(prefix: str, calls: int) -> Any:
    """Each case with so many calls, and with ten times as many."""
    sizes = [pytest.param(calls, id="short"), pytest.param(10 * calls, id="long", marks=pytest.mark.slow)]

    def marked(test: Any) -> Any:
        long = pytest.mark.timeout(600)(pytest.mark.parametrize("calls", sizes)(test))
        return pytest.mark.parametrize("case", cases(prefix))(long)

    return marked


def poisson(rate: float, calls: int, **keys: Any) -> Workload:
    """About so many calls; of a million seconds at most, so that rates may be small."""
    return Workload.poisson(rate, calls / rate, seed=SEED, **keys)


def limit_of(inputs: Case, on_excess: str = "defer") -> RateLimit:
    """``20/3`` tokens a second is 20 in three seconds; a rate under one a second likewise."""
    rate = Fraction(str(inputs["token_rate"]))
    return RateLimit(Rate(rate.numerator, rate.denominator), inputs["burst"], on_excess)  # type: ignore[arg-type]


def instants(result: Result, column: str = "start_us") -> list[int]:
    return getattr(result.log, column).tolist()  # type: ignore[no-any-return]


def agrees(values: Iterable[float], truth: float) -> None:
    """Within four standard errors; of a sample that never varies, which has none, within a millionth."""
    sample = np.fromiter(values, dtype=np.float64)
    if np.ptp(sample) == 0:
        assert sample[0] == pytest.approx(truth, rel=1e-6)
        return
    interval = batch_means(sample)
    assert interval.distance(truth) <= 4, f"{interval} against {truth}"


# --- rate limit ----------------------------------------------------------------------------------------------------


@exactly("token-bucket-burst-")
def test_a_burst_starts_as_the_bucket_says(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    burst = Workload(np.zeros(inputs["jobs"], np.int64))
    result = simulate(Flow(limit_of(inputs)), burst, workers=4, service=0)
    starts_s = result.jobs["start_s"]
    assert starts_s.max() == pytest.approx(expected["last_dispatch_s"], abs=1e-9)
    assert result.summary()["sojourn_mean_s"] == pytest.approx(expected["mean_delay_s"], abs=1e-9)
    assert (starts_s == 0).sum() == expected["dispatched_at_zero"]


@exactly("gcra-seq")
def test_each_arrival_of_a_short_sequence_is_decided_as_known(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    arrivals = Workload(np.array(inputs["arrivals_us"]))
    dropping = simulate(Flow(limit_of(inputs, "drop")), arrivals, workers=99, service="1h")
    assert [int(start >= 0) for start in instants(dropping)] == expected["accept_if_dropping"]
    delaying = simulate(Flow(limit_of(inputs)), arrivals, workers=99, service="1h")
    assert instants(delaying) == expected["dispatch_us_if_delaying"]


@exactly("gcra-lcg")
def test_each_arrival_of_a_long_sequence_is_decided_as_known(case: Case) -> None:
    inputs, expected = case["inputs"], case["expected"]
    x, now_us, arrivals_us = inputs["seed"], 0, []
    for _ in range(inputs["n"]):
        x = (1103515245 * x + 12345) % 2**31
        now_us += ((x >> 16) % inputs["m"]) * inputs["scale"]
        arrivals_us.append(now_us)
    arrivals = Workload(np.array(arrivals_us))

    dropping = simulate(Flow(limit_of(inputs, "drop")), arrivals, workers=4, service=0)
    decisions = [int(start >= 0) for start in instants(dropping)]
    assert sum(decisions) == expected["accepted"]
    assert sha256(bytes(decisions)).hexdigest() == expected["sha256_of_decision_bytes"]

    delaying = simulate(Flow(limit_of(inputs)), arrivals, workers=4, service=0)
    delays_us = np.array(instants(delaying)) - np.array(arrivals_us)
    tolerance_us = case["tolerance"]["us_abs"]
    assert abs(instants(delaying)[-1] - expected["delaying_last_dispatch_us"]) <= tolerance_us
    assert abs(delays_us.mean() - expected["delaying_mean_delay_us"]) <= tolerance_us
    assert (delays_us > 0).sum() == expected["delaying_count_delayed"]


@statistically("token-bucket-drop", 20_000)
def test_a_dropping_bucket_loses_its_share(case: Case, calls: int) -> None:
    inputs, expected = case["inputs"], case["expected"]
    flow = Flow(RateLimit(Rate(10, "1s"), inputs["burst"], "drop"))
    result = simulate(flow, poisson(10 * inputs["offered_load"], calls), workers=4, service=0)
    agrees(result.jobs["outcome"] == "shed", expected["P_drop"])


@statistically("token-bucket-delay", 20_000)
def test_a_delaying_bucket_delays_as_known(case: Case, calls: int) -> None:
    inputs, expected = case["inputs"], case["expected"]
    flow = Flow(limit_of(inputs))
    result = simulate(flow, poisson(inputs["arrival_rate"], calls), workers=4, service=0)
    agrees(result.sojourns_s, expected["mean_delay"])
    agrees(result.sojourns_s > 0, expected["P_delayed"])


# --- debounce ------------------------------------------------------------------------------------------------------


@exactly("debounce-seq")
def test_debounce_fires_when_and_for_which_calls_is_known(case: Case) -> None:
    inputs = case["inputs"]
    flow = Flow(Debounce(inputs["wait"], "{k}", inputs["max_wait"] or FOREVER))
    events = Workload(
        np.array([round(at * 1e6) for at in inputs["events"]]), np.zeros(len(inputs["events"]), int)
    )
    result = simulate(flow, events, workers=99, service="1h")
    covered = result.calls.groupby("job")["call"].agg(list)
    assert list(map(list, zip(result.jobs["start_s"], covered, strict=True))) == case["expected"]["fires"]


@statistically("debounce-lam", 20_000)
def test_debounce_fires_as_often_and_as_late_as_known(case: Case, calls: int) -> None:
    inputs, expected = case["inputs"], case["expected"]
    if expected["fires_per_event"] < 0.05:
        calls *= 5
    events = poisson(inputs["event_rate"], calls, keys=1)
    flow = Flow(Debounce(inputs["wait"], "{k}", inputs.get("max_wait", FOREVER)))
    result = simulate(flow, events, workers=4, service=0)
    log = result.log
    # The last window is no window like others: no call comes after it.
    waits_us = np.array(log.start_us[:-1]) - result.arrivals_us[log.job_call[:-1]]
    event_waits_us = np.array(log.start_us)[log.call_job] - result.arrivals_us
    agrees(result.calls["outcome"] == "accepted", expected["fires_per_event"])
    agrees(log.calls[:-1], expected["E_N"])
    agrees(waits_us / 1e6, expected["E_first_wait"])
    agrees(event_waits_us / 1e6, expected["E_event_wait"])
    if "P_forced" in expected:
        agrees(waits_us == inputs["max_wait"] * 1_000_000, expected["P_forced"])


# --- coalesce ------------------------------------------------------------------------------------------------------


@statistically("coalesce-inflight", 20_000)
@pytest.mark.parametrize("service", [exponential, constant])
def test_calls_coalesce_while_a_job_lives_whatever_the_law_of_its_life(
    case: Case, calls: int, service: Any
) -> None:
    inputs, expected = case["inputs"], case["expected"]
    events = poisson(inputs["event_rate"], calls, keys=1)
    result = simulate(
        Flow(Coalesce()), events, workers=UNLIMITED, service=service(inputs["mean_life"]), seed=SEED
    )
    agrees(result.calls["outcome"] == "coalesced", expected["P_collapse"])


@statistically("coalesce-finite", 20_000)
def test_keys_of_a_finite_source_coalesce_as_known(case: Case, calls: int) -> None:
    inputs, expected = case["inputs"], case["expected"]
    events = poisson(inputs["event_rate_per_key"] * inputs["keys"], calls, keys=inputs["keys"])
    service = exponential(1 / inputs["service_rate"])
    result = simulate(Flow(Coalesce()), events, workers=inputs["workers"], service=service, seed=SEED)
    # The queue is empty at first: leave out what it takes to fill.
    table = result.calls[result.calls["arrival_s"] > 100]
    jobs = result.jobs[result.jobs["arrival_s"] > 100]
    agrees(table["outcome"] == "coalesced", expected["P_collapse"])
    agrees(jobs["end_s"] - jobs["arrival_s"], expected["T"])
    if expected["W"] == 0:
        assert jobs["sojourn_s"].max() == 0
    else:
        agrees(jobs["sojourn_s"], expected["W"])
    assert result.summary()["utilisation"] == pytest.approx(expected["util"], rel=0.05)


@statistically("coalesce-zipf", 40_000)
def test_unequal_keys_coalesce_as_known(case: Case, calls: int) -> None:
    inputs, expected = case["inputs"], case["expected"]
    events = poisson(inputs["total_event_rate"], calls, keys=inputs["keys"], zipf=1.0)
    service = exponential(inputs["mean_life"])
    result = simulate(Flow(Coalesce()), events, workers=UNLIMITED, service=service, seed=SEED)
    table = result.calls[result.calls["arrival_s"] > 10]
    agrees(table["outcome"] == "coalesced", expected["P_collapse"])


@statistically("coalesce-pendingonly", 20_000)
@pytest.mark.parametrize("law", ["exponential", "deterministic"])
def test_a_debounce_of_a_microsecond_joins_only_what_has_not_started(
    case: Case, calls: int, law: str
) -> None:
    inputs, expected = case["inputs"], case["expected"]
    flow = Flow(Debounce("0.001ms", "{k}", "0.001ms"))
    service = (exponential if law == "exponential" else constant)(inputs["service_mean"])
    result = simulate(flow, poisson(inputs["event_rate"], calls, keys=1), service=service, seed=SEED)
    agrees(result.calls["outcome"] == "merged", expected[f"P_collapse_{law}"])


# --- CoDel under overload that does not back off -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("served", "offered", "interval", "peak", "settles_s", "worst_s", "late_s", "drops"),
    [
        (100, 150, 0.1, 25, 0.84, 0.16, 0.030, 50.0),
        (100, 200, 0.1, 100, 1.82, 0.49, 0.093, 100.6),
        (100, 200, 0.05, 27, 0.49, 0.13, 0.023, 100.0),
        (50, 250, 0.1, 400, 3.90, 1.58, 0.436, 194.4),
    ],
)
def test_the_rfcs_law_lets_a_backlog_grow_to_the_square_of_what_comes_in_an_interval(
    served: int,
    offered: int,
    interval: float,
    peak: int,
    settles_s: float,
    worst_s: float,
    late_s: float,
    drops: float,
) -> None:
    """Deterministic arrivals and service: a scratch program of the same law gave these figures."""
    arrivals = Workload(np.rint(np.arange(40 * offered) * 1e6 / offered).astype(np.int64))
    flow = Flow(CoDel("5ms", interval, max_shed=None))
    result = simulate(flow, arrivals, service=1 / served)
    depth, jobs = result.depth(), result.jobs
    assert depth["depth"].max() == pytest.approx(peak, rel=0.15)
    assert depth["time_s"][depth["depth"].idxmax()] <= settles_s * 1.3
    assert jobs["sojourn_s"].max() == pytest.approx(worst_s, rel=0.1)
    late = jobs[jobs["arrival_s"] > 20]
    assert late["sojourn_s"].mean() == pytest.approx(late_s, rel=0.15)
    assert (late["outcome"] == "shed").sum() / 20 == pytest.approx(drops, rel=0.05)
