"""One step in the engine's thread: a forward pass for all sessions, then their acceptance rules, then compaction."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from opensled.errors import EngineError, EngineLost, OpenSledError
from verify_server.acceptance.base import (
    AcceptanceResult,
    Decision,
    DraftCheck,
    SessionScores,
    decided,
    moves,
)
from verify_server.engine.base import SampleRequest, Scores, TargetEngine
from verify_server.kept.trace import TOP
from verify_server.session import Session, StepItem
from verify_server.text.guide import GrammarRebuilt

log = logging.getLogger(__name__)

# What became of one session in a step: a decision, its own error, or None: nothing is decided. Then it was a chunk of
# a prompt, or a draft spoiled the rows, and the session decides again without it.
Outcome = AcceptanceResult | OpenSledError | None


def run_step(engine: TargetEngine, work: Sequence[StepItem]) -> list[Outcome]:
    """In the engine's thread: the outcome of each session; an error stays with its session. Raises EngineLost."""
    scores = engine.forward([item.segment for item in work])
    decisions: dict[int, Decision] = {}
    failed: dict[int, OpenSledError] = {}
    stop = 0
    for index, item in enumerate(work):
        start, stop = stop, stop + item.segment.rows
        if (error := _read_prompt(item, scores, start)) is not None:
            failed[index] = error
        elif item.check is not None:
            decisions[index] = _decide(item.session, item.check, scores, stop - 1 - len(item.check.draft))
    outcomes = _run(decisions, scores) | failed
    for index, outcome in outcomes.items():
        if isinstance(outcome, AcceptanceResult) and outcome.path:
            outcomes[index] = _compact(engine, work[index], outcome)
    return [_without_blame(engine, item, outcomes.get(index)) for index, item in enumerate(work)]


def _without_blame(engine: TargetEngine, item: StepItem, outcome: Outcome) -> Outcome:
    """A draft never ends an answer: one token whose embedding or KV is not finite spoils the rows before it, too."""
    if isinstance(outcome, OpenSledError) and item.check is not None and item.check.draft:
        log.warning("a step with a draft failed, and is taken again without it: %s", outcome)
        engine.erase(item.segment.blocks, item.segment.start)
        return None
    return outcome


def step_failed() -> EngineError:
    return EngineError("the target model failed on this step; the server's log says why")


def _read_prompt(item: StepItem, scores: Scores, row: int) -> OpenSledError | None:
    """Log-probabilities of the prompt's tokens, where they are asked for; `row`: the first one of the session."""
    wanted, segment = item.session.sequence.scores, item.segment
    if wanted is None:
        return None
    drafted = len(item.check.draft) if item.check is not None else 0
    try:
        wanted.read(scores, row, segment.start, segment.start + len(segment.tokens) - drafted)
    except OpenSledError as error:
        return error
    except Exception:
        return _failed()
    return None


def _decide(session: Session, check: DraftCheck, scores: Scores, first_row: int) -> Decision:
    """The rule of one session on its own rows, and the log-probabilities of what it decides."""
    if session.constraint is not None:
        check = check._replace(masks=session.constraint.allowed(check.ids, check.parents))
    own = SessionScores(scores, first_row, check)
    result = yield from session.rule.decide(check, own)
    if check.top_logprobs is None and session.trace is None:
        return result
    ids = decided(check, result)
    rows = [0, *[index + 1 for index in result.path]] if result.path else range(len(ids))
    if session.trace is not None:
        result = result._replace(likeliest=tuple(own.top(rows, TOP)))
    if check.top_logprobs is None:
        return result
    return result._replace(logprobs=tuple(own.logprobs(rows, ids, check.top_logprobs)))


def _run(decisions: dict[int, Decision], scores: Scores) -> dict[int, Outcome]:
    """Run all rules in waves: each wave is one sampling call for the requests of all sessions."""
    outcomes: dict[int, Outcome] = {}
    answers: dict[int, list[int] | Exception | None] = dict.fromkeys(decisions)
    while answers:
        requests: dict[int, SampleRequest] = {}
        for index, answer in answers.items():
            try:
                requests[index] = _resume(decisions[index], answer)
            except StopIteration as done:
                outcomes[index] = done.value
            except GrammarRebuilt:
                outcomes[index] = None
            except OpenSledError as error:
                outcomes[index] = error
            except Exception:
                outcomes[index] = _failed()
        answers = dict(zip(requests, _sample(scores, list(requests.values()))))
    return outcomes


def _resume(decision: Decision, answer: list[int] | Exception | None) -> SampleRequest:
    """The next request of a rule that gets the answer to its last one; None starts it."""
    if isinstance(answer, Exception):
        return decision.throw(answer)
    return next(decision) if answer is None else decision.send(answer)


def _sample(scores: Scores, requests: Sequence[SampleRequest]) -> Sequence[list[int] | Exception]:
    """One call for all requests; if it fails, one call for each, so that the error finds its session."""
    if not requests:
        return []
    try:
        return scores.sample(requests)
    except Exception as error:
        if len(requests) == 1:
            return [error]
        return [answer for request in requests for answer in _sample(scores, [request])]


def _compact(
    engine: TargetEngine, item: StepItem, result: AcceptanceResult
) -> AcceptanceResult | OpenSledError:
    """Put the KV of a tree's accepted path where a chain's would be: the rest is rolled back like any other."""
    assert item.check is not None
    try:
        places = moves(item.check, result)
        if places:
            engine.compact(item.segment.blocks, places)
        return result
    except EngineLost:
        raise
    except OpenSledError as error:
        return error
    except Exception:
        return _failed()


def _failed() -> EngineError:
    log.exception("a sequence's rows cannot be decided")
    return step_failed()
