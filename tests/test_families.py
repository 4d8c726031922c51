"""Families of models: what their marks tell apart, where they are special tokens and where they are text."""

import asyncio
import itertools
from functools import cache

import pytest
from tokenizers import AddedToken, Tokenizer

from opensled.core.messages import Guide
from opensled.text.answer_text import AnswerText
from opensled.text.call_forms import TAGGED
from opensled.text.thinking import reader_of, thought_tags
from opensled.text.tokenizer import TargetTokenizer
from tests.guiding import LIGHT, TINY, WAIT
from tests.thinking_world import CALLED, TOOLS, asked, chat, messages, ollama, responses, thinking, whole
from verify_server.text.gguf_ends import special_ends
from verify_server.text.guide import GuideCompiler

NEXT, CALL = (
    "<|end|><|start|>assistant",
    '<tool_call>\n{"name": "light", "arguments": {"on": true}}\n</tool_call>',
)
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
TO_LIGHT = '<|channel|>commentary to=functions.light <|constrain|>json<|message|>{"on": true}<|call|>'
LIGHT_FIRST = ' to=functions.light<|channel|>commentary json<|message|>{"on": true}<|call|>'
SOLAR, K3 = "<|begin|>assistant<|think|><|end|><|begin|>assistant", '<|open|>message role="assistant"<|sep|>'
AFTER_K3 = "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"
BEGUN = ("<|begin_of_thought|>", "<|begin_of_solution|>")
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
    "marco": ("think inside <Thought>, answer inside <Output>", ""),
    "sky": 2 * ("<|begin_of_thought|> <|end_of_thought|> <|begin_of_solution|> <|end_of_solution|>",),
    "capitals": ("'<THINK>' '</THINK>' '<Final_Answer>' '</Final_Answer>'", ""),
    "begun": ("[begin_thinking] [end_thinking] [begin_answer] [end_answer]", ""),
    "upper": ("<|END_OF_THOUGHT|>", ""),
    "stopped": ("'<|start_of_reasoning|>' '<|stop_of_reasoning|>'", ""),
    "ended": 2 * ("<|think_start|> <|think_end|>",),
    "kimi vl": (".", "◁think▷ ◁/think▷"),
    "medgemma": (".", "<unused94> <unused95>"),
    "no template": (".", "<think> </think>"),
    "no marks": (".", ""),
}
# The family, the end of the prompt, what the model writes, and what of it is thought and answered.
CASES = [
    ("gpt-oss", "<|start|>assistant", f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.<|return|>", "Hm.", "Yes."),
    ("gpt-oss", "<|start|>assistant", f"{FINAL}Yes.<|return|>", "", "Yes."),
    ("gpt-oss", "<|start|>assistant", f"{ANALYSIS}a{NEXT}{ANALYSIS}b{NEXT}{FINAL}c<|return|>", "a\nb", "c"),
    ("gpt-oss", "<|start|>assistant", f"<|channel|>commentary<|message|>I{NEXT}{FINAL}c<|return|>", "", "I\nc"),
    ("gpt-oss", f"<|start|>assistant{ANALYSIS}", f"Hm.{NEXT}{FINAL}Yes.<|return|>", "Hm.", "Yes."),
    ("gpt-oss", f"<|start|>assistant{FINAL}", "Yes.<|return|>", "", "Yes."),
    ("gpt-oss", "<|start|>assistant", f"{ANALYSIS}a{FINAL}Yes.<|return|>", "a", "Yes."),
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
    ("apertus", "<|x|>", "<|inner_prefix|>a<|inner_suffix|>b<|inner_prefix|>c<|inner_suffix|>d", "a\nc", "b\nd"),
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
    ("apriel", "Here are my reasoning steps:", "a\n[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]", "a", "Yes."),
    ("apriel", "<|x|>", "Here are my reasoning steps:\nHm.\n[BEGIN FINAL RESPONSE]\nYes.", "Hm.", "Yes."),
    ("olmo", "assistant\n<think>", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("olmo", "<think>", f"Hm.\n{CALL}", "Hm.", CALL),
    ("olmo", "<think>", f"Hm.\n{CALL}\n</think>Yes.", f"Hm.\n{CALL}", "Yes."),
    ("longcat", "ASSISTANT:<longcat_think>\n", "Hm.\n</longcat_think>\nYes.", "Hm.", "Yes."),
    ("minimax", "ai\n", "<mm:think>Hm.</mm:think>Yes.", "Hm.", "Yes."),
    ("magistral", "[/INST]", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    ("seed", "assistant\n", "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
    ("qwen", "<think>\n", "Hm.\n</think>\n\n<answer>Yes.</answer>", "Hm.", "<answer>Yes.</answer>"),
    ("marco", "assistant\n", "<Thought>\na\n</Thought>\n<Output>\nb\n</Output>", "a", "b"),
    ("no marks", "x", f"{BEGUN[0]}a<|end_of_thought|>\n\n{BEGUN[1]}\nb\n<|end_of_solution|>", "a", "b"),
    ("sky", "x", f"{BEGUN[1]}Yes.<|end_of_solution|>", "", "Yes."),
    ("capitals", "x", "<THINK>a</THINK><Final_Answer>b</Final_Answer>", "a", "b"),
    ("begun", "x", "[begin_thinking]a[end_thinking][begin_answer]b[end_answer]", "a", "b"),
    ("upper", "x", "<|BEGIN_OF_THOUGHT|>a<|END_OF_THOUGHT|>b", "a", "b"),
    ("stopped", "<|start_of_reasoning|>", "a<|stop_of_reasoning|>b", "a", "b"),
    ("ended", "x", "<|think_start|>a<|think_end|>b", "a", "b"),
    ("kimi vl", "x", "◁think▷Hm.◁/think▷Yes.", "Hm.", "Yes."),
    ("no marks", "x", "<Thinking>\nHm.\n</Thinking>\n\nYes.", "Hm.", "Yes."),
    ("no marks", "<reasoning>\n", "Hm.\n</reasoning>\nYes.", "Hm.", "Yes."),
    ("medgemma", "model\n", "<unused94>thought\nHm.\n<unused95>Yes.", "Hm.", "Yes."),
    ("no marks", "x", "<start_working_out>a<end_working_out>\n<SOLUTION>b</SOLUTION>", "a", "b"),
    ("no marks", "x", "<Thoughtless> [words] <|x|>", "", "<Thoughtless> [words] <|x|>"),
    ("no template", "assistant\n", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("no marks", "assistant\n", "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
]  # fmt: skip


@cache
def tokenizer(family: str, special: bool = True) -> TargetTokenizer:
    made = Tokenizer.from_file(str(TINY / "tokenizer.json"))
    marks = FAMILIES[family][1].split()
    made.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    return TargetTokenizer(made.to_str().encode())


def read(case, ids, special=True, size=500, stop=()) -> tuple[str, str]:
    """The thoughts and the text of these ids behind the prompt of a case; `size`: tokens of a commit."""
    known, (template, marks) = tokenizer(case[0], special), FAMILIES[case[0]]
    ends = [known.encode_rendered(end)[0] for end in ("<turn|>", "<|assistant_end|>") if end in marks]
    shown, prompt = AnswerText(known, stop, ends), known.encode_rendered(f"hello {case[1]}")
    shown.think(reader_of(thought_tags(template), known, prompt, AUTO, TAGGED))
    told = [shown.commit(ids[at : at + size]) for at in range(0, len(ids), size) if not shown.stopped_by]
    thoughts, text = shown.end()
    return "".join(one.thoughts for one in told) + thoughts, "".join(one.text for one in told) + text


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_marks_tell_thoughts_from_the_answer(case, special):
    """Stop strings count in its text alone."""
    ids = tokenizer(case[0], special).encode_rendered(case[2])
    stop = ("Hm", "analysis", "final", "assistant", "commentary", "think", "functions", "light", '{"on')
    for size, strings in ((1, ()), (3, stop), (500, stop)):
        assert read(case, ids, special, size, strings) == case[3:]
    assert read(case, ids, special, stop=("es.", *stop)) == (case[3], case[4].split("es.")[0])


@pytest.mark.parametrize("case", [case for case in CASES if FAMILIES[case[0]][1]])
def test_an_answer_that_is_cut_shows_no_marks(case):
    ids = tokenizer(case[0]).encode_rendered(case[2])
    for length in range(len(ids)):
        for whole_text, part in zip(case[3:], read(case, ids[:length]), strict=True):
            assert whole_text.startswith(part.rstrip()), (length, part)


@pytest.mark.parametrize("mark", ["<|start|>", "<|end|>", "<channel|>", "<|inner_suffix|>", "<|sep|>"])
def test_a_mark_spelled_in_letters_is_text(mark):
    case = next(case for case in CASES if mark in FAMILIES[case[0]][1])
    encode = tokenizer(case[0]).encode_rendered
    for written, said in zip(case[3:], ((f"{mark}!", case[4]), (case[3], f"{mark}!")), strict=True):
        before, _, after = case[2].partition(written)
        letters = [id for letter in f"{mark}!" for id in encode(letter)]
        assert read(case, (*encode(before), *letters, *encode(after))) == said


FORM = Guide(json_schema='{"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}')
AUTO, MUST, ONE = (
    Guide("", (LIGHT, WAIT), *choice) for choice in (("auto",), ("required",), ("required", "wait"))
)
BOTH, JSON, TO_NONE = Guide(FORM.json_schema, (LIGHT, WAIT), "auto"), f'{FINAL}{{"a": true}}', f"{FINAL}Hello"
GUIDED = [
    (FORM, JSON, True), (FORM, TO_NONE, False), (AUTO, TO_NONE, True), (AUTO, TO_LIGHT, True), (MUST, TO_LIGHT, True),
    (AUTO, LIGHT_FIRST, True), (AUTO, TO_LIGHT.replace("true", "1"), False), (MUST, TO_NONE, False),
    (ONE, TO_LIGHT, False), (BOTH, JSON, True), (BOTH, TO_NONE, False), (BOTH, TO_LIGHT, True),
]  # fmt: skip


@pytest.mark.parametrize(("guide", "text", "is_whole"), GUIDED)
def test_the_grammar_of_channels(guide, text, is_whole):
    known, ends = tokenizer("gpt-oss"), special_ends(tokenizer("gpt-oss")._tokenizer)
    guides = GuideCompiler(known._tokenizer.to_str().encode(), 2100, ends, "<|channel|>")
    for thoughts in ("", f'{ANALYSIS}hm {{"a": 1}} to=functions.wait{NEXT}'):
        ids = known.encode_rendered(thoughts + text.removesuffix("<|call|>"))
        masks = guides.start(guide, (), "", known.encode_rendered("<|start|>assistant")).next_masks(ids)
        allowed = all(whole(mask, id) for mask, id in zip(masks, ids))
        assert (allowed and whole(masks[-1], ends[-1])) == is_whole
    guides.close()


ENDS = [
    ("gpt-oss", "<|return|> <|call|>"),
    ("gemma", "<|end|> <turn|>"),
    ("apertus", "<|end|> <|assistant_end|>"),
]


@pytest.mark.parametrize(("family", "ends"), ENDS)
def test_special_tokens_end_turns(family, ends):
    for special in (True, False):
        known = tokenizer(family, special)
        spelled = [end for end in ends.split() if special or end == "<|end|>"]  # which is tiny's own
        assert [known.piece(end) for end in special_ends(known._tokenizer)] == spelled


ASKED = [
    (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.", "Hm.", "Yes.", [], {}),
    (f"{FINAL}Yes.", "", "Yes.", [], {}),
    (f"{ANALYSIS}Hm.{NEXT}{TO_LIGHT}", "Hm.", "", CALLED, {"tools": TOOLS}),
    (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.", "Hm.", "Yes.", [], {"tools": TOOLS}),
    (f"<|channel|>commentary<|message|>I do.{NEXT}{LIGHT_FIRST}", "", "I do.", CALLED, {"tools": TOOLS}),
    (f"{ANALYSIS}{'and ' * 90}", "and and", "", [], {"max_tokens": 9}),
]


async def test_channels_in_every_api(tmp_path):
    async def check(written, thoughts, text, calls, more, api, client, stream):
        told = await api(client, asked(written, **more), stream)
        assert (told.thoughts, told.text, told.calls) == (thoughts, text, calls), (api, stream, told)
        assert (told.reason == "length") == ("max_tokens" in more)

    async with thinking(tmp_path / "m", "channels", False) as (server, edge, _):
        for case in ASKED:
            kinds = itertools.product((chat, responses, ollama, messages), (server, edge), (False, True))
            await asyncio.gather(*(check(*case, *kind) for kind in kinds))
