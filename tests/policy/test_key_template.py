"""Key templates: what a call renders to, what is refused when, and that none can run code (K1 to K3)."""

from __future__ import annotations

import datetime
import inspect
from collections import defaultdict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowq.errors import ConfigurationError, KeyTemplateError
from flowq.policy import KeyTemplate


def render(text: str, function: Callable[..., Any] | None, *args: Any, **kwargs: Any) -> str:
    signature = None if function is None else inspect.signature(function)
    return KeyTemplate.parse(text, signature).render(args, kwargs)


def one(u: Any, v: Any = "default") -> None: ...
def only(a: Any, /, b: Any, *, c: Any = 3) -> None: ...
def many(first: Any, *rest: Any, **named: Any) -> None: ...


@dataclass
class Plain:
    id: int
    name: str = "plain"


@dataclass(slots=True)
class Slotted:
    id: int


class Point(NamedTuple):
    x: int
    y: int


Old = namedtuple("Old", "x y")


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("text", "function", "args", "kwargs", "key"),
    [
        pytest.param("user:{u}", one, (7,), {}, "user:7", id="K1 an argument by position"),
        pytest.param("user:{u}", one, (), {"u": 7}, "user:7", id="K1 an argument by keyword"),
        pytest.param("{v}", one, (7,), {}, "default", id="K1 a default"),
        pytest.param("{0}", one, (7,), {}, "7", id="F96 a position"),
        pytest.param("{0}", one, (), {"u": 7}, "7", id="F96 a position that was passed by keyword"),
        pytest.param("{1}", one, (7,), {}, "default", id="K1 a position with a default"),
        pytest.param(
            "{a}:{b}:{c}", only, (1, 2), {}, "1:2:3", id="K1 positional-only and keyword-only names"
        ),
        pytest.param("{2}", many, (1, 2, 3), {}, "3", id="K1 a position among *args"),
        pytest.param("{z}", many, (1,), {"z": 9}, "9", id="F97 a member of **kwargs"),
        pytest.param("{o[id]}", many, (1,), {"o": {"id": 5}}, "5", id="F97 one step into an item"),
        pytest.param("{o.real}", many, (1,), {"o": 5}, "5", id="F97 one step into an attribute"),
        pytest.param("{u[0]}", one, ([8, 9],), {}, "8", id="K1 an item of a list"),
        pytest.param("{u[1]}", one, ((8, 9),), {}, "9", id="K1 an item of a tuple"),
        pytest.param("{u[0]}", one, ("abc",), {}, "a", id="K1 an item of text"),
        pytest.param("{u[0]}", one, ({"0": "text"},), {}, "text", id="an object's key is text first"),
        pytest.param("{u[0]}", one, ({0: "number"},), {}, "number", id="and then a number"),
        pytest.param("{u[a b.c]}", one, ({"a b.c": 1},), {}, "1", id="an item's name may be any text"),
        pytest.param("{u.id}", one, (Plain(4),), {}, "4", id="a dataclass field"),
        pytest.param("{u.id}", one, (Slotted(4),), {}, "4", id="a slot"),
        pytest.param("{u.y}", one, (Point(1, 2),), {}, "2", id="a named tuple's field"),
        pytest.param("{u.y}", one, (Old(1, 2),), {}, "2", id="an old named tuple's field"),
        pytest.param("{u.year}", one, (datetime.date(2026, 1, 2),), {}, "2026", id="a calendar part"),
        pytest.param("{u}", one, (datetime.date(2026, 1, 2),), {}, "2026-01-02", id="a date"),
        pytest.param("{u}", one, (Decimal("1.50"),), {}, "1.50", id="a decimal number"),
        pytest.param("{u}", one, (1.5,), {}, "1.5", id="a float"),
        pytest.param("{u}", one, (False,), {}, "False", id="False is a value"),
        pytest.param("{u}", one, (0,), {}, "0", id="zero is a value"),
        pytest.param("{u}", one, (Colour.RED,), {}, "red", id="a text enum is its text"),
        pytest.param("{u}", one, (Level.HIGH,), {}, "3", id="a whole-number enum is its number"),
        pytest.param("all", one, (7,), {}, "all", id="K3 no placeholder: one key for the task"),
        pytest.param("{{{u}}}", one, (7,), {}, "{7}", id="doubled braces are braces"),
        pytest.param("{u:}", one, (7,), {}, "7", id="an empty format spec is none"),
        pytest.param("{u}", None, (), {"u": 7}, "7", id="without a signature, by the call's own keyword"),
        pytest.param("{0}", None, (7,), {}, "7", id="without a signature, by the call's own position"),
        pytest.param(
            "{u}'s 50%s; \\ 😀", one, ("x",), {}, "x's 50%s; \\ 😀", id="B68 quotes and signs are text"
        ),
    ],
)
def test_a_call_renders_to(
    text: str, function: Callable[..., Any] | None, args: Any, kwargs: Any, key: str
) -> None:
    assert render(text, function, *args, **kwargs) == key


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "key must not be empty: ''"),
        ("r:{u", "key must be a template such as 'doc:{id}'"),  # F98
        ("r:u}", "key must be a template such as 'doc:{id}'"),
        ("{u!r}", "key must not use a conversion: {u!r}"),  # F93
        ("{u:.0}", "key must not use a format spec: {u:.0}"),  # F93
        ("{u:{v}}", "key must not use a format spec: {u:{v}}"),
        ("{}", "key must name each placeholder, as in '{id}' or '{0}': {}"),
        ("{.a}", "key must use names of arguments or positions: {.a}"),
        ("{ u }", "key must use names of arguments or positions: { u }"),
        ("{-1}", "key must use names of arguments or positions: {-1}"),
        ("{99999}", "key must use names of arguments or positions: {99999}"),
        ("{u.a.b}", "key must take at most one step, as in '{a.b}' or '{a[k]}': {u.a.b}"),
        ("{u[a][b]}", "key must take at most one step"),
        ("{u[a].b}", "key must take at most one step"),
        ("{u[]}", "key must name an item"),
        ("{u.}", "key must use names of attributes: {u.}"),
        ("{u.__class__}", "key must not read an attribute with a leading underscore: {u.__class__}"),
        ("{u._x}", "key must not read an attribute with a leading underscore: {u._x}"),
        ("{w}", "key must name what the task takes: {w}; available: u, v"),  # F99
        ("{2}", "key must name what the task takes: {2}; available: u, v"),
        ("a\x00b", "key must be a template such as 'doc:{id}' (key must not contain NUL"),
        ("x" * 513, "key must be <= 512 bytes of UTF-8: 513 bytes"),
        ("é" * 257, "key must be <= 512 bytes of UTF-8: 514 bytes"),
        ("{u}" * 2000, "key must be <= 4096 characters: 6000 characters"),
    ],
)
def test_a_template_is_refused_at_declaration(text: str, message: str) -> None:  # K1 K2
    with pytest.raises(KeyTemplateError) as caught:
        KeyTemplate.parse(text, inspect.signature(one))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{rest}", "key must name one argument, not all of '*rest': {rest}"),  # F97
        ("{named}", "key must name one argument, not all of '**named': {named}"),  # F97
    ],
)
def test_all_of_args_or_kwargs_is_no_key(text: str, message: str) -> None:
    with pytest.raises(KeyTemplateError) as caught:
        KeyTemplate.parse(text, inspect.signature(many))
    assert str(caught.value) == message


