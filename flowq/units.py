"""Words for time, rates and keys: what people write, turned into exact integers and checked text.

Inside the core every instant and duration is a whole number of microseconds, and its name ends in ``_us``.
This module is the only door: it reads ``"5m"``, a ``timedelta`` or a number of seconds exactly (decimals are
read as they are written, so ``0.1`` is 100,000 µs and never a binary neighbour), refuses what is outside the
contract, and writes the shortest text that reads back.

===========  ========================  ====================================
written      meaning                   refused
===========  ========================  ====================================
``"500ms"``  ms, s, m, h, d; any case  ``"5"``, ``"5 minutes"``, ``"1e3s"``
``0.25``     seconds                   ``True``, ``None``, NaN, infinity
timedelta    itself                    under 1 µs, over 365 days
===========  ========================  ====================================

All refusals have one style, *thing, relation, value*: ``window must be > 0: 0``. A wrong type is a
`TypeError`, a wrong value a `ConfigurationError`, which is a `ValueError`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from numbers import Rational, Real
from typing import Any, Final, TypeAlias

from flowq.errors import ConfigurationError

__all__ = [
    "DAY_US",
    "HOUR_US",
    "MAX_DURATION_US",
    "MAX_KEY_BYTES",
    "MILLISECOND_US",
    "MINUTE_US",
    "SECOND_US",
    "Duration",
    "Number",
    "checked_key",
    "checked_text",
    "choice",
    "duration_text",
    "duration_us",
    "exact_number",
    "flag",
    "instant_datetime",
    "instant_us",
    "key_bytes",
    "milliseconds_us",
    "number_text",
    "shown",
    "whole_number",
]

Number: TypeAlias = int | float | Fraction | Decimal
Duration: TypeAlias = str | timedelta | Number

MILLISECOND_US: Final = 1_000
SECOND_US: Final = 1_000_000
MINUTE_US: Final = 60 * SECOND_US
HOUR_US: Final = 60 * MINUTE_US
DAY_US: Final = 24 * HOUR_US
MAX_DURATION_US: Final = 365 * DAY_US
MAX_KEY_BYTES: Final = 512

_UNITS_US: Final = {"ms": MILLISECOND_US, "s": SECOND_US, "m": MINUTE_US, "h": HOUR_US, "d": DAY_US}
_EXAMPLES: Final = "'500ms', '30s', '5m', '2h' or '1d'"
_DURATION: Final = re.compile(r"\s*(-?(?:[0-9]+\.?[0-9]*|\.[0-9]+))\s*([a-z]*)\s*", re.IGNORECASE)
_LONGEST_NUMBER: Final = 64
_LONGEST_BITS: Final = 1100  # a little more than any float takes
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_US: Final = timedelta(microseconds=1)
_FIRST_US: Final = (datetime(1900, 1, 1, tzinfo=UTC) - _EPOCH) // _ONE_US
_LAST_US: Final = (datetime(9000, 1, 1, tzinfo=UTC) - _EPOCH) // _ONE_US


def shown(value: object) -> str:
    """Return the value as a message shows it: its repr, cut to a readable length.

    >>> shown("5 minutes"), shown(10**5000)
    ("'5 minutes'", 'a number of 16610 bits')
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, Fraction):
        parts = (shown(value.numerator), shown(value.denominator))
        return parts[0] if value.denominator == 1 else "/".join(parts)
    text = str(value) if isinstance(value, Decimal) else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def exact_number(value: Any, name: str) -> Fraction:
    """Return a number exactly as written: a float counts as its shortest decimal text, so ``0.1`` is 1/10.

    Parameters
    ----------
    value : int, float, Fraction, Decimal or another real number
        The number.
    name : str
        The parameter's name, for the message.

    Raises
    ------
    TypeError
        If it is no real number; `bool` is none.
    ConfigurationError
        If it is NaN or infinite.

    Examples
    --------
    >>> exact_number(0.1, "rate")
    Fraction(1, 10)
    """
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise TypeError(f"{name} must be a number: {shown(value)}")
    if isinstance(value, Rational):
        exact = Fraction(int(value.numerator), int(value.denominator))
        if max(exact.numerator.bit_length(), exact.denominator.bit_length()) > _LONGEST_BITS:
            raise ConfigurationError(f"{name} must be a number of at most 300 digits: {shown(value)}")
        return exact
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise ConfigurationError(f"{name} must be finite: {value}")
        if abs(value.adjusted()) > 40 and value:
            raise ConfigurationError(f"{name} must be within 1e-40 and 1e40: {value}")
        return Fraction(value)
    number = float(value)
    if not math.isfinite(number):
        raise ConfigurationError(f"{name} must be finite: {shown(value)}")
    return Fraction(float.__repr__(number))


