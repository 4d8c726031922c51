"""One step in the engine's thread: one forward pass for all sessions, then each session's acceptance rule."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opensled.errors import EngineError, OpenSledError
from verify_server.acceptance.base import AcceptancePolicy, DraftCheck, TreePolicy
from verify_server.engine.base import Scores, Segment, TargetEngine, TreeEngine
from verify_server.session import Session, StepItem
from verify_server.step_item import AcceptanceResult, decided, moves

log = logging.getLogger(__name__)

# What became of one session in a step: a decision, its own error, or (None) a mere prompt chunk.
Outcome = AcceptanceResult | OpenSledError | None


def run_step(engine: TargetEngine, work: Sequence[StepItem]) -> list[Outcome]:
    """In the engine's thread: one forward over all segments, then every session's rule on its own rows."""
    scores = engine.forward([planned.segment for planned in work])
    outcomes: list[Outcome] = []
    row = 0
    for planned in work:
        rows = range(row, row := row + planned.segment.rows)
        outcomes.append(_outcome(engine, planned, scores, rows))
    return outcomes


def _outcome(engine: TargetEngine, planned: StepItem, scores: Scores, rows: range) -> Outcome:
    """One session's decision; what goes wrong with its rows stays its own, be it a bug of ours."""
    if planned.check is None:
        return None
    try:
        decision = _decide(planned.session, planned.check, scores, rows)
        if decision.path:
            _compact(engine, planned.segment, moves(planned.check, decision))
        return decision
    except OpenSledError as error:
        return error
    except Exception:
        log.exception("a sequence's rows cannot be decided")
        return step_failed()


def step_failed() -> EngineError:
    return EngineError("the target model failed on this step; the server's log says why")


def _decide(session: Session, question: DraftCheck, scores: Scores, rows: range) -> AcceptanceResult:
    if session.constraint is not None:
        masks = session.constraint.allowed(question.ids, question.parents)
        question = question._replace(masks=masks)
    decision = _accepted(session.rule, question, scores, rows)
    if question.top_logprobs is None:
        return decision
    ids = decided(question, decision)
    own = [rows[0], *[rows[index + 1] for index in decision.path]] if decision.path else rows[: len(ids)]
    return decision._replace(logprobs=tuple(scores.logprobs(own, ids, question.top_logprobs)))


def _accepted(rule: AcceptancePolicy, question: DraftCheck, scores: Scores, rows: range) -> AcceptanceResult:
    if not question.parents:
        return AcceptanceResult(*rule.accept(question, scores, rows))
    assert isinstance(rule, TreePolicy), "a session refuses trees that its rule cannot decide"
    path, next_token = rule.accept_tree(question, scores, rows)
    return AcceptanceResult(len(path), next_token, path=path)


def _compact(engine: TargetEngine, segment: Segment, moves: list[tuple[int, int]]) -> None:
    """Put the KV of a tree's accepted path where a chain's would be: the rest is rolled back like any other."""
    if moves:
        assert isinstance(engine, TreeEngine), "a session refuses trees that its engine cannot compute"
        engine.compact(segment.blocks, moves)
