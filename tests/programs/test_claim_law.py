"""A5a: claim(n) equals n claims of one at the same instant, whatever the policies, costs, priorities and pages."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from flowq.memory import MemoryStore
from flowq.programs import selection
from scenario import ClaimUpTo, Play, Scenario, scenarios

claim_module = sys.modules["flowq.programs.claim"]
"""The module: its name in the package is the program's."""


def play(scenario: Scenario) -> Play:
    store = MemoryStore()
    play = Play(lambda program, now_us: store.run(program(), now_us))
    play.run(scenario)
    return play


def one_by_one(scenario: Scenario) -> Scenario:
    steps = []
    for wait_us, step in scenario.steps:
        if isinstance(step, ClaimUpTo) and step.n > 1:
            steps.append((wait_us, ClaimUpTo(1)))
            steps += [(0, ClaimUpTo(1))] * (step.n - 1)
        else:
            steps.append((wait_us, step))
    return replace(scenario, steps=tuple(steps))


def grouped(log: list[Any]) -> list[Any]:
    """Merge consecutive claims, so that the order of sheds against starts within one instant is not compared."""
    merged: list[Any] = []
    starts: list[Any] = []
    sheds: list[Any] = []

    def flush() -> None:
        if starts or sheds:
            merged.append((list(starts), sorted(sheds)))
            starts.clear()
            sheds.clear()

    for entry in log:
        if isinstance(entry, tuple):
            starts.extend(entry[0])
            sheds.extend(entry[1])
        else:
            flush()
            merged.append(entry)
    flush()
    return merged


@given(scenarios())
@settings(max_examples=300)
def test_a_claim_of_n_is_n_claims_of_one(scenario: Scenario) -> None:
    whole, single = play(scenario), play(one_by_one(scenario))
    assert grouped(whole.log) == grouped(single.log)


@given(scenarios())
@settings(max_examples=200)
def test_a_claim_of_none_before_it_changes_nothing(scenario: Scenario) -> None:
    steps = []
    for wait_us, step in scenario.steps:
        if isinstance(step, ClaimUpTo):
            steps += [(wait_us, ClaimUpTo(0)), (0, step)]
        else:
            steps.append((wait_us, step))
    assert grouped(play(replace(scenario, steps=tuple(steps))).log) == grouped(play(scenario).log)


@pytest.mark.parametrize(("page", "further", "sheds"), [(1, 1, 1), (2, 3, 2), (8, 1000, 4)])
@given(scenario=scenarios())
@settings(max_examples=150)
def test_no_decision_depends_on_the_size_of_a_page(
    page: int, further: int, sheds: int, scenario: Scenario
) -> None:
    expected = grouped(play(scenario).log)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "PAGE_LIMIT", further)
        patch.setattr(selection, "SHED_LIMIT", sheds)
        patch.setattr(claim_module, "page_of", lambda n: page)
        assert grouped(play(scenario).log) == expected
