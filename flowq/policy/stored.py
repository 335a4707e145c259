"""Stored policies: the check that a JSON object is one policy, whole and of this version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flowq.errors import ConfigurationError
from flowq.units import shown

__all__ = ["checked"]


def checked(data: Any, tag: str, *names: str) -> Mapping[str, Any]:
    """Return the object if its tag and the names of its fields are right; a value is checked by its policy.

    A field too many is refused too: a newer version stored it, and leaving it out would change the rule.

    >>> checked({"policy": "coalesce", "key": None}, "coalesce", "key")["key"]
    >>> checked({"policy": "coalesce"}, "coalesce", "key")
    Traceback (most recent call last):
    flowq.errors.ConfigurationError: stored coalesce must have the fields key: it lacks key
    """
    if not isinstance(data, Mapping):
        raise ConfigurationError(f"stored {tag} must be an object: {shown(data)}")
    if data.get("policy") != tag:
        raise ConfigurationError(f"stored {tag} must have the tag {tag!r}: {shown(data.get('policy'))}")
    present = set(data) - {"policy"}
    for problem, wrong in (("lacks", set(names) - present), ("does not know", present - set(names))):
        if wrong:
            raise ConfigurationError(
                f"stored {tag} must have the fields {', '.join(names)}:"
                f" it {problem} {', '.join(sorted(wrong))}"
            )
    return data
