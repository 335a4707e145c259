"""Tables of recorded calls: their columns, checked and made exact.

Nothing is repaired. A message names the column, the value, and the first row that is wrong.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flowq.errors import ConfigurationError
from flowsim.streams import Integers

__all__ = ["instants_us", "key_labels", "refuse_missing", "seconds_us"]


def refuse_missing(there: Any, *columns: str | None, table: str = "the table") -> None:
    """Refuse a table that lacks a column; None is none."""
    missing = [repr(column) for column in columns if column is not None and column not in there]
    if missing:
        names = ", ".join(map(str, there)) or "none"
        raise ConfigurationError(
            f"{table} must have a column {' and '.join(dict.fromkeys(missing))}; its columns are {names}"
        )


def instants_us(column: pd.Series[Any], name: str) -> Integers:
    """Return sorted instants, in seconds or as datetimes (then from the first), in whole µs."""
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
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
