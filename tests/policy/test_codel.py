"""CoDel: both laws by tables of candidates and verdicts, and by what holds on every trace (O1 to O7)."""

from __future__ import annotations

import re
from collections import deque
from math import isqrt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq.errors import ConfigurationError
from flowq.policy import CoDel, CoDelState, Rfc8289, Slough

MANY = 10**9


def replay(codel: CoDel, text: str, sojourn_ms: int) -> tuple[list[str], list[str]]:
    """Offer the candidates of a trace and return the verdicts, given and expected.

    ``"900 keep, 1000 shed aged 700 left 3, empty"``: instant in ms and verdict, then its sojourn in ms and
    the number left behind it where they differ from the usual; ``empty``: no due job is found.
    """
    state, given, expected = codel.initial(), [], []
    for entry in text.split(", "):
        if entry == "empty":
            state = codel.disarm(state)
            continue
        match = re.fullmatch(r"(\d+) (keep|shed)(?: aged (\d+))?(?: left (\d+))?", entry)
        assert match is not None, entry
        now_ms, verdict, aged_ms, left = match.groups()
        sojourn_us = int(aged_ms or sojourn_ms) * 1000
        state, shed = codel.judge(state, sojourn_us, int(left or MANY), int(now_ms) * 1000)
        given.append(f"{now_ms} {'shed' if shed else 'keep'}")
        expected.append(f"{now_ms} {verdict}")
    return given, expected


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(
            "0 keep, 999 keep, 1000 shed, 1999 keep, 2000 shed, 2707 keep, 2708 shed, 3284 keep, 3285 shed,"
            " 3784 keep, 3785 shed, 4231 keep, 4232 shed",
            id="F40 sheds at 1000, 2000, 2707.1, 3284.5, 3784.5, 4231.7 and nowhere else",
        ),
        pytest.param(
            "0 keep, 1000 shed" + ", 1000 keep" * 9, id="F41 ten candidates at one instant: one shed"
        ),
        pytest.param(
            "0 keep, 500 keep, 800 keep aged 10, 900 keep, 1899 keep, 1900 shed",
            id="F42 one young candidate restarts the interval",
        ),
        pytest.param(
            ", ".join(f"{now_ms} keep aged 99" for now_ms in range(0, 5000, 100)),
            id="F43 below target never sheds",
        ),
        pytest.param(
            "0 keep aged 100, 1000 shed aged 100", id="F43 a sojourn of exactly the target is above it"
        ),
        pytest.param(
            "0 keep, 1000 keep left 0, 1001 keep, 2000 keep, 2001 shed",
            id="F47 the last waiting job is never shed, and it disarms",
        ),
        pytest.param("0 keep, empty, 60000 keep, 60999 keep, 61000 shed", id="F48 an empty queue disarms"),
        pytest.param(
            "10000 keep aged 10000 left 0, empty, 70000 keep aged 200 left 0",
            id="B94 a single late job after a slow one is not overload",
        ),
        pytest.param(
            "0 keep, 1000 shed, 2000 shed, 2708 shed, 3000 keep aged 10,"
            " 3100 keep, 4100 shed, 4807 keep, 4808 shed",
            id="B93 a second episode soon after resumes at count - lastcount = 2",
        ),
        pytest.param(
            "0 keep, 1000 shed, 2000 shed, 2708 shed, 3000 keep aged 10,"
            " 19285 keep, 20285 shed, 21284 keep, 21285 shed",
            id="B93 a second episode 16 intervals after drop_next starts at 1",
        ),
    ],
)
def test_rfc8289_with_target_100_ms_and_interval_1_s(trace: str) -> None:  # O2
    given, expected = replay(CoDel("100ms", "1s"), trace, sojourn_ms=500)
    assert given == expected


