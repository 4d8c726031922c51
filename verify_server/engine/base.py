"""What the server asks of a target model, without naming a tensor library."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opensled.core.errors import EngineError, NonFiniteLogits, Unsupported, UnsupportedModel
from opensled.core.images import ImageFacts
from opensled.core.messages import SamplingParams, SparseDistribution, TokenLogprobs
from opensled.core.penalties import Emitted
from opensled.core.trees import depths

# For each row the ids that may follow: bit v % 8 of byte v // 8 belongs to id v. None: every id may.
Masks = Sequence[bytes] | None
# For each row the tokens that penalties count; None: there are no penalties.
EmittedRows = Sequence[Emitted] | None


MAX_TREE = 64  # tokens of a draft tree: the ancestors of each are the bits of one number


class ImageRows(NamedTuple):
    """A picture in a text: rows of embeddings in place of those of its placeholders."""

    first: int  # position of the first row
    rows: Any  # [positions, size], as `TargetEngine.see` gave them


class Segment(NamedTuple):
    """Tokens of one session to compute in a step: consecutive ones, and a draft tree at their end perhaps.

    KV of positions [0, start) is already in the session's blocks; this forward writes [start, start + n). A tree's KV
    is written in the order of its tokens, whatever their positions in the text: see `TargetEngine.compact`.
    """

    tokens: tuple[int, ...]  # n >= 1 ids at positions start, start + 1, ...
    start: int
    blocks: tuple[int, ...]  # KV block numbers that cover positions [0, start + n), in order
    rows: int  # scores are wanted after each of the last `rows` tokens; 0 <= rows <= n
    # Of each token of the tree the index of its parent in it, -1 = the token before the tree; () = no tree. A child
    # stands behind its parent, and one position further on in the text; it sees the text and its own path.
    parents: tuple[int, ...] = ()
    images: tuple[ImageRows, ...] = ()  # of the text, at least those with a position in the segment

    @property
    def tree_start(self) -> int:
        """Where the KV of the tree begins; the position in the text of all its tokens that follow the text."""
        return self.start + len(self.tokens) - len(self.parents)

    def positions(self) -> Sequence[int]:
        """In the text, of each token."""
        if not self.parents:
            return range(self.start, self.start + len(self.tokens))
        before = self.tree_start - 1
        return [*range(self.start, before + 1), *[before + depth for depth in depths(self.parents)]]


def each_mask(masks: Masks, count: int) -> Sequence[bytes | None]:
    """The mask of each of `count` rows."""
    return [None] * count if masks is None else masks


def each_emitted(emitted: EmittedRows, count: int) -> Sequence[Emitted | None]:
    """What was emitted before each of `count` rows."""
    return [None] * count if emitted is None else emitted


class SampleRequest(NamedTuple):
    """Rows of one sequence for which the target's own tokens are wanted."""

    rows: Sequence[int]
    params: SamplingParams
    key: bytes  # noise key
    position: int  # that the first row decides; row i decides `position + i`
    masks: Masks = None  # one for each row
    emitted: EmittedRows = None  # one for each row

    @property
    def is_plain(self) -> bool:
        """Whether the likeliest id of each row is the answer."""
        changed = self.masks is not None or self.emitted is not None or self.params.logit_bias
        return self.params.temperature == 0 and not changed


