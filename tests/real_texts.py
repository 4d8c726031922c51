"""What SmolLM2 is asked for, and its answers over the whole system."""

import asyncio
import os
from functools import cache
from pathlib import Path

from edge_client.drafters import DRAFTERS
from edge_client.lengths.fixed import FixedLength
from lab.benchmarks import real_texts
from opensled.core.messages import ChatMessage, SamplingParams
from opensled.models.store import FETCHABLE, fetched_folder
from tests.system import ask, running
from verify_server.engine.torch.torch_engine import TorchEngine
from verify_server.text.gguf_text import GgufText

# Read when the tests are collected: during tests the cache is an empty folder (tests/conftest.py).
MODEL = fetched_folder("smollm2") / Path(FETCHABLE["smollm2"].member).name
COUNT, TOKENS = int(os.environ.get("OPENSLED_REAL_PROMPTS", "3")), 16
KINDS = ("chat", "questions", "arithmetic", "translation", "summary", "extraction")  # short prompts first
AT_ONCE = 8
SAMPLINGS = ({"temperature": 0.0}, {"temperature": 0.8}, {"temperature": 1.0, "top_p": 0.9})


@cache
def prompts() -> list[tuple[int, ...]]:
    """As token ids; the kinds in turns."""
    text = GgufText(MODEL)
    rows = zip(*map(real_texts.prompts, KINDS))
    asked = [prompt.text for row in rows for prompt in row][:COUNT]
    return [text.render([ChatMessage("user", question)]) for question in asked]


@cache
def factory(name: str):
    return DRAFTERS.get(name)(str(MODEL), 1)


async def answers(engine: TorchEngine, drafter: str, sampling: dict, at_once: int) -> list[tuple[int, ...]]:
    """Of all prompts, `at_once` at the same time."""
    found = []
    async with running(engine, draft_wait=0.5, max_step_tokens=512) as network:
        for start in range(0, len(prompts()), at_once):
            asked = [
                ask(
                    network,
                    prompt,
                    factory(drafter).create(),
                    SamplingParams(**sampling, seed=start + number, max_tokens=TOKENS),
                    stop=FixedLength(4),
                )
                for number, prompt in enumerate(prompts()[start : start + at_once])
            ]
            found += await asyncio.gather(*asked)
    return [answer.tokens for answer in found]
