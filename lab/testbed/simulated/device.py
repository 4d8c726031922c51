"""The simulated device: the product's edge loop over recorded drafts, in the time that the device's profile says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edge_client.round.commits import Commit
from edge_client.round.drafting import Drafting
from hw_profiles.profiles import DraftSpeed
from lab.testbed.emulation.draft_pace import forward_s
from lab.testbed.emulation.replay import NoDrafts
from lab.testbed.fleet import Wish
from lab.testbed.load.records import Arrival, RequestRecord, Round
from lab.testbed.simulated.asking import Answers, Asking
from lab.testbed.simulated.drafting import Ready, SimulatedDrafts
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.links import Ways, open_bytes, verdict_bytes
from lab.testbed.simulated.sequences import Script
from opensled.core.messages import Draft, SamplingParams, Verdict
from opensled.core.sampling import Sampler

Done = Callable[[RequestRecord], None]
UNUSED = Sampler(SamplingParams(), b"")  # what was recorded is not drawn again


@dataclass(eq=False)
class SimulatedDevice:
    """One device: its link, its draft model, and the user's own link where the drafter sits beside the server.

    It drafts for one answer at a time; the server alone decodes a request that finds it at work, as in the product.
    """

    events: Events
    server: Answers
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


class SimulatedAnswer(Asking):
    """One request on its device: the sequence that its edge loop drafts for, and what its reader gets."""

    def __init__(self, device: SimulatedDevice, record: RequestRecord, script: Script, done: Done) -> None:
        super().__init__(device.events, device.server, device.ways, script, device.wish)
        self._device, self._record, self._done = device, record, done
        self._sent_at = 0.0  # seconds, of the latest draft

    def _up(self, call: Callable[..., None], argument: object, size: int) -> None:
        if self._device.user is None:  # else the link that counts is the user's
            self._record.bytes_up += size
        super()._up(call, argument, size)

    def _down(self, call: Callable[..., None], argument: object, size: int) -> None:
        if self._device.user is None:
            self._record.bytes_down += size
        super()._down(call, argument, size)

    def _fail(self, _: None) -> None:
        self._record.error = "overloaded: the KV of all places is taken"
        self._end()

    def _end(self) -> None:
        if self._device.drafts_for is self:
            self._device.drafts_for = None
        self._done(self._record)

    def _begin(self, hint: int | None) -> None:
        device = self._device
        self.turn.reopen(hint)
        drafts: Drafting = NoDrafts(Ready)
        if device.drafts_for is self:
            drafts = device.drafts
            device.drafts.take(self.script, self._record, self._advance)
        drafts.begin(self.truth, UNUSED)
        self._draft_by(drafts)

    def _sends(self, draft: Draft) -> None:
        self._sent_at = self._events.now

    def _heard(self, verdict: Verdict, commit: Commit) -> None:
        if commit.drafted:
            now = self._events.now
            self._record.rounds.append(Round(self._sent_at, now, commit.drafted, commit.accepted))
            self._record.wasted -= commit.accepted
        if commit.tokens:
            self._show(len(commit.tokens))

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