class Scores(ABC):
    """What a forward pass gives: one row per wanted token, in the order of the segments.

    The target's distribution at a row comes from its logits by logit_bias, penalties, mask, temperature, top_k, top_p
    and min_p, in this order, in float64. `masks` and `emitted` have one entry for each of `rows`. A row that holds NaN
    or +infinity, or nothing finite that may follow, is a NonFiniteLogits error: `sample` answers with it, the other
    methods raise it.
    """

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Ids that a row scores, padding included."""

    @abstractmethod
    def sample(self, requests: Sequence[SampleRequest]) -> list[list[int] | NonFiniteLogits]:
        """The target's own tokens for the rows of each request; one call serves all sequences of a step.

        Shared-noise argmax (opensled/core/noise.py) over the whole vocabulary; ties go to the lowest id.
        """

    def sample_one(self, request: SampleRequest) -> list[int]:
        """See `sample`; raises the error of the request."""
        [answer] = self.sample([request])
        if isinstance(answer, NonFiniteLogits):
            raise answer
        return answer

    @abstractmethod
    def probs_of(
        self,
        rows: Sequence[int],
        ids: Sequence[int],
        params: SamplingParams,
        masks: Masks = None,
        emitted: EmittedRows = None,
    ) -> list[float]:
        """The target's probability of `ids[i]` at `rows[i]`."""

    @abstractmethod
    def sample_residual(
        self,
        row: int,
        draft_probs: SparseDistribution,
        params: SamplingParams,
        key: bytes,
        position: int,
        mask: bytes | None = None,
        emitted: Emitted | None = None,
    ) -> int:
        """A token of max(0, target - draft), normalised: what a rejected draft token is recovered from."""

    @abstractmethod
    def entropy(self, rows: Sequence[int]) -> list[float]:
        """Entropy in nats of the target's raw distribution at each row, as `logprobs` has it."""

    def hidden_states(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """[rows, size]: the states of the layer that the engine keeps (`TargetEngine.keep`) at each row."""
        raise EngineError("this engine keeps no hidden states")

    @abstractmethod
    def top(self, rows: Sequence[int], count: int) -> list[TokenLogprobs]:
        """The `count` likeliest ids of each row with their raw log-probabilities; ties: lowest id first."""

    @abstractmethod
    def logprobs(self, rows: Sequence[int], ids: Sequence[int], count: int) -> list[TokenLogprobs]:
        """At `rows[i]`: raw log-probability of `ids[i]`, then those of `top`.

        Raw: float64 log-softmax of the logits themselves.
        """

    @abstractmethod
    def ranks(self, rows: Sequence[int], ids: Sequence[int]) -> list[int]:
        """How many ids at `rows[i]` are at least as likely as `ids[i]`, itself included."""


@dataclass(frozen=True)
class EngineInfo:
    """Facts of a loaded target."""

    model_id: str
    vocab_size: int  # width of the logits, padding included
    context_length: int  # positions
    eos_ids: tuple[int, ...]
    numerics: str  # "exact": a row's bits do not depend on its batch; "fast": everything else
    dtype: str  # "float64", "float32", "bfloat16", "float16"
    device: str
    num_blocks: int  # KV blocks in the pool
    block_size: int  # tokens per KV block
    shares_blocks: bool = False  # whether sessions may read KV blocks that another one wrote
    max_tree: int = 0  # tokens of the largest draft tree in a segment, at most MAX_TREE; 0 = chains only
    # Positions of the text that the branches of a tree may read together, where each reads it by itself; 0 = all of
    # them read it once.
    tree_reads: int = 0
    runtime: str = "custom"  # what computes it: "torch", "llama.cpp"
    # Blocks of a draft model in one of its target's, whose KV memory it shares; 0 = it has its own
    lodged: int = 0
    row_step: int = 1  # it computes a multiple of so many rows, where there are few
    hidden_size: int = 0  # of its hidden states; 0 = it gives none
    images: ImageFacts | None = None  # what it makes of pictures; None = it reads text alone
    processes: int = 1  # of vLLM that compute it together
    threads: str = ""  # of a step on a processor, in words; "" = a library's choice
    scores_prompts: bool = True  # it tells log-probabilities of a prompt's tokens as well

    @property
    def way(self) -> str:
        """How the target is computed, in words."""
        place = self.device if self.processes == 1 else f"{self.processes} processes on {self.device}"
        threads = f" by {self.threads}" if self.threads else ""
        return f"engine {self.runtime}, {self.dtype} on {place}{threads}, level {self.numerics}"


def known_ends(ids: Iterable[int], vocab_size: int) -> tuple[int, ...]:
    """Ends of a turn that the logits have, each once: files also state ids that are none."""
    return tuple(dict.fromkeys(id for id in ids if 0 <= id < vocab_size))


class TargetEngine(ABC):
    """A target model with its paged KV. Called from one thread."""

    info: EngineInfo

    @abstractmethod
    def forward(self, segments: Sequence[Segment]) -> Scores:
        """One forward pass over all segments as one ragged batch."""

    def compact(self, blocks: Sequence[int], moves: Sequence[tuple[int, int]]) -> None:
        """In a session's KV `blocks`, what was written at one position now stands at another, for each (from, to).

        All of them at once: a position may be read and written. Called between two forward passes, and only where
        `info.max_tree` says that the engine computes draft trees.
        """
        raise NotImplementedError("an engine without draft trees has nothing to compact")

    def erase(self, blocks: Sequence[int], start: int) -> None:  # noqa: B027
        """In a session's KV `blocks` nothing from position `start` on counts, and it may be no number: an engine whose
        masks let such a value through must overwrite it. Called between two forward passes."""

    def keep(self, layer: int) -> None:
        """From now on `Scores.hidden_states` has the states that leave `layer`, numbered as in HiddenTap; its states
        stay where they were computed until a rule asks. Raises UnsupportedModel."""
        raise UnsupportedModel(
            f"engine {self.info.runtime} gives no hidden states, which this rule needs; use --engine torch"
        )

    def see(self, pixels: NDArray[np.uint8]) -> Any:
        """The rows of embeddings of a picture [height, width, 3], for `ImageRows`; `info.images` says how many.

        Called from any thread, also during a step. Raises Unsupported where `info.images` is None, EngineError.
        """
        raise Unsupported(f"engine {self.info.runtime} serves text only, no images", "images")

    def rest(self, blocks: Sequence[int]) -> None:  # noqa: B027
        """No session has these KV blocks now, but one may come that begins with them. Called from any thread."""

    def forget(self, blocks: Sequence[int]) -> None:  # noqa: B027
        """The content of these KV blocks is not needed any more. Called from any thread, also during a step."""
