"""Opens the sequences of a relay: first on the server above, then here, with the ids and the noise key from there."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from edge_client.remote import Connect, RemoteSession, RetryPolicy
from opensled.errors import Unsupported
from opensled.messages import MATCH, Open
from opensled.metrics import Metric
from relay.sequence import RelaySequence
from relay.session import RelaySession
from relay.survival import Survival
from relay.uplink import AHEAD, Uplink
from verify_server.acceptance.base import AcceptanceRule
from verify_server.loop import VerifyLoop
from verify_server.session import DraftLimits, Session
from verify_server.session_manager import SessionLimits, SessionManager
from verify_server.target import Target


@dataclass(frozen=True)
class Upstream:
    """The server above, and what goes there."""

    connect: Connect
    device: str = ""  # this relay's name there
    block: int = 8  # tokens of a block, if the server above takes so many
    bound: float = 0.4  # chance that a whole block stands, below which it leaves before it is full
    patience: RetryPolicy = field(default_factory=RetryPolicy)


class RelayManager(SessionManager):
    """Every session has a twin on the server above, whose word is final."""

    _session_type, _sequence_type = RelaySession, RelaySequence

    def __init__(self, loop: VerifyLoop, target: Target, limits: SessionLimits, upstream: Upstream) -> None:
        super().__init__(loop, target, limits)
        self._upstream = upstream
        self._survival = Survival()
        self._uplinks: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()  # uplinks that say farewell

    @property
    def own_metrics(self) -> list[Metric]:
        """See `SessionManager.own_metrics`."""
        survival = self._survival
        return [
            Metric(
                "relay_confirmed_tokens_total",
                "Vetted tokens that the target above confirmed.",
                lambda: survival.confirmed,
            ),
            Metric(
                "relay_taken_back_tokens_total",
                "Vetted tokens that the target above did not confirm, and those behind them.",
                lambda: survival.taken_back,
            ),
        ]

    def forget(self, session: Session) -> None:
        """See `SessionManager.forget`; the server above hears of it."""
        super().forget(session)
        if (uplink := self._uplinks.pop(session.id, None)) is not None:
            uplink.cancel()
            if not uplink.done():
                self._leaving.add(uplink)

    async def _create(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> Session:
        if message.rule != MATCH:
            raise Unsupported(
                f"rule {message.rule[:80]!r} at a relay, whose own model is not the target; ask for rule {MATCH}, or "
                "the server above directly",
                "rule",
            )
        room = max(1, self.sequence_limits.context_length - len(prompt_ids))
        params = replace(message.params, max_tokens=min(message.params.max_tokens, room))
        message = replace(message, params=params)
        remote = await self._open_above(message)
        try:
            return await self._create_here(message, remote, tenant)
        except BaseException:
            await remote.close()
            raise

    async def _open_above(self, message: Open) -> RemoteSession:
        upstream = self._upstream
        request = replace(message, resume_token=b"", device=upstream.device, shaping=None)
        remote = RemoteSession(upstream.connect, request, upstream.patience)
        await remote.open()
        return remote

    async def _create_here(self, message: Open, remote: RemoteSession, tenant: str) -> Session:
        truth = remote.truth
        ids = tuple(truth.tokens[: truth.prompt_length])
        here = replace(message, prompt=ids, noise_key=remote.noise_key, guide=None, top_logprobs=None)
        session = await super()._create(here, ids, tenant)
        assert isinstance(session, RelaySession), "made by this manager"
        length = max(1, min(self._upstream.block, remote.limits.max_draft))
        session.survival, session.most_vetted = self._survival, AHEAD * (length + 1)
        uplink = Uplink(self.loop, session, remote, length, self._upstream.bound)
        task = self._uplinks[session.id] = asyncio.ensure_future(uplink.run(message.params))
        task.add_done_callback(self._leaving.discard)
        task.add_done_callback(_tell_bugs)
        return session

    def _limits_under(self, rule: AcceptanceRule) -> DraftLimits:
        """Chains on what is known only: a tree, and what continues a draft, would meet tokens taken back."""
        return super()._limits_under(rule)._replace(max_tree=0, continuations=False)

    async def stopped(self) -> None:
        """Wait until the server above has heard of all sequences that ended here."""
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def close(self) -> None:
        """See `SessionManager.close`."""
        for uplink in self._uplinks.values():
            uplink.cancel()
        super().close()


def _tell_bugs(task: asyncio.Task[None]) -> None:
    """An error that is no OpenSledError is a bug of ours: let the event loop report it."""
    if not task.cancelled():
        task.result()
