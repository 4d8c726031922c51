"""Jinja's sandbox with the filters, functions and tags that transformers gives to chat templates.

Python's text of a function, a method or a generator tells its address in memory. A template meets such a value in four
ways: as a global, as an attribute, as the result of a call, and of a filter. Each of them passes `_hide_address`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import wraps
from types import BuiltinMethodType, FunctionType, GeneratorType, MethodType, MethodWrapperType
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

KINDS = (object, FunctionType, MethodType, BuiltinMethodType, MethodWrapperType, GeneratorType)
ADDRESSES = frozenset[object]([kind.__repr__ for kind in KINDS])  # what makes a text with an address


def environment() -> ImmutableSandboxedEnvironment:
    """A new environment."""
    made = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    made.globals["dict"] = _Dict()
    made.globals["namespace"] = _Namespace
    made.globals["cycler"] = _Cycler
    made.filters = {name: _shows(filter) for name, filter in made.filters.items()}
    made.globals = {name: _hide_address(value) for name, value in made.globals.items()}
    return made


class _Environment(ImmutableSandboxedEnvironment):
    """Gives templates no value whose text tells an address."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        return _hide_address(super().getattr(obj, attribute))

    def getitem(self, obj: Any, argument: Any) -> Any:
        return _hide_address(super().getitem(obj, argument))

    def call(__self, __context: Context, __obj: Any, *items: Any, **named: Any) -> Any:
        """As jinja's own is written, so that a template may name a value `self`."""
        return _hide_address(super().call(__context, __obj, *items, **named))


class _Hidden:
    """Stands for a value."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __repr__(self) -> str:
        return f"<{type(self._value).__name__}>"


class _Call(_Hidden):
    """For one that can be called."""

    def __call__(self, /, *items: Any, **named: Any) -> Any:
        return self._value(*items, **named)


class _Items(_Hidden):
    """For one that can be iterated once."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._value)


def _hide_address(value: Any) -> Any:
    """`value`, or what stands for it if its text tells an address."""
    if type(value).__repr__ not in ADDRESSES:
        return value
    if callable(value):
        return _Call(value)
    return _Items(value) if hasattr(value, "__next__") else _Hidden(value)


def _shows(filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose results pass `_hide_address`."""

    @wraps(filter)  # also what jinja notes at a filter that reads more than its value
    def shows(*items: Any, **named: Any) -> Any:
        return _hide_address(filter(*items, **named))

    return shows


def variables(environment: ImmutableSandboxedEnvironment, template: str) -> list[str]:
    """Names that a template looks up and that the environment does not set, sorted."""
    return sorted(meta.find_undeclared_variables(environment.parse(template)) - environment.globals.keys())


class _GenerationTag(Extension):
    """{% generation %} marks a model's text, for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        body: list[nodes.Node] = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return body


class _Dict:
    """What templates use of the class `dict`, without its attributes."""

    def __call__(self, *items: Any, **named: Any) -> dict[Any, Any]:
        return dict(*items, **named)

    def __repr__(self) -> str:
        return repr(dict)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class _Cycler(Cycler):
    """Its items in turn."""

    def __repr__(self) -> str:
        return f"<Cycler {self.items!r}>"


class _Namespace(Namespace):
    """Keeps no name that begins with an underscore: such names lead to Python's internals."""

    def __init__(*items: Any, **named: Any) -> None:
        space, *rest = items  # as jinja's own does, so that a template may name a value `self`
        values = dict(*rest, **named)
        for name in values:
            _check_name(name)
        Namespace.__init__(space, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a template cannot keep {name!r} in a namespace: it begins with an underscore")


class Refusal(TemplateError):
    """What a template raises itself, of a chat that it does not take."""


def _raise(message: str) -> None:
    raise Refusal(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replaces jinja's own filter, which escapes HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
