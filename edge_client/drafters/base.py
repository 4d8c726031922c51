"""What a drafter is, and the cache discipline that every model-backed drafter shares."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np

from edge_client.drafters import OFF
from edge_client.drafters.vocabulary import SAME
from edge_client.drafters.window import ENOUGH, Window, select_text
from opensled.core.messages import DraftToken, ModelInfo, TreeNode
from opensled.core.penalties import Emitted, TokenCounts
from opensled.core.protocol import common_prefix
from opensled.core.sampling import Sampler

if TYPE_CHECKING:
    from opensled.text.tokenizer import TargetTokenizer

Logits = TypeVar("Logits")  # of one token, or of several

# Unread tokens that a drafter reads in one pass with its first draft token (chosen: a short question)
NEAR = 48


class Drafter(ABC):
    """Proposes what comes next in one sequence at a time, in one thread.

    A drafter has to give `begin`, `propose` and `commit`; it overrides the other methods where it can do more.
    """

    @abstractmethod
    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        """Start a new sequence and forget the one before."""

    @abstractmethod
    def propose(self) -> Iterator[DraftToken]:
        """Draft tokens that follow the truth, for as long as the caller asks; may end early, or at once."""

    @abstractmethod
    def commit(self, tokens: Sequence[int]) -> None:
        """The truth grew by `tokens`, whatever was proposed: keep what agrees, drop the rest."""

    def propose_tree(self) -> Iterator[TreeNode]:
        """Nodes of a draft tree that grows from the truth, likeliest first, for as long as the caller asks.

        Without any node the caller asks for a chain.
        """
        return iter(())

    @property
    def ready(self) -> int:
        """Tokens that `propose` gives without computing anything."""
        return 0

    @property
    def behind(self) -> bool:
        """Whether a long text is to be read before a model can draft: `read` does it in pieces."""
        return False

    @property
    def lags(self) -> bool:
        """Whether `propose` has to wait for that."""
        return self.behind

    def read(self, most: int) -> bool:
        """Read at most `most` tokens of the text; False: it is not `behind`, and nothing was read."""
        return False

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        """Draft what may follow `block`, a chain that was sent to follow the truth; each step drafts one token more.

        The bet is that the block is accepted, and that the next draft token is the bonus token; the `length` tokens
        after that one are then the next block. What `commit` confirms, `propose` gives at once. The caller stops
        asking as soon as the truth grows.
        """
        return iter(())

    def interrupt(self) -> None:  # noqa: B027
        """End a wait for what comes from elsewhere, until the next `begin`. Another thread may call it."""

    def close(self) -> None:  # noqa: B027
        """Free what the drafter holds. A second call does nothing."""


class DrafterOptions(NamedTuple):
    """What a user sets for drafters; each drafter takes what it knows."""

    draft_table: str = ""  # file of a frozen table; "" = the one beside the draft model, if there is one
    personal_table: str = OFF  # file of the user's own table
    window: int = 0  # most tokens of a text that a draft model reads; 0 = as many as it soon reads
    draft_url: str = ""  # of a server that drafts
    draft_key: str = ""  # file with the key that it wants
    draft_ca: str = ""  # file (PEM) of its certificate authority; "" = those of this system
    alone: bool = False  # whether its model may have to write answers by itself


class DrafterFactory(ABC):
    """Loads a draft model once and makes drafters (one per concurrent sequence) that share its weights.

    A factory is created with a model's name or path, a number of threads (0 = choose) and the options.
    """

    name: str  # shown to people, such as "llamacpp tiny-draft-q8_0.gguf"
    uses_tables = False  # whether the options' tables mean something to it
    vocabulary = SAME  # the draft model's beside the target's, after `fit`

    def __init__(self, model: str = "", threads: int = 0, options: DrafterOptions = DrafterOptions()) -> None:  # noqa: B027
        """Without a model there is nothing to load."""

    def fit(self, target: ModelInfo, tokenizer: TargetTokenizer | None = None) -> None:  # noqa: B027
        """Prepare to draft for `target`.

        `tokenizer`: the target's own; without it only a draft model of the target's own vocabulary fits. Raises
        VocabularyMismatch. Ids that come from the target's own sequence fit always.
        """

    @abstractmethod
    def create(self) -> Drafter:
        """Make a drafter for one sequence at a time."""

    @property
    def note(self) -> str:
        """How its drafters do now, in words that follow other ones; "" = there is nothing to tell."""
        return ""


class SequenceDrafter(Drafter):
    """A drafter that keeps its proposals until the truth contradicts them: nothing is drafted twice.

    `sequence` is the truth followed by the ids of `drafted`. A subclass gives `_draft_one` and `_keep`.

    Of a long text `sequence` holds the beginning and the end only (window.py): that changes what is drafted, never the
    answer. Places count in `sequence`; noise counts in the whole text.
    """

    window = Window()  # how much of a text is read

    def __init__(self, context_length: int) -> None:
        self.context_length = context_length  # positions the model can read
        self._left_out = 0  # tokens of the text that are not in `sequence`
        self.sequence: list[int] = []
        self.drafted: list[DraftToken] = []
        self._counts: TokenCounts | None = None  # of the whole answer; None = there are no penalties
        self._truths = 0  # counts begins and commits, so that a generator of an older truth ends

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self.sampler, self._counts = sampler, sampler.counts(prompt)
        most = self.window.most(self.context_length)
        self._left_out, seen = select_text(prompt, self.sequence, self._left_out, most, self.context_length)
        self._replace_tail(0, seen)

    @property
    def _base(self) -> int:
        """Length of the truth, as far as it is in `sequence`."""
        return len(self.sequence) - len(self.drafted)

    def commit(self, tokens: Sequence[int]) -> None:
        if self._counts is not None:
            self._counts.add(tokens)
        base = self._base
        if self.sequence[base : base + len(tokens)] == list(tokens):
            del self.drafted[: len(tokens)]
            self._truths += 1
        else:
            self._replace_tail(base, tokens)

    def revise(self, dropped: int, tokens: Sequence[int]) -> None:
        """In place of its last `dropped` tokens the truth ends with `tokens`; what is computed of them stays."""
        self._replace_tail(max(0, self._base - dropped), tokens)

    def propose(self) -> Iterator[DraftToken]:
        truths, index = self._truths, 0
        while truths == self._truths and (index < len(self.drafted) or self._draft_one()):
            yield self.drafted[index]
            index += 1

    @property
    def ready(self) -> int:
        return len(self.drafted)

    def look_ahead(self, block: Sequence[DraftToken], length: int) -> Iterator[None]:
        self._suppose(block)
        truths, end = self._truths, len(block) + 1 + length
        while truths == self._truths and len(self.drafted) < end and self._draft_one():
            yield

    def _suppose(self, block: Sequence[DraftToken]) -> None:
        """Continue after `block`, which this drafter or another one in its chain proposed."""
        ids, base = [token.id for token in block], self._base
        if self.sequence[base : base + len(ids)] == ids:
            return
        self._keep(base + common_prefix(self.sequence[base:], ids))
        self.sequence[base:] = ids
        self.drafted[:] = block

    @property
    def _has_room(self) -> bool:
        """Whether a token can follow: there is one to start from, and the context is not full."""
        return 0 < len(self.sequence) < self.context_length

    @abstractmethod
    def _draft_one(self) -> bool:
        """Append one draft token; False if there is none now."""

    @abstractmethod
    def _keep(self, length: int) -> None:
        """Only the first `length` tokens of `sequence` stay: what was computed behind them is void."""

    def _append(self, token: DraftToken) -> None:
        self.drafted.append(token)
        self.sequence.append(token.id)

    def _emitted_tokens(self) -> Emitted | None:
        """What penalties count: the answer, and what is drafted behind it."""
        if self._counts is None:
            return None
        return Emitted(self._counts, tuple([token.id for token in self.drafted]))

    def _replace_tail(self, base: int, tokens: Sequence[int]) -> None:
        """From position `base` on, the truth is `tokens`; what was computed of them stays."""
        agreed = base + common_prefix(self.sequence[base:], tokens)
        self._keep(agreed)
        self.sequence[base:] = tokens
        self.drafted.clear()
        self._truths += 1

    def close(self) -> None:
        self._truths += 1
        self.sequence, self.drafted, self._left_out = [], [], 0


class ModelDrafter(SequenceDrafter):
    """A drafter over a model with a KV cache. A subclass gives `forward` and `truncate`; rollback is here.

    The first `computed` tokens of `sequence` are in the KV cache, which holds `context_length` positions.
    """

    def __init__(self, context_length: int) -> None:
        super().__init__(context_length)
        self.computed = 0

    def prepare(self, window: Window) -> None:
        """Read as much of a text as `window` says, and time a pass first where it has to know the speed."""
        self.window = window
        if window.wants_speed:
            self.forward((0,), 0)  # the first pass of all is slower
            self.truncate(0)
            began = time.perf_counter()
            self.forward((0,) * ENOUGH, 0)
            window.took(ENOUGH, time.perf_counter() - began)
            self.truncate(0)

    @property
    def behind(self) -> bool:
        return len(self.sequence) - self.computed > NEAR and len(self.sequence) < self.context_length

    def read(self, most: int) -> bool:
        if not self.behind:
            return False
        # The newest token is left: the logits after it are what the next draft token is drawn from
        end = min(self.computed + most, len(self.sequence) - 1)
        began, start = time.perf_counter(), self.computed
        self._pass(self.forward, self.sequence[start:end])
        self.window.took(end - start, time.perf_counter() - began)
        return True

    def _draft_one(self) -> bool:
        if not self._has_room:
            return False
        # The logits after the last token are needed: compute it (again)
        self._keep(len(self.sequence) - 1)
        self._extend()
        return True

    def _extend(self) -> None:
        """Compute what is not in the cache, and append the next draft token."""
        self._append(self._draw(self._pass(self.forward, self.sequence[self.computed :]), len(self.sequence)))

    def _draw(self, logits: np.ndarray, position: int) -> DraftToken:
        return self.sampler.draw(logits, self._left_out + position, self._emitted_tokens())

    def _pass(self, forward: Callable[[Sequence[int], int], Logits], fresh: Sequence[int]) -> Logits:
        """Compute `fresh` tokens and count them as cached."""
        try:
            logits = forward(fresh, self.computed)
        except Exception:
            self.computed = self.truncate(0)  # it is unknown how much of `fresh` is in the cache
            raise
        self.computed += len(fresh)
        return logits

    def _keep(self, length: int) -> None:
        if length < self.computed:
            self.computed = self.truncate(length)

    @abstractmethod
    def forward(self, tokens: Sequence[int], start: int) -> np.ndarray:
        """Compute `tokens` at positions `start`, `start + 1`, ...; logits [vocabulary] after the last one.

        The array may be a view into the runtime's buffer: valid until the next call.
        """

    @abstractmethod
    def truncate(self, length: int) -> int:
        """Forget cached positions >= `length`; returns how many stay (0 if partial removal is impossible)."""

    def close(self) -> None:
        super().close()
        self.computed = 0
