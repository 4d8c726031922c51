"""`opensled serve`: load the target, open the door, drain on SIGTERM."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import ssl
import sys
import time
from pathlib import Path

import opensled
from hw_profiles.profile import HardwareProfile
from opensled.address import host_port, is_loopback
from opensled.errors import UsageError
from opensled.files import read_bytes
from opensled.messages import ModelInfo
from scheduler import POLICIES
from verify_server import service
from verify_server.acceptance import RULES
from verify_server.config import ServeConfig
from verify_server.engine import ENGINES
from verify_server.loop import VerifyLoop
from verify_server.security import Tenants, read_tenants, require_safe
from verify_server.sessions import Door, DoorLimits
from verify_server.target import Target

log = logging.getLogger(__name__)

DRAIN_SECONDS = 30.0  # how long sequences under way may take to finish after SIGTERM


def serve(config: ServeConfig) -> int:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    tls = _tls(config)
    tenants = read_tenants(Path(config.tokens)) if config.tokens else Tenants()
    require_safe(
        config.listen, has_tls=tls is not None, has_tokens=bool(config.tokens), insecure=config.insecure
    )
    if not is_loopback(host_port(config.listen)[0]) and not (tls and config.tokens):
        danger = (
            "takes requests from anybody who reaches it"
            if not config.tokens
            else "gets its tokens in clear text"
        )
        print(f"warning: {config.listen} {danger}", file=sys.stderr)
    target = ENGINES.get(config.engine)(config)
    return asyncio.run(_serve(config, target, tenants, tls))


def _tls(config: ServeConfig) -> service.Tls | None:
    if bool(config.tls_cert) != bool(config.tls_key):
        raise UsageError("--tls-cert and --tls-key go together")
    if not config.tls_cert:
        return None
    pair = service.Tls(
        cert=read_bytes(config.tls_cert, "certificate file"), key=read_bytes(config.tls_key, "key file")
    )
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(config.tls_cert, config.tls_key)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(
            f"{config.tls_cert} and {config.tls_key} are no PEM certificate and its key"
        ) from error
    return pair


async def _serve(config: ServeConfig, target: Target, tenants: Tenants, tls: service.Tls | None) -> int:
    policy = POLICIES.get(config.policy)(config.draft_wait)
    loop = VerifyLoop(target.engine, policy, HardwareProfile(config.max_step_tokens), time.monotonic)
    door = Door(loop, target, DoorLimits(config.max_sessions, config.max_draft))
    face = service.VerifyService(door, describe(door, target), target.text, tenants)
    server, port = await service.start(face, config.listen, tls)
    signals = _signals()
    serving = asyncio.ensure_future(loop.run())
    host = host_port(config.listen)[0]
    print(f"listening on {f'[{host}]' if ':' in host else host}:{port}", flush=True)
    stopping = asyncio.ensure_future(signals.get())
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
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


def _signals() -> asyncio.Queue[int]:
    """SIGTERM and SIGINT as they arrive."""
    arrived: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, arrived.put_nowait, number)
    return arrived


async def _drain(server: service.Server, signals: asyncio.Queue[int], sequences: int) -> None:
    """Let sequences under way finish; a second signal ends them."""
    if sequences:
        print(f"finishing {sequences} sequences; once more to stop at once", file=sys.stderr)
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
        rules=tuple(RULES.names()),
        numerics=engine.info.numerics,
        version=opensled.__version__,
        tokenizer_hash=text.tokenizer_hash,
        has_chat_template=bool(text.chat_template),
    )
