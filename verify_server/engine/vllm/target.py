"""vLLM as the target of the machine: it keeps the KV, and schedules by itself (`Target`).

vLLM computes what it is given, whether a step wants it or not, and never takes memory from one sequence for another
that waits. So sequences that rest leave vLLM, and come back with the next step that wants them:

- one that has lost its memory;
- one after the other, until some sequence of the step gets on;
- one in a step where a sequence waits for memory, if it has been resting for longer than a round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from opensled.core.errors import OpenSledError, Unsupported
from opensled.core.protocol import EndRules
from scheduler.plan import Slice
from verify_server.engine.base import EngineInfo
from verify_server.engine.vllm import decoding
from verify_server.engine.vllm.decoding import Asked, Decode
from verify_server.kv.memory import SequenceMemory, TargetMemory
from verify_server.round.draft_stage import DraftStage
from verify_server.round.preemption import ROUND_SECONDS
from verify_server.round.session import Session
from verify_server.round.step import question_of
from verify_server.round.step_item import StepItem
from verify_server.round.target import FittedStep, Progress, Target, whole
from verify_server.rules.base import AcceptanceResult, DraftCheck
from verify_server.rules.decide import Outcome


class Core(Protocol):
    """What of `VllmCore` is used here."""

    block_size: int

    @property
    def free_blocks(self) -> int: ...

    def add(self, id: str, tokens: Sequence[int], ends: EndRules, salt: str = "") -> None: ...

    def abort(self, ids: Iterable[str]) -> None: ...

    def text(self, id: str) -> Sequence[int]: ...

    def blocks(self, id: str) -> list[int]: ...

    def without_memory(self) -> list[str]: ...

    def step(self, plan: Mapping[str, Decode]) -> dict[str, decoding.DecodeResult]: ...

    def close(self) -> None: ...


class VllmSequence(SequenceMemory):
    """The KV of one sequence is vLLM's; this names it."""

    name = ""  # in vLLM, from its first step on


class VllmMemory(TargetMemory):
    """See `TargetMemory`; vLLM's own books are read, a block counts whole."""

    def __init__(self, core: Core, blocks: int) -> None:
        self._core = core
        self.tokens, self.prefix_size = blocks * core.block_size, core.block_size
        self.tenants: dict[str, str] = {}  # of each sequence that has been in a step
        self.found = 0  # see `hits`

    @property
    def hits(self) -> int:
        """See `TargetMemory`."""
        return self.found

    def states(self) -> dict[str, int]:
        """See `TargetMemory`; what vLLM could reuse counts as free."""
        free = self._core.free_blocks * self._core.block_size
        return {"free": free, "used": self.tokens - free}

    def count_held(self, tenant: str) -> int:
        """See `TargetMemory`."""
        return self._count_held([name for name, owner in list(self.tenants.items()) if owner == tenant])

    def room_beside(self, others: Iterable[SequenceMemory]) -> int:
        """See `TargetMemory`."""
        names = [other.name for other in others if isinstance(other, VllmSequence) and other.name]
        return max(self.free, self.tokens - self._count_held(names))

    def place(self, tenant: str, budget: int, content: Mapping[int, int]) -> SequenceMemory:
        """See `TargetMemory`. Raises Unsupported for a budget."""
        if budget:
            raise Unsupported(
                "engine vllm has no KV budgets of tenants; the server's operator must remove it"
            )
        return VllmSequence()

    def _count_held(self, names: Iterable[str]) -> int:
        blocks = {block for name in names for block in self._core.blocks(name)}
        return len(blocks) * self._core.block_size


