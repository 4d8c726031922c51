"""What the server asks of vLLM for one sequence in one step, and what it hears of it afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from opensled.core.errors import OpenSledError
from verify_server.rules.base import DraftCheck
from verify_server.rules.decide import Outcome, Question
from verify_server.rules.match import Match

# What a sequence asks of its rows; its error; or None: nothing can be decided now
Asked = Question | OpenSledError | None


def plain(check: DraftCheck) -> Question:
    """Without a guide, penalties and log-probabilities."""
    return Question(check, Match())


class Decode(NamedTuple):
    """One sequence decodes in a step. Without one it is held back, or its prompt is computed."""

    check: DraftCheck  # with the draft that is verified, a device's or the server's
    ask: int = 0  # tokens that vLLM's drafter is to propose after the step
    question: Callable[[DraftCheck], Asked] = plain  # called when it is known which draft the step holds

    def draft(self, longest: int) -> list[int]:
        """Ids to verify."""
        return list(self.check.ids[:longest])

    def fit_check(self, drafted: Sequence[int]) -> DraftCheck:
        """The check with those draft ids that vLLM put into the step; -1 = padding."""
        count = sum(1 for _ in takewhile(lambda id: id >= 0, drafted))
        return self.check._replace(draft=self.check.draft[:count])


class DecodeResult(NamedTuple):
    """What a step did for one sequence."""

    outcome: Outcome = None  # None: nothing is decided
    check: DraftCheck | None = None  # that the outcome is of, with the draft that the step held
    computed: int = 0  # tokens whose KV is in memory now; 0 = none: it waits for memory
    cached: int = 0  # of them, those that were found in the prefix cache
