"""Decides a step: the rules of its sequences over the rows that the target has computed, and what else is read of them.

It knows no session, engine or KV.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Hashable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from opensled.core.errors import EngineError, OpenSledError
from verify_server.engine.base import SampleRequest, Scores
from verify_server.rules.base import (
    AcceptanceResult,
    AcceptanceRule,
    DraftCheck,
    Reading,
    SessionScores,
    StepRows,
    decided_ids,
)

log = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)  # of a sequence: whatever its caller numbers them by


class Question(NamedTuple):
    """What one sequence asks of its rows in a step."""

    check: DraftCheck | None  # complete; None: a chunk of a prompt, nothing to decide
    rule: AcceptanceRule
    reads: tuple[Reading, ...] = ()
    row: int = 0  # of the newest token of the text: row 0 of a draft, whose other rows follow it


class ChunkRows(NamedTuple):
    """What was read of a chunk of a prompt."""

    read: Mapping[type[Reading], Any]


StepResult = AcceptanceResult | ChunkRows
# What became of one session in a step: a decision, its own error, or None: nothing is decided. Then it was a chunk of
# a prompt, or a draft spoiled the rows, and the session decides again without it.
Outcome = StepResult | OpenSledError | None

_Decision = Generator[SampleRequest, list[int], StepResult]


def decide(questions: Mapping[Key, Question], scores: Scores) -> dict[Key, Outcome]:
    """The outcome of each question; an error stays with its sequence.

    All rules run in waves: each wave is one sampling call for the requests of all sequences.
    """
    decisions = {key: _decision(question, scores) for key, question in questions.items()}
    outcomes: dict[Key, Outcome] = {}
    answers: dict[Key, list[int] | Exception | None] = dict.fromkeys(decisions)
    while answers:
        requests: dict[Key, SampleRequest] = {}
        for key, answer in answers.items():
            try:
                requests[key] = _resume(decisions[key], answer)
            except StopIteration as done:
                outcomes[key] = done.value
            except OpenSledError as error:
                outcomes[key] = error
            except Exception:
                outcomes[key] = unforeseen()
        answers = dict(zip(requests, _sample(scores, list(requests.values()))))
    return outcomes


def unforeseen() -> EngineError:
    """The outcome of a sequence after an unexpected error; called where that is handled."""
    log.exception("a sequence's rows cannot be decided")
    return step_failed()


def step_failed() -> EngineError:
    return EngineError("the target model failed on this step; the server's log says why")


def _decision(question: Question, scores: Scores) -> _Decision:
    """The rule of one sequence on its own rows, then what is read of them."""
    check, rule, reads, row = question
    if check is None:
        return ChunkRows(_read(reads, StepRows(scores, row)))
    result = yield from rule.decide(check, SessionScores(scores, row, check))
    if not reads:
        return result
    ids = decided_ids(check, result)
    places = [0, *[index + 1 for index in result.path]] if result.path else range(len(ids))
    return result._replace(read=_read(reads, StepRows(scores, row, [row + place for place in places], ids)))


def _read(reads: Sequence[Reading], rows: StepRows) -> dict[type[Reading], Any]:
    return {type(each): each.read(rows) for each in reads}


def _resume(decision: _Decision, answer: list[int] | Exception | None) -> SampleRequest:
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
