"""Tables of recorded calls: their columns, checked and made exact.

Nothing is repaired. A message names the column, the value, and the first row that is wrong. A CSV file is read as text:
its keys stay text (``007`` is not ``7``), its instants are numbers or ISO 8601, and only an empty field is missing.
"""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flowq.errors import ConfigurationError
from flowsim.streams import Integers

__all__ = ["instants_us", "key_labels", "read_texts", "refuse_missing", "seconds_us"]

_EPOCHS_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_NUMBER: Final = r"\s*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\s*"
_ZONE: Final = re.compile(r"\d[T ]\d.*(?:Z|[+-]\d\d(?::?\d\d)?)\s*$", re.IGNORECASE)


def refuse_missing(there: Any, *columns: str | None, table: str = "the table") -> None:
    """Refuse a table that lacks a column; None is none."""
    missing = [repr(column) for column in columns if column is not None and column not in there]
    if missing:
        names = ", ".join(map(str, there)) or "none"
        raise ConfigurationError(
            f"{table} must have a column {' and '.join(dict.fromkeys(missing))}; its columns are {names}"
        )


def instants_us(column: pd.Series[Any], name: str, epoch: str | None = None) -> Integers:
    """Return sorted instants in whole µs: seconds as they are; datetimes, or numbers since an epoch, from the first."""
    if epoch is not None:
        instants = _epoch_us(column, name, epoch)
        instants = instants - instants[0]
    elif pd.api.types.is_datetime64_any_dtype(column.dtype):
        _check_present(column, name)
        instants = column.to_numpy(dtype="datetime64[us]").astype(np.int64)
        instants = instants - instants[0]
    else:
        instants = seconds_us(column, name)
    steps = np.diff(instants)
    if (steps < 0).any():
        row = int(np.argmax(steps < 0)) + 1
        raise ConfigurationError(
            f"column {name!r} must be sorted: row {row} has {column.iloc[row]} after {column.iloc[row - 1]};"
            f" sort the table first: frame.sort_values({name!r}, kind='stable')"
        )
    return instants


def _epoch_us(column: pd.Series[Any], name: str, epoch: str) -> Integers:
    """Numbers since 1970 in a unit, exactly: whole ones as integers, others by their decimal text."""
    if epoch not in _EPOCHS_NS:
        raise ConfigurationError(f"epoch must be 's', 'ms', 'us' or 'ns': {epoch!r}")
    if not pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
        raise ConfigurationError(f"column {name!r} must be numbers since 1970: its type is {column.dtype}")
    _check_present(column, name)
    if pd.api.types.is_integer_dtype(column.dtype):
        whole = column.to_numpy(dtype=np.int64)
        scale = _EPOCHS_NS[epoch]
        whole_us: Integers = whole * (scale // 1_000) if scale >= 1_000 else (whole + 500) // 1_000
        return whole_us
    return seconds_us(column * (_EPOCHS_NS[epoch] / 1e9), name)


def read_texts(column: pd.Series[Any], name: str) -> pd.Series[Any]:
    """Return a file's texts as numbers if they all are, else as ISO 8601 datetimes."""
    present = column.dropna().astype(str)
    numeric = present.str.fullmatch(_NUMBER)
    if numeric.all():
        numbers: pd.Series[Any] = pd.to_numeric(column)
        return numbers
    zoned = present.str.contains(_ZONE)
    if zoned.any() and not zoned.all():
        at = int(np.argmin(zoned))
        raise ConfigurationError(
            f"column {name!r} must have a time zone in every row or in none: {present.iloc[at]!r} at row {present.index[at]} has none"
        )
    instants = pd.to_datetime(present, format="ISO8601", errors="coerce", utc=bool(zoned.any()))
    wrong = numeric | instants.isna()
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ConfigurationError(
            f"column {name!r} must be seconds or ISO 8601 datetimes: {present.iloc[at]!r} at row {present.index[at]};"
            " for numbers since 1970 say epoch='s', 'ms', 'us' or 'ns'"
        )
    return instants.reindex(column.index)


def seconds_us(column: pd.Series[Any], name: str) -> Integers:
    """Return seconds >= 0 in whole µs."""
    if not pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
        raise ConfigurationError(f"column {name!r} must be seconds: its type is {column.dtype}")
    _check_present(column, name)
    seconds = column.to_numpy(dtype=np.float64)
    for bad, rule in ((~np.isfinite(seconds), "finite"), (seconds < 0, ">= 0"), (seconds > 1e12, "<= 1e12")):
        if bad.any():
            row = int(np.argmax(bad))
            raise ConfigurationError(f"column {name!r} must be {rule}: {seconds[row]} at row {row}")
    whole: Integers = np.rint(seconds * 1e6).astype(np.int64)
    return whole


def _check_present(column: pd.Series[Any], name: str) -> None:
    missing = column.isna().to_numpy()
    if missing.any():
        raise ConfigurationError(
            f"column {name!r} must have a value in every row: {int(missing.sum())} are missing, the first at row"
            f" {int(np.argmax(missing))}"
        )


def key_labels(column: pd.Series[Any], name: str) -> NDArray[Any]:
    """Return keys as they are; whole numbers that a missing value has made floats are whole numbers again."""
    if pd.api.types.is_float_dtype(column.dtype):
        present = column.dropna()
        if not (present == np.floor(present)).all():
            raise ConfigurationError(
                f"column {name!r} must hold text or whole numbers: its type is {column.dtype}"
            )
        column = column.astype("Int64")
    if pd.api.types.is_integer_dtype(column.dtype) and not column.isna().any():
        return column.to_numpy(dtype=np.int64)
    return column.astype(object).to_numpy()
