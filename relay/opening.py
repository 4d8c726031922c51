"""Opens the sequences of a relay: first on the server above, then here, with the ids and the noise key from there."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

from edge_client.device.served_target import is_another
from edge_client.link.remote import RemoteSession
from edge_client.offline.local_only import needs_target
from opensled.core.answer import LOCAL_ONLY
from opensled.core.errors import NotFound, Unreachable, Unsupported, VocabularyMismatch
from opensled.core.messages import MATCH, Open
from opensled.metrics.registry import Metric
from relay.survival import Survival
from relay.uplink import Uplink, Upstream, go_alone
from relay.vetting import Vetting
from verify_server.admission.session_manager import Create, SessionLimits, SessionManager
from verify_server.round.loaded_model import LoadedModel
from verify_server.round.loop import VerifyLoop
from verify_server.round.session import Session

log = logging.getLogger(__name__)


class Relay:
    """A session manager towards the devices, and for each of its sessions a twin on the server above, whose word is
    final."""

    def __init__(
        self, loop: VerifyLoop, target: LoadedModel, limits: SessionLimits, upstream: Upstream
    ) -> None:
        # Chains only: a tree would meet tokens taken back.
        limits = replace(limits, max_tree=0)
        self.manager = SessionManager(loop, target, limits, opener=self._open, counter=self._count)
        self.upstream, self.survival = upstream, Survival()
        self.uplinks: set[Uplink] = set()  # that are not over

    @property
    def metrics(self) -> list[Metric]:
        """What a relay counts beside the metrics of every server."""
        survival = self.survival
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

    async def stop(self) -> None:
        """End what goes on above, and wait until the server there has heard of it."""
        for uplink in self.uplinks:
            uplink.leave()
        await asyncio.gather(*[uplink.over for uplink in self.uplinks], return_exceptions=True)

    async def _open(self, message: Open, prompt_ids: tuple[int, ...], create: Create) -> Session:
        """See `Opener`."""
        if message.images:
            raise Unsupported("a relay does not forward images; use its upstream server directly", "images")
        if message.rule != MATCH:
            raise Unsupported(
                f"a relay does not serve rule {message.rule[:80]!r}, since its own model is not the target; use rule "
                f"{MATCH}, or its upstream server directly",
                "rule",
            )
        room = max(1, self.manager.sequence_limits.context_length - len(prompt_ids))
        params = replace(message.params, max_tokens=min(message.params.max_tokens, room))
        message = replace(message, params=params)
        try:
            remote = await self._open_above(message)
        except Unreachable as error:
            if not self._can_go_alone(message):
                raise
            log.warning("%s; this relay's model answers alone", error)
            return await self._create_alone(message, prompt_ids, create)
        try:
            return await self._create_below(message, remote, create)
        except BaseException:
            await remote.close()
            raise

    async def _count(self, message: Open) -> tuple[int, ...]:
        """See `Counter`; the chat template of the server above is another one."""
        remote = await self._open_above(message)
        await remote.close()
        return tuple(remote.truth.tokens)

    async def _open_above(self, message: Open) -> RemoteSession:
        upstream = self.upstream
        request = replace(message, resume_token=b"", device=upstream.device)
        remote = RemoteSession(upstream.connect, request, upstream.patience)
        try:
            await remote.open()
        except (NotFound, VocabularyMismatch) as error:
            if is_another(error):
                raise Unreachable(
                    "the upstream server of this relay now serves another target; restart the relay"
                ) from error
            raise
        return remote

    def _can_go_alone(self, message: Open) -> bool:
        """Whether this relay's own words may do for the target's: both ends allow it, and the answer needs nothing that
        only the target has."""
        allowed = self.upstream.offline.mode == LOCAL_ONLY and message.takes_unverified
        return allowed and not needs_target(message)

    async def _create_alone(self, message: Open, prompt_ids: tuple[int, ...], create: Create) -> Session:
        vetting = await self._vetting(message, prompt_ids, create)
        go_alone(self.manager.loop, vetting)
        return vetting.session

    async def _create_below(self, message: Open, remote: RemoteSession, create: Create) -> Session:
        truth, upstream = remote.truth, self.upstream
        ids = tuple(truth.tokens[: truth.prompt_length])
        vetting = await self._vetting(replace(message, noise_key=remote.noise_key), ids, create)
        upstream = replace(upstream, block=max(1, min(upstream.block, remote.limits.max_draft)))
        uplink = Uplink(self.manager.loop, vetting, remote, upstream, self._can_go_alone(message))
        self.uplinks.add(uplink)
        uplink.begin(message.params).add_done_callback(lambda _: self.uplinks.discard(uplink))
        return vetting.session

    async def _vetting(self, message: Open, ids: tuple[int, ...], create: Create) -> Vetting:
        # The target above masks and scores; what it says of a prompt passes as it is.
        plain = replace(message, prompt=ids, guide=None, top_logprobs=None, prompt_logprobs=None)
        session = await create(plain, ids)
        vetting = session.observer = Vetting(session, self.survival)
        return vetting
