"""Chats that strict templates refuse, or of which they leave something out: what the model reads of them."""

import json
import random
import re
import shutil
import time
from dataclasses import replace
from types import SimpleNamespace

import gguf
import pytest

from edge_client.offline import local_only
from opensled.core.errors import InvalidRequest
from opensled.core.images import Image, TurnImage
from opensled.core.messages import ChatMessage, Tool, ToolCall
from opensled.models.hub_listing import MORE_TEMPLATES as MORE
from opensled.models.store import model_path
from opensled.process.fork_server import ForkServer
from opensled.text import chat_forms
from opensled.text.chat_render import TemplateRefused
from tests import strict_templates as strict
from tests.tiny_drafts import tiny_tokenizer
from tests.tiny_gguf import add_tokenizer, save
from verify_server.text.chat_template import Chats
from verify_server.text.gguf_text import GgufText
from verify_server.text.hf_text import HFText
from verify_server.text.template_files import MARK, Templates, ends_in, in_folder

TINY = model_path("tiny")
TOOL = Tool("light", "Switches", '{"type": "object", "properties": {}}')
CALL = ChatMessage("assistant", "", (ToolCall("call_1", "light", '{"on": "ü"}'),))
RESULT = ChatMessage("tool", "done", tool_call_id="call_1")


def chat(spelled: str) -> list[ChatMessage]:
    """Turns by their roles' first letters and their texts: "s:Be kind. u:Hi a:Yes?"."""
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [ChatMessage(roles[turn[0]], turn[2:]) for turn in spelled.split()]


def rendered(template: str, messages: list[ChatMessage], *tools: Tool) -> str:
    return Chats(Templates(template, template), {}, "here").render(messages, tools)


FOUR = "<system>A</><user>B</><assistant>C</><user>D</><assistant>"
# template, chat -> what the model reads; turns in angle brackets by role, blank lines as "+"
READ = [
    # A template that takes a chat as it is gets it so, but for what leads it.
    (strict.LLAMA, "s:A u:B", "<system>A</><user>B</><assistant>"),
    (strict.LLAMA, "s:A s:B u:C", "<system>A+B</><user>C</><assistant>"),
    (strict.LLAMA, "u:A s:B u:C u:D", "<user>A</><system>B</><user>C</><user>D</><assistant>"),
    (strict.REWRITES, "s:Kind/no_think u:A", "<system>Kind</><user>A</><assistant>"),
    # The system message is first, alone, or in the user's turn.
    (strict.QWEN, "u:A a:B s:C u:D", "<system>C</><user>A</><assistant>B</><user>D</><assistant>"),
    (strict.QWEN, "s:A u:B a:C s:D u:E", "<system>A+D</><user>B</><assistant>C</><user>E</><assistant>"),
    (strict.QWEN, "s:A", "<user>A</><assistant>"),
    (strict.QWEN, "a:A", "<user></><assistant>A</><assistant>"),
    (strict.GEMMA, "s:A u:B", "<user>A+B</><assistant>"),
    (strict.GEMMA, "s:A s:B u:C a:D s:E u:F", "<user>A+B+E+C</><assistant>D</><user>F</><assistant>"),
    (strict.GEMMA, "s:A a:B u:C", "<user>A</><assistant>B</><user>C</><assistant>"),
    # Roles alternate.
    (strict.GEMMA, "u:A u:B", "<user>A+B</><assistant>"),
    (
        strict.GEMMA,
        "a:A u:B a:C a:D u:E",
        "<user></><assistant>A</><user>B</><assistant>C+D</><user>E</><assistant>",
    ),
    (strict.GEMMA, "u:A s:B s:C u:D", "<user>B+C+A+D</><assistant>"),
    (strict.LLAMA_2, "s:A u:B u:C", "<s>A</s><user>B+C</><assistant>"),
    (strict.LLAMA_2, "s:A a:B u:C", "<s>A</s><user></><assistant>B</><user>C</><assistant>"),
    (strict.MISTRAL, "u:A s:B u:C", "<s>B</s><user>A+C</><assistant>"),
    # No system message is left out.
    (strict.DROPS_LATER, "s:A u:B s:C u:D", "<system>A+C</><user>B</><user>D</><assistant>"),
    (strict.DROPS_LATER, "u:B s:C u:D", "<system>C</><user>B</><user>D</><assistant>"),
    (strict.DROPS_ALL, "s:A u:B", "<user>A+B</><assistant>"),
    (strict.DROPS_ALL, "u:B s:C u:D", "<user>C+B</><user>D</><assistant>"),
    (strict.DROPS_ALL, "u:B", "<user>B</><assistant>"),
    # What is said is read, in whatever form of contents.
    *((strict.turns(shown), "s:A u:B a:C u:D", FOUR) for shown in strict.CONTENTS),
]


