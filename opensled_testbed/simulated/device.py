"""The simulated device: the product's edge loop over recorded drafts, in the time that the device's profile says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edge_client.drafting import Drafting
from edge_client.generate import Exchange
from hw_profiles.profiles import DraftSpeed
from opensled.messages import Limits, SamplingParams, ServerMessage, Verdict
from opensled.protocol import Truth
from opensled.sampling import Sampler
from opensled.turns import Turn
from opensled_testbed.emulation.draft_pace import forward_s
from opensled_testbed.emulation.replay import NoDrafts
from opensled_testbed.fleet import Wish
from opensled_testbed.load.records import Arrival, RequestRecord, Round
from opensled_testbed.simulated.drafting import Ready, SimulatedDrafts
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.links import Ways, draft_bytes, open_bytes, opened_bytes, verdict_bytes
from opensled_testbed.simulated.server import MAX_DRAFT, Script, SimulatedServer
from verify_server.session import Session

Done = Callable[[RequestRecord], None]
UNUSED = Sampler(SamplingParams(), b"")  # what was recorded is not drawn again


@dataclass(eq=False)
class SimulatedDevice:
    """One device: its link, its draft model, and the user's own link where the drafter sits beside the server.

    It drafts for one answer at a time; the server alone decodes a request that finds it at work, as in the product.
    """

    events: Events
    server: SimulatedServer
    ways: Ways
    drafts: SimulatedDrafts
    user: Ways | None
    wish: Wish = field(default_factory=Wish)
    drafts_for: SimulatedAnswer | None = None

    def ask(self, record: RequestRecord, script: Script, done: Done) -> None:
        """One request, now; `done` hears when its last token has reached the user, or that it was refused."""
        answer = SimulatedAnswer(self, record, script, done)
        self.drafts_for = self.drafts_for or answer
        record.sent = self.events.now
        record.prompt_tokens = script.prompt
        if self.user is None:
            answer.begin(None)
            return
        size = open_bytes(script.prompt)
        record.bytes_up += size
        self.events.at(self.user.up.deliver_at(record.sent, size), answer.begin)


class SimulatedAnswer:
    """One request on its device: the sequence that its edge loop drafts for, and what its reader gets."""

    def __init__(self, device: SimulatedDevice, record: RequestRecord, script: Script, done: Done) -> None:
        self._device, self._record, self.script, self._done = device, record, script, done
        self.wish = device.wish
        self.truth, self.turn = Truth(script.trace.prompt_ids), Turn()
        self.limits = Limits(MAX_DRAFT, script.prompt + script.last, continuations=True)
        self._session: Session | None = None
        self._exchange: Exchange | None = None
        self._sent_at: dict[int, float] = {}  # seconds, by the draft's counter

    def begin(self, _: None) -> None:
        """Ask the server for a sequence."""
        self._up(self._device.server.open, self, open_bytes(self.script.prompt))

    def _up(self, call: Callable[..., None], argument: object, size: int) -> None:
        device = self._device
        if device.user is None:  # else the link that counts is the user's
            self._record.bytes_up += size
        device.events.at(device.ways.up.deliver_at(device.events.now, size), call, argument)

    def _down(self, call: Callable[..., None], argument: object, size: int) -> None:
        device = self._device
        if device.user is None:
            self._record.bytes_down += size
        device.events.at(device.ways.down.deliver_at(device.events.now, size), call, argument)

    # -- what the server sends --------------------------------------------------------------------------

    def refused(self) -> None:
        self._down(self._fail, None, verdict_bytes(0))

    def opened(self, session: Session) -> None:
        self._session = session
        self._down(self._begin, session.turn.hint, opened_bytes(self.script.prompt))

    def told(self, message: ServerMessage) -> None:
        assert isinstance(message, Verdict), "a simulated server has no failures"
        self._down(self._hear, message, verdict_bytes(len(message.tokens)))

    # -- the edge loop ----------------------------------------------------------------------------------

    def _fail(self, _: None) -> None:
        self._record.error = "overloaded: the KV of all places is taken"
        self._end()

    def _end(self) -> None:
        if self._device.drafts_for is self:
            self._device.drafts_for = None
        self._done(self._record)

    def _begin(self, hint: int | None) -> None:
        device, clock = self._device, self._device.events
        self.turn.reopened(hint)
        drafts: Drafting = NoDrafts(Ready)
        if device.drafts_for is self:
            drafts = device.drafts
            device.drafts.take(self.script, self._record, self._advance)
        drafts.begin(self.truth, UNUSED)
        params = SamplingParams(temperature=0, max_tokens=self.script.last)
        self._exchange = Exchange(self, drafts, params, lambda: clock.now)
        self._exchange.draft()
        self._advance()

    def _advance(self) -> None:
        """Send what is drafted by now, if there is anything."""
        exchange = self._exchange
        while exchange and not self.truth.finish_reason and (draft := exchange.drafted()):
            self._sent_at[draft.counter] = self._device.events.now
            self.turn.draft(draft)
            self._up(self._device.server.submit, (self._session, draft), draft_bytes(len(draft.block.tokens)))
            exchange.look_ahead(draft)

    def _hear(self, verdict: Verdict) -> None:
        if self.truth.finish_reason or self._exchange is None:
            return
        commit = self._exchange.hear(verdict)
        if commit.drafted:
            now = self._device.events.now
            self._record.rounds.append(
                Round(self._sent_at.pop(verdict.answers), now, commit.drafted, commit.accepted)
            )
            self._record.wasted -= commit.accepted
        if commit.tokens:
            self._show(len(commit.tokens))
        self._advance()

    def _show(self, tokens: int) -> None:
        """Hand tokens on to the user, whose own link may be in between."""
        device, news = self._device, (tokens, self.truth.finish_reason)
        if device.user is None:
            self._shown(news)
            return
        size = verdict_bytes(tokens)
        self._record.bytes_down += size
        device.events.at(device.user.down.deliver_at(device.events.now, size), self._shown, news)

    def _shown(self, news: tuple[int, str]) -> None:
        tokens, reason = news
        self._record.arrivals.append(Arrival(self._device.events.now, tokens))
        if reason:
            self._record.finish_reason = reason
            self._end()


class AloneDevice:
    """Writes one answer at a time, in the order in which they are asked."""

    def __init__(self, events: Events, speed: DraftSpeed) -> None:
        self._events, self._speed = events, speed
        self._free_at = 0.0

    def ask(self, record: RequestRecord, script: Script, done: Done) -> None:
        record.sent = self._events.now
        record.prompt_tokens = script.prompt
        start = max(record.sent, self._free_at) + forward_s(self._speed, script.prompt)
        self._free_at = start + (script.alone - 1) * forward_s(self._speed, 1)
        self._events.at(start, self._write, (record, script, done))

    def _write(self, job: tuple[RequestRecord, Script, Done]) -> None:
        record, script, done = job
        now = self._events.now
        record.arrivals.append(Arrival(now, 1))
        if len(record.arrivals) < script.alone:
            self._events.at(now + forward_s(self._speed, 1), self._write, job)
            return
        record.finish_reason = "length" if script.alone == script.last else "eos"
        done(record)
