"""A target that thinks: tiny's tokenizer with a template of tags, and an engine that writes what the user asks for.

The user's text holds WRITE, the answer in hex, and END.
"""

import json
import re
import shutil
from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from edge_client.device.device import Device
from edge_client.lengths.fixed import FixedLength
from http_api.app import build_app
from opensled.text.tokenizer import TargetTokenizer
from tests.fakes import FakeEngine, Made, OracleDrafter
from tests.guiding import TINY
from tests.http_serving import asking, http_serving
from tests.serving import linked
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.base import EngineInfo
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.text.hf_text import HFText

EOS, WIDTH = 0, 2100
LIMITS = SessionLimits(max_sessions=64, linger=0.2)
# What stands around thoughts, and whether these are special tokens, other added tokens, or spelled in several.
TAGS = {
    "special": ("[THINK]", "[/THINK]"),
    "added": ("<think>", "</think>"),
    "spelled": ("◁think▷", "◁/think▷"),
    "channels": ("<|channel|>analysis<|message|>", "<|end|>"),
}
CHANNELS = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")
CALLS = "{% if tools %}<|system|>{{ tools | length }} tools: <tool_call></tool_call><|end|>{% endif %}"
TURNS = """{%- for m in messages -%}{{ '<|' + m.role + '|>' }}
{%- if m.reasoning_content %}{{ START + m.reasoning_content + STOP }}{% endif %}
{{- m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{{ '<|end|>' -}}{%- endfor -%}"""
SWITCHED_OFF = (
    "{%- if enable_thinking is defined and not enable_thinking %}{{ START + '\\n\\n' + STOP + '\\n\\n' }}"
)
EFFORT = (
    "{%- if reasoning_effort is defined %}{{ '<|system|>think ' + reasoning_effort + '<|end|>' }}{% endif %}"
)


def template(tags: tuple[str, str], prompt_opens: bool, switch: bool = True, calls: bool = True) -> str:
    """A chat template; `switch`: whether it reads the variables, `calls`: whether these stand between tags."""
    opening = "{{ START + '\\n' }}" if prompt_opens else ""
    ending = f"{SWITCHED_OFF}{{% else %}}{opening}{{% endif %}}" if switch else opening
    return "".join(
        (
            f"{{%- set START = '{tags[0]}' %}}{{%- set STOP = '{tags[1]}' %}}",
            *([CALLS] if calls else ["{{ tools and '' }}{{- '' -}}"]),
            *([EFFORT] if switch else []),
            TURNS,
            "{%- if add_generation_prompt %}{{ '<|assistant|>' }}",
            ending,
            "{%- endif %}",
        )
    )


def folder(at: Path, kind: str, text: str) -> Path:
    """A model's folder with tiny's tokenizer and the tags of `kind`."""
    at.mkdir()
    for name in ("config.json", "generation_config.json"):
        shutil.copy(TINY / name, at / name)
    saved = (TINY / "tokenizer.json").read_text("utf-8")
    tree = json.loads(saved.replace("<|end|>", "<|eos|>") if kind == "channels" else saved)
    like = tree["added_tokens"][0]
    added = {"spelled": (), "channels": CHANNELS}.get(kind, TAGS[kind])
    tree["added_tokens"] += [
        {**like, "id": 2048 + number, "content": tag, "special": kind in ("special", "channels")}
        for number, tag in enumerate(added)
    ]
    (at / "tokenizer.json").write_text(json.dumps(tree))
    config = json.loads((TINY / "tokenizer_config.json").read_text())
    config.pop("chat_template", None)
    (at / "tokenizer_config.json").write_text(json.dumps(config))
    (at / "chat_template.jinja").write_text(text)
    return at


