"""What tells thoughts from an answer, token by token, and the grammars behind them."""

import re
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensled.core.answer import Chunk
from opensled.core.messages import Guide
from opensled.text import call_forms
from opensled.text.answer_text import AnswerText
from opensled.text.chat_sandbox import environment, variables
from opensled.text.painter import Painter
from opensled.text.thinking import KNOWN, Start, ThoughtReader, reader_of, start_of, thoughts_by_key
from opensled.text.tokenizer import TargetTokenizer
from tests.guiding import EOS, IM_END, LIGHT, PADDED, WAIT, ids, tagged_tokenizer
from tests.thinking_world import whole
from verify_server.text.guide import GuideCompiler

THINK = KNOWN[0]
INSIDE, MAY_OPEN, NONE = Start(True, False), Start(False, True), Start(False, False)
STARTS = (INSIDE, MAY_OPEN, NONE)
WORDS = st.lists(
    st.sampled_from(
        ["<think>", "</think>", "<thi", "</", "<", ">", "nk>", " ", "\n", "\n\n", "a", "Ümläut", "<tool_call>"]
    ),
    max_size=12,
).map("".join)  # fmt: skip


def expected(text: str, start: Start) -> tuple[str, str]:
    """The same by regular expressions over the whole text."""
    if start.may_open and (opened := re.match(r"\s*<think>", text)):
        text = text[opened.end() :]
    elif not start.inside:
        return "", text
    thoughts, _, answered = text.partition("</think>")
    return thoughts.strip(), answered.lstrip()


def read(text: str, start: Start, cuts: list[int]) -> tuple[str, str, list[tuple[str, str]]]:
    reader, said = ThoughtReader(THINK, start), []
    for low, high in pairwise(sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})):
        said.append(reader.push(text[low:high]))
    said.append(reader.flush())
    return "".join(one.thoughts for one in said), "".join(one.text for one in said), said


LETTERS = list(range(150))  # a letter at a time


@given(WORDS, st.sampled_from(STARTS), st.just(LETTERS) | st.lists(st.integers(0, 80), max_size=30))
def test_each_division_reads_alike(text, start, cuts):
    thoughts, answered, said = read(text, start, cuts)
    assert (thoughts, answered) == expected(text, start)
    first = next((number for number, one in enumerate(said) if one.text), len(said))
    assert not any(one.thoughts for one in said[first + 1 :]), "no thought comes after the text"


@given(WORDS, st.sampled_from(STARTS), st.lists(st.integers(1, 4), min_size=20, max_size=20))
def test_tokens_are_counted_once(text, start, sizes):
    """Alike for every division into commits, and a guess leaves no trace."""
    tokens = tuple(ids(text))
    whole = AnswerText(tokenizer(), ())
    whole.think(ThoughtReader(THINK, start))
    told = whole.commit(tokens)
    parts = AnswerText(tokenizer(), ())
    parts.think(ThoughtReader(THINK, start))
    counted, thoughts, shown, at = 0, "", "", 0
    for size in [*sizes, len(tokens)]:
        parts.guess(tokens[at:])
        more = parts.commit(tokens[at : at + size])
        counted, thoughts, shown = counted + more.thought_tokens, thoughts + more.thoughts, shown + more.text
        at += size
    assert (counted, thoughts, shown) == (told.thought_tokens, told.thoughts, told.text)
    assert (thoughts + parts.end()[0], counted > 0) == (thoughts + whole.end()[0], bool(counted))


@cache
def tokenizer() -> TargetTokenizer:
    return TargetTokenizer(tagged_tokenizer())


TAILS = [
    ("<|assistant|>", MAY_OPEN), ("<|assistant|><think>", INSIDE), ("<|assistant|><think>\n", INSIDE),
    ("<|assistant|><think>\n\n</think>\n\n", NONE), ("<|assistant|></think>", NONE), ("", MAY_OPEN),
    ("<think> told <|assistant|>", MAY_OPEN),
]  # fmt: skip


@pytest.mark.parametrize(("tail", "start"), TAILS)
def test_the_end_of_the_prompt_says_how_an_answer_begins(tail, start):
    assert start_of(THINK, tail) == start
    found = reader_of(THINK, tokenizer(), ids(f"{'long ' * 90}{tail}"))
    assert (found.inside, found.decides) == start


def test_thoughts_go_by_the_keys_that_a_template_reads():
    assert thoughts_by_key("{{ m.reasoning_content }}", "a") == {"reasoning_content": "a"}
    assert thoughts_by_key("{{ m['thinking'] }}", "a") == {"thinking": "a"}
    assert thoughts_by_key("{{ m.reasoning_content }}", "") == thoughts_by_key("{{ m }}", "a") == {}


VARIABLES = [
    ("{% if not thinking is defined %}{% set thinking = false %}{% endif %}{{ thinking }}", ["thinking"]),
    ("{%- set enable_thinking = enable_thinking | default(true) %}{{ enable_thinking }}", ["enable_thinking"]),
    ("{% for thinking in messages %}{{ thinking }}{% endfor %}", ["messages"]),
    ("{% set thinking = 'a' %}{{ thinking }}{% macro f(x) %}{{ x }}{{ reasoning }}{% endmacro %}", ["reasoning"]),
    ("{%- set ns = namespace(a=b | default(0)) %}{{ strftime_now('x') }}{{ ns.c }}{{ d.thinking }}", ["b", "d"]),
    ("no {{ 'thinking' }} {# thinking #}", []),
]  # fmt: skip


