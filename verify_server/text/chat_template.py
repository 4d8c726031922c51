"""The input of a target's chat template: messages and tools in the form that the template reads; without a tokenizer.

A template that does not mention tools gets them as a system text, and earlier calls and results as plain text, so that
any chat model can be asked to call one. How its model writes calls, the template shows (call_probe.py).
"""

import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from opensled.core.bounds import require_unicode
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import ChatMessage, Tool, ToolCall
from opensled.core.template_variables import RESERVED
from opensled.process.fork_server import OverLimit
from opensled.text.chat_contents import Turn
from opensled.text.chat_forms import first_taken, one_leading, short_ids
from opensled.text.chat_render import SHORT_CHAT, ChatRenderer, TemplateRefused
from opensled.text.families import KEYS
from opensled.text.schema_keywords import json_type
from opensled.text.thinking import thoughts_by_key
from verify_server.text.call_probe import find_form, shows_one_call
from verify_server.text.template_files import Templates

CALL_TAGS = ("<tool_call>", "</tool_call>")  # around earlier calls as text, for templates that have these
# Templates that show the calls of a turn only where its text is none, not where it is empty (DeepSeek R1)
CALLS_WITHOUT_TEXT = re.compile(r"'assistant' and [^%]*content\W+is none")
# Stands for a picture in the content of a turn while the template is fed: no text can hold it by chance or by intent,
# and no change of cases changes it.
PICTURE = f"<{secrets.randbits(128)}>"

# Variables of a template that devices are told of, and letters of a name; chosen
MAX_VARIABLES, MAX_NAME = 64, 64


class Chats:
    """Renders the chats of a target, those with tools by the template for these; several threads may use it at once."""

    def __init__(
        self,
        templates: Templates,
        special: Mapping[str, Any],
        origin: object,
        placeholder: str = "",
        undefined: bool = False,
    ) -> None:
        """`special`, `undefined`: see `ChatRenderer`; `placeholder`: text that stands for a picture.

        Raises UnsupportedModel, naming `origin`, for a template that takes too much or cannot be compiled.
        """
        self._placeholder = placeholder
        self._renderers = {
            text: ChatRenderer(text, special, undefined, PICTURE, placeholder) for text in templates if text
        }
        self._templates = templates
        names = {name for renderer in self._renderers.values() for name in renderer.require(origin)}
        self.variables = tuple(sorted(filter(_is_told, names))[:MAX_VARIABLES])
        self._is_told = self._tells(templates.tools)
        self.calls = find_form(templates.tools, self._show)
        self._one_call = shows_one_call(self._show)

    def _tells(self, template: str) -> bool:
        """Whether a template that mentions tools shows them; some read only those of a system message (Phi-4-mini)."""
        told = _function(Tool("first_probe"))
        with suppress(TemplateRefused, OverLimit):
            if mentions(template, "tools"):
                return told["function"]["name"] in self._renderers[template].render(SHORT_CHAT, [told])
        return mentions(template, "tools")

    def _show(self, messages: Sequence[ChatMessage]) -> Iterator[str]:
        """The texts of a chat by the template for tools, in the versions that it takes, calls as such."""
        template = self._templates.tools
        if not mentions(template, "tool_calls"):
            return
        for turns in template_input(messages, (), template)[0][:-2]:  # the last two have calls as plain text
            with suppress(TemplateRefused, OverLimit):
                yield self._renderers[template].render(turns, None)

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool],
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a chat up to the start of the assistant's next turn; `variables`: see `ChatRenderer.render`.

        Raises Unsupported without a template, InvalidRequest for what the template or the tokenizer refuses.
        """
        template = self._templates.tools if tools else self._templates.plain
        if not template:
            raise Unsupported("this target has no chat template; send text (--raw) or token ids", "messages")
        marked = [_mark_images(message) for message in messages]
        marked = _one_call_each(marked) if self._one_call else marked
        versions, functions = template_input(marked, tools, template, self._is_told)

        def render(turns: list[Turn]) -> str:
            return self._renderers[template].render(turns, functions, variables)

        return valid_text(first_taken(versions, render).replace(PICTURE, self._placeholder))


def _is_told(name: str) -> bool:
    """Whether clients are told of a variable of a template."""
    return name not in RESERVED and len(name) <= MAX_NAME


def _mark_images(message: ChatMessage) -> ChatMessage:
    """With PICTURE at the place of each picture."""
    if not message.images:
        return message
    cuts = (0, *[placed.offset for placed in message.images], len(message.content))
    return replace(
        message, images=(), content=PICTURE.join(message.content[low:high] for low, high in pairwise(cuts))
    )


def template_input(
    messages: Sequence[ChatMessage], tools: Sequence[Tool], template: str, is_told: bool = True
) -> tuple[list[list[Turn]], list[dict[str, Any]] | None]:
    """The versions of `messages`, for `first_taken`, and the `tools` with which to render `template` (no tools: None).

    `is_told`: a template that mentions tools shows them.

    Raises InvalidRequest if the schema of a tool or the arguments of an earlier call are not a JSON object.
    """
    unthought = [replace(message, reasoning="") for message in messages]
    versions = [_plain_turns(messages, template), _plain_turns(unthought, template)]
    if mentions(template, "tool_calls"):
        turns = [_turn(message, template) for message in messages]
        without = [_turn(message, template) for message in unthought]
        versions = [turns, _with_texts(turns), short_ids(turns), _in_thoughts(turns), without, *versions]
    functions = [_function(tool) for tool in tools]
    if functions and not (is_told and mentions(template, "tools")):
        text = _tools_text(functions, template)
        return [_with_system_text(one_leading(turns), text) for turns in versions], None
    return versions, functions or None


def valid_text(text: str) -> str:
    """`text` if a tokenizer can take it as a prompt; raises InvalidRequest."""
    return require_unicode(text, "the prompt", "prompt")


def mentions(template: str, name: str) -> bool:
    """Whether a template reads the variable or key `name`."""
    return re.search(rf"\b{name}\b", template) is not None


def parameters(tool: Tool) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, always of type object."""
    if not tool.parameters:
        return {"type": "object", "properties": {}}
    schema = parse_object(tool.parameters, f"the parameters of tool {tool.name!r} are", "tools")
    kind = json_type(schema.get("type") or "object")
    schema["type"] = "object"
    if "object" not in (kind if isinstance(kind, list) else [kind]):
        raise InvalidRequest(f"the parameters of tool {tool.name!r} must have type object", "tools")
    return schema