def number_text(value: Fraction) -> str:
    """Return a number's shortest exact text: a whole number, a decimal, or else ``n/d``.

    >>> number_text(Fraction(10)), number_text(Fraction(3, 2)), number_text(Fraction(20, 3))
    ('10', '1.5', '20/3')
    """
    rest, digits = value.denominator, 0
    for prime in (2, 5):
        power = 0
        while rest % prime == 0:
            rest //= prime
            power += 1
        digits = max(digits, power)
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    if digits == 0:
        return str(value.numerator)
    sign = "-" if value < 0 else ""
    whole, part = divmod(abs(value.numerator) * 10**digits // value.denominator, 10**digits)
    return f"{sign}{whole}.{part:0{digits}d}"


def duration_us(value: Any, name: str, *, allow_zero: bool = False) -> int:
    """Return a duration in whole microseconds.

    Parameters
    ----------
    value : str, timedelta or number
        ``"500ms" "30s" "5m" "2h" "1d"`` (decimals and spaces allowed, any case), a `timedelta`, or a number
        of **seconds**. 1 µs to 365 days; what lies between two microseconds is rounded to the nearest.
    name : str
        The parameter's name, for the message.
    allow_zero : bool
        Whether 0 is legal, as it is for a ``delay``: now.

    Returns
    -------
    int
        Microseconds.

    Raises
    ------
    TypeError
        If it is a `bool`, None or of another type.
    ConfigurationError
        If the text is no duration, or the value is negative, zero (unless allowed), NaN, infinite, under 1 µs
        or over 365 days.

    Examples
    --------
    >>> duration_us("2.5m", "window"), duration_us("  30M ", "window"), duration_us(0.25, "window")
    (150000000, 1800000000, 250000)
    >>> duration_us("5", "window")
    Traceback (most recent call last):
    flowq.errors.ConfigurationError: window must have a unit (ms, s, m, h or d), as in '5s': '5'
    """
    if isinstance(value, timedelta):
        exact = Fraction(value // _ONE_US)
    elif isinstance(value, str):
        exact = _text_us(value, name)
    elif isinstance(value, bool) or not isinstance(value, Real | Decimal):
        raise TypeError(f"{name} must be {_EXAMPLES}, a timedelta or a number of seconds: {shown(value)}")
    else:
        exact = exact_number(value, name) * SECOND_US
    if exact < 0 or (exact == 0 and not allow_zero):
        raise ConfigurationError(f"{name} must be {'>=' if allow_zero else '>'} 0: {shown(value)}")
    if 0 < exact < 1:
        raise ConfigurationError(f"{name} must be >= 1 microsecond: {shown(value)}")
    if exact > MAX_DURATION_US:
        raise ConfigurationError(f"{name} must be <= 365 days: {shown(value)}")
    return round(exact)


def _text_us(text: str, name: str) -> Fraction:
    match = _DURATION.fullmatch(text) if len(text) <= _LONGEST_NUMBER else None
    if match is None or match[2].lower() not in ("", *_UNITS_US):
        raise ConfigurationError(f"{name} must be a duration such as {_EXAMPLES}: {shown(text)}")
    if not match[2]:
        raise ConfigurationError(
            f"{name} must have a unit (ms, s, m, h or d), as in '{text.strip()}s': {shown(text)}"
        )
    return Fraction(match[1]) * _UNITS_US[match[2].lower()]


def duration_text(us: int) -> str:
    """Return the shortest text that `duration_us` reads back as the same microseconds.

    >>> duration_text(500_000), duration_text(300_000_000), duration_text(1_500_000), duration_text(1)
    ('500ms', '5m', '1.5s', '0.001ms')
    """
    if us == 0:
        return "0s"
    texts = [
        number_text(Fraction(us, unit_us)) + unit
        for unit, unit_us in _UNITS_US.items()
        if unit == "ms" or us >= unit_us
    ]
    return min((text for text in reversed(texts) if "/" not in text), key=len)


def milliseconds_us(value: Any, name: str) -> int:
    """Return whole milliseconds (the ``*_ms`` parameters), 1 ms to 365 days, as microseconds.

    >>> milliseconds_us(1500, "window_ms")
    1500000
    """
    return MILLISECOND_US * whole_number(value, name, 1, MAX_DURATION_US // MILLISECOND_US)


def instant_us(value: Any, name: str) -> int:
    """Return an aware `datetime` as microseconds since 1970-01-01 UTC, exactly.

    Raises
    ------
    TypeError
        If it is not a `datetime`: a bare number does not say its unit.
    ConfigurationError
        If it has no time zone, or is not between 1900 and 9000.

    Examples
    --------
    >>> instant_us(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), "run_at")
    1000000
    """
    if not isinstance(value, datetime):
        raise TypeError(f"{name} must be a datetime with a time zone: {shown(value)}")
    if value.utcoffset() is None:
        raise ConfigurationError(f"{name} must have a time zone, as in datetime.now(UTC): {shown(value)}")
    us = (value - _EPOCH) // _ONE_US
    if not _FIRST_US <= us < _LAST_US:
        raise ConfigurationError(f"{name} must be between the years 1900 and 9000: {shown(value)}")
    return us


def instant_datetime(us: int) -> datetime:
    """Return the aware UTC `datetime` of an instant: the inverse of `instant_us`.

    >>> instant_datetime(1_000_000).isoformat()
    '1970-01-01T00:00:01+00:00'
    """
    return _EPOCH + timedelta(microseconds=us)


def whole_number(value: Any, name: str, minimum: int | None = None, maximum: int | None = None) -> int:
    """Return a whole number within its bounds; `bool` and `float` are refused.

    >>> whole_number(0, "max_shed", 1)
    Traceback (most recent call last):
    flowq.errors.ConfigurationError: max_shed must be >= 1: 0
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number: {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number: {shown(value)}") from None
    if minimum is not None and number < minimum:
        raise ConfigurationError(f"{name} must be >= {minimum}: {shown(number)}")
    if maximum is not None and number > maximum:
        raise ConfigurationError(f"{name} must be <= {maximum}: {shown(number)}")
    return number


def choice(value: Any, name: str, words: Iterable[str]) -> str:
    """Return one of a few exact words.

    >>> choice("DROP", "on_excess", ("defer", "drop"))
    Traceback (most recent call last):
    flowq.errors.ConfigurationError: on_excess must be 'defer' or 'drop': 'DROP'
    """
    legal = tuple(words)
    if isinstance(value, str) and value in legal:
        return value
    raise ConfigurationError(f"{name} must be {' or '.join(repr(word) for word in legal)}: {shown(value)}")


def flag(value: Any, name: str) -> bool:
    """Return a `bool`; anything else is a `TypeError`, so that a typing slip cannot switch a rule."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False: {shown(value)}")
    return value


def checked_text(text: str, name: str) -> bytes:
    """Return text as UTF-8, refusing what PostgreSQL cannot store: NUL and lone surrogates."""
    if "\x00" in text:
        raise ConfigurationError(f"{name} must not contain NUL: {shown(text)}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigurationError(f"{name} must not contain a lone surrogate: {shown(text)}") from None


def key_bytes(key: Any, name: str = "key") -> bytes:
    """Return a key as UTF-8: 1 to 512 bytes, no NUL, no lone surrogate.

    Raises
    ------
    TypeError
        If it is not text.
    ConfigurationError
        If it is empty, too long, or holds NUL or a lone surrogate.

    Examples
    --------
    >>> key_bytes("user's-key 50%")
    b"user's-key 50%"
    """
    if not isinstance(key, str):
        raise TypeError(f"{name} must be text: {shown(key)}")
    data = checked_text(key, name)
    if not data:
        raise ConfigurationError(f"{name} must not be empty: ''")
    if len(data) > MAX_KEY_BYTES:
        raise ConfigurationError(f"{name} must be <= {MAX_KEY_BYTES} bytes of UTF-8: {len(data)} bytes")
    return data


def checked_key(key: Any, name: str = "key") -> str:
    """Return a key that passes `key_bytes`, as plain `str`."""
    return key_bytes(key, name).decode("utf-8")
