"""`opensled bench drafts`: what drafts cost and bring on a server that runs already, predicted, then measured."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.benchmarks.program import say, write_json
from lab.testbed.bench_drafts.agreement import (
    DraftText,
    agreement,
    asked_in_turns,
    local_draft,
    record,
    served_draft,
)
from lab.testbed.bench_drafts.config import BenchDraftsConfig
from lab.testbed.bench_drafts.prediction import check, predict
from lab.testbed.bench_drafts.rows import QUICK_ROWS, REPEATS, ROWS, asked_again, at_users, rows_curve
from lab.testbed.bench_drafts.target import Target, find_target
from lab.testbed.bench_drafts.view import table_of
from lab.testbed.load.http_device import client
from lab.testbed.provenance import provenance
from opensled.core.errors import UsageError
from opensled.core.files import read_secret_text

QUICK_TOKENS = 32
EVERY, QUICK_EVERY = 4, 8  # places of a text, at one of which the draft is asked

Write = Callable[[dict[str, Any]], None]


def bench_drafts(config: BenchDraftsConfig) -> int:
    """Measure, predict, write, measure again, show."""
    if not config.url:
        raise UsageError("name the server: opensled bench drafts http://HOST:PORT")
    path = Path(config.out).expanduser()
    path.parent.mkdir(parents=True, exist_ok=True)
    document = asyncio.run(_bench(config, lambda found: write_json(path, found)))
    print(json.dumps(document) if config.json else "\n".join(table_of(document)))
    say(f"all figures: {path}")
    return 0


async def _bench(config: BenchDraftsConfig, write: Write) -> dict[str, Any]:
    key = read_secret_text(config.token_file, "API key").strip() if config.token_file else ""
    async with client(config.url, key or os.environ.get("OPENAI_API_KEY", "")) as http:
        target = await find_target(http, config.model)
        draft = await asyncio.to_thread(_draft_of, config)
        return await measure(target, draft, config, write)


def _draft_of(config: BenchDraftsConfig) -> DraftText | None:
    if config.draft_url:
        return served_draft(config.draft_url, config.draft_model, config.draft_key)
    return local_draft(config.draft_model) if config.draft_model else None


async def measure(
    target: Target,
    draft: DraftText | None,
    config: BenchDraftsConfig,
    write: Write,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Any]:
    """All figures; `write` gets them with the prediction before what it predicts is measured, and at the end."""
    quick = config.quick
    tokens, repeats = min(config.tokens, QUICK_TOKENS) if quick else config.tokens, 1 if quick else REPEATS
    document: dict[str, Any] = {
        "title": "Drafts on a server with OpenAI's API",
        "label": "real",
        "machine": config.machine,
        "model": target.model,
        "api": target.api,
        "settings": {"tokens": tokens, "repeats": repeats, "url": str(target.http.base_url)},
        "provenance": provenance(),
    }
    curve = await rows_curve(target, QUICK_ROWS if quick else ROWS, tokens, repeats)
    agreed = None
    if draft:
        texts = await record(target, 1 if quick else 2, tokens)
        agreed = await asyncio.to_thread(agreement, texts, draft, QUICK_EVERY if quick else EVERY, clock)
    document |= {
        "rows": curve,
        "acceptance": agreed,
        "prediction": predict(curve["levels"], agreed, config.link),
    }
    write(document)
    users = await at_users(target, asked_in_turns(2), tokens, repeats)
    document |= {"users": users, "checked": check(document["prediction"], curve["levels"], users["levels"])}
    document["same"] = await asked_again(target, tokens)
    write(document)
    return document