def parse_object(text: str, what: str, field: str) -> dict[str, Any]:
    """A JSON object from its text; raises InvalidRequest for `field`, whose message begins with `what`."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"{what} not valid JSON", field) from error
    if not isinstance(value, dict):
        raise InvalidRequest(f"{what} not a JSON object", field)
    return value


def _function(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": parameters(tool)}
    return {"type": "function", "function": function}


def _turn(message: ChatMessage, template: str) -> Turn:
    """One message for a template with tool calls, which reads their arguments as an object, not as text."""
    turn: Turn = {"role": message.role, "content": message.content}
    turn |= thoughts_by_key(template, message.reasoning)
    if message.tool_calls:
        if not message.content and CALLS_WITHOUT_TEXT.search(template):
            turn["content"] = None
        turn["tool_calls"] = [
            {"id": call.id, "type": "function", "function": _call(call)} for call in message.tool_calls
        ]
    if message.tool_call_id:
        turn["tool_call_id"] = message.tool_call_id
    if message.name:
        turn["name"] = message.name
    return turn


def _one_call_each(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """With a turn for each call and its results, for templates that show the first call of a turn alone."""
    made, told = list[ChatMessage](), list[ChatMessage]()
    for message in messages:
        for number, call in enumerate(message.tool_calls[:-1] and message.tool_calls):
            turn = replace(message, content="", reasoning="") if number else message
            results = [
                one for one in messages if one.role == "tool" and call.id and one.tool_call_id == call.id
            ]
            made += [replace(turn, tool_calls=(call,)), *results]
            told += results
        if len(message.tool_calls) < 2 and not any(message is one for one in told):
            made.append(message)
    return made


def _in_thoughts(turns: Sequence[Turn]) -> list[Turn]:
    """With the text beside a call behind the thoughts before it, for templates that take one of both (gpt-oss)."""
    made = []
    for turn in turns:
        keys = [key for key in KEYS if key in turn and "tool_calls" in turn and turn["content"]]
        moved = {key: f"{turn[key]}\n\n{turn['content']}" for key in keys}
        made.append({**turn, **moved, "content": ""} if keys else turn)
    return made


def _with_texts(turns: Sequence[Turn]) -> list[Turn]:
    """With arguments of calls as text, for templates that append them to text."""
    return [
        {**turn, "tool_calls": [_with_text(call) for call in turn["tool_calls"]]}
        if "tool_calls" in turn
        else turn
        for turn in turns
    ]


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        **call,
        "function": {**function, "arguments": json.dumps(function["arguments"], ensure_ascii=False)},
    }


def _call(call: ToolCall) -> dict[str, Any]:
    what = f"the arguments of the call of {call.name!r} are"
    return {"name": call.name, "arguments": parse_object(call.arguments, what, "messages")}


def _plain_turns(messages: Sequence[ChatMessage], template: str) -> list[Turn]:
    """Messages for a template without tools: calls become the assistant's text, their results the user's."""
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    turns: list[Turn] = []
    in_results = False
    for message in messages:
        is_result = message.role == "tool"
        if is_result:
            name = message.name or names.get(message.tool_call_id, "tool")
            turn = {"role": "user", "content": f"Result of {name}: {message.content}"}
        else:
            turn = {"role": message.role, "content": _plain_text(message, template)}
            turn |= thoughts_by_key(template, message.reasoning)
        if is_result and in_results:  # some templates require that user and assistant alternate
            turns[-1]["content"] += "\n" + turn["content"]
        else:
            turns.append(turn)
        in_results = is_result
    return turns


def _plain_text(message: ChatMessage, template: str) -> str:
    calls = [
        _write_call(json.dumps(_call(call), ensure_ascii=False), template) for call in message.tool_calls
    ]
    return "\n".join([message.content, *calls] if message.content else calls) if calls else message.content


def _write_call(call: str, template: str) -> str:
    """A call as the model of this template writes it."""
    return "\n".join((CALL_TAGS[0], call, CALL_TAGS[1])) if CALL_TAGS[0] in template else call


def _tools_text(functions: list[dict[str, Any]], template: str) -> str:
    """The tools and how to call them, in a few lines for the model."""
    lines = [json.dumps(entry["function"], ensure_ascii=False) for entry in functions]
    call = _write_call('{"name": <name of the tool>, "arguments": <object with its arguments>}', template)
    return "\n".join(
        ["You can call these tools:", *lines, "To call a tool, answer with nothing but this JSON:", call]
    )


def _with_system_text(turns: list[Turn], text: str) -> list[Turn]:
    """`turns` with `text` at the end of the first system message, or as a new one."""
    if turns and turns[0]["role"] == "system":
        return [{**turns[0], "content": f"{turns[0]['content']}\n\n{text}"}, *turns[1:]]
    return [{"role": "system", "content": text}, *turns]
