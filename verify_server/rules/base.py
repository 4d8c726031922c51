"""What an acceptance rule is: it decides which prefix of a draft stands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from opensled.core.errors import InvalidRequest
from opensled.core.messages import DraftToken, SamplingParams, SparseDistribution, TokenLogprobs
from opensled.core.trees import depth
from verify_server.engine.base import EmittedRows, Masks, SampleRequest, Scores, TargetEngine


class DraftCheck(NamedTuple):
    """A draft at its place in a sequence: k draft tokens to follow the `position` committed ones."""

    draft: tuple[DraftToken, ...]
    position: int
    params: SamplingParams
    key: bytes  # noise key
    masks: Masks = None  # k + 1 of them, when the answer is guided
    parents: tuple[int, ...] = ()  # of each draft token, if they are a tree (`DraftBlock`); () = a chain
    emitted: EmittedRows = None  # k + 1 of them, when there are penalties
    ends: frozenset[int] = frozenset()  # ids that end the sequence

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple([token.id for token in self.draft])

    @property
    def depth(self) -> int:
        """How many draft tokens can be accepted at most."""
        return depth(self.draft, self.parents)


class AcceptanceResult(NamedTuple):
    """What became of one session's draft in a step."""

    num_accepted: int
    next_token: int  # recovered or bonus
    path: tuple[int, ...] = ()  # of a tree: the indices of the accepted tokens
    loose: tuple[int, ...] = ()  # indices of accepted draft tokens that are not the target's own
    read: Mapping[type[Reading], Any] = {}  # what each `Reading` of the step has found


def decided_ids(check: DraftCheck, result: AcceptanceResult) -> tuple[int, ...]:
    """The accepted ids and the one after them."""
    if result.path:
        return (*[check.draft[index].id for index in result.path], result.next_token)
    return (*[token.id for token in check.draft[: result.num_accepted]], result.next_token)


def moves(check: DraftCheck, result: AcceptanceResult) -> list[tuple[int, int]]:
    """From where to where the KV of a tree's accepted tokens must go, so that they follow the text in order."""
    first = check.position
    return [(first + index, first + place) for place, index in enumerate(result.path) if index != place]


class StepRows(NamedTuple):
    """The rows of one session in a step, after its rule has decided; they are numbered as in `scores`."""

    scores: Scores
    newest: int  # the row after the newest token of the text, or of the chunk; rows of the text precede it
    rows: Sequence[int] = ()  # of each decided token, the row that it was decided by
    ids: tuple[int, ...] = ()  # the decided tokens; () = a chunk of a prompt


class Reading(ABC):
    """Something that is read of a session's rows beside the decision."""

    @abstractmethod
    def read(self, rows: StepRows) -> Any:
        """In the engine's thread, or where the target decides. Raises NonFiniteLogits."""


