"""`opensled relay`: know the server above, load the own model, serve devices."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from adapt.handout.hand_out import store_of
from edge_client.link.link import Endpoint, Link, endpoint_at
from edge_client.link.link_config import LinkConfig
from edge_client.link.loading_server import START_S, describe_when_loaded
from edge_client.offline.modes import Offline, retry_policy
from opensled.core.errors import VocabularyMismatch
from opensled.core.messages import GUIDE, PENALTIES, ModelInfo
from opensled.models.store import require_known
from opensled.process.load_thread import run_work
from opensled.process.logs import tell
from relay.config import RelayConfig
from relay.opening import Relay
from relay.uplink import Upstream
from verify_server.access.security import Tenants, Tls
from verify_server.admission.session_manager import SessionManager
from verify_server.options.registries import ENGINES
from verify_server.round.loaded_model import LoadedModel
from verify_server.start.command import (
    Served,
    clients,
    describe,
    make_loop,
    run,
    serve_sequences,
    session_limits,
)
from verify_server.start.start_ports import scraping


def relay(config: RelayConfig) -> int:
    """Serve until SIGTERM; returns the exit status. Raises Unreachable if the server above does not answer."""
    serving, endpoint = config.serving, _endpoint(config)
    require_known(config.model if config.engine in ENGINES.entries else "")
    scraping(serving)
    store_of(serving)
    tls, tenants = clients(serving, config.listen)
    return run(_relay(config, endpoint, tenants, tls))


async def _relay(config: RelayConfig, endpoint: Endpoint, tenants: Tenants, tls: Tls | None) -> int:
    async with AsyncExitStack() as ends:
        link = Link(endpoint)
        ends.push_async_callback(link.close)

        async def load() -> Served:
            served, relay = await run_work(
                _load, config, tenants, link, await describe_when_loaded(link, START_S)
            )
            ends.push_async_callback(relay.stop)
            return served

        return await serve_sequences(config.serving, tenants, tls, load)


def _load(config: RelayConfig, tenants: Tenants, link: Link, info: ModelInfo) -> tuple[Served, Relay]:
    """Load the own model, for the target above, which `info` describes. Raises VocabularyMismatch."""
    target = ENGINES.get(config.engine)(config.serving)
    if target.text.fingerprint != info.fingerprint:
        raise VocabularyMismatch(
            f"{target.model_id!r} and {info.model_id!r}, the target above, do not share a vocabulary; relay with a "
            "model of the target's own family"
        )
    patience, offline = retry_policy(config.offline, config.give_up), Offline(config.offline)
    upstream = Upstream(link.connect, config.name, config.block, config.bound, patience, offline)
    named = replace(target, model_id=info.model_id)
    loop, limits = make_loop(config.serving, target), session_limits(config.serving, target, tenants)
    relay = Relay(loop, named, limits, upstream)
    tell(f"{target.model_id} vets drafts for {info.model_id} at {config.upstream}, whose text it is")
    seen = seen_from_below(relay.manager, named, info)
    return Served(relay.manager, seen, target, relay.metrics), relay


def seen_from_below(manager: SessionManager, target: LoadedModel, above: ModelInfo) -> ModelInfo:
    """What a relay answers to `Describe`: `above` is what the server above does."""
    own = describe(manager, target)
    context = min(own.limits.context_length, above.limits.context_length)
    return replace(
        own,
        eos_ids=above.eos_ids,
        limits=replace(own.limits, context_length=context),
        numerics=above.numerics,
        capabilities=tuple([name for name in (GUIDE, PENALTIES) if name in above.capabilities]),
        images=None,
        aliases=above.aliases,
        template_variables=above.template_variables,
        thoughts=above.thoughts,
    )


def _endpoint(config: RelayConfig) -> Endpoint:
    """Where the server above is, and this relay's credentials. Raises UsageError or NotFound."""
    return endpoint_at(
        LinkConfig(
            server=config.upstream,
            token_file=config.upstream_token_file,
            tls=config.upstream_tls,
            tls_ca=config.upstream_tls_ca,
            client_cert=config.upstream_tls_cert,
            client_key=config.upstream_tls_key,
        )
    )