@pytest.mark.parametrize("template, spelled, expected", READ)
def test_a_chat_is_read_by_every_template(template, spelled, expected):
    assert rendered(template, chat(spelled)).replace("\n\n", "+") == expected


@pytest.mark.parametrize("template, spelled, expected", READ)
def test_a_device_alone_reads_it_the_same_way(template, spelled, expected, monkeypatch):
    monkeypatch.setattr(local_only, "_special", lambda info, tokenizer: {})
    local_only._renderer.cache_clear()
    ids = local_only.render(chat(spelled), template, None, tiny_tokenizer())
    assert ids == tiny_tokenizer().encode_rendered(expected.replace("+", "\n\n"))


def test_a_device_that_starts_slowly_still_tries_every_form(monkeypatch):
    """The start of the process that renders, minutes here, is no part of the time that forms may take."""
    clock, running = [0.0], ForkServer._running

    def slow(server):
        clock[0] += 100 * (server._process is None)
        return running(server)

    monkeypatch.setattr(ForkServer, "_running", slow)
    monkeypatch.setattr(chat_forms, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(local_only, "_special", lambda info, tokenizer: {})
    local_only._renderer.cache_clear()
    ids = local_only.render(chat("u:A a:B s:C u:D"), strict.QWEN, None, tiny_tokenizer())
    assert clock[0] == 100
    assert ids == tiny_tokenizer().encode_rendered(
        "<system>C</><user>A</><assistant>B</><user>D</><assistant>"
    )


def test_a_device_says_that_a_template_takes_too_much_to_compile(monkeypatch):
    monkeypatch.setattr(local_only, "_special", lambda info, tokenizer: {})
    with pytest.raises(InvalidRequest, match="compiling the chat template on this device takes more than"):
        local_only.render(chat("u:A"), "{{ 3 ** (10 ** 9) % 2 }}", None, tiny_tokenizer())


def test_what_no_form_suits_is_refused_with_the_first_reason():
    with pytest.raises(
        InvalidRequest, match="refuses these messages: never 1; alternate turns of user and"
    ) as refusal:
        rendered("{{ raise_exception('never ' ~ messages | length) }}", chat("s:A s:B"))
    assert refusal.value.field == "messages"


@pytest.mark.parametrize("template", [value for name, value in vars(strict).items() if name in strict.WHOLE])
def test_no_order_of_turns_is_a_dead_end(template):
    """Whatever was said is read, by every template."""
    rng, chats = random.Random(5), Chats(Templates(template, template), {}, "here")
    for _ in range(60):
        messages = [
            said(kind, number) for number, kind in enumerate(rng.choices("ssuuuaactr", k=rng.randint(1, 9)))
        ]
        text = chats.render(messages, (TOOL,) if rng.random() < 0.5 else ())
        for message in messages:
            for word in (message.content, *(json.loads(call.arguments)["on"] for call in message.tool_calls)):
                assert word in text, (messages, text)


def said(kind: str, number: int) -> ChatMessage:
    """A turn with a word of its own: of the system, the user, the assistant, with a call ("c"), a result ("t"), or the
    result of no call ("r")."""
    word = f"word{number}."
    if kind == "c":
        return ChatMessage("assistant", "", (ToolCall(f"call_{number}", "light", f'{{"on": "{word}"}}'),))
    if kind == "t":
        return ChatMessage("tool", word, tool_call_id=f"call_{number - 1}")
    if kind == "r":
        return ChatMessage("tool", word, name="goal")
    return ChatMessage({"s": "system", "u": "user", "a": "assistant"}[kind], word)


def test_a_slow_chat_is_not_tried_in_every_form(monkeypatch):
    """The limit of time holds for all forms together, up to the one that is being rendered."""
    tried = []

    def render(turns):
        tried.append(turns)
        while time.monotonic() < began + 0.05 * len(tried):
            pass
        raise TemplateRefused("no")

    monkeypatch.setattr(chat_forms, "LIMITS", replace(chat_forms.LIMITS, seconds=0.08))
    turns = [{"role": turn.role, "content": turn.content} for turn in chat("u:A s:B u:C a:D u:E")]
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="no; alternate turns"):
        chat_forms.first_taken([turns], render)
    assert 1 <= len(tried) <= 2


