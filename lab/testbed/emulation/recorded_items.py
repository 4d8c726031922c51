"""What the recorded pairs are asked: the same items each time, half of them greedy, half sampled with a seed.

The tiny family is asked its own held-out tasks. Any other pair is asked six kinds of text, sixteen prompts a kind, of
recorded/prompts.json: open chat, code, arithmetic, and extraction, summaries and rewriting of short passages.
"""

import json
from typing import Any

from lab.testbed.load.load import Item
from lab.testbed.load.sources import TEMPERATURE, heldout_items
from lab.testbed.traces import PACKAGED
from opensled.core.messages import ChatMessage

COUNT, SEED, MAX_TOKENS = 120, 0, 64  # of the tiny family's items
LONGER = 96  # tokens of the others' answers at most
PROMPTS = PACKAGED / "prompts.json"
KINDS = ("chat", "code", "arithmetic", "extraction", "summaries", "rewriting")


def recorded_items(target: str = "tiny") -> list[Item]:
    """The items that are recorded with a target."""
    if target == "tiny":
        return heldout_items(COUNT, SEED, MAX_TOKENS)
    document = json.loads(PROMPTS.read_text("utf-8"))
    rounds = range(max(len(document[kind]) for kind in KINDS))
    return [
        _item(document, kind, number) for number in rounds for kind in KINDS if number < len(document[kind])
    ]


def _item(document: dict[str, Any], kind: str, number: int) -> Item:
    """Kinds take turns, so that a recording that is not finished has something of each."""
    sampled = (number + KINDS.index(kind)) % 2 == 1
    return Item(
        id=f"{kind}-{number}" + (f"-seed-{SEED}" if sampled else ""),
        prompt=(ChatMessage("user", _words(document, document[kind][number])),),
        max_tokens=LONGER,
        temperature=TEMPERATURE if sampled else 0.0,
        seed=SEED,
        task=kind,
    )


def _words(document: dict[str, Any], prompt: dict[str, Any]) -> str:
    if "passage" not in prompt:
        return str(prompt["ask"])
    return f"{prompt['ask']}\n\n{document['passages'][prompt['passage']]}"
