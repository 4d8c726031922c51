"""The simulated relay: the product's sessions, blocks and survival of `relay/`, on the clock of the events.

Towards its devices it is a server whose sequences are vetted, towards the server above one more device, whose drafts
are what it vetted. What its model says is recorded (lab/testbed/tiers.py), and its steps are as long as the
profile of the hub says.
"""

from typing import Any, cast

from edge_client.round.commits import Commit
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.fleet import Hub
from lab.testbed.load.records import ServerTotals
from lab.testbed.simulated.asking import Answers, Asking
from lab.testbed.simulated.drafting import Ready
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.links import Ways
from lab.testbed.simulated.sequences import Decides, Script
from lab.testbed.simulated.server import MAX_DRAFT, Overhead, Reader, SimulatedServer
from lab.testbed.tiers import TieredTrace
from opensled.core.messages import Draft, Limits, Verdict
from opensled.core.protocol import EndRules
from relay.survival import Survival
from relay.uplink import AHEAD, VettedBlocks
from relay.vetting import Vetting
from scheduler.plan import SchedulingPolicy
from verify_server.kv.memory import SequenceMemory
from verify_server.round.observer import Observer
from verify_server.round.session import Session
from verify_server.rules.decide import StepResult


class VettedSequence(Decides):
    """The confirmed text, and behind it what the hub's model was recorded to say."""

    def __init__(self, script: Script) -> None:
        ends = EndRules(script.eos_ids, frozenset(), script.prompt + script.last)
        super().__init__(script.trace.prompt_ids, script.prompt, ends, SequenceMemory())
        assert isinstance(script.trace, TieredTrace), "a relay needs recordings of three tiers"
        self._trace = script.trace

    @property
    def rest(self) -> tuple[int, ...]:
        return self._trace.vetted_after(self.tokens[self.prompt_length :])


class SimulatedRelay:
    """One hub: a server towards the devices below, and one link to the server above."""

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
        self.server = SimulatedServer(events, law, policy, hub.sessions_that_fit, overhead)
        self.events, self.hub, self.above, self.ways = events, hub, above, ways
        self.survival = Survival()
        self._opening = 0  # sequences that the server above is asked for

    @property
    def length(self) -> int:
        """Tokens of a block."""
        return min(self.hub.block, MAX_DRAFT)

    @property
    def totals(self) -> ServerTotals:
        """What its own model has done."""
        return self.server.totals

    def open(self, reader: Reader) -> None:
        """See `Answers`; the server above is asked first."""
        if self.server.free <= self._opening:
            reader.refused()
            return
        self._opening += 1
        Uplink(self, reader).begin()

    def submit(self, arrived: tuple[Session, Draft]) -> None:
        """See `Answers`."""
        self.server.submit(arrived)

    def limits_of(self, script: Script) -> Limits:
        """See `Answers`."""
        return self.server.limits_of(script)

    def refused(self, reader: Reader) -> None:
        """The server above has no place."""
        self._opening -= 1
        reader.refused()

    def opened(self, reader: Reader) -> Vetting:
        """The server above has a sequence; returns its twin here."""
        self._opening -= 1
        session = self.server.enter(reader, VettedSequence(reader.script))
        session.run_ahead(AHEAD * (self.length + 1))
        return Vetting(session, self.survival)


class Uplink(Asking, Observer):
    """The way up for one sequence, as `relay.uplink.Uplink` goes it."""

    def __init__(self, relay: SimulatedRelay, reader: Reader) -> None:
        wish = reader.wish._replace(device=relay.hub.name)
        super().__init__(relay.events, relay.above, relay.ways, reader.script, wish)
        self.reader, self._relay = reader, relay
        self._vetting: Vetting
        self._blocks: VettedBlocks

    def _fail(self, _: None) -> None:
        self._relay.refused(self.reader)

    def _begin(self, hint: int | None) -> None:
        self.turn.reopen(hint)
        self._vetting = self._relay.opened(self.reader)
        self._vetting.session.observer = self
        hub = self._relay.hub
        self._blocks = VettedBlocks(self._vetting, self._relay.length, hub.bound, cast(Any, Ready))
        self._draft_by(self._blocks)

    def committed(self, tokens: int, result: StepResult | None, now: float) -> None:
        """See `Observer`: there are more vetted tokens, or others."""
        self._vetting.committed(tokens, result, now)
        self._blocks.look()
        self._advance()

    def _heard(self, verdict: Verdict, commit: Commit) -> None:
        self._advance()  # as in `generate`, what is drafted leaves before the commit is applied
        self._vetting.hear(commit, self._events.now, finish_reason=self.truth.finish_reason)
        self._relay.server.changed(self._vetting.session)
        self._blocks.look()