class Script:
    """What the target writes, token by token."""

    def __init__(self, text: HFText, tags: tuple[str, str], prompt_opens: bool) -> None:
        self._text, self._known = text, dict[tuple[int, ...], list[int]]()
        self._assistant = text.encode("<|assistant|>")[-1]
        closed = text.encode(f"{tags[0]}\n\n{tags[1]}\n\n")
        self._heads = [closed, *([text.encode(f"{tags[0]}\n")] if prompt_opens else [])]
        self._decode = TargetTokenizer(text.tokenizer_json).token_bytes

    def next(self, context: Sequence[int]) -> int:
        """The token that follows."""
        if self._assistant not in context:
            return EOS
        last = len(context) - list(reversed(context)).index(self._assistant)
        said = tuple(context[last:])
        for head in self._heads:
            if said[: len(head)] == head:
                said = said[len(head) :]
                break
        line = self._line(tuple(context[:last]))
        return line[len(said)] if len(said) < len(line) else EOS

    def _line(self, prompt: tuple[int, ...]) -> list[int]:
        if prompt not in self._known:
            text = b"".join(map(self._decode, prompt)).decode(errors="replace")
            found = re.findall("WRITE([0-9a-f]*)END", text)
            wanted = bytes.fromhex(found[-1]).decode() if found else "nothing to write"
            self._known[prompt] = list(self._text.encode(wanted))
        return self._known[prompt]


BASE = np.random.default_rng(3).normal(0, 1, WIDTH)


@dataclass
class ScriptEngine(FakeEngine):
    """Nearly sure of the script's next token; what else it draws at a temperature depends on the context."""

    num_blocks: int = 3000
    block_size: int = 16
    context_length: int = 4096
    script: Any = None
    sure: float = field(default=11.0)  # logit of the script's token, beside noise of about 1

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(
            "script", WIDTH, self.context_length, (EOS,), "exact", "float64", "cpu", self.num_blocks,
            self.block_size, shares_blocks=True, max_tree=64,
        )  # fmt: skip

    def forward(self, segments):
        contexts = super().forward(segments)._contexts
        rows = [self._row(context) for context in contexts]
        return NumpyScores(np.stack(rows) if rows else np.zeros((0, WIDTH)))

    def _row(self, context: Sequence[int]) -> np.ndarray:
        row = np.roll(BASE, len(context))
        row[self.script.next(context)] = self.sure
        return row


@asynccontextmanager
async def thinking(at: Path, kind: str = "added", prompt_opens: bool = True, **options: Any):
    """Yields HTTP clients of a server that thinks and of a device with drafts, and the server's manager.

    `options`: of `template`.
    """
    text = HFText(folder(at, kind, template(TAGS[kind], prompt_opens, **options)))
    script = Script(text, TAGS[kind], prompt_opens)
    async with (
        http_serving(engine=ScriptEngine(script=script), text=text, limits=LIMITS) as (
            manager,
            address,
            http,
        ),
        asking(http) as server,
        linked(address) as link,
    ):
        tokenizer = TargetTokenizer(text.tokenizer_json)
        device = Device(
            link,
            await link.describe(),
            tokenizer,
            Made(lambda: OracleDrafter(1.0, target=script.next), "script"),
            FixedLength(4),
            2,
        )
        transport = httpx.ASGITransport(build_app(device))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=30) as edge:
            edge.device = device
            yield server, edge, manager
        await device.close()


def asks(answer: str) -> str:
    """A user's text that makes the target write `answer`."""
    return f"WRITE{answer.encode().hex()}END"


