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
