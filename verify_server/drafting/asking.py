"""What the server's drafter is asked for after a step."""

from __future__ import annotations

from verify_server.acceptance.base import AcceptanceResult, decided
from verify_server.drafting.base import Ask
from verify_server.session import StepItem
from verify_server.step import Outcome


def asked_of(item: StepItem, outcome: Outcome) -> Ask | None:
    """What one session asks for; None = nothing, as where it ends."""
    if not item.ask or item.check is None or not isinstance(outcome, AcceptanceResult):
        return None
    session, sequence = item.session, item.session.sequence
    news, finish_reason = sequence.cut(decided(item.check, outcome))
    most = min(item.ask, sequence.useful - len(news))
    if finish_reason or most <= 0:
        return None
    return Ask(
        session.id,
        session.tenant,
        sequence.tokens,
        news,
        most,
        session.params,
        session.key,
        item.blocks,
        session.emitted,
    )
