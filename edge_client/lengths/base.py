"""The base class of all draft-length policies, and the loop that obeys one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from edge_client.lengths.learned_sums import Learned
from opensled.drafting.status import DraftStatus
from opensled.messages import DraftBlock, DraftToken

# Tokens of a block where neither the server nor the owner says anything. Chosen: 4 to 5 tokens are best for
# acceptance rates of 0.6 to 0.8 (Leviathan et al. 2023, arXiv 2211.17192).
UNADVISED = 4


@dataclass(frozen=True)
class LengthOptions:
    """What the owner of a device asks of its policy."""

    length: int = 0  # most tokens of a block; 0 = not said
    confidence: float = 0.4  # threshold of a token's confidence, 0 to 1
    tree: int = 0  # most tokens of a draft tree; 0 = chains only
    look_ahead: bool = True  # the drafter goes on while a verdict travels
    battery_floor: float = 20.0  # percent below which nothing is drafted on battery


class DraftLengthPolicy(ABC):
    """Decides how long draft blocks are, and hears what becomes of them. Defaults: it learns nothing, drafts no trees.

    One policy serves all sequences of a device. The event loop and the drafters' threads call it.
    """

    needs_confidence = False  # draft tokens must carry their confidence: a pass over the vocabulary for each

    @classmethod
    def of(cls, options: LengthOptions) -> DraftLengthPolicy:
        """The policy for a device with these options; policies with parameters override it."""
        return cls()

    @abstractmethod
    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        """Most tokens of the next block; called once for each block. 0 = the server decodes by itself for now.

        `limit`: tokens that there is room for; `hint`: the server's advice, None = it gave none; `ready`: tokens that
        are drafted already.
        """

    def ahead(self, limit: int, hint: int | None = None) -> int:
        """Most tokens of the next block to draft while the present one travels; 0 = draft nothing ahead."""
        return self.most(limit, hint)

    def nodes(self, limit: int, hint: int | None = None) -> int:
        """Most tokens of a tree that has room for `limit`; 0 = draft a chain."""
        return 0

    def goes_on(self, index: int) -> bool:
        """Whether to draft token number `index` of a block; all tokens before it are in the block."""
        return True

    def belongs(self, token: DraftToken, index: int) -> bool:
        """Whether a drafted token is worth its verification as number `index` of its block."""
        return True

    def opened(self, seconds: float) -> None:  # noqa: B027
        """A sequence was opened in `seconds`: a round trip of the link, and no step of the server."""

    def drafted(self, tokens: int, seconds: float) -> None:  # noqa: B027
        """The draft model took `seconds` for `tokens` tokens, one after the other."""

    def answered(self, block: DraftBlock, accepted: int, seconds: float, awaited: bool = True) -> None:  # noqa: B027
        """The verdict on a block came `seconds` after the block was sent; its first `accepted` tokens stand.

        `awaited`: the server waited for the block. Else it read the prompt or decoded meanwhile, and the verdict came
        in the midst of that: `seconds` may be next to nothing, or several steps.
        """

    def streamed(self, tokens: int, seconds: float) -> None:  # noqa: B027
        """The server decoded `tokens` tokens by itself; they came `seconds` after the ones before."""

    def learned(self) -> Learned | None:
        """What is worth keeping for the next start of the device; None = nothing."""
        return None

    def recall(self, learned: Learned) -> None:  # noqa: B027
        """Continue with what an earlier start learned. Raises ValueError for numbers that no rounds can give."""

    def forget(self) -> None:  # noqa: B027
        """Begin anew: the target is another one."""

    @property
    @abstractmethod
    def status(self) -> DraftStatus:
        """The present decision, and the reason for it."""


def pulled(
    policy: DraftLengthPolicy,
    proposals: Iterator[DraftToken],
    length: int,
    interrupted: Callable[[], bool],
    least: int = 0,
) -> Iterator[DraftToken]:
    """The tokens of a block, until it has `length`, the policy ends it behind its first `least`, or `interrupted` says
    so."""
    for index in range(length):
        stops = interrupted() or not (index < least or policy.goes_on(index))
        token = None if stops else next(proposals, None)
        if token is None or not (index < least or policy.belongs(token, index)):
            return
        yield token
