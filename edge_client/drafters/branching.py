"""Look-ahead beyond the main line: what may follow where the target rejects a token of the block.

The main line bets that a block is accepted whole. Once it is drafted and the verdict is still away, the likeliest other
outcomes are drafted too: a token of the block is rejected, and its rival, the runner-up under the same noise, stands in
its place. Each such branch lives in a sequence of its own that shares the cache of what comes before it; the branch
that a verdict hits becomes the main line, and the others are forgotten. Nothing is begun that would not end before the
verdict: a pass under way when it comes delays the next block.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, inf
from typing import NamedTuple

import numpy as np

from edge_client.drafters.base import ModelDrafter
from opensled.messages import DraftToken
from opensled.sampling import Sampler, SparseSampler

# Of the way from the usual absence of a verdict to the latest one, where that was shorter, and longer.
SHORTER, LONGER = 0.3, 0.1


class RunnerUp(NamedTuple):
    """The runner-up to a draft token."""

    winner: int  # id of that token
    id: int
    lead: float  # of the winner over it, in nats


@dataclass
class Branch:
    """One outcome: `line` is what the truth would grow by, its last token in the place of a rejected one."""

    number: int  # of its sequence in the cache, from 1 on
    base: int  # length of the truth it belongs to
    line: list[int]
    drafted: list[DraftToken] = field(default_factory=list)  # what follows then
    rivals: dict[int, RunnerUp] = field(default_factory=dict)
    computed: int = 0  # positions in its cache

    def tokens(self) -> list[int]:
        """Everything after the base."""
        return self.line + [token.id for token in self.drafted]


class VerdictDelay:
    """How long verdicts are away, as the drafter sees it: rather too short than too long."""

    def __init__(self) -> None:
        self._usual_s = inf
        self._since: float | None = None
        self._pass_s = 0.0  # of the latest pass, as long as none is known to be the last

    def begins(self, now: float) -> None:
        """A block was sent."""
        self._since, self._pass_s = now, 0.0

    def took(self, seconds: float) -> None:
        """A pass took so long; 0 = there will be no more until the truth grows."""
        self._pass_s = seconds

    def ends(self, now: float) -> None:
        """The truth grew."""
        if self._since is None:
            return
        # A pass under way when the verdict came was in time no more.
        away_s, self._since = now - self._since - self._pass_s, None
        if self._usual_s == inf:
            self._usual_s = away_s
        self._usual_s += (SHORTER if away_s < self._usual_s else LONGER) * (away_s - self._usual_s)

    def has_time(self, now: float) -> bool:
        """Whether another pass like the latest one will probably end before the verdict comes."""
        return self._since is not None and now + self._pass_s - self._since <= self._usual_s


class BranchingDrafter(ModelDrafter):
    """A model drafter whose cache holds several sequences that share what they have in common."""

    branches = 0  # branches beside the main line
    clock = staticmethod(time.monotonic)

    def __init__(self, context_length: int) -> None:
        super().__init__(context_length)
        self._absence = VerdictDelay()
        self._branches: list[Branch] = []
        self._rivals: dict[int, RunnerUp] = {}  # by position

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._forget_branches()
        self._rivals.clear()
        super().begin(prompt, sampler)

    def commit(self, tokens: Sequence[int]) -> None:
        self._absence.ends(self.clock())
        stands = self.sequence[self._base : self._base + len(tokens)] == list(tokens)
        hit = None if stands else next((each for each in self._branches if self._is_hit(each, tokens)), None)
        if hit is None:
            super().commit(tokens)
        else:
            self._adopt(hit, len(tokens))
        self._forget_branches()

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        """See `Drafter`; the other outcomes come after the main line, the likeliest of them first."""
        self._forget_branches()
        self._absence.begins(self.clock())
        truths = self._truths
        yield from super().look_ahead(block, length)
        if not self._compares:
            return
        for number, line in enumerate(self._likeliest(self._base, len(block)), 1):
            branch = Branch(number, self._base, line)
            while truths == self._truths and len(branch.drafted) < length:
                started = self.clock()
                if not self._absence.has_time(started) or not self._draft_on(branch):
                    break
                self._absence.took(self.clock() - started)
                yield
        self._absence.took(0.0)

    @property
    def _compares(self) -> bool:
        """Whether rivals are of use: by rule `ratio` what stands in the place of a rejected token is not theirs."""
        return self.branches > 0 and not isinstance(self.sampler, SparseSampler)

    def _draw(self, logits: np.ndarray, position: int) -> DraftToken:
        if not self._compares:
            return super()._draw(logits, position)
        return self._compared(logits, position, self._rivals)

    def _compared(self, logits: np.ndarray, position: int, rivals: dict[int, RunnerUp]) -> DraftToken:
        token, rival, lead = self.sampler.draw_with_rival(logits, position)
        rivals[position] = RunnerUp(token.id, rival, lead)
        return token

    def _likeliest(self, base: int, length: int) -> list[list[int]]:
        """Lines of the likeliest other outcomes of a block of `length` tokens; the bonus token may have a rival too."""
        chances: list[tuple[float, list[int]]] = []
        stands = 1.0  # chance that all tokens before do
        ids = [token.id for token in self.drafted[: length + 1]]
        for index, id in enumerate(ids):
            rival = self._rivals.get(base + index)
            if rival is None or rival.winner != id:  # another drafter's token
                continue
            # The only candidate: whatever comes instead of it is none of the draft model's
            if rival.id == id:
                continue
            chance = 1 / (1 + exp(-min(rival.lead, 50.0)))
            chances.append((stands * (1 - chance), [*ids[:index], rival.id]))
            stands *= chance
        chances.sort(key=lambda pair: -pair[0])
        return [line for _, line in chances[: self.branches]]

    def _draft_on(self, branch: Branch) -> bool:
        """One token more at the end of a branch; False at the end of the context."""
        position = branch.base + len(branch.line) + len(branch.drafted)
        if position >= self.context_length:
            return False
        if not branch.drafted:
            branch.computed = branch.base + len(branch.line) - 1
            # Another drafter's block ends with the context: no line from here
            if branch.computed > self.computed:
                return False
            self.fork(branch.number, branch.computed)
            self._branches.append(branch)
        logits = self.forward_branch(branch.number, branch.tokens()[-1], branch.computed)
        branch.computed += 1
        branch.drafted.append(self._compared(logits, position, branch.rivals))
        return True

    def _is_hit(self, branch: Branch, tokens: Sequence[int]) -> bool:
        """Whether the truth grew into a branch; where it did not get as far as that, the main line is as good."""
        line = branch.tokens()
        return len(branch.line) <= len(tokens) <= len(line) and line[: len(tokens)] == list(tokens)

    def _adopt(self, branch: Branch, known: int) -> None:
        """The truth grew by the first `known` tokens of a branch: it is the main line from now on."""
        self.adopt(branch.number, branch.base + len(branch.line) - 1)
        self.sequence[branch.base :] = branch.tokens()
        self.drafted[:] = branch.drafted[known - len(branch.line) :]
        self.computed = branch.computed
        self._rivals.update(branch.rivals)
        self._truths += 1

    def _forget_branches(self) -> None:
        self._rivals = {position: rival for position, rival in self._rivals.items() if position >= self._base}
        for branch in self._branches:
            self.forget(branch.number)
        self._branches.clear()

    @property
    def _base(self) -> int:
        return len(self.sequence) - len(self.drafted)

    @abstractmethod
    def fork(self, number: int, length: int) -> None:
        """Sequence `number` shares the first `length` positions of the main line's cache."""

    @abstractmethod
    def forward_branch(self, number: int, token: int, position: int) -> np.ndarray:
        """See `forward`: one token of sequence `number`."""

    @abstractmethod
    def adopt(self, number: int, start: int) -> None:
        """From position `start` on, the main line's cache is that of sequence `number`."""

    @abstractmethod
    def forget(self, number: int) -> None:
        """Sequence `number` ends."""

    def close(self) -> None:
        self._branches.clear()
        super().close()
