"""One sequence as the side that asks for it has it: the product's edge loop, over a simulated link."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from edge_client.round.commits import Commit
from edge_client.round.drafting import Drafting
from edge_client.round.generate import Exchange
from lab.testbed.fleet import Wish
from lab.testbed.simulated.events import Events
from lab.testbed.simulated.links import Ways, draft_bytes, open_bytes, opened_bytes, verdict_bytes
from lab.testbed.simulated.sequences import Script
from lab.testbed.simulated.server import Reader
from opensled.core.messages import Draft, Limits, SamplingParams, ServerMessage, Verdict
from opensled.core.protocol import Truth
from opensled.core.turns import Turn
from verify_server.round.session import Session


class Answers(Protocol):
    """A simulated server, or a relay."""

    def open(self, reader: Reader) -> None:
        """A sequence begins."""

    def submit(self, arrived: tuple[Session, Draft]) -> None:
        """Take a draft."""

    def limits_of(self, script: Script) -> Limits:
        """Of a sequence."""


class Asking(ABC):
    """What is under way between this side and the one that answers."""

    def __init__(self, events: Events, server: Answers, ways: Ways, script: Script, wish: Wish) -> None:
        self._events, self._server, self._ways = events, server, ways
        self.script, self.wish = script, wish
        self.truth, self.turn = Truth(script.trace.prompt_ids), Turn()
        self.limits = server.limits_of(script)
        self._session: Session | None = None  # of the other side
        self._exchange: Exchange | None = None

    def begin(self, _: None = None) -> None:
        """Ask for a sequence."""
        self._up(self._server.open, self, open_bytes(self.script.prompt))

    def _up(self, call: Callable[..., None], argument: object, size: int) -> None:
        self._events.at(self._ways.up.deliver_at(self._events.now, size), call, argument)

    def _down(self, call: Callable[..., None], argument: object, size: int) -> None:
        self._events.at(self._ways.down.deliver_at(self._events.now, size), call, argument)

    # -- what the other side sends ------------------------------------------------------------------------

    def refused(self) -> None:
        """See `Reader`."""
        self._down(self._fail, None, verdict_bytes(0))

    def opened(self, session: Session) -> None:
        """See `Reader`."""
        self._session = session
        self._down(self._begin, session.sources.device.turn.hint, opened_bytes(self.script.prompt))

    def told(self, message: ServerMessage) -> None:
        """See `Reader`."""
        assert isinstance(message, Verdict), "a simulated server has no failures"
        self._down(self._hear, message, verdict_bytes(len(message.tokens)))

    # -- the edge loop ------------------------------------------------------------------------------------

    @abstractmethod
    def _fail(self, _: None) -> None:
        """There is no place for it."""

    @abstractmethod
    def _begin(self, hint: int | None) -> None:
        """It is open."""

    def _draft_by(self, drafts: Drafting) -> None:
        """The edge loop begins."""
        params = SamplingParams(temperature=0, max_tokens=self.script.last)
        self._exchange = Exchange(self, drafts, params)
        self._exchange.draft()
        self._advance()

    def _advance(self) -> None:
        """Send what is drafted by now, if there is anything."""
        exchange = self._exchange
        if exchange and not self.truth.finish_reason and (draft := exchange.take_draft()):
            self._sends(draft)
            self.turn.draft(draft)
            self._up(self._server.submit, (self._session, draft), draft_bytes(len(draft.block.tokens)))
            exchange.look_ahead(draft.block)

    def _sends(self, draft: Draft) -> None:  # noqa: B027
        """A draft leaves."""

    def _hear(self, verdict: Verdict) -> None:
        if self.truth.finish_reason or self._exchange is None:
            return
        self._heard(verdict, self._exchange.hear(verdict))
        self._advance()

    @abstractmethod
    def _heard(self, verdict: Verdict, commit: Commit) -> None:
        """What a verdict commits."""
