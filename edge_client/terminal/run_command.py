"""`opensled run`: fetches a model if it is missing, serves it in a process of its own, and chats with it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from edge_client.device.known_drafts import LOOKUP, draft_here
from edge_client.device.prompt_config import ChatConfig
from edge_client.drafters import AUTO
from edge_client.terminal.run_config import RunConfig
from hw_profiles.detect import usable_cores
from opensled.cli.child_server import ChildServer
from opensled.core.errors import NotFound, UsageError
from opensled.models.model_pairs import PAIRS
from opensled.models.pull import ready
from opensled.models.store import (
    FETCHABLE,
    cache_folder,
    can_be_fetched,
    is_here,
    missing,
    require_known,
)
from opensled.process.logs import tell

QUIET = ("--log-level", "error")


def run(config: RunConfig) -> int:
    """Chat until the user leaves; the server ends with it. Raises what `opensled pull`, `serve` and `chat` raise."""
    if not config.model:
        raise UsageError("run needs a model: opensled run NAME, such as smollm2 (see: opensled models list)")
    require_known(config.draft_model)
    _fetch(config.model)
    draft = config.draft_model or draft_here(config.model)
    tell(f"starting {config.model} on this machine{f', and {draft} to draft for it' if draft else ''}")
    if config.model in FETCHABLE:
        tell(f"{config.model}: {FETCHABLE[config.model].about}")
    with ChildServer(*_serving(config, bool(draft)), *QUIET) as server:
        with interrupts_kept():
            from edge_client.terminal.chat import chat  # takes a moment, while the server loads

        return chat(_chatting(config, server.wait_ready(config.model), draft))


@contextmanager
def interrupts_kept() -> Iterator[None]:
    """Raises KeyboardInterrupt at the end if Ctrl-C came meanwhile and was lost: a library that is being imported may
    have an `except` for everything."""
    seen, before = list[int](), signal.getsignal(signal.SIGINT)

    def note(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if callable(before):
            before(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen:
        raise KeyboardInterrupt


def _fetch(name: str) -> None:
    if is_here(name) and (name not in PAIRS or is_here(PAIRS[name].draft)):
        return
    if not can_be_fetched(name):
        raise NotFound(missing(name), "model")
    ready(name)


def _serving(config: RunConfig, has_draft: bool) -> list[str]:
    """Arguments of the server; it leaves a core to a draft model."""
    options = {
        "model": config.model,
        "engine": config.engine,
        "device": config.device,
        "context": config.context,
    }
    if has_draft:
        options["threads"] = max(1, usable_cores() - 1)
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def _chatting(config: RunConfig, address: str, draft: str) -> ChatConfig:
    without = LOOKUP if config.drafter == AUTO and not draft else config.drafter
    return ChatConfig(
        server=address,
        drafter=without,
        draft_model=draft,
        threads=1 if draft else 0,
        cache_dir=str(cache_folder()),
        system=config.system,
        show_drafts=config.show_drafts,
        max_tokens=config.max_tokens,
        temperature=config.temperature,
        color=config.color,
        history=config.history,
    )
