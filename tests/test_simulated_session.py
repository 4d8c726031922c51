"""The simulated session beside the real one: whatever happens to both, a policy sees the same, and so does the device.

Run: .venv/bin/python -m pytest tests/test_simulated_session.py -q
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from edge_client.lengths.fixed import FixedLength
from opensled.messages import Draft, DraftBlock, DraftToken, SamplingParams, Verdict
from opensled.protocol import EndRules, common_prefix
from opensled_testbed.fleet import Wish
from opensled_testbed.simulated import session as simulated
from opensled_testbed.simulated.drafts import MAX_DRAFT, Block, scripts
from scheduler.estimates import DeviceBook
from scheduler.plan import Slice
from tests.made_traces import made
from tests.system import read_now
from verify_server import session as real
from verify_server.acceptance.match import Match
from verify_server.draft_budget import DraftBudget, DraftRecord
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.session_manager import SessionLimits

PACE = 7.0


@dataclass
class Told:
    """The device of the simulated session: what it hears."""

    verdicts: list[tuple[int, int, bool, int | None]] = field(default_factory=list)

    def refused(self) -> None: ...

    def opened(self, hint: int | None) -> None: ...

    def told(self, base: int, end: int, answers: Block | None, hint: int | None) -> None:
        self.verdicts.append((base, end, answers is not None, hint))


class Both:
    """One text, one clock, and the two sessions that write it."""

    def __init__(self, seed: int) -> None:
        traces = made(1, 0.7, seed, 24)
        self.item, [self.script] = traces.items[0], scripts(traces)
        self.now, self.counter = 1.0, 0
        self.told = Told()
        self.ours = simulated.Session(self.told, self.script, Wish("device", PACE))
        self.ours.begin(1, DeviceBook().of("", "device"), DraftRecord(), self.now)
        self.theirs = self._real()

    def _real(self) -> real.Session:
        prompt, estimate = self.item.prompt_ids, DeviceBook().of("", "device")
        session = real.Session(
            1, "", list(prompt), len(prompt), SamplingParams(temperature=0), b"",
            EndRules(frozenset(), frozenset(), len(prompt) + self.script.last), Match(),
            BlockTable(BlockPool(32, 16)), 5000, MAX_DRAFT, pace=PACE, estimate=estimate, hint=estimate.device.hint,
            allowance=DraftBudget(floor=SessionLimits.min_acceptance),
        )  # fmt: skip
        session.clock = lambda: self.now
        session.waiting_since = session.asked_since = self.now
        session.attach(len(prompt))
        return session

    def submit(self, back: int, hint: int | None, seconds: float) -> None:
        """A draft made on the truth of some tokens ago."""
        place = max(0, self.ours.committed - back)
        block = self.script.block(place, FixedLength(8).most(self.script.room(place), hint))
        ids = self.item.proposals[place].ids[: block.tokens]
        self.counter += 1
        base = len(self.item.prompt_ids) + place
        self.theirs.submit(
            Draft(self.counter, DraftBlock(base, tuple(map(DraftToken, ids))), min(seconds, 0.5))
        )
        if not self.ours.submit(block, min(seconds, 0.5), self.now):
            self.ours.drop(block, self.now)
            self.told.told(block.base, self.ours.committed, block, self.ours.hint)

    def plan(
        self, share: float, draft: int | None, hint: int | None
    ) -> tuple[simulated.Planned, real.StepItem]:
        view = self.ours.view()
        tokens = max(1, round(share * view.uncomputed))
        piece = Slice(1, tokens, tokens == view.uncomputed, draft=draft, hint=hint)
        return self.ours.plan(piece), self.theirs.plan(piece)

    def commit(self, ours: simulated.Planned, theirs: real.StepItem) -> None:
        decision = None
        if theirs.question is not None:
            rest = (*self.item.prompt_ids, *self.item.target_ids)[len(self.theirs.tokens) :]
            accepted = common_prefix(theirs.question.ids, rest)
            decision = real.AcceptanceResult(accepted, rest[accepted])
        assert self.theirs.commit(theirs, decision, self.now) == self.ours.commit(ours, self.now)
        pending = self.ours.pending
        if pending is not None and (self.ours.finished or pending.rest_at(self.ours.committed) is None):
            self.ours.pending = None
            if not self.ours.finished:
                self.ours.drop(pending, self.now)
            self.told.told(pending.base, self.ours.committed, pending, self.ours.hint)

    def heard(self) -> list[tuple[int, int, bool, int | None]]:
        """What the device of the real session was sent."""
        prompt, verdicts = len(self.item.prompt_ids), []
        while len(self.theirs.outbox):
            verdict = read_now(self.theirs.outbox)
            assert isinstance(verdict, Verdict)
            base = verdict.base - prompt
            verdicts.append((base, base + len(verdict.tokens), verdict.answers > 0, verdict.hint))
        return verdicts


HINTS = st.one_of(st.none(), st.integers(0, 8))
SUBMIT = st.tuples(st.just("submit"), st.integers(0, 5), HINTS, st.floats(0, 0.5))
STEP = st.tuples(
    st.just("step"), st.sampled_from((1.0, 1.0, 1.0, 0.4)), st.one_of(st.none(), st.integers(0, 3)), HINTS
)
BESIDE = st.one_of(st.none(), SUBMIT)  # what arrives while a step is computed


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 99), moves=st.lists(st.tuples(st.one_of(SUBMIT, STEP, STEP), BESIDE), max_size=40))
def test_both_sessions_look_the_same_to_policies_and_say_the_same_to_devices(seed: int, moves: list) -> None:
    both = Both(seed)
    for number, (move, beside) in enumerate(moves):
        if both.ours.finished:
            break
        both.now += 0.03 * (1 + number % 4)
        if move[0] == "submit":
            both.submit(*move[1:])
        else:
            ours, theirs = both.plan(*move[1:])
            assert ours.hint == theirs.hint
            assert ours.piece.tokens == len(theirs.segment.tokens)
            assert ours.piece.drafted == max(0, theirs.segment.rows - 1)
            if beside is not None and ours.decides:
                both.submit(*beside[1:])
            both.now += 0.02
            both.commit(ours, theirs)
        assert both.ours.view() == both.theirs.view()
        assert both.told.verdicts == both.heard()
        both.told.verdicts.clear()
