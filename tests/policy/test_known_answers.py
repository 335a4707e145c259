"""The known answers that fix decisions: token bucket, debounce and CoDel, each case of the data file by id.

The statistical cases (loss probabilities, mean delays, collapse shares) are answers for whole simulations and
are held there; this file drives the policies alone, one instant after the other, and compares decision by
decision.
"""

from __future__ import annotations

import json
from collections import deque
from fractions import Fraction
from hashlib import sha256
from math import isqrt, sqrt
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import pytest

from flowq.policy import CoDel, CoDelState, Debounce, Rate, RateLimit, Rfc8289, Window

Case = dict[str, Any]

_FILE = Path(__file__).parent.parent / "data" / "known_answers.json"
CASES: list[Case] = json.loads(_FILE.read_text(encoding="utf-8"))["cases"]


def cases(prefix: str, variant: str | None = None, having: str = "inputs") -> pytest.MarkDecorator:
    chosen = [
        case
        for case in CASES
        if case["id"].startswith(prefix)
        and case.get("variant") == variant
        and (having in case or having in case["inputs"])
    ]
    assert chosen, prefix
    return pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in chosen])


# --- token bucket --------------------------------------------------------------------------------


def limit_of(inputs: Case) -> RateLimit:
    """``20/3`` tokens a second is 20 in three seconds; a rate under one a second likewise."""
    rate = Fraction(str(inputs["token_rate"]))
    return RateLimit(Rate(rate.numerator, rate.denominator), burst=inputs["burst"])


def accepted(limit: RateLimit, arrivals_us: list[int]) -> list[int]:
    state, decisions = limit.initial(0), []
    for now_us in arrivals_us:
        state, started = limit.take(state, 1, now_us)
        decisions.append(int(started))
    return decisions


def dispatched_us(limit: RateLimit, arrivals_us: list[int]) -> list[int]:
    state, now_us, starts = limit.initial(0), 0, []
    for arrival_us in arrivals_us:
        now_us = limit.opens_at_us(state, 1, max(now_us, arrival_us))
        state, started = limit.take(state, 1, now_us)
        assert started
        starts.append(now_us)
    return starts


@cases("gcra-seq")
def test_bucket_decides_each_arrival_of_a_short_sequence(case: Case) -> None:  # R2
    limit, arrivals_us = limit_of(case["inputs"]), case["inputs"]["arrivals_us"]
    assert accepted(limit, arrivals_us) == case["expected"]["accept_if_dropping"]
    assert dispatched_us(limit, arrivals_us) == case["expected"]["dispatch_us_if_delaying"]


@cases("gcra-lcg")
def test_bucket_decides_each_arrival_of_a_long_sequence(case: Case) -> None:  # R2
    inputs, expected = case["inputs"], case["expected"]
    x, now_us, arrivals_us = inputs["seed"], 0, []
    for _ in range(inputs["n"]):
        x = (1103515245 * x + 12345) % 2**31
        now_us += ((x >> 16) % inputs["m"]) * inputs["scale"]
        arrivals_us.append(now_us)
    assert arrivals_us[:5] == expected["first_arrivals_us"]
    assert arrivals_us[-1] == expected["last_arrival_us"]

    decisions = accepted(limit_of(inputs), arrivals_us)
    assert sum(decisions) == expected["accepted"]
    assert sum(i for i, started in enumerate(decisions) if started) == expected["sum_of_accepted_indexes"]
    assert sha256(bytes(decisions)).hexdigest() == expected["sha256_of_decision_bytes"]

    starts_us = dispatched_us(limit_of(inputs), arrivals_us)
    delays_us = [start - arrival for start, arrival in zip(starts_us, arrivals_us, strict=True)]
    tolerance_us = case["tolerance"]["us_abs"]
    assert abs(starts_us[-1] - expected["delaying_last_dispatch_us"]) <= tolerance_us
    assert abs(fmean(delays_us) - expected["delaying_mean_delay_us"]) <= tolerance_us
    assert sum(delay > 0 for delay in delays_us) == expected["delaying_count_delayed"]


@cases("token-bucket-burst-")
def test_bucket_spreads_a_burst(case: Case) -> None:  # R2
    inputs, expected = case["inputs"], case["expected"]
    starts_us = dispatched_us(limit_of(inputs), [0] * inputs["jobs"])
    assert starts_us[-1] / 1e6 == pytest.approx(expected["last_dispatch_s"], abs=1e-9)
    assert fmean(starts_us) / 1e6 == pytest.approx(expected["mean_delay_s"], abs=1e-9)
    assert starts_us.count(0) == expected["dispatched_at_zero"]


# --- debounce ------------------------------------------------------------------------------------


