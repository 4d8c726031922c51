"""Families of models: what their marks tell apart, where they are special tokens and where they are text.

Run: pytest tests/test_families.py
"""

from __future__ import annotations

import asyncio
import itertools
from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer

from opensled.core.messages import ChatMessage, Guide, ToolCall
from opensled.text.answer_text import AnswerText
from opensled.text.thinking import reader_of, thought_tags
from opensled.text.tokenizer import TargetTokenizer
from tests.guiding import LIGHT, TINY, WAIT
from tests.test_thinking import CALLED, TOOLS, asked, chat, messages, ollama, responses
from tests.test_thought_reader import whole
from tests.thinking_world import thinking
from verify_server.text.chat_template import Chats
from verify_server.text.gguf_ends import special_ends
from verify_server.text.guide import GuideCompiler
from verify_server.text.template_files import Templates

NEXT, CALL = (
    "<|end|><|start|>assistant",
    '<tool_call>\n{"name": "light", "arguments": {"on": true}}\n</tool_call>',
)
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
TO_LIGHT = '<|channel|>commentary to=functions.light <|constrain|>json<|message|>{"on": true}<|call|>'
LIGHT_FIRST = ' to=functions.light<|channel|>commentary json<|message|>{"on": true}<|call|>'
SOLAR, K3 = "<|begin|>assistant<|think|><|end|><|begin|>assistant", '<|open|>message role="assistant"<|sep|>'
AFTER_K3 = "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
# What the templates have of the marks, and the added tokens. A dot stands for a template without any.
FAMILIES = {
    "gpt-oss": ("<|channel|>", "<|start|> <|channel|> <|message|> <|constrain|> <|end|> <|return|> <|call|>"),
    "gemma": ("<|channel>thought\n<channel|><|think|>", "<|channel> <channel|> <turn|>"),
    "apertus": (
        "'<|inner_prefix|>' '<|inner_suffix|>'",
        "<|inner_prefix|> <|inner_suffix|> <|assistant_end|>",
    ),
    "solar": (SOLAR, "<|begin|> <|end|> <|think|> <|content|> <|flush|> <|calls|> <|tool_calls|>"),
    "kimi k3": ("'<|open|>' + tag + '<|sep|>' '<|close|>'", "<|open|> <|close|> <|sep|> <|end_of_msg|>"),
    "command": 2 * ("<|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>",),
    "hunyuan": ("'</think>' '<answer>' '</answer>'", ""),
    "hunyuan 3": ("{% set HYTK = ':open' %}'<think{}>'.format(HYTK) '</think{}>'.format(HYTK)", ""),
    "granite 3.2": ("'Here is my thought process:' 'Here is my response:'", ""),
    "granite 3.3": ("<think></think> <response></response>", ""),
    "ernie": 2 * ("<think> </think> <response> </response>",),
    "apriel": ("[BEGIN FINAL RESPONSE] [END FINAL RESPONSE]", ""),
    "olmo": ("assistant\n<think>", ""),
    "longcat": ("'</longcat_think>'", ""),
    "minimax": 2 * ("<mm:think> </mm:think>",),
    "magistral": 2 * ("[THINK] [/THINK]",),
    "seed": 2 * ("<seed:think> </seed:think>",),
    "qwen": 2 * ("<think> </think>",),
    "no template": (".", "<think> </think>"),
}
# The family, the end of the prompt, what the model writes, and what of it is thought and answered.
CASES = [
    ("gpt-oss", "<|start|>assistant", f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.<|return|>", "Hm.", "Yes."),
    ("gpt-oss", "<|start|>assistant", f"{FINAL}Yes.<|return|>", "", "Yes."),
    ("gpt-oss", "<|start|>assistant", f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c<|return|>", "a\nb", "c"),
    ("gpt-oss", "<|start|>assistant", f"<|channel|>commentary<|message|>I{NEXT}{FINAL}c<|return|>", "", "I\nc"),
    ("gpt-oss", f"<|start|>assistant{ANALYSIS}", f"Hm.{NEXT}{FINAL}Yes.<|return|>", "Hm.", "Yes."),
    ("gpt-oss", f"<|start|>assistant{FINAL}", "Yes.<|return|>", "", "Yes."),
    ("gpt-oss", "<|start|>assistant", "Today is fine.<|return|>", "", "Today is fine."),
    ("gpt-oss", "<|start|>assistant", "<|channel|>final <|constrain|>json<|message|>{}<|return|>", "", "{}"),
    ("gpt-oss", "<|start|>assistant", f"{ANALYSIS}a{NEXT}{TO_LIGHT}", "a", CALL),
    ("gpt-oss", "<|start|>assistant", f"{ANALYSIS}a{NEXT}{LIGHT_FIRST}", "a", CALL),
    ("gpt-oss", "<|start|>assistant", LIGHT_FIRST, "", CALL),
    ("gpt-oss", "<|start|>assistant", f"<|channel|>commentary<|message|>I{NEXT}{TO_LIGHT}", "", f"I{CALL}"),
    ("gpt-oss", "<|start|>assistant", TO_LIGHT.replace('{"on": true}', ""), "", CALL.replace('"on": true', "")),
    ("gpt-oss", "<|start|>assistant", "<|channel|>analysis to=browser.open code<|message|>{}<|call|>", "{}", ""),
    ("gemma", "<|turn>model\n", "<|channel>thought\nHm.\n<channel|>Yes.<turn|>", "Hm.", "Yes."),
    ("gemma", "<|turn>model\n", "<|channel>thought\n<channel|>Yes.<turn|>", "", "Yes."),
    ("gemma", "<|channel>thought\n<channel|>", "Yes.<turn|>", "", "Yes."),
    ("gemma", "<|channel>thought\n", "Hm.<channel|>Yes.<turn|>", "Hm.", "Yes."),
    ("apertus", "<|x|>", "<|inner_prefix|>Hm.<|inner_suffix|>Yes.<|assistant_end|>", "Hm.", "Yes."),
    ("solar", SOLAR, "<|content|>Yes.<|flush|>", "", "Yes."),
    ("solar", "<|begin|>assistant", f"<|think|>Hm.{SOLAR[-25:]}<|content|>Yes.<|flush|>", "Hm.", "Yes."),
    ("kimi k3", f"{K3}<|open|>think<|sep|>", f"a<|close|>think<|sep|><|open|>response<|sep|>b{AFTER_K3}", "a", "b"),
    ("kimi k3", f"{K3}<|open|>response<|sep|>", f"Yes.{AFTER_K3}", "", "Yes."),
    ("command", "<|x|>", "<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "a", "b"),
    ("command", "<|x|>", "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "", "Yes."),
    ("command", "<|START_THINKING|><|END_THINKING|>", "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "", "Yes."),
    ("hunyuan", "<|x|>", "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", "Hm.", "Yes."),
    ("hunyuan", "<think>\n\n</think>\n", "<answer>\nYes.\n</answer>", "", "Yes."),
    ("hunyuan 3", "<think:open>", "Hm.</think:open>\n\nYes.", "Hm.", "Yes."),
    ("granite 3.2", "<|x|>", "Here is my thought process:\n\nHm.\n\nHere is my response:\n\nYes.", "Hm.", "Yes."),
    ("granite 3.3", "<|x|>", "<think>Hm.</think>\n<response>Yes.</response>", "Hm.", "Yes."),
    ("ernie", "<think>\n", "Hm.\n</think>\n\n<response>\nYes.\n</response>\n", "Hm.", "Yes."),
    ("apriel", "Here are my reasoning steps:\n", "Hm.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]", "Hm.", "Yes."),
    ("apriel", "<|x|>", "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nYes.", "Hm.", "Yes."),
    ("olmo", "assistant\n<think>", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("longcat", "ASSISTANT:<longcat_think>\n", "Hm.\n</longcat_think>\nYes.", "Hm.", "Yes."),
    ("minimax", "ai\n", "<mm:think>Hm.</mm:think>Yes.", "Hm.", "Yes."),
    ("magistral", "[/INST]", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    ("seed", "assistant\n", "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
    ("qwen", "<think>\n", "Hm.\n</think>\n\n<answer>Yes.</answer>", "Hm.", "<answer>Yes.</answer>"),
    ("no template", "assistant\n", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
]  # fmt: skip
EACH = pytest.mark.parametrize(("case", "special"), itertools.product(CASES, (True, False)))


@cache
def tokenizer(family: str, special: bool = True) -> TargetTokenizer:
    made = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    marks = FAMILIES[family][1].split()
    made.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    return TargetTokenizer(made.to_str().encode())


def answer_of(case: tuple[str, ...], special: bool = True, stop: tuple[str, ...] = ()) -> AnswerText:
    """An answer that begins behind the prompt of a case."""
    known = tokenizer(case[0], special)
    ends = [
        known.encode_rendered(end)[0]
        for end in FAMILIES[case[0]][1].split()
        if end in ("<turn|>", "<|assistant_end|>")
    ]
    shown, prompt = AnswerText(known, stop, ends), known.encode_rendered(f"hello {case[1]}")
    shown.think(reader_of(thought_tags(FAMILIES[case[0]][0]), known, prompt, ("light", "wait")))
    return shown


def read(shown: AnswerText, ids: tuple[int, ...], size: int = 500) -> tuple[str, str]:
    """The thoughts and the text of these ids; `size`: tokens of a commit."""
    thoughts, text = "", ""
    for at in range(0, len(ids), size):
        told = shown.commit(ids[at : at + size])
        thoughts, text = thoughts + told.thoughts, text + told.text
        if shown.stopped_by:
            break
    rest = shown.end()
    return thoughts + rest[0], text + rest[1]


@EACH
def test_marks_tell_thoughts_from_the_answer(case, special):
    """Nor do stop strings count in thoughts, heads of messages and calls."""
    ids = tokenizer(case[0], special).encode_rendered(case[2])
    stop = ("Hm", "analysis", "final", "assistant", "commentary", "think", "functions", "light", '{"on')
    for size, strings in itertools.product((1, 3, 500), ((), stop)):
        assert read(answer_of(case, special, strings), ids, size) == case[3:]
    stopped = answer_of(case, special, ("es.", *stop))
    assert read(stopped, ids) == (case[3], case[4].split("es.")[0]) and bool(stopped.stopped_by) == (
        "es." in case[4]
    )


@pytest.mark.parametrize("case", [case for case in CASES if FAMILIES[case[0]][1]])
def test_an_answer_that_is_cut_shows_no_marks(case):
    ids = tokenizer(case[0]).encode_rendered(case[2])
    for length in range(len(ids)):
        thoughts, text = read(answer_of(case), ids[:length])
        assert case[3].startswith(thoughts.rstrip()) and case[4].startswith(text.rstrip()), (
            length,
            thoughts,
            text,
        )


@pytest.mark.parametrize(
    "mark", ("<|start|>", "<|end|>", "<|channel|>", "<channel|>", "<|inner_suffix|>", "<|sep|>")
)
def test_a_mark_spelled_in_letters_is_text(mark):
    case = next(case for case in CASES if mark in FAMILIES[case[0]][1])
    encode = tokenizer(case[0]).encode_rendered
    for written, said in zip(case[3:], ((f"{mark}!", case[4]), (case[3], f"{mark}!")), strict=True):
        before, _, after = case[2].partition(written)
        letters = [id for letter in f"{mark}!" for id in encode(letter)]
        assert read(answer_of(case), (*encode(before), *letters, *encode(after))) == said


FORM = Guide(json_schema='{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}')
AUTO, MUST, ONE = (Guide(tools=(LIGHT, WAIT), tool_choice=choice, function=name)
                   for choice, name in (("auto", ""), ("required", ""), ("required", "wait")))  # fmt: skip
BOTH = Guide(FORM.json_schema, (LIGHT, WAIT), "auto")


@pytest.mark.parametrize(
    ("guide", "text", "is_whole"),
    [(FORM, f'{FINAL}{{"a": true}}', True), (FORM, f"{FINAL}no", False), (AUTO, f"{FINAL}Hello", True),
     (AUTO, TO_LIGHT[:-8], True), (AUTO, LIGHT_FIRST[:-8], True), (AUTO, TO_LIGHT.replace("true", "1")[:-8], False),
     (MUST, f"{FINAL}Hello", False), (MUST, TO_LIGHT[:-8], True), (ONE, TO_LIGHT[:-8], False),
     (BOTH, f'{FINAL}{{"a": true}}', True), (BOTH, f"{FINAL}Hello", False), (BOTH, TO_LIGHT[:-8], True)],
)  # fmt: skip
def test_the_grammar_of_channels(guide, text, is_whole):
    known, ends = tokenizer("gpt-oss"), special_ends(tokenizer("gpt-oss")._tokenizer)
    guides = GuideCompiler(known._tokenizer.to_str().encode(), 2100, ends, "<|channel|>")
    prompt = known.encode_rendered("<|start|>assistant")
    for thoughts in ("", f'{ANALYSIS}hm {{"a": 1}} to=functions.wait{NEXT}'):
        ids = known.encode_rendered(thoughts + text)
        masks = guides.start(guide, (), "", prompt).next_masks(ids)
        allowed = all(whole(mask, id) for mask, id in zip(masks, ids))
        assert (allowed and whole(masks[-1], ends[-1])) == is_whole
    guides.close()


ENDS = {"gpt-oss": ["<|return|>", "<|call|>"], "gemma": ["<|end|>", "<turn|>"], "apertus": ["<|end|>", "<|assistant_end|>"],
        "kimi k3": ["<|end|>", "<|end_of_msg|>"], "qwen": ["<|end|>"]}  # fmt: skip


@pytest.mark.parametrize("family", ENDS)
def test_special_tokens_end_turns(family):
    for special in (True, False):
        known = tokenizer(family, special)
        ends = [known.piece(end) for end in special_ends(known._tokenizer)]
        assert ends == ([end for end in ENDS[family] if end == "<|end|>"] if not special else ENDS[family])


def test_channels_in_every_api(tmp_path):
    asks = [
        (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.", "Hm.", "Yes.", [], {}),
        (f"{FINAL}Yes.", "", "Yes.", [], {}),
        (f"{ANALYSIS}Hm.{NEXT}{TO_LIGHT}", "Hm.", "", CALLED, {"tools": TOOLS}),
        (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.", "Hm.", "Yes.", [], {"tools": TOOLS}),
        (f"<|channel|>commentary<|message|>I do.{NEXT}{LIGHT_FIRST}", "", "I do.", CALLED, {"tools": TOOLS}),
        (f"{ANALYSIS}{'and ' * 90}", "and" + 5 * " and", "", [], {"max_tokens": 9}),
    ]

    async def scenario():
        async with thinking(tmp_path / "m", "channels", False) as (server, edge, _):
            for written, thoughts, text, calls, more in asks:
                kinds = itertools.product((chat, responses, ollama, messages), (server, edge), (False, True))
                kinds = list(kinds)
                told = await asyncio.gather(
                    *(api(at, asked(written, **more), stream) for api, at, stream in kinds)
                )
                for kind, one in zip(kinds, told, strict=True):
                    assert (one.thoughts, one.text, one.calls) == (thoughts, text, calls), (kind, one)
                    assert (one.reason == "length") == ("max_tokens" in more)

    asyncio.run(scenario())


def test_a_text_beside_thoughts_and_a_call_is_no_dead_end():
    """As gpt-oss has it."""
    template = (
        "{% for m in messages %}{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
        "[{{ m.content or m.thinking }}]{{ m.tool_calls[0].function.name }}{% else %}{{ m.content }};{% endif %}{% endfor %}{{ tools }}"
    )
    chats = Chats(Templates(template, template), {}, "test")
    said = ChatMessage("assistant", "I do.", (ToolCall("1", "light", "{}"),), reasoning="Hm.")
    assert chats.render([ChatMessage("user", "on"), said], ()).startswith("on;[Hm.\n\nI do.]light")
