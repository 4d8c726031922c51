"""Drafting from a stream of tokens that another program generates: a server, or a library that runs ahead."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import NamedTuple

import numpy as np

from edge_client.drafters.base import NEAR, SequenceDrafter
from edge_client.drafters.outage import Outage
from edge_client.drafters.window import Window
from opensled.core.errors import DraftSourceError
from opensled.core.messages import DraftToken
from opensled.core.sampling import DRAFT_CANDIDATES, Sampler

# Tokens that an open stream may be behind a truth that it may agree with. To read them costs a pass each if they are
# not there yet, where a new stream reads them all in one (chosen)
LAG = 4


class Scored(NamedTuple):
    """One generated token."""

    id: int  # what the source chose: the likeliest token
    ids: tuple[int, ...] = ()  # candidates, likeliest first; empty = not asked for, or not known
    logprobs: tuple[float, ...] = ()  # natural logarithms over the whole vocabulary, of each candidate


class TokenSource(ABC):
    """Continues token ids greedily. It runs in the thread of its drafter; one stream is open at a time."""

    @abstractmethod
    def stream(self, ids: Sequence[int], candidates: int) -> Generator[Scored | None, None, None]:
        """The tokens that follow `ids`, each with its `candidates` likeliest ones (0 = none).

        None = nothing came for a short while: the caller may do something else, and ask again. It ends where the model
        ends its answer, or after some tokens. Closing it cuts the stream. Raises DraftSourceError.
        """

    @abstractmethod
    def close(self) -> None:
        """Free what the source holds. A second call does nothing."""


class StreamedDrafter(SequenceDrafter):
    """Drafts what a `TokenSource` says comes next.

    At most one stream is open. It stays open while the truth agrees with what it gave; any other truth cuts it, and
    the next draft token opens a stream behind the truth. With a temperature, each token is drawn with the shared noise
    from the source's candidates; a draw that is another token than the source's own cuts the stream, too.
    """

    def __init__(
        self,
        source: TokenSource,
        context_length: int,
        outage: Outage | None = None,
        window: Window = Window(),
    ) -> None:
        """`context_length`: tokens that the source can read. `outage` and `window`: of all drafters of this source."""
        super().__init__(context_length)
        self._source, self.window = source, window
        self._outage = outage or Outage("the draft source")
        self._stream: Generator[Scored | None, None, None] | None = None
        self._opened_at = 0.0  # in seconds
        self._place = 0  # of the stream's next token in `sequence`
        self._known = 0  # tokens of `sequence` that the source has read
        self.streams = 0  # opened so far
        self._interrupted = False

    def begin(self, prompt: Sequence[int], sampler: Sampler) -> None:
        self._interrupted = False
        super().begin(prompt, sampler)

    def interrupt(self) -> None:
        self._interrupted = True

    @property
    def _may_ask(self) -> bool:
        return self._has_room and self._outage.is_over

    @property
    def behind(self) -> bool:
        return self._may_ask and len(self.sequence) - self._known > NEAR

    def read(self, most: int) -> bool:
        """Wait a moment for the source to read; it is told the whole text at once."""
        if not self.behind:
            return False
        self._step()
        return True

    def _draft_one(self) -> bool:
        length = len(self.sequence)
        while self._may_ask and not self._interrupted and self._step():
            if len(self.sequence) > length:
                return True
        return False

    def _step(self) -> bool:
        """Wait a moment for the next draft token, and append it if it comes. False: the source has none now."""
        try:
            return self._pull()
        except DraftSourceError as error:
            self._cut()
            self._outage.failed(error)
            return False

    def _pull(self) -> bool:
        """As `_step`. Raises DraftSourceError."""
        if self._stream is None or len(self.sequence) - self._place > LAG:
            self._open()
        assert self._stream is not None
        try:
            scored = next(self._stream)
        except StopIteration:
            is_empty = self._opened_at > 0
            self._cut()
            if is_empty:  # it has read all, and has nothing to say
                self._known = len(self.sequence)
            return not is_empty  # another stream may say more
        if scored is not None:
            self._came(scored)
        return True

    def _open(self) -> None:
        self._cut()
        self.streams += 1
        self._place, self._opened_at = len(self.sequence), time.perf_counter()
        self._stream = self._source.stream(self.sequence, self._candidates)

    @property
    def _candidates(self) -> int:
        """How many candidates of each token are needed."""
        params = self.sampler.params
        if params.temperature or params.logit_bias or self._counts is not None:
            return DRAFT_CANDIDATES
        return int(self.sampler.with_confidence)

    def _came(self, scored: Scored) -> None:
        """The stream's next token is a draft token, or stands where the truth has one already."""
        if self._opened_at:
            self._note_first()
        if self._place == len(self.sequence):
            token = self._draw(scored)
            self._append(token)
        # Another one was drawn, or came: the stream goes on in vain
        if self.sequence[self._place] != scored.id:
            self._cut()
        self._place += 1
        self._known = max(self._known, self._place - 1)

    def _note_first(self) -> None:
        """The first token of a stream: the source works, and has read the text."""
        fresh = self._place - self._known
        if fresh > NEAR:
            self.window.took(fresh, time.perf_counter() - self._opened_at)
        self._opened_at, self._known = 0.0, self._place
        self._outage.worked()

    def _draw(self, scored: Scored) -> DraftToken:
        ids, logprobs = np.array(scored.ids, np.int64), np.array(scored.logprobs, np.float64)
        if self.sampler.vocab_size is not None:
            is_known = ids < self.sampler.vocab_size
            ids, logprobs = ids[is_known], logprobs[is_known]
        if not len(ids):
            return self.sampler.certain(scored.id, 1.0)
        position = self._left_out + len(self.sequence)
        return self.sampler.draw_from(ids, logprobs, position, self._emitted_tokens())

    def _keep(self, length: int) -> None:
        self._known = min(self._known, length)
        if length < self._place:
            self._cut()

    def _cut(self) -> None:
        """End the stream, if there is one."""
        stream, self._stream, self._opened_at = self._stream, None, 0.0
        if stream is not None:
            stream.close()

    def close(self) -> None:
        super().close()
        self._cut()
        self._known = self._place = 0
        self._source.close()
