"""Reads a JSON object field by field, so that no field is ignored in silence.

Each field is either read with its type, or left out by name where it cannot change the answer (http_api/effects.py), or
refused by name. What is empty counts as absent. A lenient API leaves out fields of unknown effect, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeGuard, TypeVar

from http_api.asked_fields import FIELDS
from http_api.effects import ANNOTATIONS, EMPTY, OFF, find_remedy, is_any_of, is_nothing, off_values
from http_api.left_out import field_name, ignores, leave_out
from opensled.core.bounds import require_unicode
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.files import decode_text

Default = TypeVar("Default")
Value = TypeVar("Value")


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a request's body; raises InvalidRequest for anything else."""
    try:
        value = json.loads(decode_text(body))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON in UTF-8: {error}") from error
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except ValueError as error:  # Python reads whole numbers of 4,300 digits at most
        raise InvalidRequest("the body has a number of too many digits") from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


def require_text(value: object, name: str) -> str:
    """`value` if it is a string that has a UTF-8 form."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string", name)
    return require_unicode(value, name, name)


def require_object(value: object, name: str) -> dict[str, Any]:
    """`value` if it is a JSON object; raises InvalidRequest for `name`."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} must be an object", name)
    return value


class Fields:
    """The fields of one object that are not read yet."""

    def __init__(self, values: Mapping[str, Any], where: str = "") -> None:
        self._values = {name: value for name, value in values.items() if value is not None}
        self._where = where  # path of the object, such as "messages[0]."

    def path(self, name: str) -> str:
        return self._where + name

    def rest(self) -> Iterator[tuple[str, Any]]:
        """Take everything that is not read yet."""
        while self._values:
            name = next(iter(self._values))
            yield name, self.raw(name)

    def raw(self, name: str) -> Any:
        """The value as it is; None if absent."""
        return self._values.pop(name, None)

    def take(self, name: str) -> Any:
        """The value of a text, a list or an object; None if absent or empty."""
        value = self.raw(name)
        return None if is_nothing(value) else value

    def refuse(self, remedies: Mapping[str, str]) -> None:
        """Raises Unsupported for a field that another service alone can serve, with what to do instead."""
        for name, remedy in remedies.items():
            if self.take(name) is not None:
                raise Unsupported(f"{name} is not supported: {remedy}", self.path(name))

    def inside(self, name: str) -> Fields:
        """The fields of an object that is a field of this one."""
        return fields_of(self.raw(name), self.path(name))

    def inside_or_empty(self, name: str) -> Fields:
        """The same of an object that may be empty or absent."""
        value = self.take(name)
        return fields_of({} if value is None else value, self.path(name))

    def text(self, name: str, default: str) -> str:
        value = self.take(name)
        return default if value is None else require_text(value, self.path(name))

    def flag(self, name: str, default: Default) -> bool | Default:
        """0 is false, as some languages write it."""
        return self._read(name, default, as_flag, "true or false")

    def read(self, group: str) -> dict[str, Any]:
        """The fields of this group that are there, each of its kind and in its range (http_api/asked_fields.py)."""
        found = {}
        for name, (kind, low, high) in FIELDS[group].items():
            if name in self._values and (value := KINDS[kind](self, name)) is not None:
                if kind != "string" and not low <= value <= high:
                    where = self.path(name)
                    raise InvalidRequest(f"{where} is out of range: it must be from {low} to {high}", where)
                found[name] = value
        return found

    def integer(self, name: str) -> int | None:
        return self._read(name, None, as_integer, "an integer")

    def number(self, name: str, default: Default) -> float | Default:
        return self._read(
            name, default, lambda value: float(value) if is_number(value) else None, "a finite number"
        )

    def _read(
        self, name: str, default: Default, convert: Callable[[object], Value | None], kind: str
    ) -> Value | Default:
        """The converted value; raises InvalidRequest where `convert` gives None."""
        value = self.raw(name)
        if is_any_of(value, EMPTY):
            return default
        converted = convert(value)
        if converted is None:
            raise InvalidRequest(f"{self.path(name)} must be {kind}", self.path(name))
        return converted

    def only(self, name: str, *allowed: object) -> None:
        """Accept the field at values that change nothing; refuse it at any other."""
        value = self.raw(name)
        if not is_any_of(value, (*EMPTY, *allowed)):
            path = self.path(name)
            raise Unsupported(f"{path} is not supported here: leave it out", path)

    def finish(self) -> None:
        """Leave out what has no effect, and refuse every other field that is not read yet."""
        for name, value in self._values.items():
            path = self.path(name)
            if name in ANNOTATIONS:
                leave_out(path)
            elif not is_any_of(value, off_values(name)):
                self._refuse(name, path)

    def _refuse(self, name: str, path: str) -> None:
        """Raises Unsupported, but for a field of unknown effect that may be left out."""
        shown = field_name(path)
        if remedy := find_remedy(name):
            raise Unsupported(f"{shown} is not supported here: {remedy}", shown)
        if name in OFF:
            raise Unsupported(f"{shown} is not supported here: leave it out", shown)
        if not ignores(path):
            hint = "leave it out, or start the API with --lenient, which leaves such fields out"
            raise Unsupported(f"unknown field {shown}: nothing here reads it; {hint}", shown)

    def leave_rest(self, *but: str) -> None:
        """Leave out everything that is not read yet, known or not; refuse the fields `but`, unless they are empty."""
        for name, value in self._values.items():
            if is_nothing(value):
                continue
            if name in but:
                self._must_not_miss(name)
            leave_out(re.sub(r"\[\d+\]", "[]", self.path(name)))

    def _must_not_miss(self, name: str) -> NoReturn:
        path = self.path(name)
        raise Unsupported(f"{path} is not read here: {find_remedy(name) or 'leave it out'}", path)


# How a field of each kind is read; None = it is empty
KINDS: dict[str, Callable[[Fields, str], Any]] = {
    "flag": lambda fields, name: fields.flag(name, None),
    "integer": Fields.integer,
    "number": lambda fields, name: fields.number(name, None),
    "string": lambda fields, name: fields.text(name, ""),
}


def fields_of(value: object, where: str) -> Fields:
    """The fields of the object at `where`; raises InvalidRequest for anything else."""
    return Fields(require_object(value, where), where + ".")


def call_arguments(value: object, where: str) -> str:
    """The arguments of an earlier call as the JSON text of an object, from one or a text; none are an empty one.

    A text that is no object, as of a call that was cut off, is what it is told to be: `input`. Raises InvalidRequest
    for `where`.
    """
    text = require_text(value if isinstance(value, str) else object_text(value, where), where)
    if text.strip() in ("", "null", "[]"):
        return "{}"
    try:
        read = json.loads(text, parse_constant=_no_json)
    except (ValueError, RecursionError):
        read = None
    return text if isinstance(read, dict) else json.dumps({"input": text}, ensure_ascii=False)


def object_text(value: object, where: str) -> str:
    """An object as JSON; NaN is none. Raises InvalidRequest for `where`."""
    try:
        return json.dumps(
            require_object({} if value is None else value, where), ensure_ascii=False, allow_nan=False
        )
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{where} is not valid JSON: {error}", where) from error


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"it has {constant}")


def as_flag(value: object) -> bool | None:
    """The flag that a JSON value is; None for anything else."""
    return bool(value) if isinstance(value, bool) or is_any_of(value, (0,)) else None


def as_integer(value: object) -> int | None:
    """The integer that a JSON number is, also one written 16.0, as some languages do; None for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a float can hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False
