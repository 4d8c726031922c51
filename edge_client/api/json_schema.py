"""Building blocks of JSON schemas (2020-12), for what requests hold and for what responses hold."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT = {"type": "integer", "minimum": 1, "maximum": 2**31 - 1}


def optional(schema: Schema, about: str, **more: object) -> Schema:
    """A field that may be left out or null."""
    if isinstance(schema.get("type"), str):
        return {**schema, "type": [schema["type"], "null"], "description": about, **more}
    return {"anyOf": [schema, {"type": "null"}], "description": about, **more}


def one_of(*values: object) -> Schema:
    """Exactly these values."""
    return {"enum": list(values)}


def closed(properties: Schema, *required: str, **more: object) -> Schema:
    """An object with these fields and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def items(schema: Schema, low: int = 0, high: int | None = None) -> Schema:
    """A list of `low` to `high` such values."""
    bounds = {"minItems": low} if high is None else {"minItems": low, "maxItems": high}
    return {"type": "array", "items": schema, **bounds}


def ref(name: str) -> Schema:
    """The schema of that name among the components."""
    return {"$ref": f"#/components/schemas/{name}"}
