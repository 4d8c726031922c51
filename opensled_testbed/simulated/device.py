"""The simulated device: the edge loop over recorded drafts, in the time that the device's profile says.

It follows edge_client/generate.py, and emulation/replay.py for how long a block takes and what an interrupt leaves.
"""

from __future__ import annotations

from collections.abc import Callable

from hw_profiles.device import DraftSpeed
from opensled_testbed.emulation.device_time import forward_s
from opensled_testbed.fleet import Wish
from opensled_testbed.load.records import Arrival, RequestRecord, Round
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

    __slots__ = ("drafts_for", "events", "free_at", "pass_s", "server", "speed", "user", "ways", "wish")

    def __init__(
        self,
        events: Events,
        server: SimulatedServer,
        ways: Ways,
        speed: DraftSpeed | None,
        user: Ways | None,
        wish: Wish = Wish(),
    ) -> None:
        self.events, self.server, self.ways, self.speed, self.user = events, server, ways, speed, user
        self.wish = wish
        self.free_at = 0.0  # when the draft model has done all it was asked
        self.pass_s = forward_s(speed, 1)
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
        "_computed",
        "_device",
        "_done",
        "_drafting",
        "_first_at",
        "_hint",
        "_over",
        "_record",
        "_script",
        "_sent",
        "_sent_at",
        "_server_drives",
        "_session",
        "_spent",
        "_truth",
    )

    def __init__(self, device: Device, record: RequestRecord, script: Script, done: Done) -> None:
        self._device, self._record, self._script, self._done = device, record, script, done
        self._session = Session(self, script, device.wish)
        self._truth = 0
        self._computed = 0  # positions in the draft model's cache, prompt included
        self._drafting: Block | None = None
        self._first_at = 0.0  # when the first token of that block is drafted
        self._spent = 0.0  # seconds that it takes
        self._sent: Block | None = None
        self._sent_at = 0.0
        self._answered = self._server_drives = True
        self._hint: int | None = (
            None  # longest useful block, 0 = the server's own tokens are read; the latest one
        )
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
        if hint != 0:
            self._draft()

    def _draft(self) -> None:
        """Draft at the truth: the first pass computes what the draft model has not seen, the others a token each."""
        device = self._device
        if device.drafts_for is not self:
            self._hand_back()
            return
        block = self._drafting = self._script.block(self._truth, self._hint)
        if not block.passes or device.speed is None:
            self._spent = 0.0
            self._drafted(block)
            return
        start = max(device.events.now, device.free_at)
        unseen = self._script.prompt + self._truth - self._computed
        self._first_at = start + forward_s(device.speed, unseen)
        device.free_at = self._first_at + (block.passes - 1) * device.pass_s
        self._spent = device.free_at - start
        device.events.at(device.free_at, self._drafted, block)

    def _drafted(self, block: Block) -> None:
        if self._drafting is not block:
            return
        self._drafting = None
        self._computed = self._script.prompt + block.base + block.kept
        self._record.wasted += block.passes
        sent = block if self._hint is None else block.cut(self._hint)
        if sent is not block:
            self._spent *= sent.tokens / block.tokens
        self._send(sent)

    def _hand_back(self) -> None:
        """Without a draft model at hand an empty block is the whole of what can be drafted."""
        self._spent = 0.0
        self._send(Block(self._truth, 0, 0, 0, 0))

    def _send(self, block: Block) -> None:
        if block.tokens or not self._server_drives:  # an empty block hands the drive back to the server
            self._sent, self._sent_at = block, self._device.events.now
            self._answered = self._server_drives = not block.tokens
            self._up(
                self._device.server.submit, (self._session, block, self._spent), draft_bytes(block.tokens)
            )

    def _hear(self, verdict: tuple[int, Block | None, int | None]) -> None:
        if self._over:
            return
        end, block, hint = verdict
        known, self._truth = self._truth, max(self._truth, end)
        if not self._answered and block is self._sent and block is not None:
            self._answered = True
            self._account(block, known, end)
        self._obey(hint)
        if end > known:
            self._show(end - known)
        if self._truth == self._script.text:
            self._interrupt()
        elif self._answered and self._drafting is None and self._hint != 0:
            self._draft()

    def _obey(self, hint: int | None) -> None:
        """0: the server drives until another hint comes, and then waits for a draft, be it an empty one."""
        if hint is None:
            return
        if hint == 0:
            self._server_drives = True
        elif self._hint == 0:
            self._server_drives = False
        self._hint = hint

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

    def _interrupt(self) -> None:
        """The answer is whole: the token under way is still drafted, and what was to follow it is not."""
        block, device = self._drafting, self._device
        self._drafting = None
        if block is None:
            return
        now, passes = device.events.now, 1
        while passes < block.passes and self._first_at + (passes - 1) * device.pass_s < now:
            passes += 1
        device.free_at = self._first_at + (passes - 1) * device.pass_s
        self._record.wasted += passes
