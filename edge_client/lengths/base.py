"""The base class of all draft-length policies, and the loop that obeys one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from opensled.core.messages import DraftToken

# Tokens of a block where neither the server nor the owner says anything. Chosen: 4 to 5 tokens are best for
# acceptance rates of 0.6 to 0.8 (Leviathan et al. 2023, arXiv 2211.17192).
UNADVISED = 4


@dataclass(frozen=True)
class LengthOptions:
    """What the owner of a device asks of its policy."""

    length: int = 0  # most tokens of a block; 0 = not said
    confidence: float = 0.4  # threshold of a token's confidence, 0 to 1
    tree: int = 0  # most tokens of a draft tree; 0 = chains only


class DraftLengthPolicy(ABC):
    """Decides how long draft blocks are.

    One policy serves all sequences of a device. The event loop and the drafters' threads call it.
    """

    needs_confidence = False  # draft tokens must carry their confidence: a pass over the vocabulary for each
    tree = 0  # most tokens of a tree; 0 = chains only

    @classmethod
    def of(cls, options: LengthOptions) -> DraftLengthPolicy:
        """The policy for a device with these options; policies with parameters override it."""
        return cls()

    @abstractmethod
    def most(self, limit: int, hint: int | None = None) -> int:
        """Most tokens of the next block, or of what is drafted ahead of it. 0 = the server decodes by itself for now.

        `limit`: tokens that there is room for; `hint`: the length that the server asks for, None = it gave none.
        """

    def nodes(self, limit: int, hint: int | None = None) -> int:
        """Most tokens of a tree that has room for `limit`; 0 = draft a chain."""
        return 0 if hint == 0 else min(limit, self.tree)

    def goes_on(self, index: int) -> bool:
        """Whether to draft token number `index` of a block; all tokens before it are in the block."""
        return True

    def belongs(self, token: DraftToken, index: int) -> bool:
        """Whether a drafted token is worth its verification as number `index` of its block."""
        return True

    @property
    def ending(self) -> str:
        """What else ends a block, in words that follow its length; "" = nothing."""
        return ""

    @property
    def rest(self) -> str:
        """Why this device drafts nothing now, in words; "" = it drafts."""
        return ""


def pull_tokens(
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