class VllmTarget(Target):
    """See `Target`."""

    memory: VllmMemory

    def __init__(self, core: Core, facts: EngineInfo, drafting: DraftStage | None = None) -> None:
        self._core, self.facts, self.drafting = core, facts, drafting
        self.memory = VllmMemory(core, facts.num_blocks)
        self._over: deque[str] = deque()  # sequences without a reader, which have ended
        self._away: dict[str, list[int]] = {}  # the texts of those that had to leave vLLM
        self._fresh: set[str] = set()  # those in vLLM of which nothing is computed yet
        self._errors: dict[str, OpenSledError] = {}  # of those that failed outside of their steps
        self._preempted = 0  # that left since the latest plan
        self._now = 0.0  # of that plan
        self._used: dict[str, float] = {}  # when each was last in one

    def fit(self, slices: Sequence[Slice], sessions: Mapping[int, Session], now: float) -> FittedStep:
        """See `Target`; vLLM may leave some of it out."""
        lost, self._preempted, self._now = self._preempted, 0, now
        return super().fit(whole(slices, sessions), sessions, now)._replace(preempted=lost)

    def forget(self, session: Session) -> None:
        """See `Target`."""
        super().forget(session)
        self._over.append(name_of(session.id))

    def step(self, work: Sequence[StepItem]) -> Sequence[Outcome | Progress]:
        """See `Target`."""
        self._collect()
        told: dict[str, Outcome | Progress] = {}
        plan: dict[str, Decode] = {}
        for item in work:
            name = name_of(item.session.id)
            try:
                self._enter(name, item)
                plan[name] = _decode_of(item)
            except _Unknown:
                told[name] = Progress(0)
            except OpenSledError as error:
                told[name] = error
        starts = {name_of(item.session.id): item.segment.start for item in work}
        before = {name: 0 if name in self._fresh else start for name, start in starts.items()}
        found = self._compute(plan, before)
        for item in work:
            name = name_of(item.session.id)
            if name in plan:
                told[name] = self._outcome_of(name, item, found[name])
        return [told[name] for name in starts]

    def settle(self) -> None:
        """See `Target`."""
        super().settle()
        self._collect()

    def close(self) -> None:
        """See `Target`."""
        self._core.close()

    # -- what vLLM has ------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Sequences that are over leave."""
        while self._over:
            name = self._over.popleft()
            self._core.abort([name])
            self.memory.tenants.pop(name, None)
            self._away.pop(name, None)
            self._errors.pop(name, None)
            self._used.pop(name, None)
            self._fresh.discard(name)

    def _enter(self, name: str, item: StepItem) -> None:
        """Let vLLM have the text of an item, if it has another one or none.

        Raises its error if it failed while it rested, InvalidRequest, and `_Unknown`.
        """
        if (error := self._errors.pop(name, None)) is not None:
            raise error
        session, start, check = item.session, item.segment.start, item.check
        assert check is not None, "vLLM divides prompts by itself"
        known = self._core.text(name)
        held = known or self._away.get(name, ())
        if len(held) < start:
            self._core.abort([name])
            raise _Unknown
        rest = item.segment.tokens[: len(item.segment.tokens) - len(check.draft)]
        if known and tuple(held[start:]) == rest:
            return
        self._core.abort([name])
        self._away.pop(name, None)
        self._core.add(name, [*held[:start], *rest], session.sequence.ends, session.tenant)
        self.memory.tenants[name] = session.tenant
        if isinstance(session.sequence.memory, VllmSequence):
            session.sequence.memory.name = name
        self._fresh.add(name)

    def _leave(self, names: Iterable[str]) -> None:
        """Sequences that no step computes now leave vLLM."""
        gone = {name: list(self._core.text(name)) for name in names}
        self._core.abort(gone)
        self._away.update(gone)
        self._preempted += len(gone)

    # -- a step -------------------------------------------------------------------------------------------

    def _compute(
        self, plan: Mapping[str, Decode], before: Mapping[str, int]
    ) -> Mapping[str, decoding.DecodeResult]:
        """What became of the sequences of a plan; `before`: tokens that vLLM had of each."""
        self._leave([name for name in self._core.without_memory() if name not in plan])
        found = self._step(plan)
        resting = self._resting(found, plan)
        while plan and resting and not any(_got_on(found[name], before[name]) for name in plan):
            self._leave([resting.pop(0)])
            found = self._step(plan)
        if (
            resting
            and self._rests_long(resting[0])
            and any(name in plan for name in self._core.without_memory())
        ):
            self._leave([resting[0]])
        return found

    def _resting(self, known: Iterable[str], plan: Mapping[str, Decode]) -> list[str]:
        """Sequences in vLLM outside of a plan, in the order in which they give way."""
        for name in plan:
            self._used[name] = self._now
        found = [name for name in known if name not in plan and self._core.text(name)]
        return sorted(
            found, key=lambda name: (0, self._used[name]) if self._rests_long(name) else (1, -int(name))
        )

    def _rests_long(self, name: str) -> bool:
        return self._now - self._used[name] > ROUND_SECONDS

    def _step(self, plan: Mapping[str, Decode]) -> Mapping[str, decoding.DecodeResult]:
        found = self._core.step(plan)
        for name, progress in found.items():
            if name not in plan and isinstance(progress.outcome, OpenSledError):
                self._errors[name] = progress.outcome
        return found

    def _outcome_of(self, name: str, item: StepItem, progress: decoding.DecodeResult) -> Outcome | Progress:
        """What the machine hears of an item."""
        length, outcome = item.segment.start + len(item.segment.tokens), progress.outcome
        assert item.check is not None
        length -= len(item.check.draft)
        cached = 0
        if name in self._fresh and (progress.computed or progress.outcome is not None):
            self._fresh.discard(name)
            self.memory.found += progress.cached
            cached = max(0, progress.cached - item.segment.start)
        if isinstance(outcome, AcceptanceResult):
            return Progress(length, cached, outcome)
        if outcome is not None or progress.check is not None:
            return outcome  # an error; or nothing could be decided with its draft
        return Progress(min(progress.computed, length), cached)


class _Unknown(Exception):
    """A text of which only the end is known here."""


def name_of(session: int) -> str:
    """A session's sequence in vLLM."""
    return str(session)


def _decode_of(item: StepItem) -> Decode:
    def question(check: DraftCheck) -> Asked:
        return question_of(item._replace(check=check))

    assert item.check is not None
    return Decode(item.check, ask=item.ask, question=question)


def _got_on(progress: decoding.DecodeResult, before: int) -> bool:
    """Whether anything was computed or decided of a sequence that had so many tokens computed."""
    return progress.outcome is not None or progress.check is not None or progress.computed > before