@pytest.mark.parametrize(
    "trace",
    [
        pytest.param(
            "110 keep aged 100, 200 keep, 201 shed, 312 keep aged 2, 402 shed aged 20",
            id="folly's own test: the first of an interval is kept, the flag lasts one interval more",
        ),
        pytest.param(
            "110 keep, 200 keep, 201 keep aged 10, 201 shed aged 11", id="twice the target is not yet old"
        ),
        pytest.param(
            "110 keep, 111 keep aged 5, 250 keep, 251 keep",
            id="a minimum of exactly the target is not overload",
        ),
        pytest.param(
            "110 keep, 200 keep, 201 keep left 0, 202 shed left 1",
            id="the last waiting job is kept, and the verdict alone is exempt",
        ),
        pytest.param(
            "110 keep, 200 keep, 250 keep aged 3 left 0, 301 keep, 302 keep",
            id="an exempt candidate still feeds the minimum",
        ),
        pytest.param("110 keep, empty, 200 keep, 201 keep", id="an empty queue disarms: no overload follows"),
        pytest.param(
            "110 keep aged 4, 111 keep aged 4, 112 keep, 212 keep, 312 keep, 313 keep, 314 shed",
            id="overload needs a whole interval without a young candidate",
        ),
    ],
)
def test_slough_with_target_5_ms_and_interval_100_ms(trace: str) -> None:  # O2
    given, expected = replay(CoDel("5ms", "100ms", law="slough"), trace, sojourn_ms=50)
    assert given == expected


def test_the_exemption_is_a_number_of_jobs_left() -> None:  # O2
    trace = "0 keep left 9, 1000 shed left 4, 2000 keep left 3, 3000 keep left 4, 4000 shed left 4"
    given, expected = replay(CoDel("100ms", "1s", exempt_backlog=3), trace, sojourn_ms=500)
    assert given == expected


@pytest.mark.parametrize(("late_us", "count"), [(-1, 4), (0, 1)], ids=["recent", "no longer recent"])
def test_an_episode_resumes_its_count_until_16_intervals_after_drop_next(late_us: int, count: int) -> None:
    codel = CoDel("5ms", "100ms")
    now_us = 10_000_000 + 16 * 100_000 + late_us
    state, shed = codel.judge(Rfc8289(0, False, 10_000_000, 5, 1, 0, 0), 10**6, MANY, now_us)
    assert shed
    assert isinstance(state, Rfc8289)
    assert (state.count, state.lastcount) == (count, count)


# --- the bound on catch-up (O7) ------------------------------------------------------------------


def catch_up(codel: CoDel, offered: int, now_ms: int) -> tuple[list[int], CoDelState]:
    """Sheds between starts when, long into an episode, many candidates come at one instant."""
    state = codel.initial()
    state, _ = codel.judge(state, 10**6, MANY, 0)
    state, _ = codel.judge(state, 10**6, MANY, codel.interval_us)
    runs, run = [], 0
    for _ in range(offered):
        state, shed = codel.judge(state, 10**6, MANY, now_ms * 1000)
        if shed:
            run += 1
        else:
            runs.append(run)
            run = 0
    return [*runs, run], state


