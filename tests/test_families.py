"""Families of models: what their marks tell apart, where they are special tokens and where they are text.

Run: pytest tests/test_families.py
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import pytest
from tokenizers import AddedToken, Tokenizer

from opensled.text.answer_text import AnswerText
from opensled.text.thinking import reader_of, thought_tags
from opensled.text.tokenizer import TargetTokenizer
from tests.guiding import TINY

HARMONY = "{{ m.thinking }}<|start|>assistant<|channel|>analysis<|message|><|channel|>final<|message|>"
HARMONY_MARKS = "<|start|> <|channel|> <|message|> <|constrain|> <|end|> <|return|> <|call|>"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
SOLAR = "<|begin|>assistant<|think|><|end|><|begin|>assistant"
SOLAR_MARKS = "<|begin|> <|end|> <|think|> <|content|> <|flush|> <|calls|> <|tool_calls|>"
GEMMA = "{% if x %}<|channel>thought\n<channel|>{% endif %}<|think|>"
COHERE = "<|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|>"
K3 = "{{ '<|open|>' + tag + '<|sep|>' }}{{ '<|close|>' }}"
K3_MARKS = "<|open|> <|close|> <|sep|> <|end_of_msg|>"
K3_OPENED = '<|open|>message role="assistant"<|sep|><|open|>think<|sep|>'
APRIEL = "Here are my reasoning steps:\n [BEGIN FINAL RESPONSE] ... [END FINAL RESPONSE]"


class Case(NamedTuple):
    """What a family writes behind the end of a prompt, and what clients are shown."""

    template: str
    marks: str  # added tokens
    prompt: str  # its end
    answer: str
    thoughts: str
    text: str
    tools: tuple[str, ...] = ()


CALLED = '<tool_call>\n{"name": "light", "arguments": {"on": true}}\n</tool_call>'
LIGHT = ("light", "wait")
CASES = {
    "gpt-oss": Case(HARMONY, HARMONY_MARKS, "<|start|>assistant", f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.<|return|>", "Hm.", "Yes."),
    "gpt-oss, at once": Case(HARMONY, HARMONY_MARKS, "<|start|>assistant", f"{FINAL}Yes.<|return|>", "", "Yes."),
    "gpt-oss, two thoughts": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant", f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c<|return|>", "a\nb", "c"),
    "gpt-oss, preamble": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant",
        f"{ANALYSIS}a{NEXT}<|channel|>commentary<|message|>I look.{NEXT}{FINAL}Yes.<|return|>", "a", "I look.\nYes."),
    "gpt-oss, prompt in thoughts": Case(
        HARMONY, HARMONY_MARKS, f"<|start|>assistant{ANALYSIS}", f"Hm.{NEXT}{FINAL}Yes.<|return|>", "Hm.", "Yes."),
    "gpt-oss, prompt in the answer": Case(
        HARMONY, HARMONY_MARKS, f"<|start|>assistant{FINAL}", "Yes.<|return|>", "", "Yes."),
    "gpt-oss, no channels": Case(HARMONY, HARMONY_MARKS, "<|start|>assistant", "Today is fine.<|return|>", "", "Today is fine."),
    "gpt-oss, JSON": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant",
        '<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>', "", '{"a": 1}'),
    "gpt-oss, call": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant",
        f'{ANALYSIS}a{NEXT}<|channel|>commentary to=functions.light <|constrain|>json<|message|>{{"on": true}}<|call|>',
        "a", CALLED, LIGHT),
    "gpt-oss, recipient first": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant",
        f'{ANALYSIS}a{NEXT} to=functions.light<|channel|>commentary json<|message|>{{"on": true}}<|call|>',
        "a", CALLED, LIGHT),
    "gpt-oss, recipient at once": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant",
        ' to=functions.light<|channel|>commentary json<|message|>{"on": true}<|call|>', "", CALLED, LIGHT),
    "gpt-oss, no arguments": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant", "<|channel|>commentary to=wait<|message|><|call|>", "",
        '<tool_call>\n{"name": "wait", "arguments": {}}\n</tool_call>', LIGHT),
    "gpt-oss, preamble and call": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant",
        f"<|channel|>commentary<|message|>I do.{NEXT}<|channel|>commentary to=functions.light<|constrain|>json<|message|>"
        '{"on": true}<|call|>', "", f"I do.{CALLED}", LIGHT),
    "gpt-oss, a tool that is not there": Case(
        HARMONY, HARMONY_MARKS, "<|start|>assistant",
        '<|channel|>analysis to=browser.search code<|message|>{"q": 1}<|call|>', '{"q": 1}', "", LIGHT),
    "Gemma 4": Case(GEMMA, "<|channel> <channel|> <turn|>", "<|turn>model\n", "<|channel>thought\nHm.\n<channel|>Yes.<turn|>", "Hm.", "Yes."),
    "Gemma 4, no thoughts": Case(GEMMA, "<|channel> <channel|> <turn|>", "<|channel>thought\n<channel|>", "Yes.<turn|>", "", "Yes."),
    "Gemma 4, empty thoughts": Case(GEMMA, "<|channel> <channel|> <turn|>", "model\n", "<|channel>thought\n<channel|>Yes.", "", "Yes."),
    "Gemma 4, prompt in thoughts": Case(
        GEMMA, "<|channel> <channel|> <turn|>", "<|channel>thought\n", "Hm.<channel|>Yes.", "Hm.", "Yes."),
    "Apertus": Case(
        "{%- set inner_token = '<|inner_prefix|>' -%}{%- set outer_token = '<|inner_suffix|>' -%}",
        "<|inner_prefix|> <|inner_suffix|> <|assistant_end|>", "<|assistant_start|>",
        "<|inner_prefix|>Hm.<|inner_suffix|>Yes.<|assistant_end|>", "Hm.", "Yes."),
    "Solar Open": Case(SOLAR, SOLAR_MARKS, "<|begin|>assistant", "<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.<|flush|>", "Hm.", "Yes."),
    "Solar Open, no thoughts": Case(SOLAR, SOLAR_MARKS, SOLAR, "<|content|>Yes.<|flush|>", "", "Yes."),
    "Kimi K3": Case(
        K3, K3_MARKS, K3_OPENED,
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
        "Hm.", "Yes."),
    "Kimi K3, no thoughts": Case(K3, K3_MARKS, "<|open|>response<|sep|>", "Yes.<|close|>response<|sep|><|end_of_msg|>", "", "Yes."),
    "Command R7B": Case(
        COHERE, COHERE, "<|CHATBOT_TOKEN|>",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Hm.", "Yes."),
    "Command R7B, at once": Case(COHERE, COHERE, "<|CHATBOT_TOKEN|>", "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "", "Yes."),
    "Command A, thoughts closed": Case(
        COHERE, COHERE, "<|START_THINKING|><|END_THINKING|>", "<|START_RESPONSE|>Yes.<|END_RESPONSE|>", "", "Yes."),
    "Hunyuan": Case(
        "'</think>' <answer> </answer>", "", "<｜hy_Assistant｜>", "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", "Hm.", "Yes."),
    "Hunyuan, no thoughts": Case(
        "</think> <answer> </answer>", "", "<think>\n\n</think>\n", "<answer>\nYes.\n</answer>", "", "Yes."),
    "Hunyuan 3": Case(
        "{%- set HYTK = ':opensource' %}{%- set a = '<think{}>'.format(HYTK) %}{%- set b = '</think{}>'.format(HYTK) %}",
        "", "<think:opensource>", "Hm.</think:opensource>\n\nYes.", "Hm.", "Yes."),
    "Granite 3.2": Case(
        "Write your thoughts after 'Here is my thought process:' and your response after 'Here is my response:'", "",
        "<|end_of_role|>", "Here is my thought process:\n\nHm.\n\nHere is my response:\n\nYes.", "Hm.", "Yes."),
    "Granite 3.3": Case(
        "<think></think> <response></response>", "", "<|end_of_role|>",
        "<think>Hm.</think>\n<response>Yes.</response>", "Hm.", "Yes."),
    "ERNIE": Case(
        "'</think>' '<response>' '</response>'", "<think> </think> <response> </response>", "Assistant: <think>\n",
        "Hm.\n</think>\n\n<response>\nYes.\n</response>\n", "Hm.", "Yes."),
    "Apriel 1.5": Case(
        APRIEL, "", "<|assistant|>\n", "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]\n", "Hm.", "Yes."),
    "Apriel 1.6": Case(
        APRIEL, "", "<|assistant|>\nHere are my reasoning steps:\n", "Hm.\n[BEGIN FINAL RESPONSE]\nYes.\n", "Hm.", "Yes.\n"),
    "Olmo 3": Case("<|im_start|>assistant\n<think>", "", "<|im_start|>assistant\n<think>", "Hm.</think>Yes.", "Hm.", "Yes."),
    "LongCat": Case("'</longcat_think>'", "", "ASSISTANT:<longcat_think>\n", "Hm.\n</longcat_think>\nYes.", "Hm.", "Yes."),
    "MiniMax M3": Case("'<mm:think>' '</mm:think>'", "", "ai\n", "<mm:think>Hm.</mm:think>Yes.", "Hm.", "Yes."),
    "Magistral": Case("[THINK][/THINK]", "[THINK] [/THINK]", "[/INST]", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    "Seed": Case("</seed:think>", "<seed:think> </seed:think>", "<seed:bos>assistant\n", "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
    "Qwen, answer with tags": Case(
        "</think>", "<think> </think>", "<think>\n", "Hm.\n</think>\n\n<answer>Yes.</answer>", "Hm.", "<answer>Yes.</answer>"),
}  # fmt: skip


@cache
def tokenizer(marks: str, special: bool) -> TargetTokenizer:
    made = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    made.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks.split()])
    return TargetTokenizer(made.to_str().encode())


def read(case: Case, special: bool, size: int, stop: tuple[str, ...] = ()) -> tuple[str, str, str]:
    """The thoughts, the text, and the stop string that ended it; `size`: tokens of a commit."""
    known = tokenizer(case.marks, special)
    ends = [known.encode_rendered(end)[0] for end in ("<turn|>", "<|assistant_end|>") if end in case.marks]
    shown = AnswerText(known, stop, ends)
    prompt = known.encode_rendered(f"hello {case.prompt}")
    shown.think(reader_of(thought_tags(case.template), known, prompt, case.tools))
    ids, thoughts, text = known.encode_rendered(case.answer), "", ""
    for at in range(0, len(ids), size):
        told = shown.commit(ids[at : at + size])
        thoughts, text = thoughts + told.thoughts, text + told.text
        if shown.stopped_by:
            break
    rest = shown.end()
    return thoughts + rest[0], text + rest[1], shown.stopped_by


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_marks_tell_thoughts_from_the_answer(name, special):
    case = CASES[name]
    for size in (1, 3, 500):
        assert read(case, special, size) == (case.thoughts, case.text, "")


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_stop_strings_count_in_no_thought_head_or_call(name, special):
    case = CASES[name]
    stop = ("Hm", "analysis", "final", "assistant", "commentary", "think", "functions", "light", '{"on')
    assert read(case, special, 1, stop) == (case.thoughts, case.text, "")
    if "Yes." in case.text:
        assert read(case, special, 3, ("es.", *stop)) == (case.thoughts, case.text.split("es.")[0], "es.")


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.marks])
def test_an_answer_that_is_cut_shows_no_marks(name):
    case, known = CASES[name], tokenizer(CASES[name].marks, True)
    ids = known.encode_rendered(case.answer)
    for length in range(len(ids)):
        shown = AnswerText(known, ())
        prompt = known.encode_rendered(f"hello {case.prompt}")
        shown.think(reader_of(thought_tags(case.template), known, prompt, case.tools))
        told, rest = shown.commit(ids[:length]), shown.end()
        thoughts, text = (told.thoughts + rest[0]).rstrip(), (told.text + rest[1]).rstrip()
        assert case.thoughts.startswith(thoughts) and case.text.startswith(text), (length, thoughts, text)


@pytest.mark.parametrize("mark", (*HARMONY_MARKS.split(), *K3_MARKS.split(), "<channel|>", "<|inner_prefix|>"))
def test_a_mark_spelled_in_letters_is_text(mark):
    case = next(case for case in CASES.values() if mark in case.marks)
    known, thoughts = tokenizer(case.marks, True), case.thoughts
    letters = [id for letter in f"a {mark} b" for id in known.encode_rendered(letter)]
    for written, at in ((case.thoughts, 0), (case.text, 1)):
        before, _, after = case.answer.partition(written)
        ids = (*known.encode_rendered(before), *letters, *known.encode_rendered(after))
        shown = AnswerText(known, ())
        shown.think(reader_of(thought_tags(case.template), known, known.encode_rendered(case.prompt)))
        told, rest = shown.commit(ids), shown.end()
        said = [told.thoughts + rest[0], told.text + rest[1]]
        assert said[at] == f"a {mark} b" and said[1 - at] == (thoughts, case.text)[1 - at]
