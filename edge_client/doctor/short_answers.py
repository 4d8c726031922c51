"""Short answers of the real target as this device would give them, with drafts and without, counted and timed.

`python -m edge_client.doctor.short_answers CONFIGURATION`, which is the device's as JSON, prints a JSON object a line:
`drafter` and `vocabulary`, one `answer` each, `draft server` alone, and `why` it drafts as it does. On standard error
stands what the device notes. It is a process of its own, for native code may crash.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import aclosing, closing
from dataclasses import replace

from edge_client.device.config import DeviceConfig
from edge_client.device.device import Device, connect
from edge_client.device.drafter_choice import make_factory
from edge_client.doctor.draft_speed import begin_sequence, measure_rate
from edge_client.doctor.drafting_gain import ENOUGH
from edge_client.doctor.own_process import tell
from edge_client.drafters import OFF
from edge_client.drafters.threads import MODELS
from edge_client.drafters.vocabulary import BY_TEXT
from opensled.core.answer import Task
from opensled.core.errors import OpenSledError
from opensled.core.messages import ChatMessage, ModelInfo, SamplingParams
from opensled.text.tokenizer import TargetTokenizer

# Kinds of text and prompts of each; one prompt of each kind makes a pass. Drafts are accepted least in free text, most
# where the answer repeats what was said.
PROMPTS = {
    "questions": (
        "What is a lighthouse, and why were so many of them built?",
        "Why does ice float on water?",
        "Who was Marie Curie, and what did she discover?",
    ),
    "stories": (
        "Tell me a short story about a fox and a lost key.",
        "Write a short story about a baker who finds a map.",
        "Tell me a story about two sisters and a kite.",
    ),
    "code": (
        "Write a Python function that counts the vowels in a word.",
        "Write a Python function that returns the largest number of a list.",
        "Write a Python class for a bank account.",
    ),
    "summaries": (
        "Summarize this text: The harbour was built in 1871, when the railway reached the coast. At first it served "
        "only fishing boats, but after a few years large ships came for coal and timber, and the town grew from 900 "
        "people to more than 20,000. A storm destroyed the outer wall in 1924. It was rebuilt in stone, with a "
        "lighthouse at its end that still works. Today the ships use the new port in the north, and the old harbour "
        "has cafes, a museum of the sea and a market where fishers sell their catch every morning.",
        "What are the main points of this text? Bees visit flowers to collect nectar and pollen. On the way they carry "
        "pollen from one flower to the next, and so the plants can form seeds. About a third of what people eat "
        "depends on that. In many countries the number of wild bees falls, because meadows become fields and because "
        "of poisons against insects. Gardens help: a few square metres of native flowers, a dish of water and a place "
        "with bare soil are enough for many kinds.",
        "Summarize this text: The library opens a second building in spring. It has 120 places to read, rooms for "
        "groups and a workshop with tools that members may borrow. Books can be returned at any hour. The old building "
        "stays open for children, who get more space there. The plan cost four million euros, half of which came from "
        "the region. In the first year the library expects a third more visitors, and it looks for volunteers who "
        "read to children on Saturdays.",
    ),
    "rewriting": (
        "Correct the spelling and repeat the text: The trane from Oslo arives at nine, and the bus to the museum "
        "leaves ten minuts later from the square behind the station.",
        "Repeat this list, one item on each line: two onions, a bag of rice, six eggs, a bottle of olive oil, four "
        "lemons, a loaf of bread.",
        "Make this e-mail more polite and keep the rest: Send me the report by Friday, and tell Anna that the meeting "
        "on Monday is in room twelve.",
    ),
}
TOKENS, SECONDS = 64, 5.0  # of an answer with drafts, at most
PLAIN_TOKENS, PLAIN_SECONDS = 24, 2.0  # of one without: its speed hardly depends on the text
SERVER_PROMPT, SERVER_TOKENS, SERVER_SECONDS = 16, 24, 1.5  # to time a draft server alone
WARMING = 32  # tokens of the first answers, which do not count: models load, and the draft length is found
# A pass begins only before so many seconds: a fast server gives several, and too little tells nothing
ENOUGH_S, LONGEST_S = 8.0, 40.0


def main(config: str) -> int:
    """`config`: as JSON."""
    try:
        asyncio.run(_compare(DeviceConfig(**json.loads(config))))
    except OpenSledError as error:
        tell("error", code=error.code, reason=str(error))
    return 0


async def _compare(config: DeviceConfig) -> None:
    """Both ways in turns. Users' own answers go first, and nothing is learned from these."""
    config = replace(config, background=True, personal_table=OFF)
    drafting = await connect(config)
    try:
        plain = await connect(replace(config, drafter="none", draft_table="", draft_url=""))
        try:
            tell("drafter", words=drafting.drafter_name)
            if any(name in drafting.drafter_name for name in MODELS) and drafting.vocabulary != BY_TEXT:
                tell("vocabulary", words=drafting.vocabulary.words)  # by text: the device notes that
            await _passes(drafting, plain)
            if config.draft_url:
                rate, note = await asyncio.to_thread(time_server, config, drafting.info, drafting.tokenizer)
                tell("draft server", rate=rate, note=note)
            tell("why", words=drafting.status.words)
        finally:
            await plain.close()
    finally:
        await drafting.close()


