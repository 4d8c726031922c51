"""`opensled edge` and `opensled generate`."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from edge_client.device.config import EdgeConfig
from edge_client.device.device import Device, connect
from edge_client.device.device_metrics import metrics
from edge_client.device.prompt_config import GenerateConfig
from edge_client.link import remote
from edge_client.link.loading_server import START_S
from edge_client.link.located import locate_server
from edge_client.terminal.printed_answer import PrintedAnswer
from home.pairing.pair_device import pair_first
from opensled.cli.colour import input_comes, require_text
from opensled.core.answer import LOCAL_ONLY, WARNINGS, Chunk, Stats, Task, first_unverified
from opensled.core.errors import Unauthorized, UsageError
from opensled.core.files import read_identity
from opensled.core.images import TurnImage, image_file
from opensled.core.messages import ChatMessage, Prompt
from opensled.core.printable import visible_line
from opensled.metrics.registry import Metric, metrics_port
from opensled.metrics.scrape_guard import ScrapeGuard, scrape_guard
from opensled.net.address import is_local, join_host_port, web_origins
from opensled.net.probes import Probes
from opensled.process import notify
from opensled.process.ending import heed, interruptible
from opensled.process.logs import announce, show, show_ready, tell

if TYPE_CHECKING:
    from http_api.guard import Access
    from http_api.server import ApiServer

log = logging.getLogger(__name__)

CONNECTING = "loading: this device asks its server for the model; try again"


def generate(config: GenerateConfig) -> int:
    """One answer on standard output, as it comes; with --json the answer and its statistics."""
    if sys.stderr.isatty():  # a status line says there for how long the server is away
        logging.getLogger(remote.__name__).addFilter(lambda record: record.levelno != logging.WARNING)
    return asyncio.run(interruptible(_generate(locate_server(config))))


async def _generate(config: GenerateConfig) -> int:
    prompt = _prompt(config)
    device = await connect(config)
    printed, chunks = PrintedAnswer(), list[Chunk]()
    try:
        async for chunk in _print_chunks(device, Task(prompt, config.params()), printed, quiet=config.json):
            chunks.append(chunk)
    except BaseException:
        if chunks and not config.json:
            printed.write("\n")  # the error gets a line of its own
        raise
    finally:
        await device.close()
    if config.json:
        print(json.dumps({**_report(chunks, device.rule), "drafting": device.status.words}))
    else:
        printed.write("\n")
        if not device.status.drafting:
            tell(device.status.words)
    return 0


def _prompt(config: GenerateConfig) -> Prompt:
    text = require_text(_text(config.prompt), "the prompt")
    images = tuple([TurnImage(0, image_file(path)) for path in config.image.split(",") if path])
    if config.raw and images:
        raise UsageError(
            "--raw continues plain text, which cannot hold a picture; leave out --raw or --image"
        )
    return text if config.raw else (ChatMessage("user", text, images=images),)


def _text(given: str) -> str:
    """What standard input holds, a blank line, and the text that was `given`; "-" and "" stand for no text."""
    argument = "" if given == "-" else given
    piped = sys.stdin.read() if _is_piped(given) else ""
    parts = [part for part in (piped, argument) if part.strip()]
    if not parts:
        raise UsageError(
            'nothing to answer: give the text in quotes (opensled generate "TEXT") or on standard input'
        )
    return parts[0] if len(parts) == 1 else f"{parts[0].rstrip()}\n\n{parts[1]}"


def _is_piped(given: str) -> bool:
    """Whether standard input holds text: all of it, where that is waited for, or something beside what was `given`."""
    if given == "-" or sys.stdin.isatty():
        return given == "-"
    if input_comes():
        return True
    if given:
        announce("nothing comes on standard input, so the prompt is the text given alone; `-` waits for it")
    else:
        tell("waiting for the prompt on standard input")
    return not given


async def _print_chunks(
    device: Device, task: Task, printed: PrintedAnswer, quiet: bool
) -> AsyncIterator[Chunk]:
    warned = False
    async with aclosing(device.answer(task)) as chunks:
        async for chunk in chunks:
            if (author := first_unverified(chunk.origins)) and not warned:
                warned = True
                log.warning(WARNINGS[author])
            if not quiet:
                printed.write(chunk.text, chunk.thoughts)
            printed.status(chunk.status)
            yield chunk


def _report(chunks: list[Chunk], rule: str) -> dict[str, object]:
    last = chunks[-1]
    stats = last.stats or Stats(0, 0)
    thoughts = "".join(chunk.thoughts for chunk in chunks)
    return {
        "text": "".join(chunk.text for chunk in chunks),
        **({"thoughts": thoughts} if thoughts else {}),
        "token_ids": [id for chunk in chunks for id in chunk.token_ids],
        "finish_reason": last.finish_reason,
        "rule": LOCAL_ONLY if stats.local_tokens else stats.rule or rule,
        **stats.figures(),
    }


def edge(config: EdgeConfig) -> int:
    """The daemon: an OpenAI-compatible API on this device, until SIGTERM or Ctrl-C."""
    return asyncio.run(interruptible(_edge(locate_server(pair_first(config)))))


async def _edge(config: EdgeConfig) -> int:
    from edge_client.device.page_view import DeviceView
    from http_api.app import build_app
    from http_api.listening import listen_everywhere, tell_api
    from http_api.loading import LoadingGate
    from http_api.server import ApiServer
    from http_api.waiting_room import WAIT_SECONDS

    access = _access(config)
    guard, probes = _scraping(config, access), Probes(asyncio.get_running_loop())
    gate, ending, told = LoadingGate(CONNECTING), asyncio.Event(), list[Metric]()
    server = ApiServer(gate, ending, config.http_tls_cert, config.http_tls_key)
    listeners = listen_everywhere(config.http)
    address = join_host_port(*listeners[0].getsockname()[:2])
    with metrics_port(config.metrics, told, probes, guard):
        async with server.serving(*listeners) as running, _connect_device(config) as device:
            told += metrics(device)
            probes.unready = lambda: device.unready
            view = DeviceView(device, config)
            gate.app = build_app(
                device,
                access,
                ending,
                config.heartbeat,
                told,
                lenient=config.lenient,
                view=view,
                wait=WAIT_SECONDS,
            )
            heed(partial(_stop, server))
            show(_introduction(device, config.server))
            tell_api(address, bool(config.http_tls_cert), device.info.model_id)
            show_ready(address)
            async with notify.announce(), _watch_server(device):
                await running
    return 0


@asynccontextmanager
async def _connect_device(config: EdgeConfig) -> AsyncIterator[Device]:
    tell(f"asking {config.server} for its target")
    device = await connect(config, config.parallel, shows_vetted=True, to_listen=START_S)
    try:
        yield device
    finally:
        await device.close()


def _introduction(device: Device, server: str) -> str:
    return visible_line(f"drafting with {device.drafter_name} for {device.info.model_id} at {server}")


@asynccontextmanager
async def _watch_server(device: Device) -> AsyncIterator[None]:
    """While inside, the device knows whether its server can be reached, and lets it in."""
    watching = asyncio.ensure_future(device.watch.run())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _stop(server: ApiServer, _: int) -> None:
    from http_api.server import CLOSING, GRACE

    notify.stopping(GRACE + CLOSING)
    server.stop()


def _access(config: EdgeConfig) -> Access:
    """Who may call the API. Raises UsageError for files it cannot use and for unsafe flags."""
    from http_api.guard import Access, KeyFile

    tls = read_identity(config.http_tls_cert, config.http_tls_key, ("--http-tls-cert", "--http-tls-key"))
    keys = KeyFile(Path(config.http_keys)) if config.http_keys else ()
    local = is_local(config.http)
    if not local and not (keys and tls):
        _require_insecure(config, bool(keys))
    return Access(keys, web_origins(config.cors_origin), local)


def _scraping(config: EdgeConfig, access: Access) -> ScrapeGuard:
    """Who may read the metrics: beyond this machine the API's clients. Raises UsageError."""
    from http_api.guard import is_key

    def admit(authorization: str) -> None:
        if not is_key(authorization, access.keys):
            what = "this is no key" if authorization else "this API requires a key"
            raise Unauthorized(f"{what} of --http-keys; send one as Authorization: Bearer KEY")

    return scrape_guard(
        config.metrics,
        config.insecure_metrics,
        config.http_tls_cert,
        config.http_tls_key,
        admit if access.keys else None,
        "--http-keys, --http-tls-cert and --http-tls-key",
    )


def _require_insecure(config: EdgeConfig, has_keys: bool) -> None:
    if not config.insecure:
        raise UsageError(
            f"--http {config.http} is reachable by other machines: add --http-keys, --http-tls-cert and "
            "--http-tls-key, or listen on 127.0.0.1, or add --insecure if the network itself is trusted"
        )
    danger = (
        "gets its keys in clear text" if has_keys else "lets every client that can reach it use this device"
    )
    log.warning("%s %s", config.http, danger)
