"""Engines of our own load a target: torch and llama.cpp."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hw_profiles.detect import usable_cores
from opensled.core.errors import NotFound, UnsupportedModel, UsageError
from opensled.core.messages import ChatMessage
from opensled.models.model_kind import is_gguf
from opensled.models.store import has_file, is_hub_id, missing, model_file, model_path
from opensled.process import distribution
from opensled.process.load_thread import in_thread_that_ends
from opensled.process.logs import tell, tell_long
from verify_server.engine.base import TargetEngine
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel, TextCodec, model_id_of
from verify_server.text.hf_text import HFText

if TYPE_CHECKING:
    from verify_server.engine.llamacpp.llama_engine import LlamaCppEngine
    from verify_server.text.gguf_text import GgufText


# Engine -> the module it needs.
NEEDED = {"torch": "torch", "llamacpp": "llama_cpp"}


def load(config: ServeConfig, host: TargetEngine | None = None) -> ServedModel:
    """By the engine that suits the model's files, or by the other one if only that is installed; `host`: the target of
    a draft model."""
    gguf = _is_gguf(config.model)
    wanted = ("llamacpp", "torch") if gguf else ("torch", "llamacpp")
    engine = next((name for name in wanted if find_spec(NEEDED[name])), wanted[0])
    if engine == "llamacpp":
        _refuse_for_gguf(config)
        _gguf_file(config.model)
    if gguf or engine != wanted[0]:
        tell(f"engine {engine} serves {config.model}; --engine chooses another")
    return load_llamacpp(config) if engine == "llamacpp" else load_torch(config, host)


def _is_gguf(model: str) -> bool:
    """Whether a model is GGUF; a repository that engine torch may download is not.

    Raises NotFound, or UnsupportedModel for files of another kind.
    """
    if not is_hub_id(model):
        return is_gguf(model_path(model))
    if "gguf" in model.lower():
        raise NotFound(missing(model), "model")
    return False


def _tell_loading(config: ServeConfig) -> None:
    """Said before the libraries are imported, which takes seconds. Raises UsageError, and as `_is_gguf` does."""
    if config.vllm:
        raise UsageError(f"--vllm {config.vllm}: only --engine vllm takes it; leave the flag out")
    _is_gguf(config.model)
    tell(f"loading {config.model}")


def load_torch(config: ServeConfig, host: TargetEngine | None = None) -> ServedModel:
    """A Hugging Face decoder or a GGUF file: a known name, a path, or a hub id. `host`: see `torch_engine.load`."""
    _tell_loading(config)
    if config.gpu_layers >= 0:
        raise UsageError("--gpu-layers is for --engine llamacpp; engine torch has --device")
    if config.dtype == "stored":
        raise UsageError(
            "--dtype stored is for --engine llamacpp; engine torch widens the weights of every GGUF file"
        )
    with tell_long("still starting torch and transformers"):
        from verify_server.engine.torch import loading, torch_engine

    name = config.model
    weights = loading.find_weights(name if is_hub_id(name) else str(model_path(name)))
    text = _gguf_text(weights.path) if weights.gguf else HFText(weights.folder)
    engine = in_thread_that_ends(
        torch_engine.load,
        str(weights.path),
        device=config.device,
        dtype=config.dtype,
        numerics=config.numerics,
        kv_tokens=config.kv_tokens,
        context=config.context,
        max_rows=config.max_step_tokens,
        attention=config.attention,
        graphs=config.graphs,
        threads=config.threads,
        eos_ids=text.eos_ids,
        host=host,
    )
    return ServedModel(model_id_of(name), engine, text)


def _gguf_text(path: Path) -> TextCodec:
    from opensled.models.gguf_file import read_metadata
    from verify_server.text.gguf_text import GgufText

    text = GgufText(path)
    text.require_pieces(read_metadata(path).get("tokenizer.ggml.tokens") or [])
    return text


def load_llamacpp(config: ServeConfig) -> ServedModel:
    """A GGUF file, alone or in a folder: a bundled name or a path. Raises UsageError, NotFound, UnsupportedModel."""
    _tell_loading(config)
    from verify_server.text.gguf_text import GgufText

    _refuse_for_gguf(config)
    path = _gguf_file(config.model)
    text = GgufText(path)
    engine = in_thread_that_ends(
        _load_gguf,
        path,
        text,
        config.dtype,
        device=config.device,
        gpu_layers=config.gpu_layers,
        threads=config.threads,
        kv_tokens=config.kv_tokens,
        context=config.context,
        eos_ids=text.eos_ids,
    )
    return ServedModel(model_id_of(config.model), engine, text)


def refuse_vllm(config: ServeConfig) -> ServedModel:
    """Raises UsageError: vLLM's model is loaded by a server of its own (vllm_plugin/launch.py)."""
    raise UsageError(
        "engine vllm is a server of its own, and computes no model in this process: start opensled serve --engine vllm "
        "for it, and use engine torch or llamacpp here"
    )


def _load_gguf(path: Path, text: "GgufText", dtype: str, **options: Any) -> "LlamaCppEngine":
    """The engine of a file, or of the same weights widened; what is served as it is stored is compared with these."""
    from opensled.models import widened
    from verify_server.engine.llamacpp import agreement
    from verify_server.engine.llamacpp import llama_engine as llamacpp

    file = widened.file_to_run(path, dtype)
    engine = llamacpp.load(file, **options)
    text.require_same(engine.model.pieces(), engine.model.tokenize, engine.model.frame())
    if file == path:
        agreement.check(engine.model, path, partial(_opening, text), options["threads"] or usable_cores())
    return engine


def _opening(text: TextCodec, question: str) -> tuple[int, ...]:
    """Token ids of a chat that begins with `question`; without a chat template, of the question."""
    return text.render([ChatMessage("user", question)]) if text.chat_template else text.encode(question)


def _gguf_file(model: str) -> Path:
    """The GGUF file of a model. Raises NotFound, or UnsupportedModel for one with safetensors only."""
    path = model_path(model)
    if path.is_dir() and not has_file(model, "*.gguf"):
        raise UnsupportedModel(
            f"{path} holds safetensors, which need engine torch: {distribution.command('server')}; "
            "engine llamacpp serves GGUF files"
        )
    return model_file(model, "*.gguf")


def _refuse_for_gguf(config: ServeConfig) -> None:
    if config.dtype not in ("auto", "stored", "float16"):
        raise UsageError(
            f"--dtype {config.dtype}: engine llamacpp serves a GGUF file as it is (stored) or widened (float16); leave "
            "the flag out, or use --engine torch"
        )
    if config.numerics == "exact":
        raise UsageError(
            "--numerics exact: llama.cpp's bits depend on the batch; leave the flag out, or use --engine torch"
        )
    if is_hub_id(config.model):
        raise NotFound(
            f"engine llamacpp serves GGUF files that are here; run: opensled pull {config.model}, or another "
            f"repository with GGUF files (for safetensors: {distribution.command('server')})",
            "model",
        )
