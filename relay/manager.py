"""Opens the sequences of a relay: first on the server above, then here, with the ids and the noise key from there."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from edge_client.offline.local_only import needs_target
from edge_client.remote import RemoteSession
from edge_client.served_target import is_another
from opensled.answer import LOCAL_ONLY
from opensled.errors import NotFound, Unreachable, Unsupported, VocabularyMismatch
from opensled.messages import MATCH, Open
from opensled.metrics import Metric
from relay.sequence import RelaySequence
from relay.session import RelaySession
from relay.survival import Survival
from relay.uplink import Uplink, Upstream, go_alone
from verify_server.acceptance.base import AcceptanceRule
from verify_server.round.loop import VerifyLoop
from verify_server.session import DraftLimits, Session
from verify_server.session_manager import SessionLimits, SessionManager
from verify_server.target import Target
from verify_server.tenant_pool import Spent

log = logging.getLogger(__name__)


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
            Metric(
                "relay_unverified_tokens_total",
                "Tokens that became text without the target (--offline local-only).",
                lambda: survival.unverified,
            ),
        ]

    def forget(self, session: Session) -> None:
        """See `SessionManager.forget`; the server above hears of it."""
        super().forget(session)
        if (uplink := self._uplinks.pop(session.id, None)) is not None:
            uplink.cancel()
            if not uplink.done():
                self._leaving.add(uplink)

    def _resume(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> Session | None:
        """See `SessionManager._resume`; a device that knows more of the text than is confirmed here begins anew."""
        session = self._known(message, tenant)
        if session is not None and len(prompt_ids) + len(message.committed) > session.sequence.confirmed:
            self.forget(session)
            return None
        return super()._resume(message, prompt_ids, tenant)

    async def _create(
        self, message: Open, prompt_ids: tuple[int, ...], tenant: str, spent: Spent | None
    ) -> Session:
        if message.images:
            raise Unsupported("a relay passes no images on; ask the server above directly", "images")
        if message.rule != MATCH:
            raise Unsupported(
                f"rule {message.rule[:80]!r} at a relay, whose own model is not the target; ask for rule {MATCH}, or "
                "the server above directly",
                "rule",
            )
        room = max(1, self.sequence_limits.context_length - len(prompt_ids))
        params = replace(message.params, max_tokens=min(message.params.max_tokens, room))
        message = replace(message, params=params)
        try:
            remote = await self._open_above(message)
        except Unreachable as error:
            if not self._can_go_alone(message):
                raise
            log.warning("%s; this relay's model answers alone", error)
            return await self._create_alone(message, prompt_ids, tenant)
        try:
            return await self._create_below(message, remote, tenant)
        except BaseException:
            await remote.close()
            raise

    async def _counted(self, message: Open, tenant: str, spent: Spent | None) -> tuple[int, ...]:
        """By the server above: its chat template is another one."""
        remote = await self._open_above(message)
        await remote.close()
        return tuple(remote.truth.tokens)

    async def _open_above(self, message: Open) -> RemoteSession:
        upstream = self._upstream
        request = replace(message, resume_token=b"", device=upstream.device)
        remote = RemoteSession(upstream.connect, request, upstream.patience)
        try:
            await remote.open()
        except (NotFound, VocabularyMismatch) as error:
            if is_another(error):
                raise Unreachable(
                    "the server above this relay serves another target now; restart the relay"
                ) from error
            raise
        return remote

    def _can_go_alone(self, message: Open) -> bool:
        """Whether this relay's own words may do for the target's: both ends allow it, and the answer needs nothing that
        only the target has."""
        allowed = self._upstream.offline.mode == LOCAL_ONLY and message.takes_unverified
        return allowed and not needs_target(message)

    async def _create_alone(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> Session:
        session = await self._create_own(message, prompt_ids, tenant)
        go_alone(self.loop, session)
        return session

    async def _create_below(self, message: Open, remote: RemoteSession, tenant: str) -> Session:
        truth, upstream = remote.truth, self._upstream
        ids = tuple(truth.tokens[: truth.prompt_length])
        session = await self._create_own(replace(message, noise_key=remote.noise_key), ids, tenant)
        upstream = replace(upstream, block=max(1, min(upstream.block, remote.limits.max_draft)))
        uplink = Uplink(self.loop, session, remote, upstream, self._can_go_alone(message))
        task = self._uplinks[session.id] = asyncio.ensure_future(uplink.run(message.params))
        task.add_done_callback(self._leaving.discard)
        task.add_done_callback(_tell_bugs)
        return session

    async def _create_own(self, message: Open, prompt_ids: tuple[int, ...], tenant: str) -> RelaySession:
        here = replace(message, prompt=prompt_ids, guide=None, top_logprobs=None)
        session = await super()._create(here, prompt_ids, tenant, None)
        assert isinstance(session, RelaySession), "made by this manager"
        session.survival = self._survival
        return session

    def _prompt_scores(self, message: Open, prompt_ids: tuple[int, ...]) -> None:
        """The target above has them; what it says passes this relay as it is."""

    def _limits_under(self, rule: AcceptanceRule) -> DraftLimits:
        """Chains only: a tree would meet tokens taken back."""
        return super()._limits_under(rule)._replace(max_tree=0)

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
