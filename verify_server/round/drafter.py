"""What a drafter beside the target is: after a step it proposes what may follow in each session that asks.

Its drafts are verified in the next step by the same rule as a device's, so they change the cost of a text and never
the text. Called from the engine's thread, when the step is committed and its verdicts leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

from opensled.core.messages import DraftBlock, DraftToken, SamplingParams
from opensled.core.penalties import Emitted, TokenCounts
from scheduler.estimates import GUESS, Forecast


class Ask(NamedTuple):
    """One session that wants a draft after this step."""

    session: int
    tenant: str
    tokens: Sequence[int]  # its text, prompt included; not to be kept beyond the call
    most: int  # tokens of the draft, if it is a chain
    params: SamplingParams
    key: bytes  # noise key
    # KV blocks that the session holds; for the draft's positions, too, if the drafter needs that and memory allows
    blocks: tuple[int, ...] = ()
    emitted: TokenCounts | None = None  # the answer so far; None = there are no penalties
    # By position, what stands for rows of pictures: their placeholders are the same ids in every text
    content: Mapping[int, int] = {}
    max_of_tree: int = 0  # tokens of the draft, if it is a tree; 0 = a chain is wanted

    @property
    def length(self) -> int:
        """Tokens of the text."""
        return len(self.tokens)

    def penalty_counts(self, drafted: Sequence[int]) -> Emitted | None:
        """What penalties count behind `drafted` tokens of the draft."""
        return None if self.emitted is None else Emitted(self.emitted, tuple(drafted))

    def chain(self, guesses: Iterable[tuple[int, float]]) -> Proposal:
        """The draft of these ids, each with its confidence: the first `most` of them."""
        tokens = tuple([DraftToken(*guess) for guess in islice(guesses, self.most)])
        return Proposal(DraftBlock(self.length, tokens))


class Proposal(NamedTuple):
    """What came of one `Ask`."""

    block: DraftBlock
    read: int = 0  # tokens of the text that had to be read for it,
    unread: int = 0  # and those that are still to be read before there can be a draft


class ServerDrafter(ABC):
    """Drafts for all sessions of a server. It keeps what it knows of each until it is told to forget it."""

    needs_kv: ClassVar[bool] = False  # it computes with KV of its own, in the blocks of the sessions
    reads_blocks: ClassVar[bool] = False  # it reads what lies in the blocks of the sessions beside KV
    guess: Forecast = GUESS  # how its drafts fare, as far as that is known before the first one

    @abstractmethod
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """A draft for each of `asks`, of as many tokens as it wants or fewer, that follows its text."""

    def forget(self, session: int) -> None:  # noqa: B027
        """The session is over."""

    def forget_blocks(self, blocks: Sequence[int]) -> None:  # noqa: B027
        """These KV blocks belong to no session any more. Called from any thread, also while it drafts."""
