"""A target ready to serve: an engine and the tokenizer that belongs to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hw_profiles.step_cost import StepCost
from opensled.errors import NotFound, UsageError
from opensled.messages import ChatMessage, Tool
from opensled.store import is_hub_id, model_file, model_path
from verify_server.config import ServeConfig
from verify_server.engine.base import TargetEngine
from verify_server.text.hf_text import HFText


class TextCodec(Protocol):
    """A target's tokenizer and chat template."""

    tokenizer_json: bytes  # with which devices decode
    tokenizer_hash: str  # sha256 of it, hex
    chat_template: str  # "" if the target has none
    vocab_size: int  # ids that the tokenizer knows
    fingerprint: str  # of the spelling of each of them (opensled/vocabulary.py)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text, as the tokenizer frames it by default. Raises InvalidRequest."""

    def render(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
        """Token ids of a chat up to the start of the assistant's next turn, in which it may call `tools`.

        Raises Unsupported without a template, InvalidRequest for what the template refuses.
        """


@dataclass(frozen=True)
class Target:
    """What `serve` serves; `model_id` is its name for users."""

    model_id: str
    engine: TargetEngine
    text: TextCodec
    cost: StepCost | None = None  # of its steps, if the target states it


def load_torch(config: ServeConfig) -> Target:
    """A Hugging Face decoder: a bundled name, a folder, or a hub id."""
    if config.gpu_layers >= 0:
        raise UsageError("--gpu-layers is for --engine llamacpp; engine torch has --device")
    from verify_server.engine import loading, torch_engine

    name = config.model
    loading.use_threads(config.threads)
    folder = loading.find_folder(name if is_hub_id(name) else str(model_path(name)))
    engine = torch_engine.load(
        str(folder),
        device=config.device,
        dtype=config.dtype,
        numerics=config.numerics,
        kv_tokens=config.kv_tokens,
        context=config.context,
    )
    return Target(name if is_hub_id(name) else folder.name, engine, HFText(folder))


def load_llamacpp(config: ServeConfig) -> Target:
    """A GGUF file, alone or in a folder: a bundled name or a path. Raises UsageError, NotFound, UnsupportedModel."""
    from verify_server.engine import llamacpp
    from verify_server.text.gguf_text import GgufText

    _refuse_for_gguf(config)
    path = model_file(config.model, "*.gguf")
    text = GgufText(path)
    engine = llamacpp.load(
        path,
        device=config.device,
        gpu_layers=config.gpu_layers,
        threads=config.threads,
        kv_tokens=config.kv_tokens,
        context=config.context,
    )
    text.require_same(engine.model.pieces(), engine.model.tokenize)
    folder = model_path(config.model)
    return Target(path.stem if folder.is_file() else folder.name, engine, text)


def _refuse_for_gguf(config: ServeConfig) -> None:
    if config.dtype != "auto":
        raise UsageError(
            f"--dtype {config.dtype}: a GGUF file brings its own precision; leave the flag out, or serve another file"
        )
    if config.numerics == "exact":
        raise UsageError(
            "--numerics exact: llama.cpp's bits depend on the batch; leave the flag out, or use --engine torch"
        )
    if is_hub_id(config.model):
        raise NotFound(
            f"engine llamacpp serves files; run: hf download {config.model} --include '*.gguf', then give the file",
            "model",
        )