@cases("debounce-seq")
def test_debounce_fires_when_and_with_what_is_known(case: Case) -> None:  # B1 B3
    inputs = case["inputs"]
    longest = 86_400  # stands for no ceiling
    debounce = Debounce(inputs["wait"], "key", inputs["max_wait"] or longest)
    window: Window | None = None
    covered: list[int] = []
    fires: list[tuple[int, list[int]]] = []
    for event, at_s in enumerate(inputs["events"]):
        now_us = round(at_s * 1_000_000)
        if window is not None and window.eligible_us <= now_us:  # a claim precedes a call at the same instant
            fires.append((window.deadline_us, covered))
            window, covered = None, []
        window = debounce.decide(window, now_us)
        covered.append(event)
    assert window is not None
    fires.append((window.deadline_us, covered))
    assert [[at_us / 1_000_000, events] for at_us, events in fires] == case["expected"]["fires"]


# --- CoDel ---------------------------------------------------------------------------------------


class Run(NamedTuple):
    sheds: list[tuple[int, list[int]]]
    delivered: list[int | None]
    waits_us: list[int]
    left: int
    state: CoDelState


def drain(codel: CoDel, arrivals_us: list[int], dequeues_us: list[int]) -> Run:
    """A FIFO of jobs offered to the law one at a time: a dequeue judges the head until one is kept."""
    state = codel.initial()
    queue: deque[tuple[int, int]] = deque()
    jobs = deque(enumerate(arrivals_us))
    sheds: list[tuple[int, list[int]]] = []
    delivered: list[int | None] = []
    waits_us: list[int] = []
    for now_us in dequeues_us:
        while jobs and jobs[0][1] <= now_us:
            queue.append(jobs.popleft())
        shed_here: list[int] = []
        while queue:
            job, arrived_us = queue.popleft()
            state, shed = codel.judge(state, now_us - arrived_us, len(queue), now_us)
            if not shed:
                delivered.append(job)
                waits_us.append(now_us - arrived_us)
                break
            shed_here.append(job)
        else:
            state = codel.disarm(state)
            delivered.append(None)
        if shed_here:
            sheds.append((now_us, shed_here))
    return Run(sheds, delivered, waits_us, len(queue), state)


def codel_of(inputs: Case, **options: Any) -> CoDel:
    milliseconds = (f"{inputs['target_ms']}ms", f"{inputs['interval_ms']}ms")
    return CoDel(*milliseconds, exempt_backlog=inputs.get("exempt_backlog", 0), **options)


@cases("codel-", "rfc", having="enqueues")
def test_rfc8289_sheds_exactly_the_known_jobs(case: Case) -> None:  # O2
    inputs, expected = case["inputs"], case["expected"]
    arrivals_us = [at_ms * 1000 for at_ms, jobs in inputs["enqueues"] for _ in range(jobs)]
    dequeues_us = [
        at_ms * 1000
        for span in inputs["dequeues"]
        for at_ms in range(span["start"], span["stop"] + 1, span["step"])
    ]
    run = drain(codel_of(inputs, max_shed=None), arrivals_us, dequeues_us)

    assert len(run.sheds) == len(expected["drops"])
    for (at_us, jobs), (at_ms, known) in zip(run.sheds, expected["drops"], strict=True):
        assert at_us == at_ms * 1000
        if isinstance(known, list):
            assert jobs == known
        else:
            assert (jobs[0], jobs[-1], len(jobs)) == (known["first"], known["last"], known["count"])
    assert sum(len(jobs) for _, jobs in run.sheds) == expected["total_drops"]
    assert len(run.waits_us) == expected["delivered"]
    assert run.left == expected["left"]
    if "delivered_ids" in expected:
        assert run.delivered == expected["delivered_ids"]

    end, state = expected["end_state"], run.state
    assert isinstance(state, Rfc8289)
    assert state.dropping == end["dropping"]
    if state.dropping:
        assert (state.count, state.lastcount) == (end["count"], end["lastcount"])
        assert state.first_above_us == end["first_above_ms"] * 1000
        assert abs(state.drop_next_us - end["drop_next_ms"] * 1000) <= state.count


@cases("codel-stall-1h", "rfc")
def test_by_default_the_hour_long_stall_costs_a_hundred_jobs_and_not_half_a_million(case: Case) -> None:  # O7
    inputs = case["inputs"]
    run = drain(codel_of(inputs), [0] * inputs["enqueues"][0][1], [10_000, 1_210_000, 3_601_210_000])
    assert [len(jobs) for _, jobs in run.sheds] == [1, 100]
    assert len(run.waits_us) == 3


