"""Calls as families of models write them: the template shows the form, the grammar holds it, the API reads it."""

import json
import re

import pytest
from tokenizers import Tokenizer

from http_api.call_arguments import by_schema
from http_api.calls import CallReader
from opensled.core.messages import CallForm, ChatMessage, Guide, Tool, ToolCall
from opensled.text.answer_text import AnswerText
from opensled.text.call_forms import BARE, TAGGED, TOLD, call_marks, opening
from opensled.text.tokenizer import TargetTokenizer
from tests.call_families import FAMILIES, UNKNOWN, text_and_calls
from tests.fake_backend import FakeBackend, call, chat
from tests.guiding import EOS, PADDED, completes, follows, ids, tagged_tokenizer, tiny
from tests.thinking_world import whole
from verify_server.text.chat_template import Chats
from verify_server.text.guide import GuideCompiler
from verify_server.text.template_files import Templates

PROPERTIES = {
    "body": {"type": "string"},
    "count": {"type": "integer"},
    "deep": {
        "type": "object",
        "properties": {"a": {"type": "array", "items": {"type": "string"}}},
        "required": ["a"],
    },
    "flag": {"type": "boolean"},
    "zip": {"type": "string"},
}
WRITE = Tool(
    "write_file", "", json.dumps({"type": "object", "properties": PROPERTIES, "required": list(PROPERTIES)})
)
LAMP = Tool(
    "lamp",
    "",
    '{"type": "object", "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "bath"]}}}',
)
TOOLS = (WRITE, LAMP, Tool("lampshade"))
WRITTEN = {
    "body": 'line one\nsays "yes" } ) <b>', "count": 3, "deep": {"a": ["x, y", "z"]}, "flag": False, "zip": "0123",
}  # fmt: skip
CALLS = [
    [("lamp", {"room": "hall"}), ("write_file", WRITTEN)],
    [("write_file", WRITTEN)],
    [("lampshade", {})],
]


def chats(template: str) -> Chats:
    return Chats(Templates(template, template), {}, "here")


def read(parts, form: CallForm, tools=TOOLS, beside: bool = False):
    text, calls = text_and_calls(CallReader(tools, form, beside), parts)
    return text, [(name, json.loads(arguments)) for name, arguments in calls]


def written(family: Chats, calls) -> str | None:
    """The answer with these calls, as a template shows it in a later turn; None: it refuses so many."""
    made = tuple(
        ToolCall(f"call{at}wxyzab", name, json.dumps(values)) for at, (name, values) in enumerate(calls)
    )
    asked = ChatMessage("user", "Q")
    chats = [[asked, ChatMessage("assistant", "", made), *after] for after in ((), (asked,))]
    texts = [text for chat in chats for text in family._show(chat) if all(name in text for name, _ in calls)]
    if not texts:
        return None
    answer = texts[0].partition("Q")[2].partition("assistant")[2]
    return re.split(r"<\|im_end\|>|<\|eot_id\|>|\[e~\[", answer.removeprefix("<|end_header_id|>").lstrip())[0]


def allows(guides: GuideCompiler, guide: Guide, text: str) -> bool:
    tokens = ids(text)
    masks = guides.start(guide, ()).next_masks(tokens)
    return all(whole(mask, token) for mask, token in zip(masks, tokens)) and whole(masks[-1], EOS)


@pytest.mark.parametrize("name", FAMILIES)
def test_what_a_family_writes_is_held_and_read(name):
    family = chats(FAMILIES[name])
    guides = GuideCompiler(tagged_tokenizer(), PADDED, (EOS,), FAMILIES[name], family.calls)
    guide = Guide(tools=TOOLS, tool_choice="auto", parallel=True)
    tried = 0
    for calls in CALLS:
        if (answer := written(family, calls)) is None:
            continue
        tried += 1
        assert read(answer, family.calls) == read([answer], family.calls) == ("", calls)
        assert allows(guides, guide, answer), answer
    if family.calls.arguments == "json":
        assert read('```json\n{"name": "lamp", "arguments": {}}\n```', family.calls) == ("", [("lamp", {})])
    assert tried >= 2 and allows(guides, guide, "It is [1] off.")
    required = Guide(tools=TOOLS, tool_choice="required")
    assert allows(guides, required, answer) and not allows(guides, required, "It is off.")
    assert not allows(guides, required, answer.replace("lampshade", "lantern"))


@pytest.mark.parametrize(
    "name", ["qwen3-coder", "seed-oss", "minimax-m2", "deepseek-v3", "deepseek-v3.1", "kimi-k2", "step-3"]
)
def test_a_call_without_its_outer_tag_is_held_and_read(name):
    family = chats(FAMILIES[name])
    guides = GuideCompiler(tagged_tokenizer(), PADDED, (EOS,), FAMILIES[name], family.calls)
    guide = Guide(tools=TOOLS, tool_choice="auto", parallel=True)
    whole_call = written(family, CALLS[1])
    begun = whole_call.removeprefix(opening(family.calls)).lstrip()
    for text in ("", "I do.\n\n"):
        assert read(text + begun, family.calls) == read([text + begun], family.calls) == (text, CALLS[1])
        assert allows(guides, guide, text + begun)
    assert not allows(guides, guide, begun.replace("write_file", "burn_file"))


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_form_that_is_not_known_is_none(name):
    assert chats(UNKNOWN[name]).calls is None


