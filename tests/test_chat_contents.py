"""Templates that read contents as parts, or as text alone, or either by the role: what people say is in the prompt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer

from edge_client.offline import local_only
from opensled.core.images import Image, TurnImage
from opensled.core.messages import ChatMessage, Tool, ToolCall
from opensled.models.store import model_path
from opensled.text.tokenizer import TargetTokenizer
from verify_server.text.chat_template import Chats
from verify_server.text.template_files import Templates

TINY = model_path("tiny")
END = "{% if add_generation_prompt %}<a>{% endif %}"
LOOP = "{% for m in messages %}<{{ m.role }}>"


def parts_of(content: str, show: str = "{{ part.text }}") -> str:
    return "{% for part in " + content + " %}{% if part.type == 'text' %}" + show + "{% endif %}{% endfor %}"


EITHER = (
    "{% if m.content is string %}{{ m.content | trim }}{% else %}" + parts_of("m.content") + "{% endif %}"
)
IDEFICS = (
    LOOP + "{% if m['content'][0]['type'] == 'image' %}{{ ':' }}{% endif %}{% for line in m['content'] %}"
    "{% if line['type'] == 'text' %}{{ line['text'] }}{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}"
    "{% endfor %}{% endfor %}" + END
)
# name -> a template as such models have it, in a few words
READ = {
    "each part of type text": LOOP + parts_of("m.content") + "{% endfor %}" + END,
    "each part": LOOP + "{% for part in m.content %}{{ part['text'] }}{% endfor %}{% endfor %}" + END,
    "the first part": LOOP + "{{ m.content[0].text }}{% endfor %}" + END,
    "the first part, joined": LOOP + "{{ '' + m['content'][0]['text'] }}{% endfor %}" + END,
    "LLaVA": (
        LOOP + "{% for part in m['content'] | selectattr('type', 'equalto', 'image') %}<image>{% endfor %}"
        "{% if m.role != 'assistant' %}{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}"
        "{{ part['text'] }}{% endfor %}{% else %}{% for part in m['content'] | selectattr('type', 'equalto', 'text') %}"
        "{% generation %}{{ part['text'] }}{% endgeneration %}{% endfor %}{% endif %}{% endfor %}" + END
    ),
    "Idefics 3, SmolVLM": IDEFICS,
    "parts of type image_url": IDEFICS.replace("'image'", "'image_url'"),
    "Gemma 3, Llama 4, Qwen 2 VL": LOOP + EITHER + "{% endfor %}" + END,
    "Llama 3.2 Vision": (
        "{% if messages[0].role == 'system' %}<system>{{ messages[0].content | trim }}{% endif %}"
        "{% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>" + EITHER + "{% endif %}{% endfor %}" + END
    ),
    "Pixtral, Mistral 3": (
        "{% if messages[0].role == 'system' %}{{ '<system>' + messages[0].content }}{% endif %}{% for m in messages %}"
        "{% if m.role == 'user' %}<user>{% if m.content is not string %}" + parts_of("m.content") + "{% else %}"
        "{{ m.content }}{% endif %}{% elif m.role == 'assistant' %}{{ '<assistant>' + m.content }}{% endif %}"
        "{% endfor %}" + END
    ),
    "a system of parts": (
        "{% if messages[0].role == 'system' %}{{ '<system>' + messages[0].content[0].text }}{% endif %}"
        "{% for m in messages %}{% if m.role != 'system' %}{{ '<' + m.role + '>' + m.content }}{% endif %}{% endfor %}"
        + END
    ),
    "an assistant of parts": (
        LOOP + "{% if m.role == 'assistant' %}{{ m.content[0].text }}{% else %}{{ '' + m.content }}{% endif %}"
        "{% endfor %}" + END
    ),
    "a user of parts": (
        LOOP + "{% if m.role == 'user' %}" + parts_of("m.content") + "{% else %}{{ '' + m.content }}{% endif %}"
        "{% endfor %}" + END
    ),
    "text is refused": (
        LOOP + "{% if m.content is string %}{{ raise_exception('parts') }}{% endif %}" + parts_of("m.content")
        + "{% endfor %}" + END
    ),
    "parts are refused": (
        LOOP + "{% if m.content is not string %}{{ raise_exception('text') }}{% endif %}{{ m.content }}{% endfor %}"
        + END
    ),
    "capitals": LOOP + parts_of("m.content", "{{ part.text | upper | lower | capitalize }}") + "{% endfor %}" + END,
    "text alone": LOOP + "{{ m['content'] }}{% endfor %}" + END,
}  # fmt: skip
CHAT = [
    ChatMessage(role, text)
    for role, text in (("system", "A"), ("user", "B"), ("assistant", "C"), ("user", "D"))
]
SHOWN = "<system>A<user>B<assistant>C<user>D<a>"


def rendered(template: str, messages: list[ChatMessage], *tools: Tool, placeholder: str = "") -> str:
    return Chats(Templates(template, template), {}, "here", placeholder).render(messages, tools)


@pytest.mark.parametrize("name", READ)
def test_what_is_said_is_in_the_prompt(name, monkeypatch):
    assert rendered(READ[name], CHAT) == SHOWN
    tokenizer = TargetTokenizer((TINY / "tokenizer.json").read_bytes())
    ids = local_only.render(CHAT, READ[name], SimpleNamespace(eos_ids=(0,)), tokenizer)
    assert ids == tokenizer.encode_rendered(SHOWN)


@pytest.mark.parametrize("name", ["LLaVA", "Idefics 3, SmolVLM", "Gemma 3, Llama 4, Qwen 2 VL", "text alone"])
def test_the_text_is_that_of_transformers(name):
    """Which is given parts where the template reads them."""
    turns = [
        {
            "role": turn.role,
            "content": turn.content if name == "text alone" else [{"type": "text", "text": turn.content}],
        }
        for turn in CHAT
    ]
    made = AutoTokenizer.from_pretrained(TINY).apply_chat_template(
        turns, chat_template=READ[name], add_generation_prompt=True, tokenize=False
    )
    assert made == rendered(READ[name], CHAT)


# -- results of tools -----------------------------------------------------------------------------------------

CALLS = (
    "{% for m in messages %}<{{ m.role }}>{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}"
    "{% if m.role == 'tool' %}TOLD{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
WITH_RESULT = [
    ChatMessage("user", "B"),
    ChatMessage("assistant", "", (ToolCall("call_1", "light", '{"on": true}'),)),
    ChatMessage("tool", "it is on", tool_call_id="call_1"),
]
CALL = '{"name": "light", "arguments": {"on": true}}'
RESULTS = {
    "text": ("{{ m.content }}", f"<user>B<assistant>{CALL}<tool>it is on"),
    "parts": (parts_of("m.content"), f"<user>B<assistant>{CALL}<tool>it is on"),
    "the first part": ("{{ '' + m.content[0].text }}", f"<user>B<assistant>{CALL}<tool>it is on"),
    "JSON": ("{{ m.content | tojson }}", f'<user>B<assistant>{CALL}<tool>"it is on"'),
    "nothing": ("", f"<user>B<assistant>{CALL}<user>Result of light: it is on"),
}


@pytest.mark.parametrize("name", RESULTS)
def test_the_result_of_a_tool_is_in_the_prompt(name):
    told, expected = RESULTS[name]
    assert rendered(CALLS.replace("TOLD", told), WITH_RESULT) == expected


# -- pictures -------------------------------------------------------------------------------------------------

SEEN = {
    "LLaVA": "<user><image>see  this<a>",
    "Idefics 3, SmolVLM": "<user>see <image> this<a>",
    "parts of type image_url": "<user>see <image> this<a>",
    "each part of type text": "<user>see <image> this<a>",
    "a user of parts": "<user>see <image> this<a>",
    "text alone": "<user>see <image> this<a>",
    "the first part": "<user>see <image> this<a>",
    "Pixtral, Mistral 3": "<user>see <image> this<a>",
    "parts are refused": "<user>see <image> this<a>",
}


@pytest.mark.parametrize("name", SEEN)
def test_a_picture_is_where_the_template_puts_it_or_else_where_it_was_sent(name):
    shown = ChatMessage("user", "see  this", images=(TurnImage(4, Image(b"1" * 32)),))
    assert rendered(READ[name], [shown], placeholder="<image>") == SEEN[name]


@pytest.mark.parametrize("template", ["plain", "{{ messages[0].parts[0].text }}", "{{ messages | length }}"])
def test_a_template_that_shows_nothing_of_what_is_said_is_told(template, capfd):
    Chats(Templates(template), {}, "models/odd")
    assert "the chat template of models/odd shows nothing of what a user says" in capfd.readouterr().err
