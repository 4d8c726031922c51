"""Vocabularies for tests of grammars, and walks over their masks."""

import json
import random
from functools import cache
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from opensled.core.messages import Guide, Tool
from opensled.text.call_forms import TAGGED as TAGGED_CALLS
from verify_server.text.guide import Constraint, GuideCompiler

TINY = Path(__file__).resolve().parents[1] / "models/tiny"
EOS = 0  # of tiny; ids 1 to 3 are its other control tokens
PADDED = 2100  # width of the logits: ids beyond the tokenizer's are padding
TAGS_TEMPLATE = "{% if tools %}<tool_call>{% endif %}"
# Added tokens of `tagged`: three that are text, then a second end token.
TAGGED = ("<tool_call>", "</tool_call>", "<think>", "<|im_end|>")
IM_END = 2051
LIGHT = Tool("light", "Switches a light", '{"properties": {"on": {"type": "boolean"}}, "required": ["on"]}')
WAIT = Tool("wait", "", '{"type": "object", "properties": {"s": {"$ref": "#/$defs/s"}}, "required": ["s"],'
            ' "additionalProperties": false, "$defs": {"s": {"type": "integer"}}}')  # fmt: skip


@cache
def tiny() -> GuideCompiler:
    return GuideCompiler((TINY / "tokenizer.json").read_bytes(), PADDED, (EOS,), "")


@cache
def tagged() -> GuideCompiler:
    """tiny's vocabulary with `TAGGED`, for a template that writes calls between tags."""
    return GuideCompiler(tagged_tokenizer(), PADDED, (IM_END, EOS), TAGS_TEMPLATE, TAGGED_CALLS)


@cache
def tagged_tokenizer() -> bytes:
    tree = json.loads((TINY / "tokenizer.json").read_text("utf-8"))
    like = tree["added_tokens"][0]
    tree["added_tokens"] += [
        {**like, "id": 2048 + number, "content": text, "special": text == "<|im_end|>"}
        for number, text in enumerate(TAGGED)
    ]
    return json.dumps(tree).encode()


TOKENIZER = Tokenizer.from_str(tagged_tokenizer().decode())


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def decode(tokens: list[int]) -> str:
    return TOKENIZER.decode(tokens, skip_special_tokens=False)


def may_follow(constraint: Constraint) -> set[int]:
    return unpack(constraint.next_masks(())[0])


def unpack(mask: bytes) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist())


def schema_guide(schema: object) -> Guide:
    return Guide(json_schema=json.dumps(schema))


def follows(guides: GuideCompiler, guide: Guide, text: str) -> bool:
    """Whether the grammar lets `text`, as the tokenizer cuts it, be the beginning of an answer."""
    constraint = guides.start(guide, ())
    for token in ids(text):
        if token not in may_follow(constraint):
            return False
        constraint.commit([token])
    return True


def completes(guides: GuideCompiler, guide: Guide, text: str) -> bool:
    """Whether `text` can be the whole answer."""
    return follows(guides, guide, text) and EOS in may_follow(guides.start(guide, ids(text)))


def walk(
    guides: GuideCompiler, guide: Guide, rng: random.Random, *, free: int = 30, limit: int = 3000
) -> list[int]:
    """A random answer: `free` tokens of those allowed, then whatever ends it soon. Ends before its eos."""
    constraint = guides.start(guide, ())
    answer: list[int] = []
    while len(answer) < limit:
        choices = may_follow(constraint)
        assert choices and max(choices) < PADDED and not choices & {1, 2, 3}, "padding or control tokens"
        ends = choices & {EOS, IM_END}
        if ends and (len(answer) >= free or rng.random() < 0.1):
            return answer
        ordinary = sorted(choices - ends)
        if not ordinary:
            return answer
        answer.append(rng.choice(ordinary) if len(answer) < free else _closing(ordinary, rng))
        constraint.commit(answer[-1:])
    raise AssertionError(f"no end after {limit} tokens: {decode(answer)[-200:]!r}")


CLOSERS = [ids(text)[0] for text in ('"', "}", "]")]


def _closing(choices: list[int], rng: random.Random) -> int:
    found = [closer for closer in CLOSERS if closer in choices]
    return rng.choice(found if found and rng.random() < 0.8 else choices)