@pytest.mark.parametrize("text", [7, None, b"key", ["k"]])
def test_a_template_is_text(text: Any) -> None:
    with pytest.raises(TypeError, match="key must be a template text"):
        KeyTemplate.parse(text)


@pytest.mark.parametrize(
    ("text", "function", "args", "kwargs", "message"),
    [
        pytest.param(
            "{tenant}",
            many,
            (1,),
            {"x": 2},
            "{tenant} is missing; available: first, x",
            id="F92 not supplied",
        ),
        pytest.param(
            "{u}", one, (None,), {}, "{u} must have a value, not None; available: u, v", id="F94 None"
        ),
        pytest.param(
            "{u}", one, ("",), {}, "{u} must not be blank: ''; available: u, v", id="F93 empty text"
        ),
        pytest.param("{u}", one, ("  \t",), {}, "{u} must not be blank: '  \\t'", id="F95 blank text"),
        pytest.param("{u}", one, ([1],), {}, "{u} must be text or a finite number, not list", id="a list"),
        pytest.param("{u}", one, ({},), {}, "{u} must be text or a finite number, not dict", id="an object"),
        pytest.param("{u}", one, (b"x",), {}, "{u} must be text or a finite number, not bytes", id="bytes"),
        pytest.param(
            "{u}", one, (Plain(4),), {}, "{u} must be text or a finite number, not Plain", id="an instance"
        ),
        pytest.param(
            "{u}", one, (float("nan"),), {}, "{u} must be text or a finite number, not float", id="NaN"
        ),
        pytest.param("{u[a]}", one, ({"b": 1},), {}, "{u[a]} is missing", id="an item that is not there"),
        pytest.param(
            "{u[a]}", one, ({"a": None},), {}, "{u[a]} must have a value, not None", id="an item that is None"
        ),
        pytest.param("{u[9]}", one, ([1],), {}, "{u[9]} is missing", id="an item past the end"),
        pytest.param("{u[a]}", one, ([1],), {}, "{u[a]} is missing", id="a name in a list"),
        pytest.param("{u[0]}", one, (7,), {}, "{u[0]} is missing", id="an item of a number"),
        pytest.param(
            "{u.nope}", one, (Plain(4),), {}, "{u.nope} is missing", id="an attribute that is not there"
        ),
        pytest.param(
            "{3}", many, (1, 2), {}, "{3} is missing; available: first", id="a position past the end"
        ),
        pytest.param(
            "{u}", None, (1, 2), {}, "{u} is missing; available: 0, 1", id="a name in an undeclared call"
        ),
        pytest.param(
            "{0}", None, (), {}, "{0} is missing; available: nothing", id="an empty undeclared call"
        ),
        pytest.param("{u}", one, (), {}, "{u} is missing; available: v", id="an argument left out"),
    ],
)
def test_a_placeholder_that_resolves_to_nothing_is_refused_at_the_call(
    text: str, function: Callable[..., Any] | None, args: Any, kwargs: Any, message: str
) -> None:  # K2
    with pytest.raises(KeyTemplateError) as caught:
        render(text, function, *args, **kwargs)
    assert str(caught.value).startswith(f"key: {message}")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x" * 513, "key must be <= 512 bytes"),
        ("é" * 257, "514 bytes"),
        ("a\x00", "NUL"),
        ("\ud800", "surrogate"),
    ],
)
def test_a_rendered_key_is_a_legal_key(value: str, message: str) -> None:  # T7
    with pytest.raises(KeyTemplateError, match=message):
        render("{u}", one, value)


