"""Look-ahead beyond the main line: what may follow where the target rejects a token of the block.

The main line bets that the whole block is accepted. Once it is drafted and the verdict still travels, the likeliest
other outcomes are drafted too: a token of the block is rejected, and the runner-up under the same noise stands in its
place. Each such branch has its own sequence, which shares the cache of what comes before it. The branch that a verdict
hits becomes the main line, and the others are forgotten. No pass is begun that would not end before the verdict: a
pass under way when the verdict comes delays the next block.
"""

import time
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, inf

import numpy as np

from edge_client.drafters.base import ModelDrafter
from opensled.messages import DraftToken
from opensled.penalties import Emitted
from opensled.sampling import Sampler, SparseSampler

# Part of the way that the estimate goes to the latest delay, where that was shorter, and where it was longer.
SHORTER, LONGER = 0.3, 0.1


# Id of a draft token, id of the runner-up at its position, and the lead of the first over the second, in nats.
RunnerUp = tuple[int, int, float]


@dataclass
class Branch:
    """One outcome: `line` is what the truth would grow by, its last token in the place of a rejected one."""

    line: list[int]
    drafted: list[DraftToken] = field(default_factory=list)  # what follows the line
    runners_up: dict[int, RunnerUp] = field(default_factory=dict)  # by position

    def tokens(self) -> list[int]:
        """Everything after the truth."""
        return self.line + [token.id for token in self.drafted]


class BranchingDrafter(ModelDrafter):
    """A model drafter whose cache holds several sequences that share what they have in common."""

    branches = 0  # branches beside the main line
    clock = staticmethod(time.monotonic)

    def __init__(self, context_length: int) -> None:
        super().__init__(context_length)
        # How long a verdict takes, as the drafter sees it: an estimate that is more often too short than too long
        self._usual_s = inf
        self._sent_at: float | None = None
        self._pass_s = 0.0  # of the latest pass; 0 = no other one follows until the truth grows
        self._branches: list[Branch] = []  # the index + 1 is the number of the branch's sequence in the cache
        self._runners_up: dict[int, RunnerUp] = {}  # by position

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._forget_branches()
        self._runners_up.clear()
        super().begin(prompt, sampler)

    def commit(self, tokens: Sequence[int]) -> None:
        self._time_verdict(self.clock())
        stands = self.sequence[self._base : self._base + len(tokens)] == list(tokens)
        hits = [] if stands else [each for each in enumerate(self._branches, 1) if _is_hit(each[1], tokens)]
        if hits:
            self._count(tokens)
            self._adopt(*hits[0], len(tokens))
        else:
            super().commit(tokens)
        self._forget_branches()

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        """See `Drafter`; the other outcomes come after the main line, the likeliest of them first."""
        self._forget_branches()
        self._sent_at, self._pass_s = self.clock(), 0.0
        truths = self._truths
        yield from super().look_ahead(block, length)
        if not self._compares:
            return
        for line in self._likeliest(self._base, len(block)):
            branch = Branch(line)
            while truths == self._truths and len(branch.drafted) < length:
                started = self.clock()
                if not self._has_time(started) or not self._draft_on(branch):
                    break
                self._pass_s = self.clock() - started
                yield
        self._pass_s = 0.0

    def _time_verdict(self, now: float) -> None:
        """The truth grew."""
        if self._sent_at is None:
            return
        # The last pass may have been under way when the verdict came.
        delay_s, self._sent_at = now - self._sent_at - self._pass_s, None
        if self._usual_s == inf:
            self._usual_s = delay_s
        self._usual_s += (SHORTER if delay_s < self._usual_s else LONGER) * (delay_s - self._usual_s)

    def _has_time(self, now: float) -> bool:
        """Whether another pass like the latest one will probably end before the verdict comes."""
        return self._sent_at is not None and now + self._pass_s - self._sent_at <= self._usual_s

    @property
    def _compares(self) -> bool:
        """Whether runners-up are of use: by rule `ratio` they do not stand in the place of a rejected token."""
        return self.branches > 0 and not isinstance(self.sampler, SparseSampler)

    def _draw(self, logits: np.ndarray, position: int) -> DraftToken:
        if not self._compares:
            return super()._draw(logits, position)
        return self._compared(logits, position, self._runners_up, self._emitted())

    def _compared(
        self, logits: np.ndarray, position: int, runners_up: dict[int, RunnerUp], emitted: Emitted | None
    ) -> DraftToken:
        token, second, lead = self.sampler.draw_with_rival(logits, self._left_out + position, emitted)
        runners_up[position] = (token.id, second, lead)
        return token

    def _likeliest(self, base: int, length: int) -> list[list[int]]:
        """Lines of the likeliest other outcomes of a block of `length` tokens and its bonus token."""
        chances: list[tuple[float, list[int]]] = []
        stands = 1.0  # chance that all tokens so far stand
        ids = [token.id for token in self.drafted[: length + 1]]
        for index, id in enumerate(ids):
            winner, second, lead = self._runners_up.get(base + index, (id, id, 0.0))
            # Another drafter's token, or the only candidate: the draft model does not know what may replace it
            if winner != id or second == id:
                continue
            chance = 1 / (1 + exp(-min(lead, 50.0)))
            chances.append((stands * (1 - chance), [*ids[:index], second]))
            stands *= chance
        chances.sort(key=lambda pair: -pair[0])
        return [line for _, line in chances[: self.branches]]

    def _draft_on(self, branch: Branch) -> bool:
        """One token more at the end of the newest branch; False at the end of the context."""
        tokens = branch.tokens()
        position = self._base + len(tokens)
        if position >= self.context_length:
            return False
        if not branch.drafted:
            # A block of another drafter that ends with the context was not computed as far as this
            if position - 1 > self.computed:
                return False
            self._branches.append(branch)
            self.fork(len(self._branches), position - 1)
        logits = self.forward_branch(len(self._branches), tokens[-1], position - 1)
        branch.drafted.append(self._compared(logits, position, branch.runners_up, self._emitted(tokens)))
        return True

    def _adopt(self, number: int, branch: Branch, known: int) -> None:
        """The truth grew by the first `known` tokens of a branch: it is the main line from now on."""
        base = self._base
        self.adopt(number, base + len(branch.line) - 1)
        self.sequence[base:] = branch.tokens()
        self.drafted[:] = branch.drafted[known - len(branch.line) :]
        self.computed = len(self.sequence) - 1
        self._runners_up.update(branch.runners_up)
        self._truths += 1

    def _forget_branches(self) -> None:
        base = self._base
        self._runners_up = {at: each for at, each in self._runners_up.items() if at >= base}
        for number in range(1, len(self._branches) + 1):
            self.forget(number)
        self._branches.clear()

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


def _is_hit(branch: Branch, tokens: Sequence[int]) -> bool:
    """Whether the truth grew into a branch; where it did not get as far as that, the main line is as good."""
    known = branch.tokens()
    return len(branch.line) <= len(tokens) <= len(known) and known[: len(tokens)] == list(tokens)
