"""Retry: tables of waits, and the back-off's law (rule X1)."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq.errors import ConfigurationError
from flowq.policy import Retry

S = 1_000_000


@pytest.mark.parametrize(
    ("retry", "waits"),
    [
        pytest.param(Retry(0), [None], id="F118 B99 no retry is a value: one attempt"),
        pytest.param(
            Retry(4, delays=[0.5, 1.0]),
            [500_000, S, S, S, None],
            id="F119 exact delays, of which the last repeats",
        ),
        pytest.param(Retry(2, delays=["0s", "5s"]), [0, 5 * S, None], id="a delay of zero is now"),
        pytest.param(Retry(1, delays=[1, 2, 3]), [S, None], id="more delays than retries are not used"),
        pytest.param(Retry(), [S, 2 * S, 4 * S, None], id="half the draw waits half of base * 2**n"),
        pytest.param(
            Retry(6),
            [S, 2 * S, 4 * S, 8 * S, 16 * S, 32 * S, None],
            id="F120 each wait doubles below the cap",
        ),
        pytest.param(
            Retry(4, base="1m", cap="5m"),
            [60 * S, 120 * S, 150 * S, 150 * S, None],
            id="the cap bounds what is drawn from",
        ),
    ],
)
def test_waits_with_the_drawn_number_one_half(retry: Retry, waits: list[int | None]) -> None:  # X1
    assert [retry.decide(failures, 0.5) for failures in range(1, len(waits) + 1)] == waits


def test_the_third_retry_waits_evenly_between_0_and_8_seconds() -> None:  # F120
    waits = [Retry(base="1s").decide(3, k / 1000) for k in range(1000)]
    seconds = [wait / S for wait in waits if wait is not None]
    assert len(seconds) == 1000
    assert min(seconds) >= 0
    assert max(seconds) < 8
    assert abs(fmean(seconds) - 4) < 0.25


@pytest.mark.parametrize("failures", [30, 64, 1100, 100_000])
def test_a_long_series_of_failures_stays_at_the_cap(failures: int) -> None:  # B96
    retry = Retry(10**6, base="1s", cap="5m")
    assert retry.bound_us(failures) == 300 * S
    wait_us = retry.decide(failures, 1 - 2**-53)
    assert wait_us == 300 * S - 1


def test_a_call_s_own_number_of_retries_wins_and_zero_is_honoured() -> None:  # B99
    retry = Retry(3)
    assert retry.decide(1, 0.5, max_retries=0) is None
    assert retry.decide(9, 0.5, max_retries=9) is not None


@pytest.mark.parametrize(("failures", "u"), [(0, 0.5), (-1, 0.5), (1, 1.0), (1, -0.1), (1, float("nan"))])
def test_a_decision_of_impossible_numbers_is_refused(failures: int, u: float) -> None:
    with pytest.raises(ConfigurationError):
        Retry().decide(failures, u)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_retries": -1}, "max_retries must be >= 0: -1"),
        ({"max_retries": 2**31}, "max_retries must be <= 2147483647: 2147483648"),
        ({"base": 0}, "retry base must be > 0: 0"),
        ({"base": "10m"}, "retry cap must be >= base 10m: 5m"),
        ({"cap": "400d"}, "retry cap must be <= 365 days: '400d'"),
        ({"delays": []}, "retry delays must not be empty: [] (for no retry, max_retries=0)"),
        ({"delays": [1, -1]}, "retry delays[1] must be >= 0: -1"),
    ],
)
def test_a_retry_outside_the_contract_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Retry(**arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "arguments",
    [{"max_retries": 1.0}, {"max_retries": True}, {"base": None}, {"delays": "5s"}, {"delays": [None]}],
)
def test_a_retry_of_wrong_types_is_a_type_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Retry(**arguments)


@pytest.mark.parametrize(
    ("retry", "text"),
    [
        (Retry(), "Retry()"),
        (Retry(0), "Retry(max_retries=0)"),
        (Retry(5, "2s", "1h"), "Retry(max_retries=5, base='2s', cap='1h')"),
        (Retry(delays=[0.5, 1, 0]), "Retry(delays=['500ms', '1s', '0s'])"),
    ],
)
def test_repr_evaluates_back_and_json_too(retry: Retry, text: str) -> None:
    assert repr(retry) == text
    assert eval(text) == retry
    assert Retry.from_json(retry.to_json()) == retry


@given(
    st.integers(1, 400),
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 10**9),
    st.integers(0, 10**12),
)
def test_every_wait_lies_below_the_smaller_of_cap_and_doubled_base(
    failures: int, u: float, base_us: int, extra_us: int
) -> None:  # X1
    retry = Retry(400, base=base_us / 1e6, cap=(base_us + extra_us) / 1e6)
    wait_us = retry.decide(failures, u)
    assert wait_us is not None
    assert 0 <= wait_us < min(retry.cap_us, retry.base_us * 2**failures)
    assert retry.decide(failures, 0.0) == 0
