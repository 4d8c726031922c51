"""Families of models by the marks in their answers: around thoughts, around the answer, and of channels. The one table.

A chat template names the family. A mark may be a special token, several, another added token, or plain text: that the
tokenizer says (opensled/text/thinking.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Literal, NamedTuple

from opensled.core.messages import ThoughtTags

HARMONY = ThoughtTags("<|channel|>analysis<|message|>", "<|end|>", "<|channel|>final<|message|>")
SOLAR = ThoughtTags("<|think|>", "<|end|>", "<|content|>")
KIMI_3 = ThoughtTags("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>")
# Text in a template -> the family, the first that is there: of those whose end tag alone does not tell it.
SIGNS: dict[str, ThoughtTags] = {
    "<|channel|>": HARMONY,  # gpt-oss
    "<|channel>": ThoughtTags("<|channel>thought", "<channel|>"),  # Gemma 4
    "<|think|>": SOLAR,  # Solar Open
    "<|open|>": KIMI_3,
    "[BEGIN FINAL RESPONSE]": ThoughtTags(  # Apriel
        "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", "", "[END FINAL RESPONSE]"
    ),
}
# Those of published chat templates.
KNOWN = (
    ThoughtTags("<think>", "</think>"),  # DeepSeek, Qwen, GLM, SmolLM3, Hunyuan, Nemotron
    ThoughtTags("[THINK]", "[/THINK]"),  # Magistral, Ministral
    ThoughtTags("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A Reasoning
    ThoughtTags("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    # OpenThinker, Sky-T1
    ThoughtTags("<|begin_of_thought|>", "<|end_of_thought|>", "<|begin_of_solution|>", "<|end_of_solution|>"),
    ThoughtTags("Here is my thought process:", "Here is my response:"),  # Granite 3.2
    ThoughtTags("<unused94>thought", "<unused95>"),  # MedGemma
    # Unsloth's notebooks
    ThoughtTags("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>"),
)
# Tags of others, and of families that come: <thought>, <seed:think>, ◁think▷, <longcat_think>, <think:abc>.
WORDS = r"((?:(?!begin|start|end|stop)\w+[:_])?(?:think(?:ing)?|thoughts?|reason(?:ing)?)(?:_process|:\w+)?)"
# Around the answer itself: <answer> of Hunyuan, <response> of Granite 3.3, <|START_TEXT|> of Command A, <Output>.
ANSWERS = r"((?:of_)?(?:final_)?(?:answer|response|output|solution|text))"
BRACKETS = (("<", ">"), ("[", "]"), ("<|", "|>"), ("◁", "▷"))
PAIRS = "{} /{},begin_{} end_{},start_{} end_{},start_{} stop_{},{}_begin {}_end,{}_start {}_end"
_NAMES = "think thinking thought thoughts reasoning"
_WRITTEN = f"{_NAMES} {_NAMES.title()} {_NAMES.upper()}".split()
# Tags that a model may have learned though its template names none.
LEARNED = (
    *(tags for tags in KNOWN if not tags.start[0].isalpha()),
    *(ThoughtTags(f"{a}{word}{b}", f"{a}/{word}{b}") for a, b in BRACKETS for word in _WRITTEN),
)
# Keys by which templates read the thoughts of earlier answers.
KEYS = ("reasoning_content", "reasoning", "thinking", "thought")

# A call in a channel, in the form that readers of calls know: before its arguments, with the name, and behind them.
CALL = ('<tool_call>\n{{"name": "{}", "arguments": ', "}\n</tool_call>")

Part = Literal["thoughts", "answer", "head"]


class Channels(NamedTuple):
    """The marks of a model that writes an answer as messages: each has a head, which says whom it is for."""

    first: str  # begins a message
    heads: tuple[str, ...]  # further marks in a head
    bodies: Mapping[str, Part]  # ends a head -> what follows; "head": that the head says
    ends: tuple[str, ...]  # of a message

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.first, *self.heads, *self.bodies, *self.ends)


# By the start tag of the thoughts.
CHANNELS = {
    HARMONY.start: Channels(
        "<|start|>",
        ("<|channel|>", "<|constrain|>"),
        {"<|message|>": "head"},
        ("<|end|>", "<|return|>", "<|call|>"),
    ),
    SOLAR.start: Channels(
        "<|begin|>",
        (),
        {"<|think|>": "thoughts", "<|content|>": "answer", "<|tool_calls|>": "answer"},
        ("<|end|>", "<|flush|>", "<|calls|>"),
    ),
    KIMI_3.start: Channels("<|open|>", (), {"<|sep|>": "head"}, ("<|close|>", "<|end_of_msg|>")),
}


def marks_of(tags: ThoughtTags) -> tuple[str, ...]:
    """All of a family."""
    channels = CHANNELS.get(tags.start)
    return tuple(filter(None, (*tags, *(channels.marks if channels else ()))))


def pairs_of(template: str, words: str) -> list[tuple[str, str]]:
    """Tags of a usual form around one of `words`, of which a template has both, or the end, or last the start alone."""
    found = []
    for (opening, closing), pair, by in product(BRACKETS, map(str.split, PAIRS.split(",")), (1, 0)):
        mark = re.escape(opening) + pair[by].replace("{}", words) + re.escape(closing)
        for match in re.finditer(mark, template, re.I):
            other = f"{opening}{pair[1 - by].format(match[1])}{closing}"
            there = re.search(re.escape(other), template, re.I)
            tags = (there[0] if there else other.upper() if match[0].isupper() else other, match[0])
            found.append((not there, not by, match.start(), tags if by else tags[::-1]))
    return [tags for *_, tags in sorted(found)]
