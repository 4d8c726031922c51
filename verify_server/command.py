"""`opensled serve`: load the target, open the door, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import opensled
from hw_profiles.profile import HardwareProfile
from opensled import notify
from opensled.address import host_port, is_local, joined
from opensled.messages import GUIDE, ModelInfo
from opensled.metrics import metrics_port, require_safe_metrics
from scheduler import make_policy
from scheduler.plan import PolicyOptions
from verify_server import service
from verify_server.config import ServeConfig
from verify_server.engine import ENGINES
from verify_server.loop import VerifyLoop
from verify_server.metrics import metrics
from verify_server.security import TenantLimits, Tenants, Tls, read_tenants, read_tls, require_safe
from verify_server.sessions import Door, DoorLimits
from verify_server.target import Target

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0  # how long sequences under way may take to finish after SIGTERM


def serve(config: ServeConfig) -> int:
    require_safe_metrics(config.metrics, insecure=config.insecure_metrics)
    tls = read_tls(config.tls_cert, config.tls_key, config.tls_client_ca)
    tenants = _tenants(config)
    _require_safe(config, tls, tenants)
    target = ENGINES.get(config.engine)(config)
    return _run(_serve(config, target, tenants, tls))


def _run(serving: Coroutine[Any, Any, int]) -> int:
    """Run the server, on uvloop where it is installed: a round costs some processor time less on it."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(serving)
    return uvloop.run(serving)


def _tenants(config: ServeConfig) -> Tenants:
    default = TenantLimits(config.tenant_sessions, config.tenant_prompt)
    if config.tokens:
        return read_tenants(Path(config.tokens), default)
    return Tenants(by_certificate=bool(config.tls_client_ca), default=default)


def _require_safe(config: ServeConfig, tls: Tls | None, tenants: Tenants) -> None:
    knows_clients = not tenants.everybody
    require_safe(
        config.listen, has_tls=tls is not None, knows_clients=knows_clients, insecure=config.insecure
    )
    if not is_local(config.listen) and not (tls and knows_clients):
        danger = (
            "gets its tokens in clear text" if knows_clients else "takes requests from anybody who reaches it"
        )
        log.warning("%s %s", config.listen, danger)


async def _serve(config: ServeConfig, target: Target, tenants: Tenants, tls: Tls | None) -> int:
    policy = make_policy(config.policy, PolicyOptions(config.draft_wait, config.batch))
    loop = VerifyLoop(target.engine, policy, HardwareProfile(config.max_step_tokens), time.monotonic)
    door = Door(loop, target, _limits(config, tenants))
    face = service.VerifyService(door, describe(door, target), target.text, tenants)
    signals = _signals()
    stopping = asyncio.ensure_future(signals.get())
    with metrics_port(config.metrics, metrics(door)):
        server, port = await service.start(face, config.listen, tls)
        serving = asyncio.ensure_future(loop.run())
        print(f"listening on {joined(host_port(config.listen)[0], port)}", flush=True)
        async with notify.announced():
            await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
            notify.stopping()
            door.draining = True
            if stopping.done():
                await _drain(server, signals, len(loop.sessions))
    serving.cancel()
    loop.close()
    if config.json:
        print(json.dumps(loop.stats.as_json()), flush=True)
    if stopping.done():
        return 0
    serving.result()
    return 1


def _limits(config: ServeConfig, tenants: Tenants) -> DoorLimits:
    return DoorLimits(
        max_sessions=config.max_sessions,
        max_draft=config.max_draft,
        trust_devices=config.trust_device_probabilities,
        tenants=tenants,
    )


def _signals() -> asyncio.Queue[int]:
    """SIGTERM and SIGINT as they arrive."""
    arrived: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, arrived.put_nowait, number)
    return arrived


async def _drain(server: service.Server, signals: asyncio.Queue[int], sequences: int) -> None:
    """Let sequences under way finish; a second signal ends them."""
    if sequences:
        log.warning("finishing %d sequences; once more to stop at once", sequences)
    draining = asyncio.ensure_future(server.stop(DRAIN_SECONDS))
    again = asyncio.ensure_future(signals.get())
    await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
    await server.stop(0)
    again.cancel()


def describe(door: Door, target: Target) -> ModelInfo:
    """What this server tells of itself."""
    engine, text = target.engine, target.text
    return ModelInfo(
        model_id=target.model_id,
        vocab_size=text.vocab_size,
        fingerprint=text.fingerprint,
        eos_ids=engine.info.eos_ids,
        limits=door.sequence_limits,
        rules=tuple(door.rules),
        numerics=engine.info.numerics,
        version=opensled.__version__,
        tokenizer_hash=text.tokenizer_hash,
        has_chat_template=bool(text.chat_template),
        capabilities=(GUIDE,),
    )
