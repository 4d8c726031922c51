"""What a draft head is: a small network beside the target that reads its hidden states and drafts from them.

A head has two sides. Every row that the target computes becomes *context*: keys and values of one more attention
layer, which lie in the target's KV blocks (context.py). They depend on the target's hidden states
alone, so that roll-back, preemption and shared prefixes hold for them. And from the newest row of a text, with the
token that was decided after it, a head drafts: its queries attend to that context.

The embedding, the last norm and the output layer are the target's own, frozen, and not in the head's file; of the
output layer a head uses the rows of its draft vocabulary, the target's most frequent ids.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from verify_server.drafting.heads.markov import MarkovBias


@dataclass(frozen=True)
class HeadShape:
    """Of a head, and of the target that it belongs to."""

    kind: str  # see HEADS
    taps: tuple[int, ...]  # hidden states that it reads: see `HiddenTap`
    size: int  # of a hidden state, d
    heads: int  # of attention, and
    kv_heads: int  # of its keys and values, each of
    head_size: int
    inner: int  # width of the feed-forward network
    length: int  # tokens or frames that it drafts at once
    vocabulary: int  # ids that it can draft
    rope_theta: float = 10_000.0
    markov: int = 0  # rank of the bias between neighbouring tokens; 0 = there is none


class Context(NamedTuple):
    """What a head makes of n rows of the target."""

    inputs: Tensor  # [n, d] from which it drafts
    keys: Tensor  # [n, KV heads, head size], with their positions in them (RoPE)
    values: Tensor  # as the keys


# (queries [B, Q, heads, head size], own keys and values [B, Q, KV heads, head size] or None)
# -> [B, Q, heads, head size]: attention of the B drafts, each over the context of its own text up to its row, and over
# the own keys of that draft, which all its queries see.
Attention = Callable[[Tensor, tuple[Tensor, Tensor] | None], Tensor]


class DraftHead(nn.Module):
    """Drafts all its tokens at once. Written for batches of B drafts, of any texts; a head is trained and served by the
    same functions."""

    shape: HeadShape
    markov: MarkovBias | None

    @abstractmethod
    def read(self, hidden: Tensor, positions: Tensor) -> Context:
        """`hidden` [n, taps, d], the tapped states of n rows at `positions` [n] of their texts."""

    @abstractmethod
    def draft(self, inputs: Tensor, embedded: Tensor, positions: Tensor, attend: Attention) -> Tensor:
        """Hidden states [B, length, d] of the drafts, before the target's last norm and output layer.

        `inputs` [B, d]: what `read` made of the newest rows, which stand at `positions` [B]. `embedded` [B, d]: the
        target's embedding of the token that was decided after each of them, which stands at position + 1; the first
        drafted token follows that one.
        """
