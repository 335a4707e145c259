"""Words: durations, instants, keys and numbers as they are written, and the tree of errors (T1 to T7)."""

from __future__ import annotations

import inspect
import pickle
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq import errors
from flowq.errors import ConfigurationError, FlowqError, JobShed
from flowq.units import (
    MAX_DURATION_US,
    checked_key,
    choice,
    duration_text,
    duration_us,
    exact_number,
    flag,
    instant_datetime,
    instant_us,
    key_bytes,
    milliseconds_us,
    number_text,
    shown,
    whole_number,
)

# --- durations (T5) ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "us"),
    [
        ("500ms", 500_000),
        ("30s", 30_000_000),
        ("5m", 300_000_000),
        ("2h", 7_200_000_000),
        ("1d", 86_400_000_000),
        ("2.5m", 150_000_000),  # F90
        ("  30M ", 1_800_000_000),  # F90
        (5, 5_000_000),  # F90
        (0.25, 250_000),  # F90
        ("1.5 S", 1_500_000),
        (".5s", 500_000),
        ("5.s", 5_000_000),
        ("007s", 7_000_000),
        ("0.001ms", 1),
        ("0.4ms", 400),
        (0.1, 100_000),
        (1e-6, 1),
        (Decimal("0.3"), 300_000),
        (Fraction(1, 3), 333_333),
        (1 / 3, 333_333),
        ("0.0000015s", 2),
        (timedelta(microseconds=1), 1),
        (timedelta(days=365), MAX_DURATION_US),
        ("365d", MAX_DURATION_US),
        (31_536_000, MAX_DURATION_US),
    ],
)
def test_a_duration_is_read_exactly(value: Any, us: int) -> None:
    assert duration_us(value, "window") == us


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("5", "window must have a unit (ms, s, m, h or d), as in '5s': '5'"),
        ("2.5", "window must have a unit (ms, s, m, h or d), as in '2.5s': '2.5'"),
        ("", "window must be a duration such as '500ms', '30s', '5m', '2h' or '1d': ''"),
        ("  ", "window must be a duration such as"),
        ("5 minutes", "window must be a duration such as"),
        ("5us", "window must be a duration such as"),
        ("1e3s", "window must be a duration such as"),
        ("+3s", "window must be a duration such as"),
        ("1_000s", "window must be a duration such as"),
        ("1,5s", "window must be a duration such as"),
        ("5m30s", "window must be a duration such as"),
        ("ms", "window must be a duration such as"),
        (".s", "window must be a duration such as"),
        ("nan s", "window must be a duration such as"),
        ("infs", "window must be a duration such as"),
        ("٣s", "window must be a duration such as"),
        pytest.param("9" * 5000 + "s", "window must be a duration such as", id="five thousand digits"),
        ("-3s", "window must be > 0: '-3s'"),
        (0, "window must be > 0: 0"),
        ("0s", "window must be > 0: '0s'"),
        (0.0, "window must be > 0: 0.0"),
        (-1, "window must be > 0: -1"),
        (timedelta(0), "window must be > 0: datetime.timedelta(0)"),
        (timedelta(seconds=-1), "window must be > 0: datetime.timedelta"),
        (float("nan"), "window must be finite: nan"),
        (float("inf"), "window must be finite: inf"),
        (float("-inf"), "window must be finite: -inf"),
        (Decimal("NaN"), "window must be finite: NaN"),
        (Decimal("1e400"), "window must be within 1e-40 and 1e40: 1E+400"),
        ("0.0005ms", "window must be >= 1 microsecond: '0.0005ms'"),
        (9e-7, "window must be >= 1 microsecond: 9e-07"),
        (Fraction(1, 10**7), "window must be >= 1 microsecond: 1/10000000"),
        ("365.0000001d", "window must be <= 365 days: '365.0000001d'"),
        (timedelta(days=365, microseconds=1), "window must be <= 365 days: datetime.timedelta"),
        (1e300, "window must be <= 365 days: 1e+300"),
        pytest.param(10**5000, "window must be a number of at most 300 digits", id="a vast number"),
    ],
)
def test_a_duration_outside_the_contract_is_refused(value: Any, message: str) -> None:  # F89
    with pytest.raises(ConfigurationError) as caught:
        duration_us(value, "window")
    assert str(caught.value).startswith(message)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "value", [True, False, None, [], b"5s", object(), 1j, datetime(2026, 1, 1, tzinfo=UTC)]
)
def test_a_duration_of_another_type_is_a_type_error(value: Any) -> None:  # F89
    with pytest.raises(TypeError, match="window must be '500ms', '30s', '5m', '2h' or '1d', a timedelta or"):
        duration_us(value, "window")


