"""A target that keeps its own memory and schedules by itself, as other inference servers do.

It knows what it was given and what it decided, no KV block of ours. It holds the tokens of each sequence in pages of
its own, few of them; computes at most `at_once` sequences and `chunk` tokens in a step, in an order of its own; leaves
sequences out, preempts one when pages are short, finds beginnings again that it computed before, and fails on demand.
What it says follows from the tokens that it holds, so a wrong rollback changes the text.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.plan import Slice
from tests.fakes import EOS, VOCAB, FakeScores, next_token
from verify_server.engine.base import EngineInfo
from verify_server.kv.memory import TargetMemory
from verify_server.round.session import Session
from verify_server.round.step import question_of
from verify_server.round.step_item import StepItem
from verify_server.round.target import FittedStep, Progress, Target, whole
from verify_server.rules.base import AcceptanceResult, DraftCheck
from verify_server.rules.decide import Outcome, Question, decide


@dataclass
class Held:
    """What the target holds of one sequence."""

    tenant: str
    tokens: list[int] = field(default_factory=list)  # whose KV it has, a draft of the latest step among them


class ForeignMemory(TargetMemory):
    """Pages of tokens; the sequences' own memory accounts for nothing."""

    def __init__(self, pages: int, size: int) -> None:
        self._pages, self.size, self.tokens = pages, size, pages * size
        self.sequences: dict[int, Held] = {}

    def pages(self, tokens: int) -> int:
        return -(-tokens // self.size)

    @property
    def free_pages(self) -> int:
        return self._pages - sum(self.pages(len(held.tokens)) for held in self.sequences.values())

    def states(self) -> dict[str, int]:
        free = self.free_pages * self.size
        return {"free": free, "used": self.tokens - free}

    def count_held(self, tenant: str) -> int:
        mine = (held.tokens for held in self.sequences.values() if held.tenant == tenant)
        return sum(self.pages(len(tokens)) * self.size for tokens in mine)


class ForeignTarget(Target):
    """See above."""

    facts = EngineInfo("foreign", VOCAB, 200, (EOS,), "fast", "", "elsewhere", 0, 0, runtime="foreign")

    def __init__(
        self, pages: int = 64, at_once: int = 8, chunk: int = 64, seed: int = 0, leaves: float = 0.0
    ) -> None:
        """`leaves`: chance of a sequence to be left out of a step for no reason that we know."""
        self.memory: ForeignMemory = ForeignMemory(pages, 4)
        self.at_once, self.chunk, self._leaves = at_once, chunk, leaves
        self._random = random.Random(seed)
        self._over: deque[int] = deque()  # sequences that nobody reads any more
        self._known: dict[str, set[tuple[int, ...]]] = {}  # by tenant: whole pages from the beginning on
        self.breaks: deque[str] = deque()  # of the next steps: "" = fine, "recover", "raise", "lose"
        self._served: set[int] = set()  # in this step
        self._work: set[int] = set()  # of this step

    def fit(self, slices: Sequence[Slice], sessions: Mapping[int, Session], now: float) -> FittedStep:
        """What it may decide; what it computes of that it says afterwards."""
        return super().fit(whole(slices, sessions), sessions, now)

    def forget(self, session: Session) -> None:
        """In the event loop; a step may be under way."""
        super().forget(session)
        self._over.append(session.id)

    def step(self, work: Sequence[StepItem]) -> Sequence[Outcome | Progress]:
        """In the engine's thread."""
        self.collect()
        how = self.breaks.popleft() if self.breaks else ""
        if how:  # whatever it holds is in doubt, that of sequences outside the step as well
            self.memory.sequences.clear()
            self._known.clear()
        if how == "raise":
            raise RuntimeError("the device fell off the bus")
        if how == "recover":
            return [Progress(0) for _ in work]
        order = [item for item in work if self._random.random() >= self._leaves]
        self._random.shuffle(order)
        room, outcomes = self.chunk, dict[int, Outcome | Progress]()
        self._served, self._work = set(), {item.session.id for item in work}
        for item in order[: self.at_once]:
            outcomes[item.session.id], spent = self._compute(item, room)
            room -= spent
            self._served.add(item.session.id)
        return [outcomes.get(item.session.id, Progress(self._length(item))) for item in work]

    def collect(self) -> None:
        """Gives the pages of sequences back that are over."""
        while self._over:
            self.memory.sequences.pop(self._over.popleft(), None)

    def _length(self, item: StepItem) -> int:
        """What it holds of the text that the session counts as computed."""
        held = self.memory.sequences.get(item.session.id)
        return 0 if held is None else min(len(held.tokens), item.segment.start)

    def _compute(self, item: StepItem, room: int) -> tuple[Outcome | Progress, int]:
        """What becomes of one sequence, and how many tokens are computed for it."""
        id, tenant, check, start = item.session.id, item.session.tenant, item.check, item.segment.start
        assert check is not None and not item.segment.blocks, (
            "it decides what it is given, and names no blocks"
        )
        held = self.memory.sequences.setdefault(id, Held(tenant)).tokens
        del held[start:]
        if len(held) < start:  # some of it is gone: all of it, please
            held.clear()
            return Progress(0), 0
        text = [*held, *item.segment.tokens[: len(item.segment.tokens) - len(check.draft)]]
        cached = 0 if held else self._found(tenant, text)
        held += text[len(held) : cached]
        part = min(room, len(text) - len(held))
        drafted = min(room - part, len(check.draft)) if len(held) + part == len(text) else 0
        if not self._reserve(id, part + drafted):
            drafted = 0
        if not part or not self._reserve(id, part):
            return Progress(len(held), cached), 0
        held += text[len(held) : len(held) + part]
        self._remember(tenant, held)
        if len(held) < len(text):
            return Progress(len(held), cached), part
        held += check.ids[:drafted]
        outcome = _decide(item, check._replace(draft=check.draft[:drafted]), text)
        if isinstance(outcome, AcceptanceResult):
            return Progress(len(text), cached, outcome), part + drafted
        return outcome, part + drafted

    # -- memory ---------------------------------------------------------------------------------------------

    def _found(self, tenant: str, text: Sequence[int]) -> int:
        """Tokens of a text that it computed before for the tenant, as far as there is room; never the last one."""
        known, size, length = self._known.get(tenant, set()), self.memory.size, 0
        most = min(len(text) - 1, self.memory.free_pages * size)
        while length + size <= most and tuple(text[: length + size]) in known:
            length += size
        return length

    def _remember(self, tenant: str, tokens: Sequence[int]) -> None:
        known, size = self._known.setdefault(tenant, set()), self.memory.size
        known.update(tuple(tokens[:stop]) for stop in range(size, len(tokens) + 1, size))

    def _reserve(self, id: int, more: int) -> bool:
        """Whether there are pages for so many more tokens of a sequence; others outside the step, and newer ones in it,
        give theirs if need be."""
        memory = self.memory
        held = memory.sequences[id].tokens
        needed = memory.pages(len(held) + more) - memory.pages(len(held))
        while needed > memory.free_pages:
            holders = [n for n, one in memory.sequences.items() if one.tokens and n not in self._served]
            victims = [(n not in self._work, n) for n in holders if n > id or n not in self._work]
            if not victims:
                return False
            memory.sequences[max(victims)[1]].tokens.clear()
        return True


def _decide(item: StepItem, check: DraftCheck, text: list[int]) -> Outcome:
    """The session's rule over the rows of the newest token and of the draft."""
    contexts = [[*text, *check.ids[:count]] for count in range(len(check.draft) + 1)]
    question = question_of(item._replace(check=check))
    if not isinstance(question, Question):
        return question
    return decide({0: question}, FakeScores(contexts, next_token))[0]
