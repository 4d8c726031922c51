"""Tools: how calls are written, what may surround them, and what a chat template gets to see of them."""

import json
import random

import jsonschema
import pytest
from transformers import AutoTokenizer

from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import ChatMessage, Guide, Tool, ToolCall
from tests.guiding import (
    EOS,
    IM_END,
    LIGHT,
    PADDED,
    TAGGED,
    TINY,
    WAIT,
    completes,
    decode,
    follows,
    ids,
    may_follow,
    tagged,
    tagged_tokenizer,
    tiny,
    walk,
)
from verify_server.text.chat_template import parameters, template_input
from verify_server.text.guide import GuideCompiler
from verify_server.text.hf_text import HFText

TOOLS = (LIGHT, WAIT)
ON = '{"name": "light", "arguments": {"on": true}}'
THREE = '{"name": "wait", "arguments": {"s": 3}}'


def guide(choice: str, **fields: object) -> Guide:
    return Guide(tools=TOOLS, tool_choice=choice, **fields)


def tags(call: str) -> str:
    return f"<tool_call>\n{call}\n</tool_call>"


def is_call(text: str) -> bool:
    """Whether a text is a JSON call of one of `TOOLS`, with arguments of its schema."""
    call = json.loads(text)
    schema = parameters(next(tool for tool in TOOLS if tool.name == call["name"]))
    jsonschema.Draft202012Validator(schema).validate(call["arguments"])
    return list(call) == ["name", "arguments"]


@pytest.mark.parametrize("parallel", [False, True])
def test_required_walks_are_calls(parallel):
    rng = random.Random(1)
    wanted = guide("required", parallel=parallel)
    for _ in range(15):
        assert is_call(decode(walk(tiny(), wanted, rng)))
        blocks = decode(walk(tagged(), wanted, rng)).split("</tool_call>")
        assert blocks[-1] == "" and (parallel or len(blocks) == 2)
        for block in blocks[:-1]:
            assert is_call(block.strip().removeprefix("<tool_call>"))


BARE = [
    ("required", ON, True),
    ("required", THREE, True),
    ("required", '{"name": "wait", "arguments": {"s": 3.5}}', False),
    ("required", '{"name": "wait", "arguments": {"s": 3, "x": 1}}', False),
    ("required", '{"name": "fly", "arguments": {}}', False),
    ("required", '{"arguments": {"on": true}, "name": "light"}', False),
    ("required", "Hello", False),
    ("required", f"{ON}\n{ON}", False),
    ("auto", ON, True),
    ("auto", "Hello, {you}", True),
    ("auto", "", True),
    ("auto", " \n", True),
    ("auto", '{"tool": "light.switch"}', False),
    ("auto", ' {"tool"', False),
    ("auto", f"{ON} done", False),
]


@pytest.mark.parametrize(("choice", "text", "whole"), BARE)
def test_bare_calls(choice, text, whole):
    assert completes(tiny(), guide(choice), text) == whole


TAGGED_ANSWERS = [
    ("required", tags(ON), True),
    ("required", f"<tool_call>{ON}</tool_call>", True),
    ("required", ON, False),
    ("required", f"Well. {tags(ON)}", False),
    ("required", f"{tags(ON)}\n{tags(THREE)}", False),
    ("parallel", f"{tags(ON)}\n{tags(THREE)}", True),
    ("parallel", f"{tags(ON)}\n{tags(THREE)}\n{tags(ON)}", True),
    ("parallel", f"{tags(ON)}{tags(THREE)}", True),
    ("auto", tags(ON), True),
    ("auto", "Hello, {you} <b>", True),
    ("auto", "", True),
    ("auto", f"<think>\nThe light.\n</think>\n\n{tags(ON)}", True),
    ("auto", f"Well. {tags(ON)}", True),
    ("auto", "Well. <tool_call> ", False),
    ("auto", "Well. <tool_call>\n[", False),
    ("auto", f"{tags(ON)} done", False),
    ("auto", f"{tags(ON)}\n", False),
]