@pytest.mark.parametrize(
    ("template", "form"),
    [("{{ messages }}", BARE), ("{{ messages }}{{ tools }}", BARE), ("{{ tools }}<tool_call>", TAGGED),
     ("{{ tools }}<|tool_call|>", TOLD[-2][1]),
     ("{{ tools }}<|tool_list_start|>", TOLD[-4][1]), ('keep_past_thinking "List {{ tools }}', TOLD[-4][1]),
     ("<|channel|>{{ messages[0].tool_calls }}", TAGGED)],
)  # fmt: skip
def test_templates_that_show_no_calls(template, form):
    assert chats(template).calls == form


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "42", "42"),
        ({"type": "string"}, "true", "true"),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "integer"}, "42", 42),
        ({"type": "number"}, " 4.5\n", 4.5),
        ({"type": "boolean"}, "True", True),
        ({"type": ["integer", "null"]}, "None", None),
        ({"type": "array"}, "[1, 2]", [1, 2]),
        ({"type": "object"}, "{'a': True}", {"a": True}),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", 7),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "7", "7"),
        ({"$ref": "#/$defs/code"}, "007", "007"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({}, "[1", "[1"),
        ({}, "7", 7),
        ({"type": "number"}, "NaN", "NaN"),
        ({"type": "STRING"}, "42", "42"),
        ({"type": "float"}, "42", 42),
    ],
)
def test_a_value_is_what_its_schema_says(schema, text, value):
    root = {"properties": {"key": schema}, "$defs": {"code": {"type": "string"}}}
    found = by_schema(text, "key", root)
    assert found == value and type(found) is type(value)


ANSWER = json.dumps(
    {"properties": {"name": {"type": "string"}, "arguments": {"type": "object"}, "x": {"type": "null"}}}
)


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ('{"name": "lamp", "arguments": {"on": true}}', "", [("lamp", {"on": True})]),
        ('{\n  "name" : "lamp" ,"arguments" :{"on": true}\n}', "", [("lamp", {"on": True})]),
        ('{"name": "lamp", "arguments": {}, "x": null}', None, []),
        ('{"name": "door", "arguments": {}}', None, []),
        ('{"x": null}', None, []),
    ],
)
def test_beside_a_schema_only_a_whole_call_is_a_call(text, content, calls):
    for parts in (list(text), [text]):
        assert read(parts, BARE, beside=True) == (text if content is None else content, calls)
    guide = Guide(tools=TOOLS, tool_choice="auto", json_schema=ANSWER)
    assert completes(tiny(), guide, text) and not follows(tiny(), guide, "Hello")


def test_marks_that_are_special_tokens_are_text_where_tools_may_be_called():
    form = chats(FAMILIES["mistral-small-3.2"]).calls
    tree = Tokenizer.from_str(tagged_tokenizer().decode())
    tree.add_special_tokens(["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[INST]"])
    saved = tree.to_str().encode()
    answer = '[TOOL_CALLS]lamp[CALL_ID]abcdefghi[ARGS]{"on": true}'
    tokens = tree.encode(answer, add_special_tokens=False).ids
    guide = Guide(tools=TOOLS, tool_choice="auto", parallel=True)
    masks = GuideCompiler(saved, PADDED, (EOS,), "", form).start(guide, ()).next_masks(tokens)
    assert all(whole(mask, token) for mask, token in zip(masks, tokens)) and whole(masks[-1], EOS)
    assert not whole(masks[0], tree.token_to_id("[INST]"))
    for marks, shown in (
        (call_marks(guide, form), answer),
        (call_marks(None, form), 'lampabcdefghi{"on": true}'),
    ):
        text = AnswerText(TargetTokenizer(saved), (), marks=marks)
        assert text.commit(tuple(tokens)).text + text.end()[1] == shown
    ended = AnswerText(TargetTokenizer(saved), (), [tree.token_to_id("[ARGS]")], call_marks(guide, form))
    assert ended.commit(tuple(tokens)).text == answer.replace("[ARGS]", ""), "an end has no text"


def test_a_chat_of_a_model_whose_calls_are_not_known_is_served_as_text_and_says_so():
    schema = {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}
    tool = {"type": "function", "function": {"name": "lamp"}}
    for fields in ({}, {"tool_choice": "required"}, {"response_format": schema}):
        backend = FakeBackend(calls=None, words=("<<call lamp>>",))
        answer = call(backend, body=chat(tools=[tool], **fields))
        assert answer.headers["OpenSLED-Tool-Calls"].startswith(
            "text: the form of this model's calls is not known"
        )
        assert answer.json()["choices"][0]["message"]["content"] == "<<call lamp>>"
        assert backend.tasks[0].guide == Guide("", (Tool("lamp"),), "none")
    backend = FakeBackend(calls=None)
    answer = call(backend, body=chat(tools=[tool], tool_choice="none", response_format=schema))
    assert backend.tasks[0].guide.json_schema and "OpenSLED-Tool-Calls" not in answer.headers


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder", "glm-4.7", "kimi-k2", "llama-4", "gemma-4"])
@pytest.mark.parametrize("tool", ["pump state", "bewässern", 'say "hi"', "№ 1 ␣", "garden/pump.state"])
def test_a_call_bears_the_name_as_it_was_given(name, tool):
    family = chats(FAMILIES[name])
    answer = written(family, [(tool, {})])
    if name != "hermes" or '"' not in tool:  # that template writes names into JSON as they are
        assert read(answer, family.calls, (Tool(tool), Tool(f"{tool}s"))) == ("", [(tool, {})])


def test_what_tags_cannot_hold_of_a_text_is_told():
    form = chats(FAMILIES["seed-oss"]).calls
    guides = GuideCompiler(tagged_tokenizer(), PADDED, (EOS,), "", form)
    dated = Tool(
        "dated", "", '{"type": "object", "properties": {"day": {"type": "string", "format": "date"}}}'
    )
    assert guides.start(Guide(tools=(dated, LAMP), tool_choice="required"), ()).coarse_tools == ("dated",)
