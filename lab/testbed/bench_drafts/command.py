"""`opensled bench drafts`: what drafts cost and bring on a server that runs already, predicted, then measured."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from lab.benchmarks.program import say, write_json
from lab.testbed.bench_drafts.agreement import (
    DraftText,
    agreement,
    local_draft,
    questions,
    record,
    served_draft,
)
from lab.testbed.bench_drafts.config import BenchDraftsConfig
from lab.testbed.bench_drafts.prediction import USERS, check, predict
from lab.testbed.bench_drafts.target import NO_DRAFTS, Target, asked_again, curve, find_target, stories
from lab.testbed.bench_drafts.view import table_of
from lab.testbed.load.http_device import client
from lab.testbed.provenance import provenance
from opensled.core.errors import DraftSourceError, OpenSledError
from opensled.core.files import read_secret_text

ROWS = (1, 2, 4, 8, 16, 32)
QUICK, WHOLE = (1, 1, 8), (3, 2, 4)  # repeats, texts of a kind, and of how many places one is drafted
QUICK_TOKENS = 32


def bench_drafts(config: BenchDraftsConfig) -> int:
    """Measure, predict, write, measure again, show."""
    path = Path(config.out).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        document = asyncio.run(_bench(config, lambda found: write_json(path, found)))
    except DraftSourceError as error:
        raise DraftSourceError(f"the draft server {config.draft_url}: {error}; is it running?") from error
    print(json.dumps(document) if config.json else "\n".join(table_of(document)))
    say(f"all figures: {path}")
    return 0


async def _bench(config: BenchDraftsConfig, write: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    key = read_secret_text(config.token_file, "API key").strip() if config.token_file else ""
    async with client(config.url, key or os.environ.get("OPENAI_API_KEY", "")) as http:
        target = await find_target(http, config.model)
        return await measure(target, await asyncio.to_thread(_draft_of, config), config, write)


def _draft_of(config: BenchDraftsConfig) -> DraftText | None:
    if config.draft_url:
        return served_draft(config.draft_url, config.draft_model, config.draft_key)
    return local_draft(config.draft_model) if config.draft_model else None


async def measure(
    target: Target,
    draft: DraftText | None,
    config: BenchDraftsConfig,
    write: Callable[[dict[str, Any]], None],
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """All figures; `write` gets them with the prediction before what it predicts is measured, and at the end."""
    repeats, each, every = QUICK if config.quick else WHOLE
    tokens = min(config.tokens, QUICK_TOKENS) if config.quick else config.tokens
    document: dict[str, Any] = {
        "title": "Drafts on a server with OpenAI's API",
        "label": "real",
        "machine": config.machine,
        "model": target.model,
        "api": target.api,
        "url": str(target.http.base_url),
        "tokens": tokens,
        "repeats": repeats,
        "provenance": provenance(),
    }
    found = await curve(target, ROWS, stories, tokens, repeats, **NO_DRAFTS)
    if not found["levels"]:
        raise OpenSledError(
            f"the tokens of {document['url']} come all at once; nothing can be timed without streaming"
        )
    agreed = None
    if draft:
        agreed = await asyncio.to_thread(agreement, await record(target, each, tokens), draft, every, clock)
    document |= {
        "rows": found,
        "acceptance": agreed,
        "prediction": predict(found["levels"], agreed, config.link),
    }
    write(document)
    numbered = [
        f"({number}) {text}" for number, (_, text) in zip(range(repeats * sum(USERS)), cycle(questions(2)))
    ]
    asked = iter(numbered if target.api == "chat" else [await target.framed(text) for text in numbered])
    users = await curve(target, USERS, lambda number: list(islice(asked, number)), tokens, repeats)
    checked = check(document["prediction"]["users"], found["levels"], users["levels"])
    document |= {"users": users, "checked": checked, "same": await asked_again(target, tokens)}
    write(document)
    return document
