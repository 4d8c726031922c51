"""Finds the schemas that no finite value fulfils: objects that need themselves inside, references that lead nowhere."""

from __future__ import annotations

from typing import Any

Node = dict[str, Any]
MAX_ROUNDS = 20  # through the definitions; those that need more are taken to end. Chosen


def without_endless(schema: Node) -> Node:
    """The schema with `False` for each of its `$defs` that has no finite value."""
    defs = schema.get("$defs", {})
    finite: set[str] = set()
    for _ in range(MAX_ROUNDS):
        left = [name for name in reversed(defs) if name not in finite]
        before = len(finite)
        for name in left:  # what is referred to comes later, so usually one round does
            if _ends(defs[name], finite):
                finite.add(name)
        if len(finite) in (before, len(defs)):
            endless = {name: False for name in defs if name not in finite}
            return {**schema, "$defs": {**defs, **endless}} if endless else schema
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
    kinds = node.get("type")
    if "const" in node or "enum" in node or kinds not in ("object", "array"):
        return True
    return _object_ends(node, finite) if kinds == "object" else _array_ends(node, finite)


def _object_ends(node: Node, finite: set[str]) -> bool:
    properties = node.get("properties", {})
    others = node.get("additionalProperties", True)
    return all(_ends(properties.get(key, others), finite) for key in node.get("required", ()))


def _array_ends(node: Node, finite: set[str]) -> bool:
    least, first = node.get("minItems", 0), node.get("prefixItems", [])
    rest = [node.get("items", True)] if least > len(first) else []
    return all(_ends(each, finite) for each in [*first[:least], *rest])