@pytest.mark.parametrize(("choice", "text", "whole"), TAGGED_ANSWERS)
def test_calls_between_tags(choice, text, whole):
    wanted = guide("required", parallel=True) if choice == "parallel" else guide(choice)
    assert completes(tagged(), wanted, text) == whole


def test_a_tag_may_be_one_added_token_or_spelled_out():
    opening = may_follow(tagged().start(guide("required"), ()))
    assert opening == {2048, ids("<")[0], *ids("<t")[:1]}
    spelled = [token for text in ("<to", "ol_", "call", ">") for token in ids(text)]
    assert 2048 not in spelled
    for committed in ([2048], spelled, [*ids("Well. "), *spelled]):
        follows_tag = may_follow(tagged().start(guide("auto"), committed))
        assert {decode([token]).strip() for token in follows_tag} == {"", "{", '{"'}


def test_free_text_may_hold_added_tokens_but_no_control_tokens():
    choices = may_follow(tagged().start(guide("auto"), ids("Hello")))
    assert {2048 + TAGGED.index("<think>"), 2048, 2049, EOS, IM_END} <= choices
    assert not choices & {1, 2, 3, *range(2048 + len(TAGGED), PADDED)}


@pytest.mark.parametrize("guides", [tiny, tagged])
def test_a_named_function_is_the_only_one(guides):
    wanted = guide("required", function="wait")
    wrap = tags if guides is tagged else str
    assert completes(guides(), wanted, wrap(THREE))
    assert not completes(guides(), wanted, wrap(ON))


def test_a_schema_beside_tools_is_the_answer_when_nothing_is_called():
    wanted = guide("auto", json_schema='{"properties": {"a": {"type": "null"}}, "type": "object"}')
    assert completes(tagged(), wanted, '{"a": null}')
    assert completes(tagged(), wanted, tags(ON))
    assert not follows(tagged(), wanted, "Hello")
    assert completes(tiny(), wanted, '{"a": null}') and completes(tiny(), wanted, ON)
    assert not follows(tiny(), wanted, "Hello") and not follows(tiny(), wanted, '{"b"')
    assert completes(tiny(), guide("required", json_schema="{}"), ON)


def test_references_stay_within_their_tool():
    trees = [
        Tool(f"t{i}", "", json.dumps({"properties": {"x": {"$ref": "#/$defs/x"}, "again": {"$ref": "#"}},
                                     "required": ["x"], "$defs": {"x": {"const": i}}}))
        for i in range(2)
    ]  # fmt: skip
    wanted = Guide(tools=tuple(trees), tool_choice="required")
    assert completes(
        tiny(), wanted, '{"name": "t1", "arguments": {"x": 1, "again": {"x": 1, "again": {"x": 1}}}}'
    )
    assert not follows(tiny(), wanted, '{"name": "t1", "arguments": {"x": 0')


REFUSALS = [
    (guide("required", function="fly"), "tool_choice", "fly"),
    (Guide(tool_choice="required"), "tool_choice", "none"),
    (Guide(tools=(LIGHT, LIGHT), tool_choice="auto"), "tools", "same name"),
    (Guide(tools=(LIGHT, Tool("bad", "", '{"not": {}}', True)), tool_choice="auto"), "tools", "'bad'.*not"),
    (Guide(tools=(Tool("bad", "", "nonsense"),), tool_choice="auto"), "tools", "'bad'.*JSON"),
    (Guide(tools=(Tool("bad", "", '{"type": "array"}'),), tool_choice="auto"), "tools", "'bad'.*object"),
    (
        Guide(tools=(LIGHT,), tool_choice="auto", json_schema='{"not": {}}', strict=True),
        "response_format",
        "schema.*not",
    ),
]


@pytest.mark.parametrize(("wanted", "field", "cause"), REFUSALS)
def test_tools_that_cannot_be_called_are_refused_by_field(wanted, field, cause):
    with pytest.raises((InvalidRequest, Unsupported), match=cause) as refusal:
        tagged().start(wanted, ())
    assert refusal.value.field == field


def test_no_grammar_holds_calls_in_a_form_that_is_not_known():
    guides = GuideCompiler(tagged_tokenizer(), PADDED, (EOS,), "", None)
    with pytest.raises(Unsupported) as refusal:
        guides.start(guide("auto"), ())
    assert refusal.value.field == "tools"


