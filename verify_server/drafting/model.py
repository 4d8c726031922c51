"""A small model of the same vocabulary beside the target: it drafts for all sessions at once.

Its KV takes no memory from users (guests.py). It draws with each session's own noise, so that at every temperature it
proposes what the target is likely to draw (opensled/core/noise.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from opensled.core.errors import NonFiniteLogits, UsageError, VocabularyMismatch
from opensled.core.messages import DraftBlock, DraftToken
from opensled.models.model_pairs import pair_of
from opensled.models.store import is_here
from verify_server.drafting.guests import GuestPool
from verify_server.engine.base import SampleRequest, Scores, Segment, TargetEngine
from verify_server.kv.blocks import BlockPool
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.round.drafter import Ask, DrafterMemory, Proposal, ServerDrafter
from verify_server.round.loaded_model import ServedModel

# Tokens of long texts that it reads in one step, for all sessions together, and how many are read at once in any case:
# a long prompt must not delay the tokens of all others (chosen).
READ, NEAR = 256, 32


# By the name of the target; unlike a device, a server gains nothing by drafting with the target's own weights.
DRAFT_OF = {"tiny": "tiny-draft", "tiny-hub": "tiny-draft", "smollm2": "smollm2-draft"}


@dataclass
class _Draft:
    """One session's draft as it grows."""

    ask: Ask
    most: int  # tokens that there is room for
    fed: list[int] = field(default_factory=list)  # ids that are computed behind what was
    ids: list[int] = field(default_factory=list)

    def segment(self, tokens: Sequence[int], rows: int = 1) -> Segment:
        """These tokens go on from what is computed."""
        start = self.ask.computed + len(self.fed)
        self.fed += tokens
        return Segment(tuple(tokens), start, self.ask.blocks, rows)

    def proposal(self) -> Proposal:
        """What came of it."""
        unread = self.ask.length - self.ask.computed
        read = min(unread, len(self.fed))
        return Proposal(DraftBlock(self.ask.length, tuple(map(DraftToken, self.ids))), read, unread - read)

    def request(self, row: int) -> SampleRequest:
        """For the next token of the draft."""
        ask, emitted = self.ask, self.ask.penalty_counts(self.ids)
        position = ask.length + len(self.ids)
        return SampleRequest([row], ask.params, ask.key, position, emitted=emitted and [emitted])


class ServerModel(ServerDrafter):
    """`opensled serve --server-drafter model --draft-model M`."""

    pass_share, read_share = 0.25, 0.25  # chosen

    def __init__(self, engine: TargetEngine, shared: bool = True) -> None:
        """`shared`: what it has read for one session of a tenant it need not read for another one."""
        self._engine, self._shared = engine, shared
        self._reach, self._ends = engine.info.context_length, frozenset(engine.info.eos_ids)
        self._free: deque[int] = deque()  # blocks given back since the last step
        self._per_block = engine.info.lodged or 1  # blocks of the engine in one of the pool

    def lodge(self, host: BlockPool) -> None:
        """See `ServerDrafter`."""
        info = self._engine.info
        size, own = self._per_block * info.block_size, 0 if info.lodged else info.num_blocks
        self.guests = GuestPool(host, size, own, self._shared, self._free.extend, self._engine.rest)

    def place(self, tenant: str) -> DrafterMemory:
        """See `ServerDrafter`."""
        return self.guests.place(tenant)

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        self._engine.forget([self._free.popleft() for _ in range(len(self._free))])
        drafts = [self._begin(ask) for ask in asks]
        growing = self._read([draft for draft in drafts if draft.most > 0])
        while growing := [draft for draft in growing if self._goes_on(draft)]:
            growing = self._grow(growing, [draft.segment(draft.ids[-1:]) for draft in growing])
        return [draft.proposal() for draft in drafts]

    def _begin(self, ask: Ask) -> _Draft:
        """The last token of a draft is never computed, so it needs no KV."""
        share = self._per_block
        blocks = tuple([block * share + part for block in ask.blocks for part in range(share)])
        reach = min(self._reach, len(blocks) * self._engine.info.block_size)
        return _Draft(ask._replace(blocks=blocks), min(ask.most, reach - ask.length + 1))

    def _goes_on(self, draft: _Draft) -> bool:
        return len(draft.ids) < draft.most and draft.ids[-1] not in self._ends

    def _read(self, drafts: Sequence[_Draft]) -> list[_Draft]:
        """Read what is new in each text, of long ones a piece; those that are read have their first draft token."""
        left, segments = READ, []
        for draft in drafts:
            unread = draft.ask.tokens[draft.ask.computed :]
            count = len(unread) if len(unread) <= NEAR else min(len(unread), left)
            left -= count if len(unread) > NEAR else 0
            if count:
                segments.append((draft, draft.segment(unread[:count], int(count == len(unread)))))
        return self._grow([draft for draft, _ in segments], [segment for _, segment in segments])

    def _grow(self, drafts: Sequence[_Draft], segments: Sequence[Segment]) -> list[_Draft]:
        """Compute a segment of each draft; those with a new token."""
        if not segments:
            return []
        scores = self._engine.forward(segments)
        drawing = [draft for draft, segment in zip(drafts, segments) if segment.rows]
        return [draft for draft, token in zip(drawing, self._draw(scores, drawing)) if token is not None]

    @staticmethod
    def _draw(scores: Scores, drafts: Sequence[_Draft]) -> list[int | None]:
        """The next token of each draft, appended to it; None where the model gave no numbers."""
        found: list[int | None] = []
        for draft, answer in zip(
            drafts, scores.sample([each.request(row) for row, each in enumerate(drafts)])
        ):
            if isinstance(answer, NonFiniteLogits):
                found.append(None)
                continue
            draft.ids += answer
            found += answer
        return found


def load(config: ServeConfig, target: ServedModel) -> ServerModel:
    """Loads the draft model of a server. Raises UsageError, NotFound, UnsupportedModel, VocabularyMismatch."""
    name = config.draft_model or _known(config.model)
    info = target.engine.info
    positions = info.num_blocks * info.block_size
    draft: ServedModel = ENGINES.get("auto")(
        replace(config, model=name, numerics="fast", kv_tokens=positions, context=0), target.engine
    )
    if draft.text.fingerprint != target.text.fingerprint:
        raise VocabularyMismatch(
            f"the draft model {name!r} has another vocabulary than the target {target.model_id!r}; choose another "
            "--draft-model"
        )
    return ServerModel(draft.engine, config.prefix_cache)


def _known(target: str) -> str:
    """The draft model on this machine that belongs to a target; raises UsageError if there is none."""
    pair = pair_of(target)
    name = DRAFT_OF.get(target, pair.draft if pair else "")
    if is_here(name):
        return name
    get = (
        f"opensled pull {name}" if name else "--draft-model FILE, a small model with the target's vocabulary"
    )
    raise UsageError(f"--server-drafter model has no draft model for {target!r} on this machine; take: {get}")