def law_instants_us(codel: CoDel, sheds: int, start_us: int = 0) -> list[int]:
    """The instants of an unbroken episode, each asked for at the very instant at which it is due."""
    state = codel.initial()
    state, shed = codel.judge(state, codel.target_us, 10**9, start_us)
    assert not shed
    instants_us = []
    now_us = start_us + codel.interval_us
    for _ in range(sheds):
        state, shed = codel.judge(state, codel.target_us, 10**9, now_us)
        assert shed
        instants_us.append(now_us)
        assert isinstance(state, Rfc8289)
        now_us = state.drop_next_us
    return instants_us


@cases("codel-control-law", "rfc")
def test_rfc8289_sheds_at_the_instants_of_the_control_law(case: Case) -> None:  # O2
    known_ms = case["expected"]["instants_ms"]
    instants_us = law_instants_us(CoDel("5ms", "100ms", max_shed=None), len(known_ms))
    for k, (at_us, at_ms) in enumerate(zip(instants_us, known_ms, strict=True)):
        assert abs(at_us - at_ms * 1000) <= k + 1
    wide = CoDel("1s", "300d", max_shed=None)
    sums = law_instants_us(wide, 1001)
    for n, expected in case["expected"]["partial_sums_1_over_sqrt_k"].items():
        assert (sums[int(n)] - sums[0]) / wide.interval_us == pytest.approx(expected, abs=1e-6)


@cases("codel-openloop", "rfc")
def test_rfc8289_takes_long_to_match_producers_that_do_not_slow_down(case: Case) -> None:  # O2
    inputs, expected = case["inputs"], case["expected"]
    codel = CoDel("5ms", inputs["interval_s"], max_shed=None)
    needed = round(expected["drops_needed"])
    instants_us = law_instants_us(codel, needed)
    rate_after = sqrt(needed) / inputs["interval_s"]
    assert rate_after == pytest.approx(inputs["excess_per_second"], rel=1e-9)
    seconds = (instants_us[-1] - instants_us[0]) / 1e6
    assert seconds == pytest.approx(expected["seconds_needed"], rel=case["tolerance"]["rel"])


@cases("overload-2x", "rfc")
def test_rfc8289_under_twofold_overload(case: Case) -> None:  # O2
    arrivals_us = [k * 1000 + 250 for k in range(10_000)]
    dequeues_us = list(range(1000, 10_000_000, 2000))
    expected, tolerance = case["expected"], case["tolerance"]
    run = drain(codel_of(case["inputs"], max_shed=None), arrivals_us, dequeues_us)
    for second, drops in expected["drops_by_second"].items():
        by_then = sum(len(jobs) for at_us, jobs in run.sheds if at_us <= int(second) * 1_000_000)
        assert abs(by_then - drops) <= tolerance["counts_abs"]
    assert len(run.waits_us) == expected["delivered"]
    assert abs(run.left - expected["left"]) <= tolerance["counts_abs"]
    for name, wait_us in (
        ("median_wait_ms", median(run.waits_us)),
        ("max_wait_ms", max(run.waits_us)),
        ("last_wait_ms", run.waits_us[-1]),
    ):
        assert abs(wait_us / 1000 - expected[name]) <= tolerance["ms_abs"]


@cases("overload-2x", "rfc")
def test_slough_bounds_the_same_overload(case: Case) -> None:  # O2
    arrivals_us = [k * 1000 + 250 for k in range(10_000)]
    run = drain(codel_of(case["inputs"], law="slough"), arrivals_us, list(range(1000, 10_000_000, 2000)))
    assert median(run.waits_us) <= 3 * 5_000


@cases("codel-verdict", "verdict")
def test_rfc8289_gives_the_known_verdicts(case: Case) -> None:  # O2
    codel = codel_of(case["inputs"], max_shed=None)
    state, verdicts = codel.initial(), []
    for call in case["inputs"]["calls"]:
        state, shed = codel.judge(state, call["sojourn_ms"] * 1000, 10**9, call["now_ms"] * 1000)
        verdicts.append(shed)
    assert verdicts == case["expected"]["drop"]


@cases("folly-", "folly")
def test_slough_gives_the_known_verdicts(case: Case) -> None:  # O2
    codel = CoDel("5ms", "100ms", law="slough")
    state, verdicts = codel.initial(), []
    for call in case["inputs"]["calls"]:
        state, shed = codel.judge(state, call["delay_ms"] * 1000, 10**9, call["now_ms"] * 1000)
        verdicts.append(shed)
    assert verdicts == case["expected"]["overloaded"]


def test_the_step_is_the_whole_microseconds_of_interval_over_root_count() -> None:  # O2
    codel = CoDel("5ms", "100ms")
    for count in range(1, 2000):
        assert codel.step_us(count) == isqrt(100_000**2 // count)
