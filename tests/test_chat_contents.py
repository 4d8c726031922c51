"""Templates that read contents as parts, or as text alone, or either by the role: what people say is in the prompt."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from edge_client.offline import local_only
from opensled.core.images import Image, TurnImage
from opensled.core.messages import ChatMessage, ToolCall
from opensled.models.store import model_path
from opensled.text.tokenizer import TargetTokenizer
from verify_server.text.chat_template import Chats
from verify_server.text.template_files import Templates

TEXT, FIRST = "{{ '' + m.content }}", "{{ '' + m.content[0].text }}"
PARTS = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
IDEFICS = PARTS.replace("{% endif %}", "{% elif part['type'] == 'image' %}<image>{% endif %}")
CHOSEN = "selectattr('type', 'equalto', 'WORD') %}SHOW{% endfor %}"
LLAVA = "".join(
    "{% for part in m['content'] | " + CHOSEN.replace("WORD", word).replace("SHOW", show)
    for word, show in (
        ("image", "<image>"),
        ("text", "{% generation %}{{ part['text'] }}{% endgeneration %}"),
    )
)
EITHER = "{% if m.content is string %}{{ m.content }}{% else %}" + IDEFICS + "{% endif %}"
REFUSED = "{% if m.content is KIND %}{{ raise_exception('no') }}{% endif %}"
INLINE = "<user>see <image> this<a>"  # a picture where it was sent


def by_role(others: str = TEXT, **shown: str) -> str:
    """How a turn is shown, by its role."""
    cases = "".join(f"{{% if m.role == '{role}' %}}{show}{{% else %}}" for role, show in shown.items())
    return cases + others + "{% endif %}" * len(shown)


# What a template shows of a turn, as models have it in more words -> what it shows of a turn with a picture
READ = {
    "each part of type text": (PARTS, INLINE),  # Llama Guard
    "each part": ("{% for part in m.content %}{{ part['text'] }}{% endfor %}", INLINE),
    "the first part": (FIRST, INLINE),
    "the text of parts": ("{{ m.content | map(attribute='text') | join }}", INLINE),
    "LLaVA": (LLAVA, "<user><image>see  this<a>"),
    "Idefics 3, SmolVLM": (IDEFICS, INLINE),
    "type image_url": (IDEFICS.replace("'image'", "'image_url'"), INLINE),
    "Gemma 3, Llama 4, Qwen 2 VL": (EITHER, INLINE),
    "Llama 3.2 Vision": (by_role(EITHER, system="{{ m.content | trim }}"), INLINE),
    "Pixtral, Mistral 3": (by_role(user=EITHER), INLINE),
    "a system of parts": (by_role(system=FIRST), INLINE),
    "an assistant of parts": (by_role(assistant=FIRST), INLINE),
    "a user of parts": (by_role(user=PARTS), INLINE),
    "text is refused": (REFUSED.replace("KIND", "string") + PARTS, INLINE),
    "parts are refused": (REFUSED.replace("KIND", "not string") + TEXT, INLINE),
    "other cases": (
        PARTS.replace("part.text", "part.text | upper | lower | title"),
        "<user>See <image> This<a>",
    ),
    "text alone": (TEXT, INLINE),
}
CHAT = [
    ChatMessage(role, text)
    for role, text in (("system", "A"), ("user", "B"), ("assistant", "C"), ("user", "D"))
]
SHOWN = "<system>A<user>B<assistant>C<user>D<a>"
PICTURE = ChatMessage("user", "see  this", images=(TurnImage(4, Image(b"1" * 32)),))


def chats(shown: str) -> tuple[str, Chats]:
    template = "{% for m in messages %}<{{ m.role }}>" + shown + "{% endfor %}"
    template += "{% if add_generation_prompt %}<a>{% endif %}"
    return template, Chats(Templates(template, template), {}, "models/odd", "<image>")


@pytest.mark.parametrize("name", READ)
def test_what_is_said_is_in_the_prompt(name):
    shown, with_picture = READ[name]
    template, server = chats(shown)
    assert server.render(CHAT, ()) == SHOWN
    assert server.render([PICTURE], ()) == with_picture
    tokenizer = TargetTokenizer((model_path("tiny") / "tokenizer.json").read_bytes())
    ids = local_only.render(CHAT, template, SimpleNamespace(eos_ids=(0,)), tokenizer)
    assert ids == tokenizer.encode_rendered(SHOWN)


CALLED = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
WITH_RESULT = [
    ChatMessage("user", "B"),
    ChatMessage("assistant", "", (ToolCall("call_1", "light", "{}"),)),
    ChatMessage("tool", "it is on", tool_call_id="call_1"),
]
RESULTS = {
    TEXT: "light<tool>it is on",
    PARTS: "light<tool>it is on",
    FIRST: "light<tool>it is on",
    "{{ m.content | tojson }}": 'light<tool>"it is on"',
    "": '{"name": "light", "arguments": {}}<user>Result of light: it is on',
}


@pytest.mark.parametrize("told", RESULTS)
def test_the_result_of_a_tool_is_in_the_prompt(told):
    text = chats(CALLED + by_role(tool=told))[1].render(WITH_RESULT, ())
    assert text == f"<user>B<assistant>{RESULTS[told]}<a>"


@pytest.mark.parametrize("shown", ["plain", "{{ m.parts[0].text }}", "{{ m.content | length }}"])
def test_a_template_that_shows_nothing_of_what_is_said_is_told(shown, capfd):
    chats(shown)
    assert "the chat template of models/odd shows nothing of what a user says" in capfd.readouterr().err
