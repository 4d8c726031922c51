"""`opensled serve`: load the target, serve it, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import opensled
from adapt.handout.hand_out import hand_out_of, store_of
from adapt.kept.command import keeper_of, require_keepable
from home import discovery
from home.desk.upkeep import home_kept, with_home
from hw_profiles.seed import seed_cost
from hw_profiles.step_cost import HardwareProfile
from opensled.core.errors import UsageError
from opensled.core.messages import GUIDE, PENALTIES, ModelInfo
from opensled.metrics.registry import Metric
from opensled.models.store import require_known
from opensled.net.address import host_port
from opensled.process import notify
from opensled.process.ending import ExitWatch, heed, leave
from opensled.process.load_thread import run_work
from opensled.process.logs import show_ready
from opensled.text.thinking import thought_tags
from opensled.wire.padding import PADDING, PADDING_REQUIRED
from scheduler import make_policy
from scheduler.plan import PolicyOptions
from verify_server.access.client_limits import BURST, MAX_OPENING, ClientLimits, Rate, message_bytes
from verify_server.access.security import (
    TenantLimits,
    Tenants,
    Tls,
    read_tls,
    require_safe_listen,
    watched_tenants,
)
from verify_server.access.signing import TokenSigner
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.drafting.choice import drafting_of
from verify_server.front import service
from verify_server.front.draining import EXIT_SECONDS, drain, longest_end
from verify_server.front.grpc_port import GrpcPort
from verify_server.front.server_metrics import metrics
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig, model_names
from verify_server.round.loaded_model import LoadedModel
from verify_server.round.loop import VerifyLoop
from verify_server.round.machine import StepMachine
from verify_server.start.start_ports import Ports, scraping, taken_ports, while_loading
from verify_server.start.startup import announce_lacking, tell_ready
from verify_server.text.grammar_compiler import can_guide

Result = TypeVar("Result")

RENEW = 0  # among signals: make the replicas anew


def serve(config: ServeConfig) -> int:
    """Serve until SIGTERM; returns the exit status."""
    config = with_home(config)
    scraping(config)  # an unsafe port is an error now, not after loading
    require_keepable(config)
    require_known(config.model if config.engine in ENGINES.entries else "", config.draft_model)
    store_of(config)
    if config.announce:
        discovery.require_reachable(config.listen)
    if config.pad_frames and config.http:
        raise UsageError(
            "--http and --pad-frames: answers over HTTP have no padding, and would reveal what it hides; leave one out"
        )
    if config.http:
        import verify_server.front.http_front  # noqa: F401  a missing library is an error now, not after loading
    if config.replicas or config.ray_address:
        from verify_server.cluster.cluster_command import serve_cluster

        return serve_cluster(config)
    if config.proxy:
        raise UsageError("--proxy is for a gateway to replicas: add --replicas N, or --ray-address HOST:PORT")
    tls, tenants = clients(config, config.listen)
    if config.engine == "vllm":
        from vllm_plugin import launch

        launch.serve(config, tls, tenants)
    return run(serve_sequences(config, tenants, tls, partial(run_work, _load, config, tenants)))


class Served(NamedTuple):
    """What is loaded before a server serves."""

    manager: SessionManager
    info: ModelInfo  # the answer to `Describe`
    target: LoadedModel
    metrics: Sequence[Metric] = ()  # beside those of every server


Load = Callable[[], Coroutine[Any, Any, Served]]


def _load(config: ServeConfig, tenants: Tenants) -> Served:
    target = ENGINES.get(config.engine)(config)
    manager = make_manager(config, target, tenants)
    names = model_names(config.served_model_name)
    return Served(manager, describe(manager, target, config.pad_frames, names), target)


def run(serving: Coroutine[Any, Any, Result]) -> Result:
    """Run a server, on uvloop if it is installed: a round takes less processor time on it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serving)
    return uvloop.run(serving)


def clients(config: ServeConfig, listen: str) -> tuple[Tls | None, Tenants]:
    """The identity of this server and its tenants, both good enough to listen at `listen` ("" = nowhere).

    Raises UsageError or NotFound.
    """
    tls, tenants = read_tls(config.tls_cert, config.tls_key, config.tls_client_ca), _tenants(config)
    if listen:
        require_safe_listen(
            listen, has_tls=tls is not None, knows_clients=not tenants.anonymous, insecure=config.insecure
        )
    if config.http:
        require_safe_listen(
            config.http,
            has_tls=tls is not None,
            knows_clients=not tenants.anonymous,
            insecure=config.insecure,
            flag="--http",
        )
    return tls, tenants


