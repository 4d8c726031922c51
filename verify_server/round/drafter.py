"""The base class of server drafters: after a step, a drafter proposes a continuation for each session that asks.

Server drafts are verified in the next step by the same rule as a device's, so they change the cost of a text but never
the text. The engine's thread calls the drafter when the step is committed and its verdicts leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple

from hw_profiles.step_cost import DraftingCost, StepCost
from opensled.core.messages import DraftBlock, DraftToken, SamplingParams
from opensled.core.penalties import Emitted, TokenCounts
from scheduler.estimates import GUESS, Forecast
from verify_server.kv.blocks import BlockPool
from verify_server.round.sequence import Sequence as Text


class Ask(NamedTuple):
    """The request of one session for a draft after this step."""

    session: int
    tenant: str
    tokens: Sequence[int]  # its text, prompt included; not to be kept beyond the call
    most: int  # tokens of the draft, if it is a chain
    params: SamplingParams
    key: bytes  # noise key
    blocks: tuple[int, ...] = ()  # KV blocks: see `DrafterMemory`
    computed: int = 0  # positions of the text whose KV the drafter has in them
    emitted: TokenCounts | None = None  # the answer so far; None = there are no penalties
    max_of_tree: int = 0  # maximum size of a draft tree, in tokens; 0 = the draft must be a chain
    drafter: int = 0  # of the server's drafters, the one that is asked

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)

    def penalty_counts(self, drafted: Sequence[int]) -> Emitted | None:
        """The token counts for penalties after `drafted` tokens of the draft."""
        return None if self.emitted is None else Emitted(self.emitted, tuple(drafted))

    def chain(self, guesses: Iterable[tuple[int, float]]) -> Proposal:
        """The draft of the first `most` guesses, each an id with its confidence."""
        tokens = tuple([DraftToken(*guess) for guess in islice(guesses, self.most)])
        return Proposal(DraftBlock(self.length, tokens))


class Proposal(NamedTuple):
    """The answer to one `Ask`."""

    block: DraftBlock
    read: int = 0  # number of tokens of the text that were read for it
    unread: int = 0  # number of tokens that must still be read before there can be a draft


class DrafterMemory:
    """The KV of a drafter for one session; most need at most the target's, which lacks the newest token."""

    def unread(self, length: int) -> int | None:
        """Tokens of a text of `length` that the drafter must read before it drafts; None = there is no room for it."""
        return 0

    def prepare(self, text: Text, most: int) -> tuple[tuple[int, ...], int] | None:
        """Blocks for a draft of `most` tokens, and positions that are computed in them; None = there is no room."""
        return tuple(text.memory.blocks), len(text) - 1

    def write(self, read: int, drafted: tuple[int, ...]) -> None:
        """In the prepared blocks, `read` more positions of the text are computed, and `drafted` behind them."""

    def rest(self, text: Text) -> None:
        """The drafter is not asked after this step."""

    def clear(self) -> None:
        """Give all blocks back."""


class ServerDrafter(ABC):
    """Drafts for all sessions of a server. It keeps the state of each session until `forget`."""

    guess: Forecast = GUESS  # forecast before the first draft
    # Before it: assumed seconds of a pass, and of a token of text that it reads, in those of the target; passes at most
    pass_share, read_share, max_passes = 0.0, 0.0, inf

    @classmethod
    def first_cost(cls, target: StepCost) -> DraftingCost:
        """The assumed cost before the first step; `target`: cost of the target's steps."""
        if not cls.pass_share:
            return DraftingCost()
        step_s, some = target.verify_s(1, 0, 1), 64
        read_s = (target.verify_s(1 + some, 0, 1) - step_s) / some
        return DraftingCost(cls.pass_share * step_s, 0.0, cls.read_share * read_s, cls.max_passes)

    @abstractmethod
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """A draft for each of `asks` that follows its text and has at most the requested number of tokens."""

    def forget(self, session: int) -> None:  # noqa: B027
        """The session is over."""

    def lodge(self, host: BlockPool) -> None:  # noqa: B027
        """The target has these KV blocks. Called once, before all other methods."""

    def place(self, tenant: str) -> DrafterMemory:
        """The memory of a new session."""
        return DrafterMemory()