def test_mistrals_calls_get_ids_of_nine_letters():
    text = rendered(strict.MISTRAL, [*chat("u:A"), CALL, RESULT], TOOL)
    call, result = re.search(r"<call>(.*)([0-9a-f]{9})</><result>(.*)</>", text).groups()[::2]
    assert json.loads(call) == {"name": "light", "arguments": {"on": "ü"}} and result == "done"
    assert text.startswith('<tools>[{"type": "function"')


def test_calls_that_break_the_order_become_text():
    """The user goes on after a result that nobody spoke of."""
    text = rendered(strict.MISTRAL, [*chat("s:Kind u:A"), CALL, RESULT, *chat("u:B")], TOOL)
    tools, turns = text.split("</tools>")
    assert tools.startswith("<s>Kind</s><tools>")
    assert turns == (
        '<user>A</><assistant>{"name": "light", "arguments": {"on": "ü"}}</>'
        "<user>Result of light: done\n\nB</><assistant>"
    )


def test_a_template_that_appends_arguments_to_text_gets_text():
    assert rendered(strict.DEEPSEEK, [*chat("u:A"), CALL, RESULT]) == (
        '<user>A</><assistant>light {"on": "ü"}</><tool>done</><assistant>'
    )


RESULTS = {
    **dict.fromkeys([strict.TEXT, strict.PARTS, strict.FIRST], "light</><tool>done</>"),
    "{{ m.content | tojson }}": 'light</><tool>"done"</>',
    "": '{"name": "light", "arguments": {"on": "ü"}}</><user>Result of light: done</>',
}


@pytest.mark.parametrize("told", RESULTS)
def test_the_result_of_a_tool_is_read(told):
    shown = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}" + strict.by_role(tool=told)
    text = rendered(strict.turns(shown), [*chat("u:A"), CALL, RESULT])
    assert text == f"<user>A</><assistant>{RESULTS[told]}<assistant>"


@pytest.mark.parametrize("shown", strict.CONTENTS)
def test_a_picture_is_where_the_template_puts_it_or_else_where_it_was_sent(shown):
    turn = ChatMessage("user", "see  this", images=(TurnImage(4, Image(b"1" * 32)),))
    text = Chats(Templates(strict.turns(shown)), {}, "here", "<image>").render([turn], ())
    assert text == f"<user>{strict.CONTENTS[shown]}</><assistant>"


@pytest.mark.parametrize("shown", ["plain", "{{ m.parts[0].text }}", "{{ m.content | length }}"])
def test_a_template_that_shows_nothing_of_what_is_said_is_told(shown, capfd):
    Chats(Templates(strict.turns(shown)), {}, "models/odd")
    assert "the chat template of models/odd shows nothing of what a user says" in capfd.readouterr().err