def _tenants(config: ServeConfig) -> Tenants:
    default = TenantLimits(
        max_sessions=config.tenant_sessions,
        max_prompt=config.tenant_prompt,
        positions_per_s=config.tenant_positions,
        kv_tokens=config.tenant_kv_tokens,
        max_pace=config.tenant_max_pace,
    )
    if config.tokens:
        return watched_tenants(Path(config.tokens), default, may_be_empty=config.paired)
    if config.tls_client_ca:
        import verify_server.access.certificates  # noqa: F401  a missing library is an error now, not at the first call
    return Tenants(by_certificate=bool(config.tls_client_ca), default=default)


def make_manager(
    config: ServeConfig,
    target: LoadedModel,
    tenants: Tenants,
    signer: TokenSigner | None = None,
    prefix_key: bytes = b"",
) -> SessionManager:
    """The session manager of a server, with a loop that does not run yet; loads the drafter beside the target.

    `signer`: see `SessionManager`; `prefix_key`: see `BlockTarget`.
    """
    announce_lacking("llguidance")
    limits = session_limits(config, target, tenants)
    loop = make_loop(config, target, prefix_key)
    return SessionManager(loop, target, limits, signer, keeper_of(config, target.text.fingerprint))


def session_limits(config: ServeConfig, target: LoadedModel, tenants: Tenants) -> SessionLimits:
    """What a server of this target admits; its acceptance rules are loaded. Raises UsageError."""
    if tenants.kv_budgets and not target.keeps_budgets:
        raise UsageError(
            f"engine {target.info.runtime} has no KV budgets of tenants; remove kv_tokens from {config.tokens}"
        )
    return SessionLimits(
        max_sessions=config.max_sessions,
        max_draft=config.max_draft,
        max_tree=config.max_tree,
        rules=target.rules(config),
        tenants=tenants,
        min_pace=config.min_pace,
        max_pace=max(config.max_pace, config.min_pace) or None,
    )


def make_loop(config: ServeConfig, target: LoadedModel, prefix_key: bytes = b"") -> VerifyLoop:
    """The loop of a server, which does not run yet; loads the drafter beside the target. `prefix_key`: see
    `BlockTarget`."""
    options = PolicyOptions(config.draft_wait, config.batch, config.server_draft)
    policy = make_policy(config.policy, options)
    drafting = drafting_of(config, target)
    profile = HardwareProfile(config.max_step_tokens, target.cost(seed_cost()))
    steps = target.target(config, drafting, prefix_key)
    return VerifyLoop(StepMachine(steps, policy, profile), time.monotonic)


async def serve_sequences(config: ServeConfig, tenants: Tenants, tls: Tls | None, load: Load) -> int:
    """Take the ports, `load`, and serve until SIGTERM; returns the exit status. A signal while it loads ends it."""
    signals, watch = arriving_signals(), ExitWatch()
    stopping = asyncio.ensure_future(signals.get())
    async with taken_ports(config, client_limits(config)) as ports:
        address, loading = await while_loading(config, tls, load, stopping)
        if not loading.done():
            leave(0)
        served, config = loading.result(), replace(config, listen=address)
        # What is loaded stays: else every full collection looks at all of it, some 0.1 s in which no sequence gets on.
        gc.collect()
        gc.freeze()
        port = await _listen(config, served, tenants, tls, ports)
        serving = asyncio.ensure_future(served.manager.loop.run())
        async with home_kept(config), announcing(config), notify.announce():
            tell_ready(served.target, served.manager.sequence_limits.context_length, config)
            show_ready(address)
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            seconds = config.drain if stopping.done() else 0.0
            notify.stopping(longest_end(seconds))
            await port.readiness.set(False)  # first of all: gateways and balancers then choose another server
            served.manager.draining = True
            if stopping.done():
                watch.arm(longest_end(seconds))
                await drain(served.manager, port, ports.http, seconds, again=wait_for_second_signal(signals))
    serving.cancel()
    watch.arm(EXIT_SECONDS, status=0 if stopping.done() else 1)
    served.manager.close()
    if config.json:
        print(json.dumps(served.manager.loop.machine.stats.as_json()), flush=True)
    if stopping.done():
        return 0
    serving.result()
    return 1