def test_a_call_that_does_not_fit_the_signature_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        render("{u}", one, 1, 2, 3)
    with pytest.raises(TypeError):
        render("{u}", one, 1, w=2)


# --- nothing runs code ---------------------------------------------------------------------------


class Ran(BaseException):
    """Raised by whatever a template must never run; no handler for Exception hides it."""


def trip(*args: Any, **kwargs: Any) -> Any:
    raise Ran


class Computed:
    @property
    def id(self) -> int:
        raise Ran

    @cached_property
    def cached(self) -> int:
        raise Ran

    def method(self) -> int:
        raise Ran

    constant = "constant"


def hostile() -> list[Any]:
    """Arguments that run code at every careless touch; made here, for test runners touch what they see."""
    names = "getattr getattribute getitem str repr format hash eq len iter bool index contains missing call"
    traps = {f"__{name}__": trip for name in names.split()}
    computed = {name: property(trip) for name in ("__class__", "__dict__", "real", "item", "id", "x")}
    of_class = {name: property(trip) for name in ("_fields", "__name__", "__mro__")}
    meta = type("TrapMeta", (type,), {"__getattr__": trip, **of_class})
    trap = meta("Trap", (), {**traps, **computed})
    of_items = {
        name: traps[name] for name in ("__getitem__", "__len__", "__iter__", "__contains__", "__missing__")
    }
    of_text = {name: traps[name] for name in ("__str__", "__repr__", "__format__", "__getitem__", "__len__")}
    return [
        object.__new__(trap),
        trap,
        Computed(),
        Computed,
        trip,
        defaultdict(trip),
        type("TrapDict", (dict,), {**of_items, "get": trip})(id="x"),
        type("TrapList", (list,), of_items)([1]),
        type("TrapText", (str,), {**of_text, "isspace": trip, "strip": trip, "encode": trip})("abc"),
        type(
            "TrapNumber", (int,), {**of_text, "__index__": trip, "bit_length": trip, "real": property(trip)}
        )(5),
        type("TrapPoint", (Point,), {"__getitem__": trip})(1, 2),
    ]