def test_after_a_stall_at_most_max_shed_jobs_go_before_one_starts_and_the_law_goes_on() -> None:
    runs, state = catch_up(CoDel("5ms", "100ms", max_shed=10), 1000, 3_600_000)
    assert runs[0] == 9  # one was shed before the stall
    assert isinstance(state, Rfc8289)
    assert runs[1:] == [0] * len(runs[1:])  # drop_next is ahead again: no second catch-up at this instant
    assert state.count == 10
    assert state.drop_next_us == 3_600_000_000 + isqrt(100_000**2 // 10)


def test_the_run_of_sheds_ends_with_a_start_also_one_without_a_judgement() -> None:
    codel = CoDel("5ms", "100ms", max_shed=3)
    state: CoDelState = Rfc8289(0, True, 0, 4, 1, 2, 0)
    state, shed = codel.judge(state, 10**6, MANY, 10**9)
    assert shed
    assert codel.judge(state, 10**6, MANY, 10**9)[1] is False
    state = codel.started(state)
    for _ in range(3):
        state, shed = codel.judge(state, 10**6, MANY, 10**9)
        assert shed
    assert codel.judge(state, 10**6, MANY, 10**9)[1] is False


@pytest.mark.parametrize("bound", [94, 100, None])
def test_a_stall_that_needs_fewer_sheds_than_the_bound_is_not_bounded(bound: int | None) -> None:
    runs, _ = catch_up(CoDel("5ms", "100ms", max_shed=bound), 200, 1_890)
    free, _ = catch_up(CoDel("5ms", "100ms", max_shed=None), 200, 1_890)
    assert runs == free


# --- states --------------------------------------------------------------------------------------


def test_the_first_states() -> None:  # O2
    assert CoDel("5ms", "100ms").initial() == Rfc8289(None, False, 0, 0, 0, 0, 0)
    assert CoDel("5ms", "100ms", law="slough").initial() == Slough(0, 0, True, False, 0)


def test_disarming_clears_the_clock_and_keeps_the_count() -> None:  # O3
    rfc = CoDel("5ms", "100ms")
    assert rfc.disarm(Rfc8289(7, True, 9, 5, 2, 3, 11)) == Rfc8289(None, False, 9, 5, 2, 3, 11)
    slough = CoDel("5ms", "100ms", law="slough")
    assert slough.disarm(Slough(7, 50, False, True, 11)) == Slough(7, 0, False, True, 11)


def test_a_state_that_is_disarmed_comes_back_as_the_same_object() -> None:
    for codel in (CoDel("5ms", "100ms"), CoDel("5ms", "100ms", law="slough")):
        state = codel.initial()
        assert codel.disarm(state) is state
        assert codel.started(state) is state


def test_overloaded_is_dropping_or_the_flag() -> None:  # A5
    rfc, slough = CoDel("5ms", "100ms"), CoDel("5ms", "100ms", law="slough")
    for expected in (True, False):
        assert rfc.overloaded(Rfc8289(7, expected, 9, 5, 2, 0, 11)) is expected
        assert slough.overloaded(Slough(7, 50, False, expected, 11)) is expected


def test_a_stored_state_of_the_other_law_starts_afresh() -> None:
    rfc, slough = CoDel("5ms", "100ms"), CoDel("5ms", "100ms", law="slough")
    assert slough.state_from_json(rfc.state_to_json(Rfc8289(7, True, 9, 5, 2, 3, 11))) == slough.initial()
    assert rfc.state_from_json(slough.state_to_json(Slough(7, 50, False, True, 11))) == rfc.initial()


# --- declaration ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, "1s"), "target must be > 0: 0"),  # F56
        (("100ms", -1), "interval must be > 0: -1"),  # F56
        (("100ms", "5"), "interval must have a unit (ms, s, m, h or d), as in '5s': '5'"),
        (("100ms", "1s", "RFC8289"), "law must be 'rfc8289' or 'slough': 'RFC8289'"),
        (("100ms", "1s", "rfc8289", -1), "exempt_backlog must be >= 0: -1"),
        (("100ms", "1s", "rfc8289", 0, 0), "max_shed must be >= 1: 0"),
    ],
)
def test_a_codel_outside_the_contract_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        CoDel(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "arguments",
    [(None, "1s"), ("100ms", True), ("100ms", "1s", "rfc8289", 0.5), ("100ms", "1s", "rfc8289", 0, True)],
)
def test_a_codel_of_wrong_types_is_a_type_error(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        CoDel(*arguments)


@pytest.mark.parametrize(
    ("codel", "text"),
    [
        (CoDel("100ms", "1s"), "CoDel('100ms', '1s')"),
        (CoDel(0.005, 0.1, law="slough"), "CoDel('5ms', '100ms', law='slough')"),
        (CoDel("5ms", "100ms", "rfc8289", 3, None), "CoDel('5ms', '100ms', exempt_backlog=3, max_shed=None)"),
    ],
)
def test_repr_evaluates_back_and_json_too(codel: CoDel, text: str) -> None:
    assert repr(codel) == text
    assert eval(text) == codel
    assert CoDel.from_json(codel.to_json()) == codel


# --- properties ----------------------------------------------------------------------------------


def literal_rfc8289(target_us: int, interval_us: int, exempt: int, sojourns: Any) -> Any:
    """RFC 8289's dequeue as it is written there, on a FIFO of (job, arrival); yields each dequeue's sheds."""
    queue, dequeues = sojourns
    first_above: int | None = None
    dropping, drop_next, count, lastcount = False, 0, 0, 0

    def dodequeue(now: int) -> tuple[int | None, bool]:
        nonlocal first_above
        if not queue or queue[0][1] > now:
            first_above = None
            return None, False
        job, arrived = queue.popleft()
        left = sum(1 for _, at in queue if at <= now)
        if now - arrived < target_us or left <= exempt:
            first_above = None
            return job, False
        if first_above is None:
            first_above = now + interval_us
            return job, False
        return job, now >= first_above

    for now in dequeues:
        shed: list[int | None] = []
        job, ok = dodequeue(now)
        if dropping:
            if not ok:
                dropping = False
            while dropping and now >= drop_next:
                shed.append(job)
                count += 1
                job, ok = dodequeue(now)
                if not ok:
                    dropping = False
                else:
                    drop_next += isqrt(interval_us**2 // count)
        elif ok:
            shed.append(job)
            job, ok = dodequeue(now)
            dropping = True
            delta = count - lastcount
            count = delta if delta > 1 and now - drop_next < 16 * interval_us else 1
            drop_next = now + isqrt(interval_us**2 // count)
            lastcount = count
        yield shed


@st.composite
def fifo_traces(draw: st.DrawFn, longest_us: int) -> tuple[list[int], list[int]]:
    """Arrivals in clumps, so that queues build up, and dequeues in order."""
    instants = st.integers(0, longest_us)
    clumps = draw(st.lists(st.tuples(instants, st.integers(1, 60)), min_size=1, max_size=6))
    arrivals = sorted(at for at, jobs in clumps for _ in range(jobs))
    return arrivals, sorted(draw(st.lists(instants, min_size=1, max_size=60)))


@given(fifo_traces(1_400_000), st.integers(0, 3))
def test_one_candidate_at_a_time_sheds_what_the_loop_of_the_rfc_sheds(
    trace: tuple[list[int], list[int]], exempt: int
) -> None:  # O2: within 16 intervals, where "recent" cannot depend on the last drop_next of an episode
    arrivals, dequeues = trace
    codel = CoDel("5ms", "100ms", exempt_backlog=exempt, max_shed=None)
    waiting = deque(enumerate(arrivals))
    expected = list(literal_rfc8289(5_000, 100_000, exempt, (deque(enumerate(arrivals)), dequeues)))
    state, actual = codel.initial(), []
    for now_us in dequeues:
        shed_here: list[int | None] = []
        while True:
            if not waiting or waiting[0][1] > now_us:
                state = codel.disarm(state)
                break
            job, arrived_us = waiting.popleft()
            left = sum(1 for _, at in waiting if at <= now_us)
            state, shed = codel.judge(state, now_us - arrived_us, left, now_us)
            if not shed:
                break
            shed_here.append(job)
        actual.append(shed_here)
    assert actual == expected


codels = st.builds(
    CoDel,
    st.integers(1, 200).map(lambda ms: ms / 1000),
    st.integers(1, 1000).map(lambda ms: ms / 1000),
    law=st.sampled_from(["rfc8289", "slough"]),
    exempt_backlog=st.integers(0, 4),
    max_shed=st.one_of(st.none(), st.integers(1, 5)),
)
candidates = st.lists(
    st.tuples(st.integers(0, 400_000), st.integers(0, 800_000), st.integers(0, 8)), min_size=1, max_size=60
)


@given(codels, candidates)
def test_neither_law_sheds_while_no_more_than_the_exempt_backlog_is_left(
    codel: CoDel, sequence: list[tuple[int, int, int]]
) -> None:  # O2
    state, now_us = codel.initial(), 0
    for gap_us, sojourn_us, left in sequence:
        now_us += gap_us
        state, shed = codel.judge(state, sojourn_us, left, now_us)
        assert not (shed and left <= codel.exempt_backlog)
        assert not (shed and sojourn_us < codel.target_us)


@given(codels, candidates)
def test_time_that_runs_backwards_counts_as_the_latest_instant_seen(
    codel: CoDel, sequence: list[tuple[int, int, int]]
) -> None:  # T3
    state = clamped = codel.initial()
    latest_us = 0
    for now_us, sojourn_us, left in sequence:
        latest_us = max(latest_us, now_us)
        state, shed = codel.judge(state, sojourn_us, left, now_us)
        clamped, expected = codel.judge(clamped, sojourn_us, left, latest_us)
        assert (state, shed) == (clamped, expected)
        assert state.at_us == latest_us


@given(codels, candidates)
def test_any_state_survives_its_json_and_any_codel_its_repr(
    codel: CoDel, sequence: list[tuple[int, int, int]]
) -> None:
    assert eval(repr(codel)) == CoDel.from_json(codel.to_json()) == codel
    state, now_us = codel.initial(), 0
    for gap_us, sojourn_us, left in sequence:
        now_us += gap_us
        state, _ = codel.judge(state, sojourn_us, left, now_us)
        stored = codel.state_to_json(state)
        assert all(value is None or type(value) in (int, bool) for value in stored)
        assert codel.state_from_json(stored) == state
        assert type(codel.state_from_json(stored)) is type(state)


@given(candidates, st.integers(1, 5))
def test_rfc8289_never_sheds_more_than_max_shed_between_two_starts(
    sequence: list[tuple[int, int, int]], bound: int
) -> None:  # O7
    codel = CoDel("5ms", "10ms", max_shed=bound)
    state, now_us, run = codel.initial(), 0, 0
    for gap_us, sojourn_us, left in sequence:
        now_us += gap_us
        for _ in range(3):
            state, shed = codel.judge(state, sojourn_us, left, now_us)
            run = run + 1 if shed else 0
            assert run <= bound


@given(st.lists(st.tuples(st.integers(1, 50_000), st.integers(0, 300_000)), min_size=1, max_size=80))
def test_rfc8289_sheds_nothing_while_each_interval_has_a_young_candidate(
    sequence: list[tuple[int, int]],
) -> None:  # O2
    codel = CoDel("5ms", "100ms")
    state, now_us, young_us = codel.initial(), 0, 0
    for gap_us, sojourn_us in sequence:
        now_us += gap_us
        aged_us = 0 if now_us - young_us >= 50_000 else sojourn_us
        if aged_us < codel.target_us:
            young_us = now_us
        state, shed = codel.judge(state, aged_us, MANY, now_us)
        assert not shed


@given(st.integers(1, 40), st.integers(0, 400))
def test_rfc8289_asked_often_sheds_as_many_as_the_law_has_instants(gap_ms: int, intervals: int) -> None:  # O2
    codel = CoDel("5ms", "1s", max_shed=None)
    state = codel.initial()
    shed_count, end_us = 0, (1 + intervals % 20) * 1_000_000
    for now_us in range(0, end_us + 1, gap_ms * 100):
        state, shed = codel.judge(state, 10**6, MANY, now_us)
        shed_count += shed
    due, instant_us = 0, 1_000_000.0
    while instant_us <= end_us:
        due += 1
        instant_us += 1_000_000 / due**0.5
    assert abs(shed_count - due) <= 1


@given(candidates)
def test_slough_sheds_only_when_the_interval_before_had_no_young_candidate(
    sequence: list[tuple[int, int, int]],
) -> None:  # O2
    codel = CoDel("5ms", "100ms", law="slough")
    state, now_us = codel.initial(), 0
    for gap_us, sojourn_us, left in sequence:
        now_us += gap_us
        state, shed = codel.judge(state, sojourn_us, left, now_us)
        assert isinstance(state, Slough)
        if shed:
            assert state.overloaded
            assert sojourn_us > 2 * codel.target_us
