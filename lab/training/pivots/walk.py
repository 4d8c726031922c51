"""Labels by rollouts (PAD, arXiv 2511.00351): is a draft token that is not the target's own a pivot?

The walk follows the target's greedy answer. Where the draft model would go on otherwise, the target writes answers
behind either token: the draft's is a pivot if they are right clearly less often. Behind a token that is no pivot the
walk goes on with it, because a server that lets it stand goes on with it, too.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from lab.training.pivots.questions import Question
from lab.training.pivots.rollouts import Continuations, TokenFacts, Writer
from verify_server.rules.pad import FLOOR

ALPHA = 0.9  # a token is a pivot if answers behind it are right less often than this, times the target's own share
MIN_SOLVED = 0.3  # of the target's own answers: a task that it solves no more often says nothing


class Drafts(Protocol):
    """A draft model, as the labeller knows it."""

    def begin(self, prompt: Sequence[int]) -> None:
        """A new text."""

    def next(self) -> int | None:
        """The likeliest token behind the text; None at the end of the model's context."""

    def take(self, token: int) -> None:
        """The text goes on with `token`."""


@dataclass(frozen=True)
class Mismatch:
    """A draft token that is not the target's own, and how often answers behind either are right."""

    place: int  # tokens of the answer before it
    pair: tuple[int, int]  # the draft token and the target's own
    facts: TokenFacts
    drafted_solved: float  # share of the answers behind the draft token
    own_solved: float

    @property
    def pivot(self) -> bool:
        return self.drafted_solved < ALPHA * self.own_solved


@dataclass(frozen=True)
class Walked:
    """What one task gave. `mismatches` is empty where the target does not solve it."""

    solved: float  # share of the target's own answers
    mismatches: list[Mismatch] = field(default_factory=list)


class Labeller:
    """Walks along answers of at most `most` tokens. `loose`: with tokens that are no pivots, else with the target.

    `share` of the mismatches is labelled, drawn by lot; behind the others the walk takes the target's token.
    """

    def __init__(
        self, target: Writer, drafts: Drafts, most: int, loose: bool = True, share: float = 1.0
    ) -> None:
        self._target, self._drafts, self._most = target, drafts, most
        self._loose, self._labelled = loose, share

    def walk(self, question: Question, seed: int) -> Walked:
        """`seed`: of the rollouts."""
        *before, last = question.prompt
        [answers] = self._target.continuations(before, [last], self._most, seed)
        solved = _share(question, (), answers)
        if solved <= MIN_SOLVED:
            return Walked(solved)
        return Walked(solved, self._mismatches(question, answers.greedy, seed))

    def _mismatches(self, question: Question, ahead: list[int], seed: int) -> list[Mismatch]:
        """`ahead`: the target's greedy answer from here on."""
        found: list[Mismatch] = []
        answer: list[int] = []
        lots = random.Random(seed)
        self._drafts.begin(question.prompt)
        while ahead and (drafted := self._drafts.next()) is not None:
            token, *ahead = ahead
            drawn = drafted != token and lots.random() < self._labelled
            if drawn and (facts := self._asked(question, answer, drafted, token)):
                mismatch, behind = self._judged(question, answer, (drafted, token), facts, seed)
                if not mismatch.own_solved:  # the answer is lost already
                    break
                found.append(mismatch)
                if self._loose and not mismatch.pivot:
                    token, ahead = drafted, behind.greedy
            answer.append(token)
            self._drafts.take(token)
        return found

    def _asked(self, question: Question, answer: list[int], drafted: int, token: int) -> TokenFacts | None:
        """Of a draft token about which rule `pad` asks the classifier; None for the others, which it decides alone."""
        if {drafted, token} & self._target.ends:
            return None
        facts = self._target.facts([*question.prompt, *answer], drafted)
        return facts if facts.prob >= FLOOR else None

    def _judged(
        self, question: Question, answer: list[int], pair: tuple[int, int], facts: TokenFacts, seed: int
    ) -> tuple[Mismatch, Continuations]:
        """The mismatch, and what follows the draft token. `pair`: the draft token and the target's."""
        before, place = [*question.prompt, *answer], len(answer)
        both = self._target.continuations(before, pair, self._most - place - 1, seed + 1 + place)
        shares = [_share(question, [*answer, token], behind) for token, behind in zip(pair, both)]
        return Mismatch(place, pair, facts, *shares), both[0]


def _share(question: Question, answer: Sequence[int], behind: Continuations) -> float:
    """Of the sampled answers that are right."""
    return fmean(question.solved([*answer, *sampled]) for sampled in behind.sampled)
