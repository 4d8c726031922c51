"""Which sequences may run under a rule that changes what users read: the operator, the tenant and the user agree."""

import logging

from opensled.core.errors import Unsupported
from opensled.core.messages import Guide
from verify_server.access.security import TenantLimits
from verify_server.rules.served import ServedRule

log = logging.getLogger(__name__)


def require_rule(served: ServedRule, guide: Guide | None, tenant: TenantLimits, max_draft: int) -> None:
    """Raises Unsupported where this rule is not for this sequence. `max_draft`: tokens of the longest chain."""
    label, rule = served
    if not rule.lossless and tenant.strict:
        raise Unsupported(
            "the operator does not allow loose rules for this tenant; use rule match",
            "rule",
        )
    if guide is not None and guide.masks and not rule.guided:
        raise Unsupported(
            f"rule {label} may change the text, and this answer must have a structure; use rule match, or the "
            "option guided=yes of the rule, if wrong values in a correct structure do no harm",
            "rule",
        )
    if rule.min_draft > max_draft:
        raise Unsupported(
            f"rule {label} needs drafts of {rule.min_draft} tokens, but the maximum of this server is {max_draft}; "
            f"use a smaller window, or set max-draft of the server to {rule.min_draft} in [limits]",
            "rule",
        )
    if not rule.lossless:
        log.info(
            "a sequence begins under a loose rule: its text may differ from the target's",
            extra={"rule": label},
        )