def test_templates_that_take_one_call_or_no_text_beside_thoughts():
    start = "{% for m in messages %}{% if m.thinking and @ %}{{ raise_exception('no') }}{% endif %}"
    both = f"{start.replace('@', 'm.content')}[{{{{ m.thinking }}}}]{{{{ m.tool_calls | length }}}}{{% endfor %}}"
    assert rendered(both, [replace(CALL, content="I do.", reasoning="Hm.")]) == "[Hm.\n\nI do.]1"
    alone = [ChatMessage("assistant", "", reasoning="Hm.")]
    assert rendered(start.replace("@", "1") + "-{% endfor %}", alone) == "-"
    first = "{% for message in messages %}{% if message.tool_calls %}{% set c = message.tool_calls[0] %}"
    first += "{{ c.function.name }}{% endif %}{{ message.content }};{% endfor %}"
    twice = replace(CALL, tool_calls=(*CALL.tool_calls, ToolCall("call_2", "light", "{}")))
    results = [RESULT, replace(RESULT, content="done too", tool_call_id="call_2")]
    assert rendered(first, [twice, *results, *chat("u:A")]) == "light;done;light;done too;A;"
    of_system = "{% for m in messages %}{{ m.tools }}{{ m.content }};{% endfor %}"
    assert '"name": "light"' in rendered(of_system, chat("u:A"), Tool("light"))


# -- where templates and ends are looked up --------------------------------------------------------------

PLAIN, TOOLS = "plain", "{{ tools | tojson }}"
NAMED = {"default": PLAIN, "tool_use": TOOLS}
LIST = [{"name": name, "template": text} for name, text in NAMED.items()]
LOOKED_UP = [
    ({"tokenizer_config.json": {"chat_template": PLAIN}}, (PLAIN, PLAIN)),
    ({"tokenizer_config.json": {"chat_template": LIST}}, (PLAIN, TOOLS)),
    ({"tokenizer_config.json": {"chat_template": [*LIST, {"name": "rag"}, 3]}}, (PLAIN, TOOLS)),
    ({"tokenizer_config.json": {"chat_template": NAMED}}, (PLAIN, TOOLS)),
    ({"tokenizer_config.json": {"chat_template": LIST[1:]}}, (TOOLS, TOOLS)),
    ({"tokenizer_config.json": {"chat_template": {"rag": PLAIN}}}, (PLAIN, PLAIN)),
    ({"tokenizer_config.json": {"chat_template": None}}, ("", "")),
    ({"tokenizer_config.json": {"chat_template": MARK + PLAIN}}, (PLAIN, PLAIN)),
    ({"chat_template.jinja": PLAIN, "tokenizer_config.json": {"chat_template": LIST}}, (PLAIN, PLAIN)),
    ({"chat_template.jinja": MARK + PLAIN}, (PLAIN, PLAIN)),
    ({"chat_template.jinja": PLAIN, f"{MORE}/tool_use.jinja": MARK + TOOLS}, (PLAIN, TOOLS)),
    ({"tokenizer_config.json": {"chat_template": PLAIN}, f"{MORE}/tool_use.jinja": TOOLS}, (PLAIN, TOOLS)),
    ({"chat_template.json": {"chat_template": PLAIN}}, (PLAIN, PLAIN)),
    ({"chat_template.json": NAMED | {"chat_template": NAMED}}, (PLAIN, TOOLS)),
    (
        {"chat_template.json": {"chat_template": TOOLS}, "tokenizer_config.json": {"chat_template": PLAIN}},
        (TOOLS, TOOLS),
    ),
    ({"processor_config.json": {"chat_template": PLAIN}}, (PLAIN, PLAIN)),
    ({"chat_template.jinja": PLAIN, "chat_template.json": {"chat_template": TOOLS}}, (PLAIN, PLAIN)),
    ({}, ("", "")),
]


