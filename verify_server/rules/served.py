"""The acceptance rules that one server offers, and the rule object of each sequence."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from opensled.core.errors import Unsupported, UsageError
from opensled.core.messages import RuleFacts, split_name
from verify_server.engine.base import TargetEngine
from verify_server.rules import RULES
from verify_server.rules.base import AcceptanceRule


class ServedRule(NamedTuple):
    """The rule object of one sequence, and its name with all options, as users read it."""

    label: str
    rule: AcceptanceRule


class ServedRules:
    """Only these classes are ever made: a name from a device imports nothing."""

    def __init__(self, names: str = "", trust_devices: bool = False, loose: str = "") -> None:
        """`names`: registered ones or module:Class, separated by commas; "" = all registered that may be served.

        `trust_devices`: rules may use what devices say of their probabilities. `loose`: the rules that may change what
        users read, none of which is served without being named here. Raises UsageError.
        """
        wanted, loosened = _names(names), _names(loose)
        classes = {name: _rule_class(name) for name in dict.fromkeys((wanted or RULES.names()) + loosened)}
        for name in loosened:
            if classes[name].lossless:
                raise UsageError(f"rule {name!r} is not a loose rule; take it out of --loose-rules")
        self._classes = {
            name: rule
            for name, rule in classes.items()
            if (trust_devices or not rule.draft_probs) and (rule.lossless or name in loosened)
        }
        self._makers: dict[str, Callable[[str], AcceptanceRule]] = dict(self._classes)
        for name in wanted:
            if name not in self._classes:
                flag = "--trust-device-probabilities" if classes[name].lossless else f"--loose-rules {name}"
                raise UsageError(f"rule {name!r} is served only with {flag}")

    def facts(self) -> tuple[RuleFacts, ...]:
        """What `Describe` tells of them."""
        return tuple(
            RuleFacts(name, rule.lossless, rule.trees, rule.draft_probs)
            for name, rule in self._classes.items()
        )

    def load(self, model: str, pivots: str, engine: TargetEngine, vocabulary: str) -> None:
        """See `AcceptanceRule.make_factory`, for all of them."""
        for name, rule in self._classes.items():
            self._makers[name] = rule.make_factory(model, pivots, engine, vocabulary)

    def create(self, asked: str) -> ServedRule:
        """The rule of a new sequence; `asked`: a name, options behind a colon. Raises Unsupported, InvalidRequest."""
        found = split_name(asked, self._classes)
        if found is not None:
            name, options = found
            rule = self._makers[name](options)
            return ServedRule(f"{name}:{rule.settings}" if rule.settings else name, rule)
        cause = f"rule {asked[:80]!r} is not served; choose from {', '.join(self._classes)}"
        if known := split_name(asked, RULES.names()):
            cause += "; a server that " + (
                "trusts its devices is started with --trust-device-probabilities"
                if RULES.get(known[0]).lossless
                else f"may change what users read is started with --loose-rules {known[0]}"
            )
        raise Unsupported(cause, "rule")


def _names(listed: str) -> list[str]:
    return [name.strip() for name in listed.split(",") if name.strip()]


def _rule_class(name: str) -> type[AcceptanceRule]:
    found = RULES.get(name)
    if isinstance(found, type) and issubclass(found, AcceptanceRule):
        return found
    raise UsageError(f"rule {name!r} is not a subclass of verify_server.rules.base.AcceptanceRule")
