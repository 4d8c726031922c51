"""The simulated relay: the product's sessions, blocks and survival of `relay/`, on the clock of the events.

Towards its devices it is a server whose sequences are vetted, towards the server above one more device, whose drafts
are what it vetted. What its model says is recorded (opensled_testbed/tiers.py), and its steps are as long as the
profile of the hub says.
"""

from __future__ import annotations

from typing import Any, cast

from edge_client.commits import Commit
from opensled.messages import SamplingParams, Verdict
from opensled.protocol import EndRules
from opensled_testbed.emulation.step_law import StepLaw
from opensled_testbed.fleet import Hub
from opensled_testbed.simulated.asking import Answers, Asking
from opensled_testbed.simulated.drafting import Ready
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.links import Ways
from opensled_testbed.simulated.sequences import Decides, NoKV, Script
from opensled_testbed.simulated.server import MAX_DRAFT, Overhead, Reader, SimulatedServer
from opensled_testbed.simulated.server_drafter import VOCABULARY
from opensled_testbed.tiers import TieredTrace
from relay.sequence import RelaySequence
from relay.session import RelaySession
from relay.survival import Survival
from relay.uplink import AHEAD, VettedBlocks
from scheduler.plan import SchedulingPolicy
from verify_server.acceptance.match import Match
from verify_server.draft_budget import MIN_ACCEPTANCE, DraftBudget
from verify_server.session import DraftLimits
from verify_server.session_timing import SessionTiming


class VettedSequence(Decides, RelaySequence):
    """The confirmed text, and behind it what the hub's model was recorded to say."""

    def __init__(self, script: Script) -> None:
        ends = EndRules(script.eos_ids, frozenset(), script.prompt + script.last)
        super().__init__(script.trace.prompt_ids, script.prompt, ends, NoKV())
        assert isinstance(script.trace, TieredTrace), "a relay needs recordings of three tiers"
        self._trace = script.trace

    @property
    def rest(self) -> tuple[int, ...]:
        return self._trace.vetted_after(self.tokens[self.prompt_length :])


class SimulatedRelay(SimulatedServer):
    """One hub: devices below, one link to the server above."""

    def __init__(
        self,
        events: Events,
        law: StepLaw,
        hub: Hub,
        policy: SchedulingPolicy,
        above: Answers,
        ways: Ways,
        overhead: Overhead,
    ) -> None:
        super().__init__(events, law, policy, hub.sessions_that_fit, overhead)
        self.hub, self.above, self.ways = hub, above, ways
        self.survival = Survival()
        self._opening = 0  # sequences that the server above is asked for

    @property
    def length(self) -> int:
        """Tokens of a block."""
        return min(self.hub.block, MAX_DRAFT)

    def open(self, reader: Reader) -> None:
        """See `SimulatedServer.open`; the server above is asked first."""
        if len(self._machine.sessions) + self._opening >= self._places:
            reader.refused()
            return
        self._opening += 1
        Uplink(self, reader).begin()

    def refused(self, reader: Reader) -> None:
        """The server above has no place."""
        self._opening -= 1
        reader.refused()

    def opened(self, uplink: Uplink) -> RelaySession:
        """The server above has a sequence; returns its twin here."""
        self._opening -= 1
        session = self._session(uplink.reader)
        self._begin(uplink.reader, session)
        return session

    def _session(self, reader: Reader) -> RelaySession:
        wish = reader.wish
        return RelaySession(
            self._number(),
            "",
            VettedSequence(reader.script),
            SamplingParams(temperature=0),
            b"",
            Match(),
            DraftLimits(VOCABULARY, MAX_DRAFT),
            background=wish.background,
            budget=DraftBudget(record=self._records.of("", wish.device), floor=MIN_ACCEPTANCE),
            timing=SessionTiming(self._devices.of("", wish.device), wish.pace),
            survival=self.survival,
            most_vetted=AHEAD * (self.length + 1),
        )

    def confirm(self, session: RelaySession, commit: Commit, finish_reason: str) -> None:
        """The server above has committed more, and perhaps ended the text."""
        session.confirm(commit, self._events.now, finish_reason=finish_reason)
        self._changed(session)
        self._forget(session)
        self._wake()


class Uplink(Asking):
    """The way up for one sequence, as `relay.uplink.Uplink` goes it."""

    def __init__(self, relay: SimulatedRelay, reader: Reader) -> None:
        wish = reader.wish._replace(device=relay.hub.name)
        super().__init__(relay._events, relay.above, relay.ways, reader.script, wish)
        self.reader, self._relay = reader, relay
        self._vetting: RelaySession
        self._blocks: VettedBlocks

    def _fail(self, _: None) -> None:
        self._relay.refused(self.reader)

    def _begin(self, hint: int | None) -> None:
        self.turn.reopened(hint)
        self._vetting = session = self._relay.opened(self)
        self._blocks = VettedBlocks(session, self._relay.length, self._relay.hub.bound, cast(Any, Ready))
        session.changed = self._changed
        self._draft_by(self._blocks)

    def _changed(self) -> None:
        """There are more vetted tokens, or others."""
        self._blocks.look()
        self._advance()

    def _heard(self, verdict: Verdict, commit: Commit) -> None:
        self._advance()  # as in `generate`, what is drafted leaves before the commit is applied
        self._relay.confirm(self._vetting, commit, self.truth.finish_reason)
        self._blocks.look()