# -- what the template sees ---------------------------------------------------------------------------

CHAT = (
    ChatMessage("system", "Be short."),
    ChatMessage("user", "Light on, and wait."),
    ChatMessage("assistant", "", (ToolCall("c1", "light", '{"on": true}'), ToolCall("c2", "wait", '{"s": 3}'))),
    ChatMessage("tool", "ok", tool_call_id="c1"),
    ChatMessage("tool", "waited", tool_call_id="c2", name="wait"),
    ChatMessage("user", "Thanks."),
)  # fmt: skip
KNOWS_TOOLS = "{% for t in tools %}{{ t.function.name }}{% endfor %}{{ messages[0].tool_calls }}"


def test_a_template_that_knows_tools_gets_them_as_openai_has_them():
    (turns, *_), functions = template_input(CHAT, TOOLS, KNOWS_TOOLS)
    assert functions == [
        {"type": "function", "function": {"name": tool.name, "description": tool.description,
                                          "parameters": parameters(tool)}}
        for tool in TOOLS
    ]  # fmt: skip
    assert turns[0] == {"role": "system", "content": "Be short."}
    assert turns[2]["tool_calls"][0] == {
        "id": "c1",
        "type": "function",
        "function": {"name": "light", "arguments": {"on": True}},
    }
    assert turns[3] == {"role": "tool", "content": "ok", "tool_call_id": "c1"}
    assert turns[4] == {"role": "tool", "content": "waited", "tool_call_id": "c2", "name": "wait"}


def test_another_template_gets_them_as_text():
    (turns, *_), functions = template_input(CHAT, TOOLS, "{{ messages }}")
    assert functions is None
    assert [turn["role"] for turn in turns] == ["system", "user", "assistant", "user", "user"]
    system = turns[0]["content"]
    assert system.startswith("Be short.\n\n") and '"Switches a light"' in system and '{"name": ' in system
    assert turns[2]["content"] == f"{ON}\n{THREE}"
    assert turns[3]["content"] == "Result of light: ok\nResult of wait: waited"
    (without, *_), _ = template_input(CHAT[1:2], TOOLS, "{{ messages }}")
    assert [turn["role"] for turn in without] == ["system", "user"]
    assert template_input(CHAT[:1], (), "{{ messages }}")[0][0] == [
        {"role": "system", "content": "Be short."}
    ]


def test_tiny_reads_its_tools_in_the_prompt():
    text = HFText(TINY)
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    prompt = tokenizer.decode(text.render(CHAT[1:2], TOOLS))
    assert prompt.startswith("<|system|>You can call these tools:\n") and '"name": "wait"' in prompt
    assert prompt.endswith("<|user|>Light on, and wait.<|end|><|assistant|>")
    assert tokenizer.decode(text.render(CHAT[1:2])) == "<|user|>Light on, and wait.<|end|><|assistant|>"


@pytest.mark.parametrize("arguments", ["", "nonsense", "[1]"])
def test_arguments_of_earlier_calls_must_be_an_object(arguments):
    message = ChatMessage("assistant", "", (ToolCall("c1", "light", arguments),))
    for template in (KNOWS_TOOLS, "{{ messages }}"):
        with pytest.raises(InvalidRequest) as refusal:
            template_input([message], (), template)
        assert refusal.value.field == "messages"


def test_a_template_that_knows_tools_renders_them(tmp_path):
    """The set of templates that some families have: `tool_use` is the one for tools."""
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    loop = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}"
    loop += "{% endfor %}{% endfor %}"
    tokenizer.chat_template = {
        "default": "{{ messages[0].content }}",
        "tool_use": "{{ tools | tojson }}" + loop,
    }
    tokenizer.save_pretrained(tmp_path)
    prompt = tokenizer.decode(HFText(tmp_path).render(CHAT, TOOLS))
    assert prompt.startswith('[{"type": "function", "function": {"name": "light"')
    assert '{"on": true}{"s": 3}okwaitedThanks.' in prompt