def write(folder, files):
    (folder / MORE).mkdir()
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / name).write_text(text, "utf-8")


@pytest.mark.parametrize("files, expected", LOOKED_UP)
def test_a_folders_templates(files, expected, tmp_path):
    write(tmp_path, files)
    assert in_folder(tmp_path) == expected


@pytest.mark.parametrize("files, expected", LOOKED_UP[1:-1:2])
def test_both_kinds_of_target_look_there(files, expected, tmp_path):
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    write(tmp_path, files)
    beside = GgufText(gguf_with(tmp_path / "model.gguf", default="of the file"))
    assert (beside.chat_template, beside.tool_template) == expected
    alone = HFText(tmp_path)
    assert (alone.chat_template, alone.tool_template) == expected


def gguf_with(path, **templates):
    """A GGUF file without weights, with templates by name."""
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, "qwen2")
    for name, text in templates.items():
        writer.add_string("tokenizer.chat_template" + ("" if name == "default" else f".{name}"), text)
    save(writer)
    return path


@pytest.mark.parametrize(
    "named, expected",
    [
        ({"default": PLAIN, "tool_use": TOOLS}, (PLAIN, TOOLS)),
        ({"default": MARK + PLAIN, "rag": TOOLS}, (PLAIN, PLAIN)),
        ({"tool_use": TOOLS}, (TOOLS, TOOLS)),
    ],
)
def test_a_gguf_files_templates(named, expected, tmp_path):
    text = GgufText(gguf_with(tmp_path / "model.gguf", **named))
    assert (text.chat_template, text.tool_template) == expected


# Templates of tools and documents, of which this chat has none: one way fails or shows what is not there.
ABSENT = [
    ("{% for tool in tools %}x{% endfor %}ok", "ok", "ok"),
    ("{% for d in documents %}x{% endfor %}ok", "ok", "ok"),
    ("{% if tools is not none %}{{ tools | tojson }}{% endif %}ok", "ok", "ok"),
    ("{% if tools is defined %}none{% endif %}ok", "noneok", "ok"),
    ("{% if tools or documents %}x{% endif %}ok", "ok", "ok"),
]


@pytest.mark.parametrize("template, as_transformers, as_llama_cpp", ABSENT)
def test_absent_tools_and_documents(template, as_transformers, as_llama_cpp):
    for undefined, expected in ((False, as_transformers), (True, as_llama_cpp)):
        assert Chats(Templates(template), {}, "here", undefined=undefined).render(chat("u:A"), ()) == expected


ENDS = [
    ({}, ()),
    ({"generation_config.json": {"eos_token_id": [5, 4]}, "config.json": {"eos_token_id": 7}}, (5, 4, 7)),
    ({"config.json": {"eos_token_id": 7}, "tokenizer_config.json": {"eos_token": "<|end|>"}}, (7, 0)),
    ({"generation_config.json": {"eos_token_id": []}, "config.json": {}}, ()),
    ({"config.json": {"text_config": {"eos_token_id": 3}, "eos_token_id": None}}, (3,)),
    ({"tokenizer_config.json": {"eos_token": {"content": "<|end|>", "lstrip": False}}}, (0,)),
    ({"tokenizer_config.json": {"eos_token": "unknown"}, "config.json": {"eos_token_id": -1}}, ()),
    (
        {"generation_config.json": {"eos_token_id": "2"}, "config.json": {"eos_token_id": [True, 2.0, 2, 2]}},
        (2,),
    ),
]


@pytest.mark.parametrize("files, expected", ENDS)
def test_ends_of_a_turn(files, expected, tmp_path):
    write(tmp_path, files)
    vocabulary = {"<|end|>": 0}
    assert ends_in(tmp_path, vocabulary.get) == expected
