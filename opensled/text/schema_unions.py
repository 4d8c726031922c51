"""What several JSON schemas have together: the keys of an object, and whether no value can match two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

Node = dict[str, Any]
Target = Callable[[object], Any]  # what a reference points to; None if nothing
# Chosen, so that a schema made for it does not keep the server busy.
MAX_LOOKED_AT = 200  # schemas, to name the keys of one object
MAX_OPTIONS = 32  # of one `oneOf`, whose pairs are compared
MAX_KEYS = 8  # that two objects both require
MAX_PAIRS = 10_000  # of values of two `enum`


def names_of(node: Node, target: Target) -> list[str] | None:
    """The keys that an object may have if it is closed: its own and those of all that it must match as well.

    None if it does not name its keys, or some of these schemas say themselves what further keys there may be.
    """
    names: dict[str, None] = {}
    waiting, seen, named = [node], set[int](), False
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict) or id(each) in seen:
            continue
        seen.add(id(each))
        free = each.get("additionalProperties") is not None or each.get("unevaluatedProperties") not in (
            None,
            False,
        )
        if len(seen) > MAX_LOOKED_AT or free or (each is not node and "patternProperties" in each):
            return None
        properties, required = each.get("properties"), each.get("required")
        named = named or isinstance(properties, dict) or isinstance(each.get("patternProperties"), dict)
        names |= dict.fromkeys(properties if isinstance(properties, dict) else ())
        if isinstance(required, list):
            names |= {name: None for name in required if isinstance(name, str)}
        waiting += _branches(each, target)
    return list(names) if named else None


def _branches(node: Node, target: Target) -> list[Any]:
    """What a value of this schema must or may match as well."""
    found = [target(node["$ref"])] if "$ref" in node else []
    for key in ("allOf", "anyOf", "oneOf"):
        found += node[key] if isinstance(node.get(key), list) else []
    return found


def are_apart(options: Sequence[Any], target: Target) -> bool:
    """Whether surely no value matches two of them."""
    if len(options) > MAX_OPTIONS:
        return False
    found = [_follow(option, target) for option in options]
    return all(_apart(one, other, target) for one, other in combinations(found, 2))


def _follow(node: Any, target: Target) -> Any:
    for _ in range(8):
        if not isinstance(node, dict) or "$ref" not in node:
            break
        node = target(node["$ref"])
    return node


def _apart(one: Any, other: Any, target: Target, depth: int = 0) -> bool:
    if not isinstance(one, dict) or not isinstance(other, dict):
        return False
    kinds, others = _kinds(one), _kinds(other)
    if kinds and others and not kinds & others:
        return True
    values, other_values = _values(one), _values(other)
    if values is not None and other_values is not None:
        if len(values) * len(other_values) > MAX_PAIRS:
            return False
        return not any(value in other_values for value in values)
    both = sorted(_required_keys(one) & _required_keys(other))[:MAX_KEYS]
    return depth < 2 and any(
        _apart(_property(one, key, target), _property(other, key, target), target, depth + 1) for key in both
    )


def _kinds(node: Node) -> set[str]:
    """The types of its values, where integers are numbers; none if it does not say."""
    kinds = node.get("type")
    found = {kinds} if isinstance(kinds, str) else {each for each in kinds or () if isinstance(each, str)}
    return {"number" if kind == "integer" else kind for kind in found}


def _values(node: Node) -> list[Any] | None:
    if "const" in node:
        return [node["const"]]
    return node["enum"] if isinstance(node.get("enum"), list) else None


def _required_keys(node: Node) -> set[str]:
    """The keys that each object of this schema has, if it has objects only."""
    if _kinds(node) != {"object"} or not isinstance(node.get("required"), list):
        return set()
    return {key for key in node["required"] if isinstance(key, str)}


def _property(node: Node, key: str, target: Target) -> Any:
    properties = node.get("properties")
    return _follow(properties.get(key), target) if isinstance(properties, dict) else None
