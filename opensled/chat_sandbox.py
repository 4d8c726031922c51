"""Jinja's sandbox with the filters, functions and tags that transformers gives to chat templates."""

import json
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace


def environment() -> ImmutableSandboxedEnvironment:
    """A new environment."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    made.filters["tojson"] = _to_json
    made.globals["raise_exception"] = _raise
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    made.globals["dict"] = _Dict()
    made.globals["namespace"] = _Namespace
    return made


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

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


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
