"""Rate limit: one token bucket, by tables of instants and by its law (rules R1 to R7, T6)."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flowq.errors import ConfigurationError
from flowq.policy import Bucket, Rate, RateLimit

S = 1_000_000


def starts_us(limit: RateLimit, jobs: int, arrival_us: int = 0) -> list[int]:
    """The starts of jobs that all wait from one instant on, one after the other."""
    state, now_us, starts = limit.initial(arrival_us), arrival_us, []
    for _ in range(jobs):
        now_us = limit.opens_at_us(state, 1, now_us)
        state, started = limit.take(state, 1, now_us)
        assert started
        starts.append(now_us)
    return starts


# --- the contract, as tables ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "jobs", "expected_us"),
    [
        pytest.param(
            RateLimit("10/s", burst=1),
            5,
            [0, 100_000, 200_000, 300_000, 400_000],
            id="R6 burst 1 spaces evenly",
        ),
        pytest.param(
            RateLimit("1.5/s"),
            4,
            [0, 333_334, 1_000_000, 1_666_667],
            id="R1 F4 a fractional burst is kept exactly",
        ),
        pytest.param(RateLimit("3/h"), 4, [0, 0, 0, 1_200 * S], id="F3 three an hour, the fourth at 1200 s"),
        pytest.param(
            RateLimit("10/s", burst=2, start="empty"),
            3,
            [100_000, 200_000, 300_000],
            id="R1 an empty start waits for the first token",
        ),
        pytest.param(
            RateLimit(Rate(1, "10s")),
            3,
            [0, 10 * S, 20 * S],
            id="a period of its own: one token per ten seconds",
        ),
    ],
)
def test_starts(limit: RateLimit, jobs: int, expected_us: list[int]) -> None:
    assert starts_us(limit, jobs) == expected_us


def test_a_hundred_jobs_under_ten_a_second_start_ten_at_once_then_every_100_ms() -> None:  # F1
    assert starts_us(RateLimit("10/s"), 100) == [0] * 10 + [k * 100_000 for k in range(1, 91)]


def test_130_jobs_under_100_a_minute_end_at_18_seconds() -> None:  # F2
    starts = starts_us(RateLimit("100/m"), 130)
    assert starts[:100] == [0] * 100
    assert starts[100:] == [k * 600_000 for k in range(1, 31)]


@pytest.mark.parametrize("idle_us", [3600 * S, 10 * 365 * 86_400 * S], ids=["F5 an hour", "B41 ten years"])
def test_an_idle_bucket_holds_its_burst_and_no_more(idle_us: int) -> None:
    limit = RateLimit("10/s")
    state = limit.initial(0)
    for _ in range(10):
        state, _ = limit.take(state, 1, 0)
    assert limit.tokens(state, idle_us) == 10
    granted = []
    for _ in range(25):
        state, started = limit.take(state, 1, idle_us)
        granted.append(started)
    assert granted == [True] * 10 + [False] * 15


def test_a_job_refused_with_a_third_of_a_token_is_due_when_the_rest_has_come() -> None:  # F9
    limit = RateLimit("10/s", burst=1)
    state, _ = limit.take(limit.initial(0), 1, 0)
    assert limit.opens_at_us(state, 1, 30_000) == 100_000


def test_asking_often_loses_no_fraction_of_a_token() -> None:  # B43
    limit = RateLimit("1/s", burst=1)
    state, granted = limit.initial(0), 0
    for tick in range(1000):
        state, started = limit.take(state, 1, tick * 700_000)
        granted += started
    assert granted == 500  # 0.7 s is short of a token, 1.4 s is not
    state, granted = limit.initial(0), 0
    for tick in range(7000):
        state, started = limit.take(state, 1, tick * 100_000)
        granted += started
    assert granted == 700


def test_a_token_every_ten_seconds_is_there_at_30() -> None:  # B43
    limit = RateLimit(Rate(1, "10s"))
    state, _ = limit.take(limit.initial(0), 1, 20 * S)
    assert [limit.take(state, 1, at * S)[1] for at in (25, 29, 30)] == [False, False, True]


def test_a_cost_is_taken_whole() -> None:  # B52
    limit = RateLimit("1/s", burst=5)
    state, started = limit.take(limit.initial(0), 5, 60 * S)
    assert started
    assert limit.opens_at_us(state, 5, 60 * S) == 65 * S
    assert not limit.take(state, 5, 65 * S - 1)[1]
    assert limit.take(state, 5, 65 * S)[1]


def test_no_token_is_lost_or_gained_in_a_million_ticks_wherever_time_starts() -> None:  # B209
    limit = RateLimit("10/s", burst=1)
    for origin_us in (0, 1_700_000_000 * S):
        state = limit.initial(origin_us)
        for tick in range(100_000):
            state, started = limit.take(state, 1, origin_us + tick * 100_000)
            assert started
        assert state == Bucket(0, origin_us + 99_999 * 100_000)


# --- changed limits (R5) -------------------------------------------------------------------------


def test_a_lowered_limit_clips_the_level_to_the_new_burst() -> None:  # F14
    old, new = RateLimit("1000/h"), RateLimit("2/s")
    state = old.initial(0)
    for _ in range(17):
        state, _ = old.take(state, 1, 0)
    assert new.tokens(new.rebase(old, state, 0), 0) == 2


def test_old_time_is_credited_at_the_old_rate() -> None:  # R5 B50
    old, new = RateLimit("10/s"), RateLimit("1/s", burst=20)
    state, _ = old.take(old.initial(0), 10, 0)
    rebased = new.rebase(old, state, 700_000)  # seven tokens came at the old rate
    assert new.tokens(rebased, 700_000) == 7
    assert new.tokens(rebased, 1_700_000) == 8


def test_a_bucket_capped_to_the_new_burst_goes_on_at_the_new_rate() -> None:  # B50
    old, new = RateLimit("10/s"), RateLimit("1/s", burst=2)
    state, _ = old.take(old.initial(0), 10, 4 * S)
    state = new.rebase(old, state, 5 * S)
    assert new.tokens(state, 5 * S) == 2
    state, _ = new.take(state, 2, 5 * S)
    assert new.opens_at_us(state, 1, 5 * S) == 6 * S


def test_a_rebase_rounds_down_and_never_creates_a_token() -> None:
    old, new = RateLimit(Rate(3, "7s")), RateLimit(Rate(3, "11s"))
    state = Bucket(old.unit * 2 - 1, 0)
    rebased = new.rebase(old, state, 0)
    assert Fraction(rebased.level, new.unit) <= Fraction(state.level, old.unit) < 2
    assert new.tokens(rebased, 0) == 1


# --- declaration: what is read, what is refused (T6, R1, R2, R7, D1) ------------------------------


@pytest.mark.parametrize(
    ("text", "count", "per_us"),
    [
        ("10/s", 10, S),
        ("10/sec", 10, S),
        ("10/second", 10, S),
        ("100/m", 100, 60 * S),
        ("100/min", 100, 60 * S),
        ("100/minute", 100, 60 * S),
        ("3600/h", 3600, 3600 * S),
        ("3600/hr", 3600, 3600 * S),
        ("3600/hour", 3600, 3600 * S),
        ("5/d", 5, 86_400 * S),
        ("5/day", 5, 86_400 * S),
        (" 1.5 / s ", Fraction(3, 2), S),
        ("20 per 3s", 20, 3 * S),
        ("20/3 per 500ms", Fraction(20, 3), 500_000),
    ],
)
def test_a_rate_is_read_exactly(text: str, count: Fraction, per_us: int) -> None:  # T6
    rate = Rate.parse(text)
    assert (rate.count, rate.per_us) == (count, per_us)
    assert Rate.parse(str(rate)) == rate
    assert eval(repr(rate)) == rate


@pytest.mark.parametrize(
    ("count", "per", "same"),
    [
        (10, "1s", "10/s"),
        (1.5, 1, "1.5/s"),
        (Decimal("0.1") * 15, timedelta(minutes=1), "1.5/m"),
        (Fraction(7, 2), "1h", "3.5/h"),
    ],
)
def test_a_rate_from_numbers_is_the_rate_from_text(count: float, per: str, same: str) -> None:  # T6
    assert Rate(count, per) == Rate.parse(same)
    assert str(Rate(count, per)) == same


@pytest.mark.parametrize(
    "text",
    [
        *("0/s", "0.5/s", "-1/s", "nan/s", "inf/s", "10", "10/10s", "10/S", "100/mn", "1e2/s", "/s", "10/"),
        *("+1/s", "1_0/s", "1,5/s", ".5/s", "10//s", "10/s/s", "", " ", "ten/s", "٣/s"),
        *("10 per 0s", "10 per", "10 per s", "1/0 per 1s"),
        pytest.param("9" * 5000 + "/s", id="five thousand digits"),
    ],
)
def test_a_rate_outside_the_contract_is_refused_at_declaration(text: str) -> None:  # T6 F20 F21
    with pytest.raises(ConfigurationError, match="rate_limit must be"):
        RateLimit(text)


@pytest.mark.parametrize(
    ("count", "per", "message"),
    [
        (0, "1s", "rate must be > 0: 0"),
        (-1, "1s", "rate must be > 0: -1"),
        (0.5, "1s", "rate must be >= 1 a period: 0.5"),
        (float("nan"), "1s", "rate must be finite: nan"),
        (float("inf"), "1s", "rate must be finite: inf"),
        (Decimal("Infinity"), "1s", "rate must be finite: Infinity"),
        pytest.param(
            10**5000,
            "1s",
            "rate must be a number of at most 300 digits: a number of 16610 bits",
            id="five thousand digits",
        ),
        (1, "0s", "per must be > 0: '0s'"),
        (1, "366d", "per must be <= 365 days: '366d'"),
    ],
)
def test_a_rate_of_impossible_numbers_is_refused(count: float, per: str, message: str) -> None:  # B44
    with pytest.raises(ConfigurationError) as caught:
        Rate(count, per)
    assert str(caught.value) == message


def test_a_count_without_a_period_says_what_is_missing() -> None:
    with pytest.raises(TypeError, match=r"per is missing: write Rate\(10, '1s'\)"):
        Rate(10)


@pytest.mark.parametrize("rate", [10, None, True, 1.5, b"10/s"])
def test_a_rate_of_another_type_is_a_type_error(rate: object) -> None:
    with pytest.raises(TypeError, match="must be text such as '10/s', or a Rate"):
        RateLimit(rate)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"burst": 0}, "burst must be >= 1: 0"),
        ({"burst": 0.99}, "burst must be >= 1: 0.99"),
        ({"burst": float("nan")}, "burst must be finite: nan"),
        ({"on_excess": "DROP"}, "on_excess must be 'defer' or 'drop': 'DROP'"),
        ({"on_excess": None}, "on_excess must be 'defer' or 'drop': None"),
        ({"start": "half"}, "start must be 'full' or 'empty': 'half'"),
    ],
)
def test_a_limit_outside_the_contract_is_refused(
    arguments: dict[str, object], message: str
) -> None:  # D1 F37 B44
    with pytest.raises(ConfigurationError) as caught:
        RateLimit("10/s", **arguments)  # type: ignore[arg-type]
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("burst", [True, "five", [5], object()])
def test_a_burst_that_is_no_number_is_refused(burst: object) -> None:
    with pytest.raises((TypeError, ConfigurationError), match="burst must be a number"):
        RateLimit("10/s", burst=burst)  # type: ignore[arg-type]


def test_a_full_level_must_fit_in_63_bits() -> None:  # R2
    most = (2**63 - 1) // (86_400 * S)
    assert RateLimit("1/d", burst=most).full < 2**63
    with pytest.raises(ConfigurationError, match="full level below 2\\*\\*63"):
        RateLimit("1/d", burst=most + 1)
    with pytest.raises(ConfigurationError, match="full level below 2\\*\\*63"):
        RateLimit("1.0000000001/d", burst=1000)


@pytest.mark.parametrize(
    ("limit", "cost", "message"),
    [
        (RateLimit("10/s"), 11, "cost must be <= burst 10: 11"),
        (RateLimit("10/s"), 0, "cost must be >= 1: 0"),
        (RateLimit("10/s"), -5, "cost must be >= 1: -5"),
        (RateLimit("1.5/s"), 2, "cost must be <= burst 1.5: 2"),
    ],
)
def test_a_cost_that_could_never_start_is_refused_at_the_call(
    limit: RateLimit, cost: int, message: str
) -> None:  # R7 B49
    with pytest.raises(ConfigurationError) as caught:
        limit.check_cost(cost)
    assert str(caught.value) == message


@pytest.mark.parametrize("cost", [1.0, True, "1", None])
def test_a_cost_is_a_whole_number(cost: object) -> None:  # R2
    with pytest.raises(TypeError, match="cost must be a whole number"):
        RateLimit("10/s").check_cost(cost)


def test_the_legal_costs_are_returned_and_the_largest_is_the_whole_burst() -> None:  # R7
    limit = RateLimit("10/s", burst=2.5)
    assert [limit.check_cost(cost) for cost in (1, 2)] == [1, 2]
    assert limit.max_cost == 2
    with pytest.raises(ConfigurationError, match="cost must be <= burst"):
        limit.opens_at_us(limit.initial(0), 3, 0)


@pytest.mark.parametrize(
    ("limit", "text"),
    [
        (RateLimit("10/s"), "RateLimit('10/s')"),
        (RateLimit("10/s", burst=10), "RateLimit('10/s')"),
        (RateLimit("10/s", burst=5, on_excess="drop"), "RateLimit('10/s', burst=5, on_excess='drop')"),
        (RateLimit("1.5/s", burst=2.5, start="empty"), "RateLimit('1.5/s', burst=2.5, start='empty')"),
        (RateLimit(Rate(20, "3s")), "RateLimit(Rate(20, '3s'))"),
        (RateLimit("5/s", Fraction(20, 3)), "RateLimit('5/s', burst='20/3')"),
    ],
)
def test_repr_evaluates_back_and_json_too(limit: RateLimit, text: str) -> None:
    assert repr(limit) == text
    assert eval(text) == limit
    assert RateLimit.from_json(limit.to_json()) == limit
    assert hash(RateLimit.from_json(limit.to_json())) == hash(limit)


def test_a_bucket_is_stored_as_two_whole_numbers() -> None:
    limit = RateLimit("10/s")
    state = limit.take(limit.initial(5), 3, 5)[0]
    assert limit.state_to_json(state) == [7 * limit.unit, 5]
    assert limit.state_from_json(limit.state_to_json(state)) == state


# --- properties ----------------------------------------------------------------------------------

counts = st.one_of(
    st.integers(1, 200),
    st.builds(Fraction, st.integers(1, 400), st.integers(1, 12)).filter(lambda count: count >= 1),
)
periods_us = st.one_of(st.integers(1, 5_000_000), st.sampled_from([S, 60 * S, 3600 * S]))


@st.composite
def limits(draw: st.DrawFn) -> RateLimit:
    rate = Rate(draw(counts), timedelta(microseconds=draw(periods_us)))
    return RateLimit(rate, burst=draw(counts), start=draw(st.sampled_from(["full", "empty"])))


def calls(limit: RateLimit) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Calls as (gap, cost); gaps around the time of one token are the interesting ones."""
    token_us = int(limit.rate.per_us / limit.rate.count)
    gaps = st.one_of(st.integers(0, 3), st.integers(0, 2 * token_us + 2), st.just(token_us))
    return st.lists(st.tuples(gaps, st.integers(1, limit.max_cost)), min_size=1, max_size=40)