async def _listen(
    config: ServeConfig, served: Served, tenants: Tenants, tls: Tls | None, ports: Ports
) -> GrpcPort:
    """Serve at all ports what is loaded."""
    announce_lacking("grpc_health", "grpc_reflection")
    manager = served.manager
    limits = client_limits(config, manager)
    drafts = hand_out_of(config, manager.stats.limited, manager.loop.clock)
    frontend = service.VerifyService(manager, served.info, served.target.text, tenants, limits, drafts)
    port = GrpcPort(frontend, config.listen, tls, service.Readiness())
    await port.readiness.set(True)
    await port.open()
    ports.metrics.extend((*metrics(manager), *served.metrics))
    ports.probes.unready = lambda: manager.unready
    if ports.http:
        from verify_server.front.fleet import FleetView
        from verify_server.front.sequences import OwnSequences

        view = FleetView(ports.metrics, manager)
        ports.http.open(OwnSequences(frontend, manager), ports.metrics, view, served.info.model_id)
    return port


def announcing(config: ServeConfig) -> AbstractAsyncContextManager[None]:
    """While inside, the server at `config.listen` is announced on its network, if that is wanted."""
    if not config.announce:
        return nullcontext()
    return discovery.announce(discovery.SERVING, config.listen, host_port(config.listen)[1])


def client_limits(config: ServeConfig, manager: SessionManager | None = None) -> ClientLimits:
    """What one client may send to this server; without a `manager`, to a gateway, which does not know the context."""
    limits = ClientLimits(
        streams=config.client_streams or config.max_sessions + MAX_OPENING,
        calls=Rate(config.client_calls, BURST * config.client_calls),
        idle_messages=Rate(config.client_messages, BURST * config.client_messages),
        by_address=not config.shared_address,
    )
    if manager is None:
        return limits
    context, vocab_size = manager.sequence_limits.context_length, manager.inputs.vocab_size
    images = manager.loop.machine.target.facts.images is not None
    return replace(limits, message_bytes=message_bytes(context, vocab_size, images))


def arriving_signals(renews: bool = False) -> asyncio.Queue[int]:
    """The signals that end this process, as they arrive; `renews`: and RENEW for a SIGHUP that does not end it."""
    arrived: asyncio.Queue[int] = asyncio.Queue()
    heed(arrived.put_nowait, partial(arrived.put_nowait, RENEW) if renews else None)
    return arrived


async def wait_for_second_signal(signals: asyncio.Queue[int]) -> None:
    """Until a process that drains is told to end at once. A terminal that goes says nothing of that."""
    while await signals.get() not in (signal.SIGTERM, signal.SIGINT):
        pass


def describe(
    manager: SessionManager, target: LoadedModel, pads: bool = False, aliases: tuple[str, ...] = ()
) -> ModelInfo:
    """What this server answers to `Describe`; `pads`: it serves padded streams only; `aliases`: see `ModelInfo`."""
    info, text = target.info, target.text
    return ModelInfo(
        model_id=target.model_id,
        vocab_size=text.vocab_size,
        fingerprint=text.fingerprint,
        eos_ids=info.eos_ids,
        limits=manager.sequence_limits,
        rules=manager.rules.facts(),
        numerics=info.numerics,
        version=opensled.__version__,
        tokenizer_hash=text.tokenizer_hash,
        has_chat_template=bool(text.chat_template),
        capabilities=_capabilities(pads),
        images=info.images,
        engine=info.way,
        aliases=aliases,
        template_variables=text.template_variables,
        thoughts=thought_tags(text.chat_template) or thought_tags(text.tool_template),
        calls=text.calls,
    )


def _capabilities(pads: bool) -> tuple[str, ...]:
    """What the server can do, as `Describe` says it. `pads`: it requires padding of every device."""
    wanted = {GUIDE: can_guide(), PENALTIES: True, PADDING: True, PADDING_REQUIRED: pads}
    return tuple([name for name, is_there in wanted.items() if is_there])