@pytest.mark.parametrize("value", [0, 0.0, "0s", "0ms", timedelta(0)])
def test_a_delay_of_zero_is_now(value: Any) -> None:  # T5 B99
    assert duration_us(value, "delay", allow_zero=True) == 0
    with pytest.raises(ConfigurationError, match="delay must be >= 0: -1"):
        duration_us(-1, "delay", allow_zero=True)


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (500_000, "500ms"),
        (300_000_000, "5m"),
        (1_500_000, "1.5s"),
        (90_000_000, "90s"),
        (100_000_000, "100s"),
        (3_600_000_000, "1h"),
        (86_400_000_000, "1d"),
        (MAX_DURATION_US, "365d"),
        (1, "0.001ms"),
        (0, "0s"),
        (61_000_001, "61.000001s"),
    ],
)
def test_the_text_of_a_duration_is_short(us: int, text: str) -> None:
    assert duration_text(us) == text


@given(st.integers(1, MAX_DURATION_US))
def test_the_text_of_a_duration_reads_back_and_so_do_seconds(us: int) -> None:  # T1 T5
    assert duration_us(duration_text(us), "window") == us
    assert duration_us(timedelta(microseconds=us), "window") == us
    assert duration_us(us / 1_000_000, "window") == us
    assert duration_us(Fraction(us, 1_000_000), "window") == us


def test_whole_milliseconds_of_the_keyed_surface() -> None:  # T5
    assert milliseconds_us(1, "window_ms") == 1000
    assert milliseconds_us(31_536_000_000, "window_ms") == MAX_DURATION_US
    for value in (0, -1, 31_536_000_001):
        with pytest.raises(ConfigurationError, match="window_ms must be"):
            milliseconds_us(value, "window_ms")
    for wrong in (1.5, "5", True, None):
        with pytest.raises(TypeError, match="window_ms must be a whole number"):
            milliseconds_us(wrong, "window_ms")


# --- instants and keys (T7) ----------------------------------------------------------------------


def test_an_instant_is_the_same_in_every_zone() -> None:  # B186
    utc = datetime(2030, 1, 1, 12, 0, 0, 123_457, tzinfo=UTC)
    tokyo = utc.astimezone(timezone(timedelta(hours=9)))
    assert instant_us(utc, "run_at") == instant_us(tokyo, "run_at") == 1_893_499_200_123_457
    assert instant_datetime(instant_us(tokyo, "run_at")) == utc
    assert instant_us(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), "run_at") == -1


def test_a_naive_datetime_is_refused() -> None:  # T7 B186
    with pytest.raises(ConfigurationError, match=r"run_at must have a time zone, as in datetime.now\(UTC\)"):
        instant_us(datetime(2030, 1, 1, 12), "run_at")


@pytest.mark.parametrize("value", [1_893_499_200, 1.5, "2030-01-01", None, True])
def test_an_instant_is_a_datetime(value: Any) -> None:  # B189: a number does not say its unit
    with pytest.raises(TypeError, match="run_at must be a datetime with a time zone"):
        instant_us(value, "run_at")


@pytest.mark.parametrize("key", ["k", "user's-key", "50%s", "a;b", "\\", " ", "😀", "x" * 512, "é" * 256])
def test_a_key_is_one_to_512_bytes_of_text(key: str) -> None:  # T7 B68
    assert checked_key(key) == key
    assert key_bytes(key) == key.encode()


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("", "unique_key must not be empty: ''"),  # F69
        ("x" * 513, "unique_key must be <= 512 bytes of UTF-8: 513 bytes"),
        ("é" * 257, "unique_key must be <= 512 bytes of UTF-8: 514 bytes"),
        ("a\x00b", "unique_key must not contain NUL: 'a\\x00b'"),
        ("\ud800", "unique_key must not contain a lone surrogate: '\\ud800'"),
    ],
)
def test_another_key_is_refused(key: str, message: str) -> None:  # T7 B68
    with pytest.raises(ConfigurationError) as caught:
        checked_key(key, "unique_key")
    assert str(caught.value) == message