class SessionScores:
    """The rows of `Scores` that belong to one draft, numbered from 0.

    Row 0 holds the target's scores after the text, row i + 1 those after draft token i and the path to it. The
    sampling parameters, penalties and masks of the draft apply.
    """

    def __init__(self, scores: Scores, first: int, check: DraftCheck) -> None:
        """`first`: row 0 of this draft in `scores`."""
        self._scores, self._first, self._check = scores, first, check

    def request(self, rows: range, depth: int, key: bytes | None = None) -> SampleRequest:
        """A request for the target's own tokens at consecutive `rows`, the first of which follows `depth` draft tokens.

        `key`: of the random stream; None = the shared noise of the sequence.
        """
        check, first = self._check, self._first
        own = range(first + rows.start, first + rows.stop)
        return SampleRequest(
            own, check.params, key or check.key, check.position + depth, *self._shaping(rows)
        )

    def probs_of(self, rows: range, ids: Sequence[int]) -> list[float]:
        """The target's probability of `ids[i]` at `rows[i]`."""
        return self._scores.probs_of(self._shift(rows), ids, self._check.params, *self._shaping(rows))

    def keeps(self, rows: Sequence[int], ids: Sequence[int]) -> list[bool]:
        """Whether `ids[i]` may follow at `rows[i]` by mask, top_k, top_p and min_p; at temperature 0 by what they are
        at temperature 1, for at 0 nothing but the likeliest id would be left."""
        check, masks, emitted = self._check, self._check.masks, self._check.emitted
        params = replace(check.params, temperature=check.params.temperature or 1.0)
        probs = self._scores.probs_of(
            self._shift(rows),
            ids,
            params,
            None if masks is None else [masks[row] for row in rows],
            None if emitted is None else [emitted[row] for row in rows],
        )
        return [prob > 0 for prob in probs]

    def sample_residual(self, row: int, draft_probs: SparseDistribution, key: bytes) -> int:
        """A token of max(0, target - draft), normalised, at a row of a chain; `key`: of the random stream."""
        check = self._check
        mask = None if check.masks is None else check.masks[row]
        emitted = None if check.emitted is None else check.emitted[row]
        return self._scores.sample_residual(
            self._first + row, draft_probs, check.params, key, check.position + row, mask, emitted
        )

    def entropy(self, rows: Sequence[int]) -> list[float]:
        """See `Scores`."""
        return self._scores.entropy(self._shift(rows))

    @property
    def vocab_size(self) -> int:
        """See `Scores`."""
        return self._scores.vocab_size

    def hidden_states(self, rows: Sequence[int]) -> NDArray[np.float32]:
        """See `Scores`."""
        return self._scores.hidden_states(self._shift(rows))

    def top(self, rows: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `Scores`."""
        return self._scores.top(self._shift(rows), count)

    def logprobs(self, rows: Sequence[int], ids: Sequence[int], count: int) -> list[TokenLogprobs]:
        """See `Scores`."""
        return self._scores.logprobs(self._shift(rows), ids, count)

    def _shift(self, rows: Sequence[int]) -> list[int]:
        return [self._first + row for row in rows]

    def _shaping(self, rows: range) -> tuple[Masks, EmittedRows]:
        """The masks of `rows`, and what was emitted before them."""
        masks, emitted, own = self._check.masks, self._check.emitted, slice(rows.start, rows.stop)
        return None if masks is None else masks[own], None if emitted is None else emitted[own]


# A rule at work on one draft: it yields requests and receives the target's own tokens for the rows of each.
Decision = Generator[SampleRequest, list[int], AcceptanceResult]


class AcceptanceRule(ABC):
    """Decides the drafts of one sequence: the server makes an object for each, and state lives in it.

    Runs in the engine's thread, right after the forward pass.
    """

    lossless: ClassVar[bool] = True  # the text has the target's distribution; else a loose rule, see loose.py
    trees: ClassVar[bool] = False  # decides draft trees as well as chains
    # It needs the distribution of each draft token, so that the text depends on the device.
    draft_probs: ClassVar[bool] = False
    min_draft: int = 0  # draft tokens of the shortest chain that it makes full use of; 0 = any
    guided: bool = True  # decides guided answers as well
    settings: str = ""  # all its options, as they would follow its name
    # What of `Scores` it uses, besides `sample`.
    needs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, options: str = "") -> None:
        """`options`: what follows the name of the rule behind a colon. Raises InvalidRequest for unknown ones."""
        if options:
            raise InvalidRequest(f"this rule takes no options, not {options[:80]!r}", "rule")

    @classmethod
    def make_factory(
        cls, model: str, pivots: str, engine: TargetEngine, vocabulary: str
    ) -> Callable[[str], AcceptanceRule]:
        """What makes the rule of a sequence of one target from its options. Raises the errors of loading what it needs.

        `model`: the target as the operator named it; `pivots`: folder of its pivot classifier, "" = the one that comes
        with OpenSLED; `vocabulary`: its fingerprint.
        """
        return cls

    @abstractmethod
    def decide(self, check: DraftCheck, scores: SessionScores) -> Decision:
        """Which draft tokens stand, and the recovered or bonus token after them.

        A generator: it yields a request for the target's own tokens and receives them. The requests of all sessions
        of a step are answered together. An error in the rows of a request is raised at its `yield`.
        """