def time_server(config: DeviceConfig, target: ModelInfo, tokenizer: TargetTokenizer) -> tuple[float, str]:
    """Draft tokens/s of the server alone, 0 = none came, and why: in an answer, other drafters may hide that.

    It comes last: then the server has loaded its model.
    """
    factory = make_factory(replace(config, draft_table=""), "server", config.draft_model)
    factory.fit(target, tokenizer)
    with closing(factory.create()) as drafter:
        proposals = begin_sequence(drafter, SERVER_PROMPT, 0)
        rate = measure_rate(proposals, SERVER_TOKENS, SERVER_SECONDS) if proposals else 0.0
    return rate, factory.note


async def _passes(drafting: Device, plain: Device) -> None:
    for device in (drafting, plain):
        await _measure_answer(device, "Say hello, and tell me about your day.", WARMING, SECONDS)
    started = time.monotonic()
    for number in range(min(map(len, PROMPTS.values()))):
        # Twice: first answers and first tokens are not counted
        too_little = min(drafting.telemetry.drafts.tokens, plain.telemetry.tokens) < 2 * ENOUGH
        if number and time.monotonic() - started > (LONGEST_S if too_little else ENOUGH_S):
            break
        for kind, prompts in PROMPTS.items():
            counts = await _measure_answer(drafting, prompts[number], TOKENS, SECONDS)
            tell("answer", kind=kind, drafts=True, **counts)
            counts = await _measure_answer(plain, prompts[number], PLAIN_TOKENS, PLAIN_SECONDS)
            tell("answer", kind=kind, drafts=False, **counts)


async def _measure_answer(device: Device, prompt: str, most: int, seconds: float) -> dict[str, float]:
    """`tokens` and `seconds` after the first token; `rounds` of drafts, tokens `drafted` and `accepted`."""
    before = device.telemetry.drafts
    counts = before.drafts, before.tokens, before.accepted
    asked = (ChatMessage("user", prompt),) if device.info.has_chat_template else prompt
    task = Task(asked, SamplingParams(temperature=0.0, max_tokens=most))
    tokens, first, last = 0, 0.0, 0.0
    async with aclosing(device.answer(task)) as chunks:
        async for chunk in chunks:
            now = time.monotonic()
            if chunk.token_ids and first:
                tokens, last = tokens + len(chunk.token_ids), now
            elif chunk.token_ids:
                first = last = now
            if first and now - first > seconds:
                break
    after = device.telemetry.drafts
    rounds, drafted, accepted = (
        now - then for now, then in zip((after.drafts, after.tokens, after.accepted), counts)
    )
    return {
        "tokens": tokens,
        "seconds": last - first,
        "rounds": rounds,
        "drafted": drafted,
        "accepted": accepted,
    }


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