def whole(mask: bytes, token: int) -> bool:
    return bool(mask[token // 8] >> token % 8 & 1)


TOOLS = [{"type": "function", "function": {"name": "light", "parameters": {
    "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}}}]  # fmt: skip
CALLED = [("light", {"on": True})]


class Told:
    """One answer as an API tells it."""

    def __init__(self) -> None:
        self.thoughts = self.text = self.reason = ""
        self.calls: list[tuple[str, Any]] = []
        self.counted: int | None = None

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other)

    def __repr__(self) -> str:
        return repr(vars(self))


async def chat(client: Any, body: dict[str, Any], stream: bool) -> Told:
    body = {**body, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
    told, arguments = Told(), []
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    replies = (
        [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
        if stream
        else [response.json()]
    )
    for reply in replies:
        for choice in reply["choices"]:
            piece = choice.get("delta") or choice.get("message") or {}
            told.thoughts += piece.get("reasoning_content") or ""
            assert not (piece.get("reasoning_content") and told.text and stream), "thoughts come first"
            told.text += piece.get("content") or ""
            told.reason = choice["finish_reason"] or told.reason
            for call in piece.get("tool_calls") or ():
                if "id" in call:
                    arguments.append([call["function"]["name"], ""])
                arguments[-1][1] += call["function"]["arguments"]
        if reply.get("usage"):
            told.counted = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
    told.calls = [(name, json.loads(text)) for name, text in arguments]
    return told


async def responses(client: Any, body: dict[str, Any], stream: bool) -> Told:
    body = {**body, "input": body["messages"], "stream": stream}
    del body["messages"]
    if "max_tokens" in body:
        body["max_output_tokens"] = body.pop("max_tokens")
    if form := body.pop("response_format", None):
        body["text"] = {"format": {"type": "json_schema", **form["json_schema"]}}
    body["tools"] = [{"type": "function", **tool["function"]} for tool in body.get("tools", ())]
    response = await client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        return _of_response(response.json())
    events = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    deltas = Told()
    for event in events:
        deltas.thoughts += event["delta"] if event["type"] == "response.reasoning_text.delta" else ""
        deltas.text += event["delta"] if event["type"] == "response.output_text.delta" else ""
    told = _of_response(events[-1]["response"])
    assert (deltas.thoughts, deltas.text) == (told.thoughts, told.text)
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    assert added == [item["id"] for item in events[-1]["response"]["output"]]
    return told


def _of_response(response: dict[str, Any]) -> Told:
    told = Told()
    for number, item in enumerate(response["output"]):
        if item["type"] == "reasoning":
            assert number == 0 and item["summary"] == []
            told.thoughts += "".join(part["text"] for part in item["content"])
        if item["type"] == "message":
            told.text += "".join(part["text"] for part in item["content"])
        if item["type"] == "function_call":
            told.calls.append((item["name"], json.loads(item["arguments"])))
    told.counted = response["usage"]["output_tokens_details"]["reasoning_tokens"]
    told.reason = {"completed": "stop", "incomplete": "length"}[response["status"]]
    return told


async def ollama(client: Any, body: dict[str, Any], stream: bool) -> Told:
    options = {"temperature": body["temperature"], "seed": body["seed"], **body.get("options", {})}
    body = {**body, "stream": stream, "options": options}
    body["options"] |= {"top_k": 0, "top_p": 1, "num_predict": body.pop("max_tokens", 400)}
    for name in ("temperature", "seed"):
        del body[name]
    if form := body.pop("response_format", None):
        body["format"] = form["json_schema"]["schema"]
    if body.pop("tool_choice", ""):
        body["tool_choice"] = "auto"  # it has no other
    if "enable_thinking" in body:
        body["think"] = body.pop("enable_thinking")
    response = await client.post("/api/chat", json=body)
    assert response.status_code == 200, response.text
    told = Told()
    for line in response.text.splitlines():
        reply = json.loads(line)
        told.thoughts += reply["message"].get("thinking", "")
        told.text += reply["message"]["content"]
        told.calls += [(call["function"]["name"], call["function"]["arguments"])
                       for call in reply["message"].get("tool_calls", ())]  # fmt: skip
        told.reason = reply.get("done_reason", told.reason)
    return told


async def messages(client: Any, body: dict[str, Any], stream: bool) -> Told:
    tools = [tool["function"] for tool in body.get("tools", ())]
    tools = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in tools]
    body = {**body, "stream": stream, "stop_sequences": body.get("stop", []), "tools": tools}
    response = await client.post(
        "/v1/messages", json={name: body[name] for name in body if name not in ("seed", "stop")}
    )
    assert response.status_code == 200, response.text
    lines = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: ")]
    pieces = [{**line.get("content_block", {}), **line.get("delta", {})} for line in lines]
    told, inputs = Told(), list[str]()
    for piece in pieces if stream else [*response.json()["content"], response.json()]:
        told.thoughts += piece.get("thinking", "")
        told.text += piece.get("text", "")
        if piece.get("type") == "tool_use":
            told.calls.append((piece["name"], None))
            inputs.append("" if stream else json.dumps(piece["input"]))
        if "partial_json" in piece:
            inputs[-1] += piece["partial_json"]
        told.reason = {"max_tokens": "length"}.get(
            reason := piece.get("stop_reason"), reason and "stop"
        ) or told.reason
    told.calls = [(name, json.loads(text)) for (name, _), text in zip(told.calls, inputs, strict=True)]
    return told


def asked(text: str, temperature: float = 0, **more: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": asks(text)}],
        "temperature": temperature,
        "seed": 5,
        "max_tokens": 400,
        **more,
    }