limits_with_calls = limits().flatmap(lambda limit: st.tuples(st.just(limit), calls(limit)))


@given(limits_with_calls)
def test_law_at_most_burst_plus_rate_times_t_in_every_window(
    case: tuple[RateLimit, list[tuple[int, int]]],
) -> None:  # R2
    limit, sequence = case
    state, now_us, started = limit.initial(0), 0, []
    for gap_us, cost in sequence:
        now_us += gap_us
        state, ok = limit.take(state, cost, now_us)
        if ok:
            started.append((now_us, cost))
    for i, (first_us, _) in enumerate(started):
        spent = 0
        for at_us, cost in started[i:]:
            spent += cost
            assert spent <= limit.burst + limit.rate.count * (at_us - first_us) / limit.rate.per_us


@given(limits_with_calls)
def test_it_decides_as_gcra_and_a_refusal_changes_nothing(
    case: tuple[RateLimit, list[tuple[int, int]]],
) -> None:  # I.371
    limit, sequence = case
    token = Fraction(limit.rate.per_us) / limit.rate.count
    arrival = Fraction(0) if limit.start == "full" else limit.burst * token  # theoretical arrival time
    state, now_us = limit.initial(0), 0
    for gap_us, cost in sequence:
        now_us += gap_us
        after = max(arrival, Fraction(now_us)) + cost * token
        conforms = after - now_us <= limit.burst * token
        before = state
        state, started = limit.take(state, cost, now_us)
        assert started == conforms
        if conforms:
            arrival = after
        else:
            assert state is before  # R4


