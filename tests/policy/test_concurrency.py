"""Concurrency: a cap without a state (rule A1)."""

from __future__ import annotations

from typing import Any

import pytest

from flowq.errors import ConfigurationError
from flowq.policy import Concurrency


@pytest.mark.parametrize(("running", "room"), [(0, True), (1, True), (2, False), (7, False)])
def test_there_is_room_below_the_cap(running: int, room: bool) -> None:  # A1
    assert Concurrency(2).has_room(running) is room


def test_it_is_a_value() -> None:
    cap = Concurrency(3)
    assert eval(repr(cap)) == Concurrency.from_json(cap.to_json()) == cap
    assert cap.describe() == "at most 3 at once"


@pytest.mark.parametrize("value", [0, -1, 2**31])
def test_a_cap_outside_its_range_is_refused(value: int) -> None:
    with pytest.raises(ConfigurationError, match="max_concurrent must be"):
        Concurrency(value)


@pytest.mark.parametrize("value", ["3", 1.5, None, True])
def test_a_cap_is_a_whole_number(value: Any) -> None:
    with pytest.raises(TypeError, match="max_concurrent"):
        Concurrency(value)
