"""KV in two tiers under arbitrary orders of events: what leaves or comes back while readers, devices and steps go on.

The state machine of test_stateful_session.py, with host memory for about two sessions more. Hypothesis also chooses who
leaves, when copies end, and which of them fail.
"""

from __future__ import annotations

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from hw_profiles.step_cost import HardwareProfile
from tests.hypothesis_profiles import bounded
from tests.test_stateful_session import BLOCK_SIZE, BLOCKS, CONTEXT, Sessions, small
from tests.tiered import HeldCopies, TieredEngine, host_memory
from verify_server.kv.swap import Stage
from verify_server.loop import VerifyLoop
from verify_server.session import Session

HOST = 18  # blocks


class TieredSessions(Sessions):
    def made(self) -> tuple[TieredEngine, VerifyLoop]:
        engine = TieredEngine(num_blocks=BLOCKS, block_size=BLOCK_SIZE, context_length=CONTEXT)
        self.now = 0.0
        self.copies = HeldCopies(), HeldCopies()
        loop = VerifyLoop(
            engine, self.policy, HardwareProfile(8), lambda: 0.0, host=host_memory(HOST), copiers=self.copies
        )
        self.tier = loop.tier
        return engine, loop

    def copying(self) -> list[int]:
        trips = [*self.tier._leaving, *self.tier._coming]
        return [block for trip in trips if trip.swap.given_up for block in trip.swap.blocks]

    def waits_for_copies(self) -> bool:
        if not self.tier.travelling:
            return False
        if not self.work:  # else in the midst of a step, where Hypothesis ends them
            self._end(0, None)
            self._end(1, None)
        return True

    def _end(self, direction: int, error: Exception | None) -> None:
        if self.copies[direction].waiting:
            self.copies[direction].end(error)

    # -- what the tier may do at any time -----------------------------------------------------------------

    @precondition(lambda self: self.loop.sessions and not self.work)
    @rule(data=st.data())
    def begin_step(self, data: st.DataObject) -> None:
        """Before it, some leave; before that, and after it, some copies end."""
        self._end_some(data)
        for session in self.loop.sessions.values():
            if data.draw(st.booleans()):
                self._leave(session, must=data.draw(st.booleans()))
        self._end_some(data)
        super().begin_step(data)
        self._end_some(data)

    def _end_some(self, data: st.DataObject) -> None:
        while self.tier.travelling and (kind := data.draw(st.sampled_from(["out", "in", "fails", "", ""]))):
            error = RuntimeError("this copy fails") if kind == "fails" else None
            self._end(int(kind == "in"), error)
            self.tier._resumes = 0.0

    def _leave(self, session: Session, must: bool) -> None:
        table = session.sequence.table
        if not session.in_step and table.swap is None and table.blocks:
            self.tier.park(session, must)

    @precondition(lambda self: self.loop.sessions)
    @rule(index=small, must=st.booleans())
    def leave_for_the_host(self, index: int, must: bool) -> None:
        live = list(self.loop.sessions.values())
        self._leave(live[index % len(live)], must)

    @rule()
    def tend(self) -> None:
        self.loop._tend()

    @precondition(lambda self: self.tier.travelling)
    @rule(direction=st.integers(0, 1), fails=st.sampled_from([False, False, False, True]))
    def end_copy(self, direction: int, fails: bool) -> None:
        self._end(direction, RuntimeError("this copy fails") if fails else None)
        self.tier._resumes = 0.0

    # -- what always holds --------------------------------------------------------------------------------

    @invariant()
    def every_host_block_has_holders_or_is_free(self) -> None:
        trips = [*self.tier._leaving, *self.tier._coming]
        swaps = {trip.swap for trip in trips}
        swaps |= {swap for reader in self.readers if (swap := reader.session.sequence.table.swap)}
        holders = Counter(block for swap in swaps for block in swap.host)
        assert all(self.tier.pool.holders(block) == holders[block] for block in range(HOST))
        assert self.tier.pool.num_free == HOST - len(holders)
        assert self.loop.pool.spoken_for == 0

    @invariant()
    def host_memory_holds_what_it_says(self) -> None:
        for session in (reader.session for reader in self.readers):
            swap = session.sequence.table.swap
            if swap is None or swap.stage is Stage.LEAVING:
                continue
            assert not session.in_step and len(swap.host) >= self.loop.pool.blocks_for(
                session.sequence.computed
            )
            held = [
                self.engine.host[swap.host[place // BLOCK_SIZE] * BLOCK_SIZE + place % BLOCK_SIZE]
                for place in range(session.sequence.computed)
            ]
            assert held == session.sequence.tokens[: session.sequence.computed]

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "loop"):
            while self.tier.travelling:
                self._end(0, None)
                self._end(1, None)
            assert self.tier.pool.num_free == HOST and self.loop.pool.num_free == BLOCKS


TestTieredSessions = bounded(TieredSessions, examples=60, steps=60)