@given(limits_with_calls)
def test_the_returned_instant_is_the_earliest_at_which_the_cost_can_start(
    case: tuple[RateLimit, list[tuple[int, int]]],
) -> None:  # R3
    limit, sequence = case
    state, now_us = limit.initial(0), 0
    for gap_us, cost in sequence:
        now_us += gap_us
        opens_us = limit.opens_at_us(state, cost, now_us)
        assert opens_us >= now_us
        assert limit.take(state, cost, opens_us)[1]
        if opens_us > now_us:
            assert not limit.take(state, cost, opens_us - 1)[1]
        state, _ = limit.take(state, cost, now_us)


def dispatches(limit: RateLimit, arrivals_us: list[int]) -> list[int]:
    state, now_us, starts = limit.initial(0), 0, []
    for arrival_us in arrivals_us:
        now_us = limit.opens_at_us(state, 1, max(now_us, arrival_us))
        state, started = limit.take(state, 1, now_us)
        assert started
        starts.append(now_us)
    return starts


@given(
    limits(),
    st.lists(st.integers(0, 3_000_000), min_size=1, max_size=25).map(sorted),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_a_larger_burst_or_rate_makes_no_start_later(
    limit: RateLimit, arrivals_us: list[int], more_burst: int, more_rate: int
) -> None:
    assume(limit.start == "full")
    rate = Rate(limit.rate.count + more_rate, timedelta(microseconds=limit.rate.per_us))
    larger = RateLimit(rate, burst=limit.burst + more_burst)
    pairs = zip(dispatches(larger, arrivals_us), dispatches(limit, arrivals_us), strict=True)
    assert all(sooner <= later for sooner, later in pairs)


@given(limits(), st.lists(st.integers(0, 4_000_000), min_size=1, max_size=30))
def test_time_that_runs_backwards_counts_as_the_latest_instant_seen(
    limit: RateLimit, instants_us: list[int]
) -> None:  # T3 F18
    state = clamped = limit.initial(0)
    latest_us = 0
    for now_us in instants_us:
        state = limit.advance(state, now_us)
        latest_us = max(latest_us, now_us)
        clamped = limit.advance(clamped, latest_us)
        assert state == clamped
        state, started = limit.take(state, 1, now_us)
        clamped, expected = limit.take(clamped, 1, latest_us)
        assert (state, started) == (clamped, expected)
        assert 0 <= state.level <= limit.full


@given(limits(), limits(), st.integers(0, 10**7), st.integers(0, 10**7))
def test_a_changed_limit_gives_no_token_away(
    old: RateLimit, new: RateLimit, spent_at_us: int, changed_us: int
) -> None:  # R5
    state, _ = old.take(old.initial(0), 1, spent_at_us)
    credited = Fraction(old.advance(state, changed_us).level, old.unit)
    rebased = new.rebase(old, state, changed_us)
    level = Fraction(rebased.level, new.unit)
    assert level <= min(credited, new.burst) < level + Fraction(1, new.unit)
    assert rebased.at_us == max(state.at_us, changed_us)
    assert old.rebase(old, state, changed_us) == old.advance(state, changed_us)


@given(limits())
def test_any_limit_survives_its_repr_and_its_json(limit: RateLimit) -> None:
    assert eval(repr(limit)) == limit
    assert RateLimit.from_json(limit.to_json()) == limit
    assert Rate.parse(str(limit.rate)) == limit.rate
