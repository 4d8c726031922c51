"""The acceptance rules that one server offers, and the rule object of each sequence."""

from opensled.errors import Unsupported, UsageError
from opensled.messages import RuleFacts
from opensled.registry import split_name
from verify_server.acceptance import RULES
from verify_server.acceptance.base import AcceptanceRule


class ServedRules:
    """Only these classes are ever made: a name from a device imports nothing."""

    def __init__(self, names: str = "", trust_devices: bool = False) -> None:
        """`names`: registered ones or module:Class, separated by commas; "" = all registered that may be served.

        `trust_devices`: rules may use what devices say of their probabilities. Raises UsageError.
        """
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        classes = {name: _rule_class(name) for name in wanted or RULES.names()}
        self._classes = {
            name: rule for name, rule in classes.items() if trust_devices or not rule.draft_probs
        }
        for name in wanted:
            if name not in self._classes:
                raise UsageError(f"rule {name!r} is served only with --trust-device-probabilities")

    def facts(self) -> tuple[RuleFacts, ...]:
        """What `Describe` tells of them."""
        return tuple(
            RuleFacts(name, rule.lossless, rule.trees, rule.draft_probs)
            for name, rule in self._classes.items()
        )

    def create(self, asked: str) -> AcceptanceRule:
        """The rule of a new sequence; `asked`: a name, options behind a colon. Raises Unsupported, InvalidRequest."""
        found = split_name(asked, self._classes)
        if found is not None:
            name, options = found
            return self._classes[name](options)
        cause = f"rule {asked[:80]!r} is not served; choose from {', '.join(self._classes)}"
        if split_name(asked, RULES.names()):
            cause += "; a server that trusts its devices is started with --trust-device-probabilities"
        raise Unsupported(cause, "rule")


def _rule_class(name: str) -> type[AcceptanceRule]:
    found = RULES.get(name)
    if isinstance(found, type) and issubclass(found, AcceptanceRule):
        return found
    raise UsageError(f"rule {name!r} is not a subclass of verify_server.acceptance.base.AcceptanceRule")
