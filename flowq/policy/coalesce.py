"""Coalesce: a call with the key of a live job returns that job, and nothing moves.

A job holds its key while it is blocked, pending (in retry back-off too) or running; any final state frees it
(C1, C2). The key is the call's own, or derived from the arguments: bound to the task's signature with
defaults applied, so that ``f(1)``, ``f(a=1)`` and ``f(1, default)`` are one job, then written canonically and
hashed (C4).

Canonical form: JSON with sorted keys; ``3`` and ``3.0`` are one number, a tuple is a list, ``True`` is not
``1`` and ``"1"`` is not ``1``. What JSON cannot carry is refused: NaN, infinities, bytes, sets, keys that are
not text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from inspect import Signature
from json.encoder import encode_basestring_ascii
from typing import Any, ClassVar, Final, NamedTuple, TypeAlias

from flowq.errors import ConfigurationError, PayloadError
from flowq.policy.key_template import KeyTemplate
from flowq.policy.stored import checked
from flowq.units import checked_text, shown

__all__ = ["Accept", "Coalesce", "Join", "argument_key", "canonical", "decide"]

_DEEPEST: Final = 200


class Accept(NamedTuple):
    """Decision: no live job has the key; the call becomes a new job."""


class Join(NamedTuple):
    """Decision: the call returns the live job that holds the key."""

    holder_id: int


def decide(holder_id: int | None) -> Accept | Join:
    """Judge one call by the live job that holds its key, if any (rule C1).

    >>> decide(None), decide(7)
    (Accept(), Join(holder_id=7))
    """
    return Accept() if holder_id is None else Join(holder_id)


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Coalesce:
    """Let calls with the key of a live job return that job.

    Use it where a second run of the same work is waste while the first is still to come or going on: sync one
    account, render one page. A call that arrives *while the job runs* is coalesced too; where such a call
    must lead to another run, use `Debounce`, which only merges into a job that has not started.

    Parameters
    ----------
    key : str, optional
        A key template over the call's arguments, such as ``"account:{id}"``. None, the default, derives the
        key from all arguments.

    Attributes
    ----------
    key : str or None

    Raises
    ------
    ConfigurationError
        If the template is malformed.

    Examples
    --------
    >>> Coalesce("account:{id}").decide(None), Coalesce().decide(7)
    (Accept(), Join(holder_id=7))
    """

    key: str | None

    policy: ClassVar[str] = "coalesce"

    def __init__(self, key: str | None = None) -> None:
        if key is not None:
            KeyTemplate.parse(key, name="coalesce key")
        object.__setattr__(self, "key", key)

    def __repr__(self) -> str:
        return "Coalesce()" if self.key is None else f"Coalesce({self.key!r})"

    def decide(self, holder_id: int | None) -> Accept | Join:
        """Judge one call: the module's `decide`."""
        return decide(holder_id)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object."""
        return {"policy": self.policy, "key": self.key}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Coalesce:
        """Return the policy that `to_json` wrote."""
        return cls(checked(data, cls.policy, "key")["key"])

    def describe(self) -> str:
        """Return the policy in a few words."""
        return f"one live job per {'set of arguments' if self.key is None else repr(self.key)}"


def argument_key(
    task: str, signature: Signature | None, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> str:
    """Return the key of a call: equal calls of one task have equal keys (rule C4).

    Parameters
    ----------
    task : str
        The task's name; two tasks never share a key.
    signature : inspect.Signature or None
        The task's signature; None for a task not declared here, and then the call is taken as it is written.
    args, kwargs : sequence, mapping
        The call.

    Returns
    -------
    str
        64 hexadecimal digits of a SHA-256.

    Raises
    ------
    TypeError
        If the call does not fit the signature.
    PayloadError
        If an argument is not plain JSON; the message gives its path.

    Examples
    --------
    >>> import inspect
    >>> def f(a, b=2): ...
    >>> calls = [((1,), {}), ((), {"a": 1.0}), ((1, 2), {})]
    >>> len({argument_key("f", inspect.signature(f), *call) for call in calls})
    1
    """
    named: Any
    if signature is None:
        named = {"args": list(args), "kwargs": dict(kwargs or {})}
    else:
        bound = signature.bind(*args, **(kwargs or {}))
        bound.apply_defaults()
        named = bound.arguments
    text = f"[{encode_basestring_ascii(task)},{canonical(named, 'arguments')}]"
    return sha256(text.encode("ascii")).hexdigest()


_Pieces: TypeAlias = list[str]


def canonical(value: Any, name: str = "value") -> str:
    """Return a JSON value in its one canonical text: equal values have equal texts.

    Raises
    ------
    PayloadError
        If the value, or one inside it, is not plain JSON.

    Examples
    --------
    >>> canonical({"b": (1, 2.0), "a": True})
    '{"a":true,"b":[1,2]}'
    """
    pieces: _Pieces = []
    _write(value, name, pieces, 0)
    return "".join(pieces)


def _write(value: Any, path: str, pieces: _Pieces, depth: int) -> None:
    if value is None:
        pieces.append("null")
    elif value is True or value is False:
        pieces.append("true" if value else "false")
    elif isinstance(value, str):
        pieces.append(_text(value, path))
    elif isinstance(value, int | float):
        pieces.append(_number(value, path))
    elif depth >= _DEEPEST:
        raise PayloadError(f"{path} must be nested at most {_DEEPEST} deep, and must not contain itself")
    elif isinstance(value, list | tuple):
        pieces.append("[")
        for index, item in enumerate(value):
            pieces.append("," if index else "")
            _write(item, f"{path}[{index}]", pieces, depth + 1)
        pieces.append("]")
    elif isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise PayloadError(f"{path} must have keys that are text: {shown(key)}")
        pieces.append("{")
        for index, key in enumerate(sorted(value)):
            pieces.append(("," if index else "") + _text(key, path) + ":")
            _write(value[key], f"{path}[{key!r}]", pieces, depth + 1)
        pieces.append("}")
    else:
        raise PayloadError(
            f"{path} must be a JSON value (text, number, true, false, null, list or object):"
            f" {shown(value)} of type {type(value).__name__}"
        )


def _text(value: str, path: str) -> str:
    plain = str.__str__(value)
    try:
        checked_text(plain, path)
    except ConfigurationError as error:
        raise PayloadError(str(error)) from None
    return encode_basestring_ascii(plain)


def _number(value: int | float, path: str) -> str:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise PayloadError(f"{path} must be a finite number: {float.__repr__(value)}")
        if not value.is_integer():
            return float.__repr__(value)
        value = int(value)
    try:
        return int.__repr__(value)
    except ValueError:
        raise PayloadError(f"{path} must be a number of at most 4300 digits: {shown(value)}") from None
