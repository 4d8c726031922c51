"""The base class of server drafters: after a step, a drafter proposes a continuation for each session that asks.

Server drafts are verified in the next step by the same rule as a device's, so they change the cost of a text but never
the text. The engine's thread calls the drafter when the step is committed and its verdicts leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import ClassVar, NamedTuple

from opensled.core.messages import DraftBlock, DraftToken, SamplingParams
from opensled.core.penalties import Emitted, TokenCounts
from scheduler.estimates import GUESS, Forecast
from verify_server.kv.blocks import BlockPool
from verify_server.kv.guests import GuestPool


class Ask(NamedTuple):
    """The request of one session for a draft after this step."""

    session: int
    tenant: str
    tokens: Sequence[int]  # its text, prompt included; not to be kept beyond the call
    most: int  # tokens of the draft, if it is a chain
    params: SamplingParams
    key: bytes  # noise key
    # KV blocks: the session's, or those of a draft model; for the draft's positions, too, if it computes there and
    # memory allows
    blocks: tuple[int, ...] = ()
    emitted: TokenCounts | None = None  # the answer so far; None = there are no penalties
    computed: int = 0  # positions of the text that the draft model has computed in its blocks
    max_of_tree: int = 0  # maximum size of a draft tree, in tokens; 0 = the draft must be a chain

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


class ServerDrafter(ABC):
    """Drafts for all sessions of a server. It keeps the state of each session until `forget`."""

    needs_kv: ClassVar[bool] = False  # it computes KV, in guests or in the blocks of the sessions
    reads_blocks: ClassVar[bool] = False  # it reads further data in the blocks of the sessions
    guess: Forecast = GUESS  # forecast before the first draft

    @abstractmethod
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """A draft for each of `asks` that follows its text and has at most the requested number of tokens."""

    def forget(self, session: int) -> None:  # noqa: B027
        """The session is over."""

    def lodge(self, host: BlockPool) -> GuestPool | None:
        """Its KV blocks beside a target with the blocks of `host`; None = it computes none of its own."""
        return None
