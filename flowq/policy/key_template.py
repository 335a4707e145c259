"""Key templates: ``"doc:{doc_id}"`` names the key of a call by the call's own arguments.

A template is read when the task is declared, and checked against the task's signature, so a wrong name is
found there and not at the thousandth call. Its language is small on purpose (rule K1)::

    {name}        an argument, however it was passed, its default, or a member of **kwargs
    {0}           by position, however it was passed
    {a.b} {a[k]}  one step into an attribute or an item
    {{ }}         a brace

Nothing in it can call code: no conversions, no format specs, no names with a leading underscore, no second
step. Attributes are read from where plain data lies (an instance's own dictionary, slots, fields of a named
tuple, the numeric and calendar parts of built-in values), never through a property or ``__getattr__``; items
from dictionaries, lists, tuples and text. What is found must be text, a number, a truth value, a date or a
time: None, blank text, a container or anything else would put calls into one window that do not belong
together, so it is refused (rule K2).
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from inspect import Parameter, Signature
from string import Formatter
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, Literal, NamedTuple

from flowq.errors import ConfigurationError, KeyTemplateError
from flowq.units import MAX_KEY_BYTES, checked_key, checked_text, shown

__all__ = ["KeyTemplate", "Placeholder"]

_LONGEST: Final = 4096
_FIELD: Final = re.compile(r"([^.\[\]]*)(?:\.([^.\[\]]*)|\[([^\[\]]*)\])?", re.DOTALL)
_POSITION: Final = re.compile(r"[0-9]{1,4}")
_MISSING: Final = object()
# Built-in types whose attributes are plain reads of C fields.
_PLAIN_TYPES: Final = (
    int,
    float,
    complex,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
)
_RENDERED: Final = (Decimal, Fraction, datetime.datetime, datetime.date, datetime.time, datetime.timedelta)


class Placeholder(NamedTuple):
    """One ``{...}`` of a template: its text, the argument by name or position, at most one step into it."""

    text: str
    root: str | int
    step: Literal["attribute", "item"] | None
    into: str


_NAME: Final = type.__dict__["__name__"]  # read past any metaclass
_TUPLE_FIELD: Final = type(Placeholder.__dict__["text"])


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A parsed key template. Make one with `KeyTemplate.parse`; `render` gives the key of a call.

    Use it for every key that follows from a call: of a debounce, a coalesce, or a partition of a rate limit.

    Attributes
    ----------
    text : str
        The template as written.
    parts : tuple of str or Placeholder
        Literal text and placeholders, in order.
    signature : inspect.Signature or None
        What the calls are bound to; None takes a call as it is written.

    References
    ----------
    Python's format string syntax, of which this is a safe part.

    Examples
    --------
    >>> import inspect
    >>> def reindex(doc, lang="en"): ...
    >>> template = KeyTemplate.parse("{doc[id]}:{lang}", inspect.signature(reindex))
    >>> template.render(({"id": 7},), {})
    '7:en'
    >>> template.render(({"id": None},), {})
    Traceback (most recent call last):
    flowq.errors.KeyTemplateError: key: {doc[id]} must have a value, not None; available: doc, lang
    """

    text: str
    parts: tuple[str | Placeholder, ...]
    signature: Signature | None
    name: str = "key"

    @classmethod
    def parse(cls, text: str, signature: Signature | None = None, *, name: str = "key") -> KeyTemplate:
        """Read a template, and check it against a signature if one is given.

        Parameters
        ----------
        text : str
            The template; without placeholders it is one key for the whole task (rule K3).
        signature : inspect.Signature, optional
            The task's.
        name : str
            The parameter's name, for messages.

        Raises
        ------
        TypeError
            If it is not text.
        KeyTemplateError
            If it is empty, malformed, uses a conversion, a format spec or an unsafe step, or names what the
            signature cannot supply.
        """
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a template text such as 'doc:{{id}}': {shown(text)}")
        if not text:
            raise KeyTemplateError(f"{name} must not be empty: ''")
        if len(text) > _LONGEST:
            raise KeyTemplateError(f"{name} must be <= {_LONGEST} characters: {len(text)} characters")
        parts: list[str | Placeholder] = []
        literal_bytes = 0
        try:
            for literal, field, spec, conversion in Formatter().parse(text):
                if literal:
                    literal_bytes += len(checked_text(literal, name))
                    parts.append(literal)
                if field is not None:
                    parts.append(_placeholder(field, spec or "", conversion, name))
        except KeyTemplateError:
            raise
        except ValueError as error:  # the standard parser and checked_text both speak in ValueErrors
            raise KeyTemplateError(
                f"{name} must be a template such as 'doc:{{id}}' ({error}): {shown(text)}"
            ) from None
        if literal_bytes > MAX_KEY_BYTES:
            raise KeyTemplateError(f"{name} must be <= {MAX_KEY_BYTES} bytes of UTF-8: {literal_bytes} bytes")
        template = cls(text, tuple(parts), signature, name)
        if signature is not None:
            for placeholder in template.placeholders:
                _check(placeholder, signature, name)
        return template

    @property
    def placeholders(self) -> tuple[Placeholder, ...]:
        """The placeholders, in order."""
        return tuple(part for part in self.parts if isinstance(part, Placeholder))

    def render(self, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> str:
        """Return the key of a call, 1 to 512 bytes of UTF-8.

        Raises
        ------
        TypeError
            If the call does not fit the signature.
        KeyTemplateError
            If a placeholder resolves to nothing usable (missing, None, blank, a container), naming it and
            what is available, or the key is too long or holds NUL.
        """
        call = _Call(self.signature, args, kwargs or {})
        rendered = "".join(
            part if isinstance(part, str) else _render(part, call, self.name) for part in self.parts
        )
        try:
            return checked_key(rendered, self.name)
        except ConfigurationError as error:
            raise KeyTemplateError(str(error)) from None


def _placeholder(field: str, spec: str, conversion: str | None, name: str) -> Placeholder:
    text = "{" + field + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
    if conversion:
        raise KeyTemplateError(f"{name} must not use a conversion: {text}")
    if spec:
        raise KeyTemplateError(f"{name} must not use a format spec: {text}")
    if not field:
        raise KeyTemplateError(f"{name} must name each placeholder, as in '{{id}}' or '{{0}}': {text}")
    match = _FIELD.fullmatch(field)
    if match is None:
        raise KeyTemplateError(f"{name} must take at most one step, as in '{{a.b}}' or '{{a[k]}}': {text}")
    root, attribute, item = match[1], match[2], match[3]
    position = _POSITION.fullmatch(root)
    if position is None and not root.isidentifier():
        raise KeyTemplateError(f"{name} must use names of arguments or positions: {text}")
    if attribute is not None:
        if attribute.startswith("_"):
            raise KeyTemplateError(f"{name} must not read an attribute with a leading underscore: {text}")
        if not attribute.isidentifier():
            raise KeyTemplateError(f"{name} must use names of attributes: {text}")
    if item == "":
        raise KeyTemplateError(f"{name} must name an item, as in '{{a[k]}}': {text}")
    return Placeholder(
        text,
        int(root) if position else root,
        "attribute" if attribute is not None else "item" if item is not None else None,
        attribute or item or "",
    )


_VARIADIC: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
_BY_POSITION: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def _positional(signature: Signature) -> list[str]:
    return [name for name, parameter in signature.parameters.items() if parameter.kind in _BY_POSITION]


def _check(placeholder: Placeholder, signature: Signature, name: str) -> None:
    """Refuse a placeholder that no call of this signature could fill (rule K2)."""
    parameters = signature.parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    root = placeholder.root
    if isinstance(root, int):
        supplied = root < len(_positional(signature)) or Parameter.VAR_POSITIONAL in kinds
    elif root in parameters:
        if parameters[root].kind in _VARIADIC:
            stars = "*" if parameters[root].kind is Parameter.VAR_POSITIONAL else "**"
            raise KeyTemplateError(
                f"{name} must name one argument, not all of '{stars}{root}': {placeholder.text}"
            )
        supplied = True
    else:
        supplied = Parameter.VAR_KEYWORD in kinds
    if not supplied:
        available = ", ".join(key for key, value in parameters.items() if value.kind not in _VARIADIC)
        raise KeyTemplateError(
            f"{name} must name what the task takes: {placeholder.text}; available: {available or 'nothing'}"
        )


class _Call:
    """The arguments of one call, by name and by position."""

    def __init__(self, signature: Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.named: dict[str, Any] = {}
        self.positional: list[Any] = list(args)
        if signature is None:
            self.named.update(kwargs)
            return
        bound = signature.bind_partial(*args, **kwargs)
        bound.apply_defaults()
        for key, value in bound.arguments.items():
            kind = signature.parameters[key].kind
            if kind is Parameter.VAR_KEYWORD:
                self.named.update(value)
            elif kind is not Parameter.VAR_POSITIONAL:
                self.named[key] = value
        declared = _positional(signature)
        self.positional = [self.named.get(key, _MISSING) for key in declared]
        self.positional += args[len(declared) :]

    def find(self, root: str | int) -> Any:
        if isinstance(root, str):
            return self.named.get(root, _MISSING)
        return self.positional[root] if root < len(self.positional) else _MISSING

    def available(self) -> str:
        positions = [] if self.named else [str(index) for index in range(len(self.positional))]
        return ", ".join([*self.named, *positions]) or "nothing"


def _render(placeholder: Placeholder, call: _Call, name: str) -> str:
    value = call.find(placeholder.root)
    if value is not _MISSING and placeholder.step == "attribute":
        value = _attribute(value, placeholder, name)
    elif value is not _MISSING and placeholder.step == "item":
        value = _item(value, placeholder.into)
    kind = type(value)
    if value is _MISSING:
        problem = "is missing"
    elif value is None:
        problem = "must have a value, not None"
    elif issubclass(kind, str):
        text = str.__str__(value)
        if text and not text.isspace():
            return text
        problem = f"must not be blank: {shown(text)}"
    elif kind is bool:
        return "True" if value else "False"
    elif issubclass(kind, int) and int.bit_length(value) <= 8 * MAX_KEY_BYTES:
        return int.__repr__(value)
    elif issubclass(kind, float) and math.isfinite(value):
        return float.__repr__(value)
    elif kind in _RENDERED:
        return str(value)
    else:
        problem = f"must be text or a finite number, not {_NAME.__get__(kind)}"
    raise KeyTemplateError(f"{name}: {placeholder.text} {problem}; available: {call.available()}")


def _static(kind: type[Any], attribute: str) -> tuple[Any, Any]:
    """Find a class attribute without running code; return it and its owner, or `_MISSING` twice."""
    for owner in type.__dict__["__mro__"].__get__(kind):
        members = type.__dict__["__dict__"].__get__(owner)
        if attribute in members:
            return members[attribute], owner
    return _MISSING, _MISSING


def _attribute(value: Any, placeholder: Placeholder, name: str) -> Any:
    """Read an attribute from where plain data lies; refuse one that would run code."""
    attribute = placeholder.into
    kind = type(value)
    found, owner = _static(kind, attribute)
    descriptor = type(found)
    if descriptor in (MemberDescriptorType, _TUPLE_FIELD) or (
        descriptor is GetSetDescriptorType and owner in _PLAIN_TYPES
    ):
        try:
            return found.__get__(value, kind)
        except AttributeError:  # a slot that holds nothing
            return _MISSING
    if found is _MISSING or _static(descriptor, "__set__")[0] is _MISSING:
        own = _own_dictionary(value, kind)
        if attribute in own:
            return own[attribute]
        if found is _MISSING or _static(descriptor, "__get__")[0] is _MISSING:
            return found
    raise KeyTemplateError(
        f"{name}: {placeholder.text} is computed by code, so it cannot be part of a key;"
        f" pass its value as an argument"
    )


def _own_dictionary(value: Any, kind: type[Any]) -> dict[str, Any]:
    descriptor, _ = _static(kind, "__dict__")
    if type(descriptor) not in (GetSetDescriptorType, MemberDescriptorType):
        return {}
    own = descriptor.__get__(value, kind)
    return own if type(own) is dict else {}


def _item(value: Any, key: str) -> Any:
    """Read an item of a built-in container, without its own ``__getitem__`` or ``__missing__``."""
    kind = type(value)
    index = int(key) if _POSITION.fullmatch(key) else None
    if issubclass(kind, dict):
        found = dict.get(value, key, _MISSING)
        return dict.get(value, index, _MISSING) if found is _MISSING and index is not None else found
    for sequence in (list, tuple, str):
        if issubclass(kind, sequence) and index is not None and index < sequence.__len__(value):
            return sequence.__getitem__(value, index)
    return _MISSING
