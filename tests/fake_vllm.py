"""What engine vllm drives, without vLLM: its scheduler's rules over a fake model.

Sequences that run keep their turn and their blocks, also while they are held back. One that needs a block takes it from
the last one that runs, itself perhaps; one that waits takes free blocks only, and those behind it wait for it. Prompts
are computed in chunks, whether a step wants them or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from opensled.core.protocol import EndRules, cut
from tests.fakes import FakeScores, next_token
from verify_server.engine.vllm.decoding import Decode, DecodeResult
from verify_server.rules.base import AcceptanceResult, decided_ids
from verify_server.rules.decide import Outcome, Question, decide, step_failed


@dataclass
class Running:
    """One sequence."""

    tokens: list[int]
    ends: EndRules
    computed: int = 0
    blocks: list[int] = field(default_factory=list)


class FakeCore:
    """See `VllmCore`."""

    block_size = 4

    def __init__(self, blocks: int, seats: int = 8, chunk: int = 64) -> None:
        self.free = list(range(blocks))
        self.seats, self.chunk = seats, chunk
        self.sequences: dict[str, Running] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.fails = 0  # so many steps from now on
        self.poisoned = ""  # a sequence that fails with the next step
        self.preempted = 0

    @property
    def free_blocks(self) -> int:
        return len(self.free)

    def add(self, id: str, tokens: Sequence[int], ends: EndRules, salt: str = "") -> None:
        assert id not in self.sequences
        assert len(tokens) < ends.last_length
        self.sequences[id] = Running(list(tokens), ends)
        self.waiting.append(id)

    def abort(self, ids: Iterable[str]) -> None:
        for id in ids:
            if (sequence := self.sequences.pop(id, None)) is not None:
                self.free += sequence.blocks
                (self.running if id in self.running else self.waiting).remove(id)

    def text(self, id: str) -> Sequence[int]:
        return self.sequences[id].tokens if id in self.sequences else ()

    def blocks(self, id: str) -> list[int]:
        return self.sequences[id].blocks if id in self.sequences else []

    def without_memory(self) -> list[str]:
        return list(self.waiting)

    def close(self) -> None:
        """There is nothing to end."""

    def step(self, plan: Mapping[str, Decode]) -> dict[str, DecodeResult]:
        if self.fails:
            self.fails -= 1
            for id in [*self.running]:
                self._preempt(id)
            return dict.fromkeys(self.sequences, DecodeResult())
        self._left, before = self.chunk, self.preempted
        found: dict[str, DecodeResult] = {}
        for id in [*self.running]:
            if id in self.running:
                self._compute(id, plan, found)
        while self.preempted == before and self.waiting and len(self.running) < self.seats and self._left:
            id = self.waiting[0]
            if len(self.sequences[id].tokens) > len(self.free) * self.block_size:
                break
            self.running.append(self.waiting.pop(0))
            self._compute(id, plan, found)
        told = {
            id: found.get(id, DecodeResult(computed=one.computed))._replace(computed=one.computed)
            for id, one in self.sequences.items()
        }
        for id, progress in found.items():
            self._commit(id, progress)
        if self.poisoned in self.sequences:
            self.abort([self.poisoned])
            told[self.poisoned] = DecodeResult(step_failed())
            self.poisoned = ""
        return told

    def _compute(self, id: str, plan: Mapping[str, Decode], found: dict[str, DecodeResult]) -> None:
        """One sequence's share of a step."""
        one, decode = self.sequences[id], plan.get(id)
        if decode is not None and decode.check.position != len(one.tokens):
            decode = None
        decodes = one.computed == len(one.tokens) - 1
        if decodes and decode is None and one.computed:
            return
        drafted = len(decode.check.draft) if decodes and decode is not None else 0
        part = min(self._left, len(one.tokens) - one.computed + drafted)
        if not part or not self._reserve(id, one.computed + part):
            return
        self._left -= part
        drafted = max(0, one.computed + part - len(one.tokens))
        one.computed = min(one.computed + part, len(one.tokens))
        if one.computed < len(one.tokens):
            return
        one.computed -= 1
        if decode is not None:
            check = decode.check._replace(draft=decode.check.draft[:drafted])
            outcome: Outcome = None
            asked = decode.question(check)
            if isinstance(asked, Question):
                contexts = [[*one.tokens, *check.ids[:count]] for count in range(drafted + 1)]
                outcome = decide({0: asked}, FakeScores(contexts, next_token))[0]
            found[id] = DecodeResult(outcome, check)

    def _commit(self, id: str, progress: DecodeResult) -> None:
        one = self.sequences[id]
        if isinstance(progress.outcome, AcceptanceResult):
            news, over = cut(decided_ids(progress.check, progress.outcome), len(one.tokens), one.ends)
            one.tokens += news
            one.computed = len(one.tokens) - 1
            if over:
                self.abort([id])

    def _reserve(self, id: str, length: int) -> bool:
        one = self.sequences[id]
        while (lacks := -(-length // self.block_size) - len(one.blocks)) > len(self.free):
            self._preempt(self.running[-1])
            if id not in self.running:
                return False
        for _ in range(lacks):
            one.blocks.append(self.free.pop())
        return True

    def _preempt(self, id: str) -> None:
        one = self.sequences[id]
        self.running.remove(id)
        self.waiting.insert(0, id)
        self.free += one.blocks
        one.blocks, one.computed = [], 0
        self.preempted += 1
