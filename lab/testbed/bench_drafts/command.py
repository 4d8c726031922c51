"""`opensled bench drafts`: what drafts cost and bring on a server that runs already, predicted, then measured."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from functools import partial
from itertools import count, cycle, islice
from pathlib import Path, PurePath

from lab.benchmarks.program import say, write_json
from lab.testbed.bench_drafts import target as targets
from lab.testbed.bench_drafts.agreement import FEW_CHARACTERS, agreement, draft_of, questions
from lab.testbed.bench_drafts.config import BenchDraftsConfig
from lab.testbed.bench_drafts.prediction import USERS, check, predict
from lab.testbed.bench_drafts.target import Found
from lab.testbed.bench_drafts.view import row_of, text_of
from lab.testbed.load.http_device import client
from lab.testbed.provenance import provenance
from opensled.core.errors import DraftSourceError, OpenSledError
from opensled.core.files import read_secret_text

ROWS = (1, 2, 4, 8, 16, 32)
# Tokens of a text, repeats, texts of a kind, and of how many of their places one is drafted
QUICK, WHOLE = (32, 1, 1, 8), (64, 3, 2, 4)


def bench_drafts(config: BenchDraftsConfig) -> int:
    """Measure, predict, write, measure again, show."""
    path = Path(config.out).expanduser()
    try:
        found = asyncio.run(measure(config, partial(write_json, path)))
    except DraftSourceError as error:
        raise DraftSourceError(f"the draft server {config.draft_url}: {error}; is it running?") from error
    print(json.dumps(found) if config.json else text_of(found))
    say(f"all figures: {path}; its row of docs/leaderboard.md:\n{row_of(found)}")
    return 0


async def measure(config: BenchDraftsConfig, write: Callable[[Found], None]) -> Found:
    """All figures; `write` gets them with the prediction before what it predicts is measured, and at the end."""
    tokens, repeats, each, every = QUICK if config.quick else WHOLE
    key = read_secret_text(config.token_file, "API key").strip() if config.token_file else ""
    async with client(config.url, key or os.environ.get("OPENAI_API_KEY", "")) as http:
        http.headers["connection"] = "close"  # many a server closes one that rests, and a request is lost
        target, draft = await targets.find(http, config.model, tokens), draft_of(config)
        model = PurePath(target.body["model"]).name  # of a llama-server it is a path
        found: Found = {"machine": config.machine, "model": model, "url": config.url, "api": target.api}
        found |= {"label": "real", "request": target.body, "repeats": repeats, "provenance": provenance()}
        rows = await targets.curve(target, ROWS, targets.stories, repeats, {})
        if not rows["levels"]:
            raise OpenSledError(
                f"{config.url} sends its tokens all at once; without streaming nothing is timed"
            )
        agreed = await agreement(target, draft, each, every) if draft else None
        predicted = predict(rows["levels"], agreed, config.link)
        found |= {"rows": rows, "acceptance": agreed, "prediction": predicted}
        write(found)
        asked = (
            f"({number}) {text}" for number, (_, text) in zip(count(1), cycle(questions(2, FEW_CHARACTERS)))
        )
        users = await targets.curve(target, USERS, lambda n: [*islice(asked, n)], repeats, targets.AS_IT_IS)
        checked = check(predicted["users"], rows["levels"], users["levels"])
        found |= {"users": users, "checked": checked, "same": await targets.asked_again(target)}
        found["after"] = await targets.curve(target, ROWS[:1], targets.stories, repeats, {})
        write(found)
        return found
