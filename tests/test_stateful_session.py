"""Sessions and the loop's bookkeeping under arbitrary orders of events, one step at a time and without a clock.

Hypothesis plays readers, devices and scheduler at once: plans nobody would make, drafts of every quality at every
moment, readers who come and go, KV memory for about one session and a half.
"""

from collections import Counter
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hw_profiles.step_cost import HardwareProfile
from opensled.core.errors import FutureBase, InvalidRequest
from opensled.core.messages import Draft, DraftBlock, DraftToken, Failure, Prefill
from opensled.core.protocol import Truth
from scheduler.fcfs import Fcfs
from scheduler.plan import SchedulingPolicy, Slice
from scheduler.static import Static
from tests.fakes import POISON, VOCAB, FakeEngine, next_token
from tests.hypothesis_profiles import bounded
from tests.mischief import goodput
from tests.rounds import end, looping, one_step
from tests.sessions import made
from tests.system import read_now
from tests.tree_drafts import grown
from verify_server.kv.blocks import BlockTable
from verify_server.round.offer import DraftLimits
from verify_server.round.session import Session
from verify_server.round.session_view import view_of
from verify_server.round.step import run_step
from verify_server.round.step_item import StepItem

BLOCKS, BLOCK_SIZE, MAX_DRAFT, MAX_TREE = 12, 4, 4, 9
CONTEXT = BLOCKS * BLOCK_SIZE - MAX_DRAFT  # one sequence alone always fits
MAX_SESSIONS = 4
KINDS = 2  # of prompts


@dataclass
class Reader:
    """What one device knows of its sequence."""

    session: Session
    script: list[int]  # prompt and all that the target will ever write
    truth: Truth
    counter: int = 0
    sent: Draft | None = None
    told: str = ""  # code of the Failure that ended it

    def read(self, count: int) -> None:
        while count and len(self.session.outbox):
            count -= 1
            message = read_now(self.session.outbox)
            if isinstance(message, Failure):
                self.told = message.code
            elif isinstance(message, Prefill):
                assert message.cached <= message.computed < message.length <= len(self.session.sequence)
            else:
                assert message is not None, "a superseded outbox is read"
                assert message.num_accepted <= len(message.tokens)
                self.truth.extend(message)


