"""Debounce: tables of calls and deadlines, and what holds for every sequence of calls (rules B1 to B4)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq.errors import ConfigurationError, KeyTemplateError
from flowq.policy import Debounce, Window, decide_window

S = 1_000_000
M = 60 * S
STARVES = "debounce must have a max_wait: an unbounded debounce starves the job while enqueues keep arriving"


def runs(debounce: Debounce, calls_us: list[int], free_us: int = 0) -> list[tuple[int, list[int]]]:
    """When each job starts and which calls it covers, if a worker is always free from `free_us` on.

    At equal instants the start precedes the call (rule B3).
    """
    window: Window | None = None
    covered: list[int] = []
    started: list[tuple[int, list[int]]] = []
    for now_us in calls_us:
        if window is not None and max(window.eligible_us, free_us) <= now_us:
            started.append((max(window.eligible_us, free_us), covered))
            window, covered = None, []
        window = debounce.decide(window, now_us)
        covered.append(now_us)
    if window is not None:
        started.append((max(window.eligible_us, free_us), covered))
    return started


@pytest.mark.parametrize(
    ("debounce", "calls_us", "starts_us"),
    [
        pytest.param(
            Debounce("5m", "k", "30m"), [0, 2 * M, 4 * M], [9 * M], id="F76 each call moves the deadline"
        ),
        pytest.param(
            Debounce("5m", "k", "30m"),
            [minute * M for minute in range(30)],
            [30 * M],
            id="F77 a call every minute runs at max wait",
        ),
        pytest.param(
            Debounce(0.6, "k", 2),
            [k * 200_000 for k in range(25)],
            [2 * S, 4 * S, 5_400_000],
            id="F78 a long storm runs once per max wait, then once after it",
        ),
        pytest.param(
            Debounce("5m", "k", "5m"), [0, 2 * M, 4 * M], [5 * M], id="F79 max wait = window never moves"
        ),
        pytest.param(
            Debounce(1, "k", 2),
            [k * 100_000 for k in range(31)] + [20 * S],
            [2 * S, 4 * S, 21 * S],
            id="B26 nothing runs at the leading edge",
        ),
        pytest.param(
            Debounce(10, "k", 10),
            [k * S for k in range(20)],
            [10 * S, 20 * S],
            id="B29 window = max wait is a batch",
        ),
        pytest.param(Debounce(600, "k", 3600), [0, 300 * S, 599 * S], [1199 * S], id="B31 one row, moved"),
        pytest.param(
            Debounce(5, "k", 30), [5 * S, 10 * S], [10 * S, 15 * S], id="B3 a call at the deadline opens anew"
        ),
    ],
)
def test_starts(debounce: Debounce, calls_us: list[int], starts_us: list[int]) -> None:
    assert [at_us for at_us, _ in runs(debounce, calls_us)] == starts_us


def test_a_job_that_waited_for_a_worker_is_still_merged_into() -> None:  # B37
    debounce = Debounce(5, "k", 30)
    first = debounce.decide(None, 0)
    late = debounce.decide(first, 50 * S)
    assert late == Window(0, 30 * S, 30 * S, 2)  # neither pushed to 55 nor doubled; due in the past
    assert runs(debounce, [0, 50 * S], free_us=60 * S) == [(60 * S, [0, 50 * S])]


def test_a_call_behind_a_running_job_opens_a_window_that_others_join() -> None:  # B2 B32 B34
    debounce = Debounce(5, "k", 30)
    behind = debounce.decide(None, 9_500_000)
    assert behind == Window(9_500_000, 14_500_000, 14_500_000, 1)
    assert debounce.decide(behind, 11 * S).deadline_us == 16 * S


# open, window, max_wait, now -> deadline, eligible
@pytest.mark.parametrize(
    ("open_window", "window_us", "max_wait_us", "now_us", "expected"),
    [
        pytest.param(None, 5, 30, 100, Window(100, 105, 105, 1), id="the first call opens"),
        pytest.param(Window(100, 105, 105, 1), 5, 30, 103, Window(100, 108, 108, 2), id="a call slides"),
        pytest.param(
            Window(100, 105, 105, 1), 5, 30, 128, Window(100, 130, 130, 2), id="up to first seen + max wait"
        ),
        pytest.param(
            Window(0, 300, 300, 1),
            100,
            900,
            50,
            Window(0, 150, 150, 2),
            id="F82 a shorter window moves earlier",
        ),
        pytest.param(
            Window(0, 300, 300, 1),
            10,
            50,
            100,
            Window(0, 50, 100, 2),
            id="a job not yet due is eligible now at the earliest",
        ),
        pytest.param(
            Window(0, 5, 5, 1),
            5,
            60,
            50,
            Window(0, 55, 55, 2),
            id="a late job below max wait is put off again",
        ),
        pytest.param(
            Window(0, 5, 5, 1), 5, 30, 50, Window(0, 30, 30, 2), id="a late job past max wait keeps its past"
        ),
        pytest.param(
            Window(0, 5, 5, 1), 5, 30, 5, Window(0, 10, 10, 2), id="T4 a job due at this instant is due"
        ),
        pytest.param(
            Window(0, 5, 8, 3),
            1,
            6,
            8,
            Window(0, 6, 6, 4),
            id="T4 a late job eligible at this instant is due, and keeps its past",
        ),
        pytest.param(
            Window(0, 5, 8, 3),
            1,
            6,
            7,
            Window(0, 6, 7, 4),
            id="eligibility and not the deadline says if it was due",
        ),
        pytest.param(
            Window(100, 105, 105, 1), 5, 30, 40, Window(100, 105, 105, 2), id="T3 never before its first call"
        ),
    ],
)
def test_one_call(
    open_window: Window | None, window_us: int, max_wait_us: int, now_us: int, expected: Window
) -> None:  # B1 B3
    assert decide_window(open_window, window_us, max_wait_us, now_us) == expected


# --- declaration (B4) ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {},
            STARVES,
        ),
        (
            {"window": "5s", "key": "k"},
            STARVES,
        ),
        ({"window": "5s", "max_wait": "30s"}, "debounce must have a key: a template such as 'doc:{id}', or"),
        ({"key": "k", "max_wait": "30s"}, "debounce must have a window: the quiet time after the last call"),
        ({"window": "30s", "key": "k", "max_wait": "5s"}, "debounce max_wait must be >= window 30s: 5s"),
        ({"window": "0s", "key": "k", "max_wait": "5s"}, "debounce window must be > 0: '0s'"),
        ({"window": "5s", "key": "k", "max_wait": "366d"}, "debounce max_wait must be <= 365 days: '366d'"),
        ({"window": "5s", "key": "", "max_wait": "30s"}, "debounce key must not be empty: ''"),
        ({"window": "5s", "key": "r:{u", "max_wait": "30s"}, "debounce key must be a template"),
    ],
)
def test_a_debounce_outside_the_contract_is_refused(arguments: dict[str, Any], message: str) -> None:  # F88
    with pytest.raises(ConfigurationError) as caught:
        Debounce(**arguments)
    assert str(caught.value).startswith(message)


def test_a_malformed_template_is_refused_at_declaration() -> None:  # F98
    with pytest.raises(KeyTemplateError):
        Debounce("5s", "r:{u!r}", "30s")


@pytest.mark.parametrize(
    "arguments", [(True, "k", "30s"), ("5s", 7, "30s"), ("5s", "k", [30]), ("5s", "k", "30s", 1)]
)
def test_a_debounce_of_wrong_types_is_a_type_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        Debounce(*arguments)


@pytest.mark.parametrize(
    ("debounce", "text"),
    [
        (Debounce("5m", "doc:{id}", "30m"), "Debounce('5m', 'doc:{id}', '30m')"),
        (Debounce(0.6, "k", 2, replace_payload=True), "Debounce('600ms', 'k', '2s', replace_payload=True)"),
    ],
)
def test_repr_evaluates_back_and_json_too(debounce: Debounce, text: str) -> None:
    assert repr(debounce) == text
    assert eval(text) == debounce
    assert Debounce.from_json(debounce.to_json()) == debounce


# --- properties ----------------------------------------------------------------------------------


@st.composite
def debounces(draw: st.DrawFn) -> Debounce:
    window_us = draw(st.integers(1, 2_000))
    max_wait_us = draw(st.integers(window_us, 8_000))
    return Debounce(window_us / 1e6, "k", max_wait_us / 1e6)


call_lists = st.lists(st.integers(0, 30_000), min_size=1, max_size=60).map(sorted)


@given(debounces(), call_lists)
def test_each_call_is_covered_by_one_run_in_time(debounce: Debounce, calls_us: list[int]) -> None:  # B1
    started = runs(debounce, calls_us)
    assert [call for _, covered in started for call in covered] == calls_us
    for at_us, covered in started:
        assert covered[-1] < at_us <= covered[-1] + debounce.window_us
        assert at_us <= covered[0] + debounce.max_wait_us
        assert at_us in (covered[-1] + debounce.window_us, covered[0] + debounce.max_wait_us)
        gaps = [after - before for before, after in pairwise(covered)]
        assert all(gap < debounce.window_us for gap in gaps)


@given(debounces(), call_lists, st.integers(0, 10**15))
def test_the_decisions_do_not_depend_on_when_time_starts(
    debounce: Debounce, calls_us: list[int], origin_us: int
) -> None:
    shifted = runs(debounce, [origin_us + at_us for at_us in calls_us])
    assert [(at - origin_us, len(covered)) for at, covered in shifted] == [
        (at, len(covered)) for at, covered in runs(debounce, calls_us)
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(1, 2_000), st.integers(0, 4_000)),
        min_size=1,
        max_size=40,
    )
)
def test_whatever_the_calls_ask_the_window_keeps_its_first_call_and_counts_the_rest(
    calls: list[tuple[int, int, int]],
) -> None:  # B1 B3
    window: Window | None = None
    now_us = first_us = 0
    for index, (gap_us, window_us, extra_us) in enumerate(calls):
        now_us += gap_us
        first_us = now_us if index == 0 else first_us
        before = window
        window = decide_window(window, window_us, window_us + extra_us, now_us)
        assert window.first_seen_us == first_us
        assert window.hits == index + 1
        assert window.deadline_us == min(now_us + window_us, first_us + window_us + extra_us)
        assert window.eligible_us >= window.deadline_us
        if before is not None and before.eligible_us > now_us:
            assert window.eligible_us >= now_us  # never made late by a call
