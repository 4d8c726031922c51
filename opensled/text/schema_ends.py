"""Takes out schemas that no finite value fulfils: objects that need themselves, references that lead in a circle."""

from __future__ import annotations

import math
from collections.abc import Set
from typing import Any

from opensled.text.schema_keywords import TYPES, json_kind

Node = dict[str, Any]
EVERY = frozenset(TYPES)
MAX_ROUNDS = 20  # through the definitions; those that need more are taken to end. Chosen


def without_endless(schema: Node) -> Any:
    """The schema with `False` for each reference to a definition that has no finite value."""
    defs = schema.get("$defs", {})
    finite: set[str] = set()
    for _ in range(MAX_ROUNDS):
        left = [name for name in reversed(defs) if name not in finite]
        before = len(finite)
        for name in left:  # what is referred to comes later, so usually one round does
            if _ends(defs[name], finite):
                finite.add(name)
        if len(finite) in (before, len(defs)):
            return schema if len(finite) == len(defs) else _prune(schema, defs.keys() - finite)
    return schema


def _ends(node: Any, finite: set[str]) -> bool:
    """Whether a value of this schema can end, as far as the definitions in `finite` can."""
    if not isinstance(node, dict):
        return node is not False
    reference = node.get("$ref")
    if reference is not None and reference.rpartition("/")[2] not in finite:
        return False
    if not all(_ends(each, finite) for each in node.get("allOf", ())):
        return False
    if "anyOf" in node and not any(_ends(each, finite) for each in node["anyOf"]):
        return False
    if not _kinds(node) or _is_empty(node):
        return False
    kinds = node.get("type")
    if "const" in node or "enum" in node or kinds not in ("object", "array"):
        return True
    return _object_ends(node, finite) if kinds == "object" else _array_ends(node, finite)


def _is_empty(node: Node) -> bool:
    """Whether the bounds of a value of one type leave nothing between them."""
    pairs = {"string": ("minLength", "maxLength"), "array": ("minItems", "maxItems")}
    kind = node.get("type")
    if kind in ("integer", "number"):
        least = max(node.get("minimum", -math.inf), node.get("exclusiveMinimum", -math.inf))
        most = min(node.get("maximum", math.inf), node.get("exclusiveMaximum", math.inf))
        exclusive = least == node.get("exclusiveMinimum") or most == node.get("exclusiveMaximum")
        return bool(least > most or (least == most and exclusive))
    low, high = pairs.get(kind, ("", "")) if isinstance(kind, str) else ("", "")
    return bool(node.get(low, 0) > node.get(high, math.inf))


def _kinds(node: Any) -> Set[str]:
    """The types that a value of this schema may have, as far as that is seen without its references."""
    if not isinstance(node, dict):
        return EVERY if node is not False else frozenset()
    kinds = node.get("type", EVERY)
    found = set(kinds if isinstance(kinds, list) else [kinds] if isinstance(kinds, str) else kinds)
    if "number" in found:
        found.add("integer")
    if "const" in node or "enum" in node:
        found &= set().union(*map(_kind, [node["const"]] if "const" in node else node["enum"]))
    for each in node.get("allOf", ()):
        found &= _kinds(each)
    return found & set().union(*map(_kinds, node["anyOf"])) if "anyOf" in node else found


def _kind(value: object) -> set[str]:
    """The types of a value; both of those that a number may have."""
    kind = json_kind(value)
    whole = kind == "integer" or (isinstance(value, float) and value.is_integer())
    return {"integer", "number"} if whole else {kind}


def _object_ends(node: Node, finite: set[str]) -> bool:
    properties = node.get("properties", {})
    others = node.get("additionalProperties", True)
    return all(_ends(properties.get(key, others), finite) for key in node.get("required", ()))


def _array_ends(node: Node, finite: set[str]) -> bool:
    least, first = node.get("minItems", 0), node.get("prefixItems", [])
    rest = [node.get("items", True)] if least > len(first) else []
    return all(_ends(each, finite) for each in [*first[:least], *rest])


def _prune(node: Any, endless: Set[str]) -> Any:
    if not isinstance(node, dict):
        return node
    if "$ref" in node and node["$ref"].rpartition("/")[2] in endless:
        return False
    pruned = dict(node)
    for key in node.keys() & {"items", "additionalProperties"}:
        pruned[key] = _prune(node[key], endless)
    for key in node.keys() & {"allOf", "anyOf", "prefixItems"}:
        pruned[key] = [_prune(each, endless) for each in node[key]]
    for key in node.keys() & {"properties", "patternProperties", "$defs"}:
        pruned[key] = {
            name: _prune(each, endless)
            for name, each in node[key].items()
            if key != "$defs" or name not in endless
        }
    return pruned