def script_of(prompt: list[int], length: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(next_token(tokens))
    return tokens


small = st.integers(0, 30)


class Sessions(RuleBasedStateMachine):
    policy: SchedulingPolicy = Fcfs(0.0)

    @initialize()
    def start(self) -> None:
        self.engine = FakeEngine(num_blocks=BLOCKS, block_size=BLOCK_SIZE, context_length=CONTEXT)
        self.loop = looping(self.engine, self.policy, HardwareProfile(8))
        self.readers: list[Reader] = []
        self.work: list[StepItem] = []
        self.opened = 0

    # -- readers and devices ------------------------------------------------------------------------

    @precondition(lambda self: len(self.readers) < MAX_SESSIONS)
    @rule(length=st.integers(1, 20), max_tokens=st.integers(1, 25))
    def open(self, length: int, max_tokens: int) -> None:
        self.opened += 1
        kind = 1 + self.opened % KINDS  # those of one kind begin alike, so they share KV
        script = script_of([kind] * length, min(length + max_tokens, CONTEXT))
        limits = DraftLimits(VOCAB, MAX_DRAFT, MAX_TREE)
        table = BlockTable(self.loop.machine.target.pool)
        session = made(self.opened, script[:length], len(script) - length, table, limits)
        self.loop.add(session)
        session.attach(length)
        self.readers.append(Reader(session, script, Truth(script[:length])))

    def _any(self, index: int) -> Reader:
        return self.readers[index % len(self.readers)]

    @precondition(lambda self: self.readers)
    @rule(index=small, behind=st.integers(0, 6), right=st.integers(0, 5), wrong=st.integers(0, 4))
    def draft(self, index: int, behind: int, right: int, wrong: int) -> None:
        """Some right tokens, then wrong ones, on the reader's newest or an older base."""
        reader = self._any(index)
        base = max(reader.session.sequence.prompt_length, len(reader.truth) - behind)
        ids = [*reader.script[base : base + right], *(1 + (token % 40) for token in range(wrong))][:MAX_DRAFT]
        reader.counter += 1
        reader.sent = Draft(reader.counter, DraftBlock(base, tuple(map(DraftToken, ids))))
        if reader.session.has_reader:
            reader.session.submit(reader.sent, 0.0)

    @precondition(lambda self: self.readers)
    @rule(index=small, behind=st.integers(0, 3), nodes=st.integers(1, MAX_TREE), seed=st.integers(0, 999))
    def draft_tree(self, index: int, behind: int, nodes: int, seed: int) -> None:
        """Right paths and wrong ones, twins among them, on the reader's newest or an older base."""
        reader = self._any(index)
        base = max(reader.session.sequence.prompt_length, len(reader.truth) - behind)
        block = grown(Random(seed), base, reader.script[base:], nodes, 40)
        reader.counter += 1
        reader.sent = Draft(reader.counter, block)
        if reader.session.has_reader:
            reader.session.submit(reader.sent, 0.0)

    @precondition(lambda self: any(reader.sent for reader in self.readers))
    @rule(index=small)
    def repeat(self, index: int) -> None:
        reader = self._any(index)
        if reader.sent and reader.session.has_reader:
            reader.session.submit(reader.sent, 0.0)

    @precondition(lambda self: self.readers)
    @rule(index=small, kind=st.sampled_from(["future", "prompt", "long", "large", "id"]))
    def draft_badly(self, index: int, kind: str) -> None:
        """A typed error, and nothing has changed; its stream ends with it."""
        session = self._any(index).session
        base = {"future": len(session.sequence.tokens) + 1, "prompt": session.sequence.prompt_length - 1}.get(
            kind, len(session.sequence.tokens)
        )
        ids = {"long": [1] * (MAX_DRAFT + 1), "large": [1] * (MAX_TREE + 1), "id": [VOCAB]}.get(kind, [1])
        parents = (-1,) * len(ids) if kind == "large" else ()
        reader, pending = self._any(index), session.sources.device.offer
        reader.counter += 1
        reader.sent = None
        try:
            session.submit(Draft(reader.counter, DraftBlock(base, tuple(map(DraftToken, ids)), parents)), 0.0)
        except (FutureBase, InvalidRequest):
            assert session.sources.device.offer is pending
        else:
            raise AssertionError(kind)

    @precondition(lambda self: self.readers)
    @rule(index=small, count=st.integers(1, 4))
    def read(self, index: int, count: int) -> None:
        self._any(index).read(count)

    @precondition(lambda self: self.readers)
    @rule(index=small)
    def leave(self, index: int) -> None:
        self._any(index).session.detach()

    @precondition(lambda self: self.readers)
    @rule(index=small, lost=st.integers(0, 5))
    def come_back(self, index: int, lost: int) -> None:
        """A new stream, on which the device says what it holds: perhaps less than it was once sent."""
        reader = self._any(index)
        if reader.session.failed:
            return
        known = max(reader.session.sequence.prompt_length, len(reader.truth) - lost)
        reader.truth = Truth(
            reader.truth.tokens[: reader.truth.prompt_length],
            reader.truth.tokens[reader.truth.prompt_length : known],
        )
        reader.session.attach(known)

    @precondition(lambda self: self.readers)
    @rule(index=small)
    def cancel(self, index: int) -> None:
        reader = self._any(index)
        self.readers.remove(reader)
        self.loop.remove(reader.session)

    # -- the server ---------------------------------------------------------------------------------

    @precondition(lambda self: self.loop.machine.sessions and not self.work)
    @rule(data=st.data())
    def begin_step(self, data: st.DataObject) -> None:
        """Any plan a policy could make, in any order of sessions."""
        self.loop.machine.plan(0.0)
        live = data.draw(st.permutations(sorted(self.loop.machine.sessions)))
        slices = []
        for number in live[: data.draw(st.integers(1, len(live)))]:
            uncomputed = self.loop.machine.sessions[number].view(0.0).uncomputed
            tokens = data.draw(st.integers(1, uncomputed))
            padding, trim = data.draw(st.sampled_from([(0, None), (0, None), (1, 0), (4, None), (0, 2)]))
            hint = data.draw(st.sampled_from([None, None, 0, 2]))
            decide = tokens == uncomputed
            slices.append(Slice(number, tokens, decide, padding=padding, draft=trim, hint=hint))
        before = {number: session.sequence.computed for number, session in self.loop.machine.sessions.items()}
        paddings = {piece.session: piece.padding for piece in slices}
        self.work = self.loop.machine.fit(slices, 0.0)
        assert self.work, "somebody always gets on"
        for planned in self.work:
            number, computed = planned.session.id, planned.session.sequence.computed
            assert computed == before[number]
            assert planned.segment.start == max(
                planned.session.sequence.memory.frozen, computed - paddings[number]
            )

    @precondition(lambda self: self.work)
    @rule()
    def end_step(self) -> None:
        work, self.work = self.work, []
        end(self.loop, work, run_step(self.engine, work))
        for planned in work:
            session = planned.session
            if planned.check is not None and not session.closed:
                assert session.view(0.0).uncomputed == 1, "what was accepted is never computed again"

    @precondition(lambda self: self.work)
    @rule()
    def break_step(self) -> None:
        """The engine fails: everybody in the step ends by an error, nobody else does."""
        work, self.work = self.work, []
        end(self.loop, work, None)
        failed = {planned.session.id for planned in work}
        for reader in [one for one in self.readers if one.session.id in failed]:
            assert reader.session.failed
            if reader.session.has_reader:
                reader.read(99)
                assert reader.told == "engine"
            self.readers.remove(reader)

    @precondition(lambda self: self.readers)
    @rule(index=small)
    def evict(self, index: int) -> None:
        session = self._any(index).session
        if not session.in_step:
            session.forget_kv()

    # -- what always holds --------------------------------------------------------------------------

    @invariant()
    def policies_see_what_is(self) -> None:
        """Views are kept while nothing changes, and no longer."""
        for session in self.loop.machine.sessions.values():
            assert session.view(0.0) == view_of(session, 0.0)

    @invariant()
    def tokens_are_the_targets_own(self) -> None:
        for reader in self.readers:
            session, truth = reader.session, reader.truth.tokens
            assert session.sequence.tokens == reader.script[: len(session.sequence.tokens)]
            assert truth == session.sequence.tokens[: len(truth)]
            assert bool(session.sequence.finish_reason) == (session.sequence.tokens == reader.script)

    @invariant()
    def every_block_has_holders_or_is_free(self) -> None:
        sessions = {reader.session.id: reader.session for reader in self.readers}
        sessions.update((planned.session.id, planned.session) for planned in self.work)
        holders = Counter(block for session in sessions.values() for block in session.sequence.memory.blocks)
        assert all(self.loop.machine.target.pool.holders(block) == holders[block] for block in range(BLOCKS))
        assert self.loop.machine.target.memory.free == (BLOCKS - len(holders)) * BLOCK_SIZE
        for session, segment in ((planned.session, planned.segment) for planned in self.work):
            assert [*segment.blocks] == session.sequence.memory.blocks, "a step computes in freed memory"
            written = segment.blocks[segment.start // BLOCK_SIZE :]
            assert all(holders[block] == 1 for block in written), "a step writes where others read"

    @invariant()
    def kv_holds_what_is_called_computed(self) -> None:
        for session in (reader.session for reader in self.readers if not reader.session.in_step):
            assert session.sequence.computed < len(session.sequence.tokens)
            assert len(session.sequence.memory.blocks) == self.loop.machine.target.pool.blocks_for(
                session.sequence.computed
            )
            pending, unanswered = session.sources.device.offer, session.sources.device.turn.unanswered
            assert pending is None or pending.block.base == len(session.sequence.tokens)
            # The verdict with the end answers whatever is under way.
            if session.has_reader and not session.sequence.finish_reason:
                assert (pending and pending.draft.counter) == (unanswered and unanswered.counter), (
                    "answered once"
                )
            held = [
                self.engine.slots[
                    session.sequence.memory.blocks[position // BLOCK_SIZE] * BLOCK_SIZE
                    + position % BLOCK_SIZE
                ]
                for position in range(session.sequence.computed)
            ]
            assert held == session.sequence.tokens[: session.sequence.computed]

    def teardown(self) -> None:
        """Everybody comes back and is served to the end; then all memory is free."""
        if not hasattr(self, "loop"):
            return
        if self.work:
            self.end_step()
        for reader in self.readers:
            reader.session.attach(len(reader.truth))
        for _ in range(10_000):
            work = one_step(self.loop)
            for reader in self.readers:
                reader.read(99)
            if not work:
                break
        self.loop.close()
        assert all(reader.truth.tokens == reader.script for reader in self.readers)
        assert all(reader.truth.finish_reason == "length" for reader in self.readers)
        assert self.loop.machine.target.pool.num_free == BLOCKS


assert POISON > 40, "no drafted id makes the fake target sick"


class GoodputSessions(Sessions):
    policy = goodput(0.0)


class StaticSessions(Sessions):
    policy = Static(0.0)


class LongStaticSessions(StaticSessions):
    pass


TestSessions = bounded(Sessions, examples=160, steps=60)
TestGoodputSessions = bounded(GoodputSessions, examples=25, steps=60)
TestStaticSessions = bounded(StaticSessions, examples=20, steps=60)
TestLongStaticSessions = pytest.mark.long(bounded(LongStaticSessions, examples=60, steps=60))