@pytest.mark.parametrize("key", [None, 7, b"key", ["k"]])
def test_a_key_is_text(key: Any) -> None:
    with pytest.raises(TypeError, match="key must be text"):
        checked_key(key)


# --- numbers and words ---------------------------------------------------------------------------


def test_whole_numbers_within_bounds() -> None:
    assert whole_number(3, "n", 0, 5) == 3
    for value, message in ((-1, "n must be >= 0: -1"), (6, "n must be <= 5: 6")):
        with pytest.raises(ConfigurationError) as caught:
            whole_number(value, "n", 0, 5)
        assert str(caught.value) == message
    for wrong in (True, 1.0, "1", None):
        with pytest.raises(TypeError, match="n must be a whole number"):
            whole_number(wrong, "n")


def test_words_are_exact() -> None:
    assert choice("fifo", "order", ("fifo", "lifo", "adaptive")) == "fifo"
    with pytest.raises(ConfigurationError) as caught:
        choice("FIFO", "order", ("fifo", "lifo", "adaptive"))
    assert str(caught.value) == "order must be 'fifo' or 'lifo' or 'adaptive': 'FIFO'"
    assert flag(True, "replace") is True
    with pytest.raises(TypeError, match="replace must be True or False: 1"):
        flag(1, "replace")


@pytest.mark.parametrize(
    ("value", "exact"),
    [(3, Fraction(3)), (0.1, Fraction(1, 10)), (1e-9, Fraction(1, 10**9)), (Decimal("2.50"), Fraction(5, 2))],
)
def test_a_number_counts_as_it_is_written(value: Any, exact: Fraction) -> None:
    assert exact_number(value, "n") == exact


@given(st.fractions())
def test_the_text_of_a_number_reads_back(value: Fraction) -> None:
    assert Fraction(number_text(value)) == value


def test_a_message_shows_any_value_in_one_readable_piece() -> None:
    assert shown("x" * 500).endswith("...")
    assert len(shown("x" * 500)) == 120
    assert shown(-(10**5000)) == "a number of 16610 bits"
    assert shown(Fraction(10**5000, 3)) == "a number of 16610 bits/3"


# --- errors --------------------------------------------------------------------------------------

CLASSES = [getattr(errors, name) for name in errors.__all__]


def test_every_error_is_a_flowq_error_and_is_drawn_in_the_tree() -> None:
    for cls in CLASSES:
        assert issubclass(cls, FlowqError)
        assert errors.__doc__ is not None
        assert cls.__name__ in errors.__doc__
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined == set(errors.__all__)


def test_the_tree_s_indentation_is_the_class_s_place() -> None:
    assert errors.__doc__ is not None
    path: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        name = next((word for word in line.replace("─", " ").split() if word in errors.__all__), None)
        if name is None or not line.strip().startswith(("FlowqError", "├", "└", "│")):
            continue
        column = line.index(name)
        while path and path[-1][0] >= column:
            path.pop()
        if path:
            assert path[-1][1] in {base.__name__ for base in getattr(errors, name).__mro__[1:]}
        path.append((column, name))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_says_when_it_is_raised_in_one_line_and_pickles(cls: type[FlowqError]) -> None:
    assert cls.__doc__
    assert cls.__doc__.splitlines()[0].startswith(("Raised", "Base of"))
    again = pickle.loads(pickle.dumps(cls("thing must be > 0: 0")))
    assert type(again) is cls
    assert str(again) == "thing must be > 0: 0"


def test_the_standard_bases_hold() -> None:
    assert issubclass(errors.ConfigurationError, ValueError)
    assert issubclass(errors.PayloadError, ValueError)
    assert issubclass(errors.KeyTemplateError, errors.ConfigurationError)
    assert issubclass(errors.UnknownTask, LookupError)
    assert issubclass(errors.UnknownJob, LookupError)
    assert issubclass(errors.ResultTimeout, TimeoutError)
    assert set(errors.StoreError.__subclasses__()) == {
        errors.DatabaseUnreachable,
        errors.SchemaMismatch,
        errors.KeyLockTimeout,
    }
    assert set(errors.JobNotSucceeded.__subclasses__()) == {
        errors.JobFailed,
        errors.JobShed,
        errors.JobCancelled,
        errors.JobExpired,
    }


def test_a_shed_says_by_what() -> None:  # D3
    error = JobShed("codel: sojourn 500ms is above target 100ms", "codel")
    assert error.reason == "codel"
    assert pickle.loads(pickle.dumps(error)).reason == "codel"
