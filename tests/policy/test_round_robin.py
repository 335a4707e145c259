"""Smooth weighted round robin: shares, order and fairness between queues (rule A5)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq.errors import ConfigurationError
from flowq.policy.round_robin import phase, pick


def picks(weights: dict[str, int], candidates: str, number: int) -> str:
    state: dict[str, int] = {}
    order = ""
    for _ in range(number):
        state, name = pick(state, weights, candidates)
        order += name
    return order


@pytest.mark.parametrize(
    ("weights", "candidates", "order"),
    [
        pytest.param({}, "ab", "abababab", id="equal weights alternate, the lesser name first"),
        pytest.param({}, "ba", "abababab", id="the order in which candidates are named is nothing"),
        pytest.param({"a": 5}, "abc", "aabacaa" * 2, id="weights 5 1 1 interleave"),
        pytest.param({"c": 3}, "ac", "cacc" * 2, id="a heavier queue goes first"),
        pytest.param({"z": 9}, "a", "aaaa", id="a single candidate is always picked"),
    ],
)
def test_order(weights: dict[str, int], candidates: str, order: str) -> None:  # A5
    assert picks(weights, candidates, len(order)) == order


def test_a_busy_queue_never_starves_another() -> None:  # F111
    state: dict[str, int] = {}
    for start in range(1, 101):
        state, name = pick(state, {}, ("busy", "rare") if start > 90 else ("busy",))
        if start in (91, 92):
            assert name == ("busy" if start == 91 else "rare")


def test_idle_time_is_not_saved_up() -> None:  # A5
    state: dict[str, int] = {}
    for _ in range(1000):
        state, _ = pick(state, {}, ("a",))
    order = ""
    for _ in range(6):
        state, name = pick(state, {}, ("a", "b"))
        order += name
    assert order == "ababab"


def test_the_given_state_is_not_touched() -> None:
    state = {"a": 0}
    after, _ = pick(state, {}, ("a", "b"))
    assert state == {"a": 0}
    assert after != state


def test_without_a_candidate_there_is_nothing_to_pick() -> None:
    with pytest.raises(ConfigurationError, match="candidates must not be empty"):
        pick({}, {}, ())


def test_workers_at_drawn_phases_start_with_different_queues() -> None:  # A5
    first = Counter(pick(phase({}, "abcd", u / 8), {}, "abcd")[1] for u in range(8))
    assert first == {"a": 2, "b": 2, "c": 2, "d": 2}


weights_of = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)


@given(weights_of, st.floats(0, 1, exclude_max=True))
def test_each_queue_gets_its_weight_in_every_cycle_from_any_phase(weights: dict[str, int], u: float) -> None:
    state = phase(weights, weights, u)
    for _ in range(3):
        cycle: Counter[str] = Counter()
        for _ in range(sum(weights.values())):
            state, name = pick(state, weights, weights)
            cycle[name] += 1
        assert cycle == weights


@given(weights_of, st.lists(st.sets(st.sampled_from("abcdef"), min_size=1), max_size=200))
def test_credits_stay_bounded_and_sum_to_zero_whoever_waits(
    weights: dict[str, int], waiting: list[set[str]]
) -> None:
    state: dict[str, int] = {}
    for candidates in waiting:
        state, name = pick(state, weights, candidates)
        assert name in candidates
        assert sum(state.values()) == 0
        assert all(abs(credit) <= 6 * 54 for credit in state.values())
