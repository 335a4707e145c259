"""Payloads: a call's arguments, a result and metadata as JSON text that PostgreSQL can hold (rule X9)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from flowq.errors import PayloadError

__all__ = ["LIMIT_BYTES", "arguments_text", "clean_text", "json_text", "read_arguments"]

LIMIT_BYTES = 1 << 20
"""The most that one payload, result or metadata may be (1 MiB)."""

_ATOMS = frozenset({int, float, bool, type(None)})
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def json_text(value: Any, name: str, limit_bytes: int = LIMIT_BYTES) -> str:
    """Encode a value; refuse what JSON or PostgreSQL can't carry, and what is too large.

    Raises
    ------
    PayloadError
        Not JSON, a NaN or an infinity, a key that isn't a string, a NUL or a lone surrogate, or over the limit.

    Examples
    --------
    >>> json_text({"a": [1, None]}, "payload")
    '{"a":[1,null]}'
    """
    try:
        nul = _check(value, name)
        text = _encode(value)
    except PayloadError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise PayloadError(f"{name} must be JSON: {error}; pass numbers, text, lists and dicts") from None
    if nul:
        raise PayloadError(f"{name} must not contain NUL (\\x00), which PostgreSQL can't store: remove it")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise PayloadError(
            f"{name} must not contain a lone surrogate: it is no text; encode bytes as base64"
        ) from None
    if size > limit_bytes:
        raise PayloadError(
            f"{name} must be <= {limit_bytes} bytes of JSON: {size}; pass a reference to it instead"
        )
    return text


def arguments_text(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Encode a call: ``[args, kwargs]``."""
    return json_text([list(args), dict(kwargs)], "payload")


def read_arguments(payload: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the (args, kwargs) of a stored payload, given as JSON text or as its parsed value."""
    args, kwargs = json.loads(payload) if isinstance(payload, str) else payload
    return args, kwargs


def clean_text(text: str, limit: int = 10_000) -> str:
    """Make an error's text storable: no NUL, no lone surrogate, not longer than ``limit`` characters."""
    cleaned = text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "\u2026"


def _check(value: Any, name: str) -> bool:
    """Refuse a key that JSON would turn into another; return whether there is a NUL in any text."""
    kind = type(value)
    if kind in _ATOMS:
        return False
    if kind is str:
        return "\x00" in value
    nul = False
    if isinstance(value, (list, tuple)):
        for part in value:
            nul |= _check(part, name)
    elif isinstance(value, Mapping):
        for key, part in value.items():
            if not isinstance(key, str):
                raise PayloadError(f"{name} must have text as keys, as JSON has: {key!r}; write {str(key)!r}")
            nul |= "\x00" in key or _check(part, name)
    elif isinstance(value, str):
        nul = "\x00" in value
    return nul
