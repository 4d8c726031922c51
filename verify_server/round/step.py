"""One step in the engine's thread: a forward pass for all sessions, then their decisions, then compaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opensled.core.errors import OpenSledError
from verify_server.engine.base import TargetEngine
from verify_server.round.rider import DecideAgain
from verify_server.round.step_item import StepItem
from verify_server.rules.base import AcceptanceResult, moves
from verify_server.rules.decide import Outcome, Question, decide, unforeseen

log = logging.getLogger(__name__)


def run_step(engine: TargetEngine, work: Sequence[StepItem]) -> list[Outcome]:
    """In the engine's thread: the outcome of each session; an error stays with its session."""
    scores = engine.forward([item.segment for item in work])
    questions: dict[int, Question] = {}
    outcomes: dict[int, Outcome] = {}
    stop = 0
    for index, item in enumerate(work):
        stop += item.segment.rows
        drafted = len(item.check.draft) if item.check is not None else 0
        question = question_of(item, stop - 1 - drafted)
        if isinstance(question, Question):
            questions[index] = question
        else:
            outcomes[index] = question
    outcomes |= decide(questions, scores)
    for index, outcome in outcomes.items():
        if isinstance(outcome, AcceptanceResult) and outcome.path:
            outcomes[index] = _compact(engine, work[index], outcome)
    return [_without_blame(engine, item, outcomes[index]) for index, item in enumerate(work)]


def question_of(item: StepItem, row: int) -> Question | OpenSledError | None:
    """The question of a session about its rows, or its outcome if there is none. `row`: see `Question`."""
    check, session = item.check, item.session
    if check is None and not item.reads:
        return None
    try:
        if check is not None:
            for rider in session.riders:
                check = rider.check(check)
    except DecideAgain:
        return None
    except OpenSledError as error:
        return error
    except Exception:
        return unforeseen()
    return Question(check, session.terms.rule, item.reads, row)


def _without_blame(engine: TargetEngine, item: StepItem, outcome: Outcome) -> Outcome:
    """A failure with a draft does not end the answer: the step is repeated without the draft, because one token whose
    embedding or KV is not finite also spoils the rows before it."""
    if isinstance(outcome, OpenSledError) and item.check is not None and item.check.draft:
        log.warning("a step with a draft failed, and is taken again without it: %s", outcome)
        engine.erase(item.segment.blocks, item.segment.start)
        return None
    return outcome


def _compact(
    engine: TargetEngine, item: StepItem, result: AcceptanceResult
) -> AcceptanceResult | OpenSledError:
    """Move the KV of a tree's accepted path to the positions of a chain; the rest is rolled back as usual."""
    assert item.check is not None
    try:
        places = moves(item.check, result)
        if places:
            engine.compact(item.segment.blocks, places)
        return result
    except OpenSledError as error:
        return error
    except Exception:
        return unforeseen()