@pytest.mark.parametrize(("template", "names"), VARIABLES)
def test_variables_of_templates(template, names):
    assert variables(environment(), template) == names


def test_painted_thoughts_and_text_are_those_of_the_chunk():
    words = "<think>\nha then\n</think>\n\nhello </think> you"
    tokens = tuple(ids(words))
    text, painter = AnswerText(tokenizer(), ()), Painter(tokenizer())
    text.think(ThoughtReader(THINK, MAY_OPEN))
    thoughts, said = [], []
    for token in tokens:
        told = text.commit((token,))
        one, other = painter.paint(Chunk(told.text, told.ids, origins=("bonus",), thoughts=told.thoughts))
        thoughts, said = thoughts + one, said + other
    end = text.end()
    one, other = painter.paint(Chunk(end[1], (), "eos", thoughts=end[0]))
    assert "".join(part for part, _ in thoughts + one) == "ha then"
    assert "".join(part for part, _ in said + other) == "hello </think> you"


# -- grammars behind thoughts

ON = '{"name": "light", "arguments": {"on": true}}'
TAGGED_ON = f"<tool_call>\n{ON}\n</tool_call>"
FORM = Guide(json_schema='{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], '
             '"additionalProperties": false}')  # fmt: skip
AUTO, MUST = (Guide(tools=(LIGHT, WAIT), tool_choice=choice) for choice in ("auto", "required"))
BARE, TAGGED = "<think></think>", "{% if tools %}<tool_call>{% endif %}<think></think>"
OPENED, PLAIN, CLOSED = "q<think>\n", "q", "q<think>\n\n</think>\n\n"
GRAMMARS = [
    (BARE, FORM, OPENED, 'hm {"a": 1}</think>\n\n{"a": true}', True),
    (BARE, FORM, OPENED, '</think>{"a": true}', True),
    (BARE, FORM, OPENED, '{"a": true}', False),
    (BARE, FORM, OPENED, "hm</think>no", False),
    (BARE, FORM, OPENED, "hm</think>" + "\n" * 50, False),
    (BARE, FORM, PLAIN, '<think>hm</think> {"a": false}', True),
    (BARE, FORM, PLAIN, '\n<think>hm</think>{"a": false}', True),
    (BARE, FORM, PLAIN, '{"a": true}', True),
    (BARE, FORM, PLAIN, 'hm</think>{"a": true}', False),
    (BARE, FORM, CLOSED, '{"a": true}', True),
    (BARE, FORM, CLOSED, '<think></think>{"a": true}', False),
    (BARE, AUTO, OPENED, f"{ON}</think>\n\n{ON}", True),
    (BARE, AUTO, OPENED, f"{ON}</think>\n\nWell, {{}}", True),
    (BARE, AUTO, OPENED, 'hm</think>\n\n{"name": "fly"', False),
    (BARE, AUTO, PLAIN, f"<think>{ON} or</think>\n{ON}", True),
    (BARE, AUTO, PLAIN, ON, True),
    (BARE, AUTO, PLAIN, "Hello", True),
    (BARE, AUTO, PLAIN, "<thing>", True),
    (BARE, MUST, PLAIN, f"<think>a</think>{ON}", True),
    (BARE, MUST, PLAIN, "<think>a</think>Hello", False),
    (TAGGED, AUTO, OPENED, f"no {TAGGED_ON} yet <tool_call></think>\n\n{TAGGED_ON}", True),
    (TAGGED, AUTO, OPENED, f"no {TAGGED_ON}", True),
    (TAGGED, AUTO, PLAIN, f"<think>{TAGGED_ON}", True),
    (TAGGED, AUTO, OPENED, "a</think>b <tool_call>c", False),
    (TAGGED, AUTO, PLAIN, f"<think><tool_call> no</think>Well. {TAGGED_ON}", True),
    (TAGGED, AUTO, PLAIN, "<think>a</think>b <tool_call>c", False),
    (TAGGED, AUTO, PLAIN, "b <tool_call>c", False),
    (TAGGED, AUTO, PLAIN, "b <think> c", True),
    (TAGGED, MUST, OPENED, f"{TAGGED_ON}</think>\n{TAGGED_ON}", True),
    (TAGGED, MUST, OPENED, TAGGED_ON, False),
    (TAGGED, MUST, CLOSED, TAGGED_ON, True),
]  # fmt: skip


@cache
def guides(template: str) -> GuideCompiler:
    calls = call_forms.TAGGED if "<tool_call>" in template else call_forms.BARE
    return GuideCompiler(tagged_tokenizer(), PADDED, (IM_END, EOS), template, calls)


@pytest.mark.parametrize(("template", "guide", "prompt", "text", "is_whole"), GRAMMARS)
def test_the_grammar_begins_behind_thoughts(template, guide, prompt, text, is_whole):
    """Also for a draft that crosses their end, and where the answer is taken up in the middle of either."""
    tokens, before = ids(text), ids(prompt)
    masks = guides(template).start(guide, (), "", before).next_masks(tokens)
    allowed = all(whole(mask, token) for mask, token in zip(masks, tokens))
    assert (allowed and whole(masks[-1], EOS)) == is_whole
    if allowed:
        for known in range(0, len(tokens), 3):
            taken_up = guides(template).start(guide, tokens[:known], "", before)
            assert taken_up.next_masks(tokens[known:]) == masks[known:]
