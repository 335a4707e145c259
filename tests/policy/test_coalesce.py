"""Coalesce: the decision, and the key that a call's arguments give (rules C1, C3, C4)."""

from __future__ import annotations

import inspect
import json
import os
import random
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from enum import IntEnum, StrEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flowq.errors import KeyTemplateError, PayloadError
from flowq.policy import Accept, Coalesce, Join, argument_key
from flowq.policy.coalesce import canonical, decide


def test_a_call_joins_the_live_job_of_its_key_or_is_accepted() -> None:  # C1
    assert decide(None) == Accept()
    assert decide(7) == Join(7)
    assert decide(0) == Join(0)
    assert Coalesce().decide(7) == Join(7)


def f(a: Any, b: Any = 2) -> None: ...
def collect(*items: Any, **named: Any) -> None: ...
def strict(a: Any, /, *, b: Any = 2) -> None: ...


Call = tuple[tuple[Any, ...], dict[str, Any]]


def key(function: Callable[..., Any], call: Call, task: str = "task") -> str:
    return argument_key(task, inspect.signature(function), *call)


@pytest.mark.parametrize(
    ("function", "one", "other"),
    [
        pytest.param(f, ((1,), {}), ((), {"a": 1}), id="F62 by position or by name"),
        pytest.param(f, ((1,), {}), ((1, 2), {}), id="F62 the default, given or not"),
        pytest.param(f, ((1,), {}), ((), {"b": 2, "a": 1}), id="keywords in any order"),
        pytest.param(
            f, (({"x": 1, "y": 2},), {}), (({"y": 2, "x": 1},), {}), id="F63 B13 members in any order"
        ),
        pytest.param(f, ((3,), {}), ((3.0,), {}), id="F64 3 and 3.0 are one number"),
        pytest.param(f, ((-0.0,), {}), ((0,), {}), id="minus zero is zero"),
        pytest.param(f, ((1e22,), {}), ((10**22,), {}), id="large numbers by value"),
        pytest.param(f, (((1, 2),), {}), (([1, 2],), {}), id="F64 a tuple is a list"),
        pytest.param(f, ((OrderedDict(x=1),), {}), (({"x": 1},), {}), id="any dictionary is an object"),
        pytest.param(collect, ((1, 2), {"z": 3}), ((1, 2.0), {"z": 3}), id="members of *args and **kwargs"),
        pytest.param(strict, ((1,), {}), ((1,), {"b": 2}), id="positional-only and keyword-only"),
    ],
)
def test_the_same_call_has_the_same_key(function: Callable[..., Any], one: Call, other: Call) -> None:  # C4
    assert key(function, one) == key(function, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param(1, True, id="1 and True"),
        pytest.param(0, False, id="0 and False"),
        pytest.param(1, "1", id="1 and '1'"),
        pytest.param(None, "null", id="None and 'null'"),
        pytest.param(None, False, id="None and False"),
        pytest.param([], {}, id="an empty list and an empty object"),
        pytest.param([1, 2], [2, 1], id="the order of a list"),
        pytest.param({"id": 1, "extra": 2}, {"id": 1}, id="B12 equality, not containment"),
        pytest.param(2**53, 2**53 + 1, id="numbers that no float can tell apart"),
        pytest.param(0.1, 0.1 + 2**-56, id="neighbouring floats"),
        pytest.param(["a", "b"], ["a,b"], id="separators inside text"),
        pytest.param("é", "e\u0301", id="text is not normalised"),
        pytest.param("a", "A", id="case"),
    ],
)
def test_another_call_has_another_key(one: Any, other: Any) -> None:  # C4 B12 B13
    assert key(f, ((one,), {})) != key(f, ((other,), {}))
    assert key(f, (({"x": one},), {})) != key(f, (({"x": other},), {}))


def test_two_tasks_never_share_a_key() -> None:  # C3 F66
    call: Call = ((1,), {})
    assert key(f, call, "a") != key(f, call, "b")
    assert key(f, call, 'a",{"x":1}') != key(f, call, "a")


def test_a_task_not_declared_here_takes_the_call_as_it_is_written() -> None:
    assert argument_key("t", None, (1,), {"b": 2}) == argument_key("t", None, (1.0,), {"b": 2})
    assert argument_key("t", None, (1, 2)) != argument_key("t", None, (1,), {"b": 2})


def test_the_key_is_64_hexadecimal_digits() -> None:
    assert len(key(f, ((1,), {}))) == 64
    assert set(key(f, ((1,), {}))) <= set("0123456789abcdef")


def test_text_and_whole_number_enums_count_as_what_they_are() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Level(IntEnum):
        HIGH = 3

    assert canonical([Colour.RED, Level.HIGH]) == canonical(["red", 3])


