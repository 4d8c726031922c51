"""The simulated device: the edge loop over recorded drafts, in the time that the device's profile says.

It follows edge_client/generate.py, and the drafter's thread of edge_client/drafting.py in simulated/drafting.py.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_client.lengths.base import DraftLengthPolicy
from edge_client.lengths.fixed import FixedLength
from hw_profiles.device_profile import DraftSpeed
from opensled_testbed.fleet import Wish
from opensled_testbed.load.records import Arrival, RequestRecord, Round
from opensled_testbed.simulated.drafting import Drafted, Drafting, Thread
from opensled_testbed.simulated.drafts import Block, Script
from opensled_testbed.simulated.events import Events
from opensled_testbed.simulated.links import Ways, draft_bytes, open_bytes, opened_bytes, verdict_bytes
from opensled_testbed.simulated.server import SimulatedServer
from opensled_testbed.simulated.session import Session

Done = Callable[[RequestRecord], None]


class Device:
    """One device: its link, its draft model, and the user's own link where the drafter sits beside the server.

    It drafts for one answer at a time; the server alone decodes a request that finds it at work, as in the product.
    """

    __slots__ = ("drafts_for", "events", "server", "thread", "user", "ways", "wish")

    def __init__(
        self,
        events: Events,
        server: SimulatedServer,
        ways: Ways,
        speed: DraftSpeed | None,
        user: Ways | None,
        wish: Wish = Wish(),
        rule: DraftLengthPolicy = FixedLength(),
        looks_ahead: bool = False,
    ) -> None:
        self.events, self.server, self.ways, self.user = events, server, ways, user
        self.wish = wish
        self.thread = Thread(events, speed, rule, looks_ahead)
        self.drafts_for: Answer | None = None

    def ask(self, record: RequestRecord, script: Script, done: Done) -> None:
        """One request, now; `done` hears when its last token has reached the user, or that it was refused."""
        answer = Answer(self, record, script, done)
        self.drafts_for = self.drafts_for or answer
        record.sent = self.events.now
        record.prompt_tokens = script.prompt
        if self.user is None:
            answer.begin(None)
            return
        size = open_bytes(script.prompt)
        record.bytes_up += size
        self.events.at(self.user.up.deliver_at(record.sent, size), answer.begin)


class Answer:
    """One request on its device. Lengths count tokens of the text."""

    __slots__ = (
        "_answered",
        "_device",
        "_done",
        "_drafting",
        "_hint",
        "_over",
        "_record",
        "_script",
        "_sent",
        "_sent_at",
        "_server_drives",
        "_session",
        "_streamed_at",
        "_truth",
    )

    def __init__(self, device: Device, record: RequestRecord, script: Script, done: Done) -> None:
        self._device, self._record, self._script, self._done = device, record, script, done
        self._session = Session(self, script, device.wish)
        self._truth = 0
        self._drafting: Drafting | None = None
        self._sent: Block | None = None
        self._sent_at = 0.0
        # When the latest verdict came that the server decoded by itself, 0 = something else
        self._streamed_at = 0.0
        self._answered = self._server_drives = True
        # Longest useful block, 0 = the server's own tokens are read; the latest one
        self._hint: int | None = None
        self._over = False

    def begin(self, _: None) -> None:
        """Ask the server for a sequence."""
        self._up(self._device.server.open, self._session, open_bytes(self._script.prompt))

    def _up(self, call: Callable[..., None], argument: object, size: int) -> None:
        device = self._device
        if device.user is None:  # else the link that counts is his
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

    def opened(self, hint: int | None) -> None:
        self._down(self._begin, hint, opened_bytes(self._script.prompt))

    def told(self, base: int, end: int, answers: Block | None, hint: int | None) -> None:
        self._down(self._hear, (end, answers, hint), verdict_bytes(end - base))

    # -- the edge loop ----------------------------------------------------------------------------------

    def _fail(self, _: None) -> None:
        self._over = True
        self._record.error = "overloaded: the KV of all places is taken"
        self._end()

    def _end(self) -> None:
        if self._device.drafts_for is self:
            self._device.drafts_for = None
        self._done(self._record)

    def _begin(self, hint: int | None) -> None:
        self._hint = hint
        device = self._device
        if device.drafts_for is self:
            self._drafting = device.thread.begin(self._script, self._record, self._drafted)
        self._draft()

    def _draft(self) -> None:
        """`Exchange.draft`: unless something else is under way, or the server has no use for it."""
        if not self._answered or self._hint == 0:
            return
        if self._drafting is None:  # without a draft model at hand an empty block is all that can be drafted
            self._send(Block(self._truth, 0, 0), 0.0)
        elif self._drafting.idle:
            self._drafting.draft(self._truth, self._hint)

    def _drafted(self, drafted: Drafted) -> None:
        """`Exchange.send`: what of a block the server has use for by now, unless it went on elsewhere."""
        block, seconds = drafted
        if self._hint is not None and block.tokens > self._hint:
            seconds *= self._hint / block.tokens
            block = block.cut(self._hint)
        if not self._server_drives and block.rest_at(self._truth) is None:
            self._draft()
            return
        self._send(block, seconds)
        if block.tokens and self._drafting is not None:
            self._drafting.look_ahead(block, self._hint)

    def _send(self, block: Block, seconds: float) -> None:
        if block.tokens or not self._server_drives:  # an empty block hands the drive back to the server
            self._sent, self._sent_at = block, self._device.events.now
            self._answered = self._server_drives = not block.tokens
            self._up(self._device.server.submit, (self._session, block, seconds), draft_bytes(block.tokens))

    def _hear(self, verdict: tuple[int, Block | None, int | None]) -> None:
        """`Exchange.hear`."""
        if self._over:
            return
        end, block, hint = verdict
        known, self._truth = self._truth, max(self._truth, end)
        answers = not self._answered and block is self._sent
        self._answered = self._answered or answers
        self._obey(hint)
        self._learn(block if answers else None, end - known)
        if answers and block is not None:
            self._account(block, known, end)
        if end > known:
            self._show(end - known)
        if self._truth == self._script.text:
            if self._drafting is not None:
                self._drafting.end()
            return
        if self._drafting is not None:
            self._drafting.heard(self._truth)
        self._draft()

    def _learn(self, block: Block | None, news: int) -> None:
        """`Exchange._learn`; `block`: the one that is answered."""
        now, drafting = self._device.events.now, self._drafting
        streamed = self._streamed_at if block is None and self._server_drives else 0.0
        self._streamed_at = now if self._server_drives and block is None else 0.0
        if drafting is None:
            return
        if block is not None:
            drafting.answered(block, self._truth, now - self._sent_at)
        elif streamed and news > 0:
            drafting.rule.streamed(news, now - streamed)

    def _obey(self, hint: int | None) -> None:
        """0: the server drives until another hint comes, and then waits for a draft, be it an empty one."""
        if hint is None:
            return
        rested, self._hint = self._hint == 0, hint
        self._server_drives = hint == 0 or (self._server_drives and not rested)

    def _account(self, block: Block, known: int, end: int) -> None:
        """A round is over; of the accepted tokens those count that were not known before."""
        right = block.base + min(block.reach, end - block.base) - known
        accepted = min(end - known, max(0, right))
        record = self._record
        record.rounds.append(Round(self._sent_at, self._device.events.now, block.tokens, accepted))
        record.wasted -= accepted

    def _show(self, tokens: int) -> None:
        """Hand tokens on to the user, whose own link may be in between."""
        device = self._device
        self._over = self._truth == self._script.text
        if device.user is None:
            self._shown((tokens, self._over))
            return
        size = verdict_bytes(tokens)
        self._record.bytes_down += size
        device.events.at(
            device.user.down.deliver_at(device.events.now, size), self._shown, (tokens, self._over)
        )

    def _shown(self, news: tuple[int, bool]) -> None:
        tokens, last = news
        self._record.arrivals.append(Arrival(self._device.events.now, tokens))
        if last:
            self._record.finish_reason = self._script.reason
            self._end()