ROOTS = ("u", "0")
STEPS = ("", ".real", ".id", ".item", ".cached", ".method", ".x", "[id]", "[0]", "[real]")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("root", ROOTS)
def test_no_step_runs_the_code_of_a_hostile_argument(root: str, step: str) -> None:  # K1
    template = KeyTemplate.parse("{" + root + step + "}", inspect.signature(one))
    for value in hostile():
        try:
            key = template.render((value,))
        except KeyTemplateError:
            continue
        assert key in ("x", "1", "abc", "a", "5")


def test_what_is_computed_by_code_is_refused_and_says_what_to_do() -> None:  # K1
    for text in ("{u.id}", "{u.cached}", "{u.method}"):
        with pytest.raises(
            KeyTemplateError, match="is computed by code, so it cannot be part of a key; pass its value"
        ):
            render(text, one, Computed())
    assert render("{u.constant}", one, Computed()) == "constant"


def test_a_computed_value_that_lies_in_the_instance_is_data() -> None:
    computed = Computed()
    vars(computed)["cached"] = 7
    assert render("{u.cached}", one, computed) == "7"


def test_what_lies_behind_a_property_is_not_read() -> None:
    computed = Computed()
    vars(computed)["id"] = 7
    with pytest.raises(KeyTemplateError, match="is computed by code"):
        render("{u.id}", one, computed)


def test_an_empty_slot_is_missing() -> None:
    with pytest.raises(KeyTemplateError, match=r"\{u.id\} is missing"):
        render("{u.id}", one, object.__new__(Slotted))


@pytest.mark.parametrize(
    "text",
    [
        "{u.__class__.__init__.__globals__}",
        "{u.__init__}",
        "{u[__class__]}",
        "{0.__globals__[os].environ}",
        "{u!r:{u.__class__}}",
        "{u:{u.__doc__}}",
        "{u.func_globals}",
        "{__builtins__}",
        "{u.gi_frame.f_globals}",
    ],
)
def test_the_known_attacks_on_format_strings_are_refused(text: str) -> None:  # K1
    def generator() -> Iterator[int]:
        yield 1

    for value in (Plain(1), trip, generator()):
        with pytest.raises(KeyTemplateError):
            render(text, one, value)


pieces = st.sampled_from(
    [
        "{",
        "}",
        "{{",
        "}}",
        "u",
        "v",
        "0",
        "1",
        ".",
        "[",
        "]",
        "!r",
        ":",
        "id",
        "real",
        "__class__",
        "_",
        "x",
        " ",
        "é",
    ]
)


@given(st.one_of(st.lists(pieces, max_size=12).map("".join), st.text(max_size=30)), st.text(max_size=20))
def test_any_text_is_a_safe_template_or_is_refused(text: str, value: str) -> None:  # K1 K2
    try:
        template = KeyTemplate.parse(text, inspect.signature(one))
    except KeyTemplateError:
        return
    for argument in (value, None, *hostile()):
        try:
            key = template.render((argument,))
        except KeyTemplateError:
            continue
        assert 1 <= len(key.encode()) <= 512


@given(st.text(min_size=1, max_size=40))
def test_a_placeholder_renders_to_the_text_itself(value: str) -> None:
    try:
        key = render("<{u}>", one, value)
    except ConfigurationError:
        assert not value.strip() or "\x00" in value or any("\ud800" <= c <= "\udfff" for c in value)
    else:
        assert key == f"<{value}>"
