"""What the server's drafter is asked for after a step."""

from __future__ import annotations

from verify_server.drafting.base import Ask
from verify_server.step_item import StepItem

# Tokens of a tree for each of a chain: a policy plans with the depth of drafts, and leaves out later what of a tree is
# not worth its row.
WAYS = 4


def asked_of(item: StepItem) -> Ask | None:
    """What one session asks for after its step is committed; None = nothing, as where it has ended."""
    session, sequence = item.session, item.session.sequence
    most = min(item.ask, sequence.useful)
    if most <= 0 or sequence.finish_reason or session.closed or session.failed:
        return None
    return Ask(
        session.id,
        session.tenant,
        sequence.tokens,
        most,
        session.params,
        session.key,
        item.blocks,
        session.emitted,
        sequence.table.content,
        0 if session.limits.tree_reads else min(session.limits.max_tree, WAYS * most),
    )