_LOOP: list[Any] = []
_LOOP.append(_LOOP)
_DEEP: list[Any] = []
for _ in range(300):
    _DEEP = [_DEEP]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        pytest.param(float("nan"), "arguments['a'] must be a finite number: nan", id="NaN"),
        pytest.param(float("-inf"), "arguments['a'] must be a finite number: -inf", id="infinity"),
        pytest.param(
            {"x": [1, float("inf")]}, "arguments['a']['x'][1] must be a finite", id="the path is named"
        ),
        pytest.param(b"x", "arguments['a'] must be a JSON value", id="bytes"),
        pytest.param({1, 2}, "arguments['a'] must be a JSON value", id="a set"),
        pytest.param(1j, "arguments['a'] must be a JSON value", id="a complex number"),
        pytest.param(Fraction(1, 2), "arguments['a'] must be a JSON value", id="a fraction"),
        pytest.param(object(), "arguments['a'] must be a JSON value", id="an object"),
        pytest.param({1: 2}, "arguments['a'] must have keys that are text: 1", id="a key that is no text"),
        pytest.param({None: 2}, "arguments['a'] must have keys that are text: None", id="a key that is None"),
        pytest.param("a\x00b", "arguments['a'] must not contain NUL", id="NUL"),
        pytest.param("\ud800", "arguments['a'] must not contain a lone surrogate", id="a lone surrogate"),
        pytest.param({"\x00": 1}, "arguments['a'] must not contain NUL", id="NUL in a key"),
        pytest.param(10**5000, "arguments['a'] must be a number of at most 4300 digits", id="a vast number"),
        pytest.param(
            _LOOP, "must be nested at most 200 deep, and must not contain itself", id="a list in itself"
        ),
        pytest.param(
            _DEEP, "must be nested at most 200 deep, and must not contain itself", id="300 lists deep"
        ),
    ],
)
def test_what_json_cannot_carry_is_refused(value: Any, message: str) -> None:  # C4
    with pytest.raises(PayloadError) as caught:
        key(f, ((value,), {}))
    assert message in str(caught.value)


def test_a_call_that_does_not_fit_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        key(f, ((1, 2, 3), {}))


def test_a_malformed_template_is_refused_at_declaration() -> None:
    with pytest.raises(KeyTemplateError, match="coalesce key must be a template"):
        Coalesce("{id")


@pytest.mark.parametrize(
    ("policy", "text"), [(Coalesce(), "Coalesce()"), (Coalesce("account:{id}"), "Coalesce('account:{id}')")]
)
def test_repr_evaluates_back_and_json_too(policy: Coalesce, text: str) -> None:
    assert repr(policy) == text
    assert eval(text) == policy
    assert Coalesce.from_json(policy.to_json()) == policy


def test_two_processes_with_other_hash_seeds_give_the_same_key() -> None:  # B13
    program = (
        "from flowq.policy import argument_key\n"
        "a = {'a': 1, 'b': {'c': 2, 'd': 3}}\n"
        "b = {'b': {'d': 3, 'c': 2}, 'a': 1}\n"
        "print(argument_key('t', None, (a,)), argument_key('t', None, (b,)))\n"
    )
    keys: set[str] = set()
    for seed in ("1", "2"):
        environment = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
        )
        keys.update(done.stdout.split())
    assert len(keys) == 1


# --- properties ----------------------------------------------------------------------------------

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=8)
numbers = st.one_of(
    st.integers(-20, 20),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1.0, 2.5]),
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=12,
)


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same value, written otherwise: members in another order, tuples for lists, 3.0 for 3."""
    if isinstance(value, dict):
        items = [(name, shuffled(item, rng)) for name, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        items = [shuffled(item, rng) for item in value]
        return tuple(items) if rng.random() < 0.5 else items
    if type(value) is int and abs(value) < 2**53:
        return float(value)
    if type(value) is float and value.is_integer():
        return int(value)
    return value


def meaning(value: Any) -> Any:
    """What a JSON value is, with types told apart as the rule does."""
    if isinstance(value, dict):
        return ("object", frozenset((name, meaning(item)) for name, item in value.items()))
    if isinstance(value, list):
        return ("list", tuple(meaning(item) for item in value))
    if isinstance(value, bool) or value is None:
        return ("word", value)
    if isinstance(value, int | float):
        return ("number", Fraction(value))
    return ("text", value)


@given(json_values, st.randoms(use_true_random=False))
def test_the_key_does_not_depend_on_how_a_value_is_written(value: Any, rng: random.Random) -> None:  # C4 B13
    assert canonical(shuffled(value, rng)) == canonical(value)
    assert argument_key("t", None, (shuffled(value, rng),)) == argument_key("t", None, (value,))


@given(json_values, json_values)
def test_two_values_share_a_key_only_if_they_mean_the_same(one: Any, other: Any) -> None:  # C4
    assert (canonical(one) == canonical(other)) == (meaning(one) == meaning(other))


@given(json_values)
def test_the_canonical_text_is_json_of_the_same_meaning(value: Any) -> None:  # C4
    assume(all(abs(number) < 10**300 for number in _numbers(value)))
    assert meaning(json.loads(canonical(value))) == meaning(value)


def _numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in _numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if type(value) in (int, float) else []
