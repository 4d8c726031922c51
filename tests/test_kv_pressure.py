"""Less KV memory than the sequences need together: everybody gets on, and nothing is computed in circles."""

from __future__ import annotations

from hw_profiles.profile import HardwareProfile
from opensled.messages import Draft, DraftBlock, DraftToken, SamplingParams
from opensled.protocol import EndRules
from scheduler.fcfs import Fcfs
from tests.fakes import EOS, VOCAB, FakeEngine, continuation
from verify_server.acceptance.match import Match
from verify_server.kv import BlockTable
from verify_server.loop import VerifyLoop, run_step
from verify_server.session import Session

PROMPTS = ([3] * 30, [7] * 30)
POOL = {"num_blocks": 10, "block_size": 4}  # one of the two and a little
PARAMS = SamplingParams(temperature=0, max_tokens=8)


class Pressed:
    """Two sequences in the memory of one, and a clock moved by hand."""

    def __init__(self, draft_wait: float) -> None:
        self.engine, self.now = FakeEngine(**POOL), 0.0
        self.loop = VerifyLoop(self.engine, Fcfs(draft_wait), HardwareProfile(16), lambda: self.now)
        self.sessions = [self._session(number, prompt) for number, prompt in enumerate(PROMPTS)]

    def _session(self, number: int, prompt: list[int]) -> Session:
        ends = EndRules(frozenset({EOS}), frozenset(), len(prompt) + PARAMS.max_tokens)
        session = Session(
            number, "t", list(prompt), len(prompt), PARAMS, b"", ends, Match(), BlockTable(self.loop.pool), VOCAB, 4
        )  # fmt: skip
        self.loop.add(session)
        session.attach(len(prompt))
        return session

    def draft(self, session: Session, counter: int) -> None:
        wrong = (DraftToken(48),)
        session.submit(Draft(counter, DraftBlock(len(session.tokens), wrong)))

    def work_off(self, steps: int) -> int:
        """Steps until there is nothing to do; at most `steps`."""
        for done in range(steps):
            plan = self.loop.policy.plan(self.loop._snapshot(), self.loop.profile, self.now)
            work = self.loop._prepare(plan)
            if not work:
                return done
            self.loop._commit(work, run_step(self.engine, work))
        return steps


def test_sequences_that_wait_for_their_devices_do_not_push_each_other_out():
    """Each would recompute the KV it lost while its device drafts, and take it from the other, for ever."""
    pressed = Pressed(draft_wait=5.0)
    for counter, session in enumerate(pressed.sessions, 1):
        pressed.draft(session, counter)
    assert pressed.work_off(100) < 20
    assert all(len(session.tokens) > 30 for session in pressed.sessions)


def test_everybody_is_finished_all_the_same():
    pressed = Pressed(draft_wait=5.0)
    for session in pressed.sessions:
        pressed.draft(session, 1)
    while not all(session.finish_reason for session in pressed.sessions):
        assert pressed.work_off(100) < 100 and pressed.now < 100
        pressed.now += 1.0
    for session, prompt in zip(pressed.sessions, PROMPTS):
        assert session.tokens[30:] == continuation(prompt, PARAMS.max_tokens)
