"""From a folder or a hub id to a transformers decoder that attends through our paged attention."""

import logging
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from safetensors import SafetensorError
from transformers import (
    AttentionInterface,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)
from transformers.initialization import no_init_weights

from opensled.core.errors import (
    ModelError,
    NotFound,
    OpenSledError,
    Unauthorized,
    Unreachable,
    UnsupportedModel,
    UsageError,
    first_line,
)
from opensled.core.files import REFUSALS, user_path, why_not_written
from opensled.models.hub import fetch_pinned
from opensled.models.model_kind import is_gguf
from opensled.models.store import model_file
from verify_server.engine.torch import image_encoder, model_sizes
from verify_server.engine.torch.attention import NAME, paged_attention
from verify_server.engine.torch.quiet_exit import silence_bindings

log = logging.getLogger(__name__)

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
# transformers brings a log handler of its own; its warnings belong where ours go, in the form ours have.
transformers.utils.logging.disable_default_handler()
transformers.utils.logging.enable_propagation()
silence_bindings()
AttentionInterface.register(NAME, paged_attention)
# Weights only as safetensors: a pickle runs code when it is opened.
OTHER_SHAPES = "its weights have other shapes than its config.json states; download both again"
HUB_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "*.txt"]


def use_threads(count: int) -> None:
    """CPU threads of a forward pass; 0 leaves torch's own choice. Tiny targets are fastest with one."""
    if count:
        torch.set_num_threads(count)


def pick_device(name: str) -> torch.device:
    """ "auto" is the first CUDA device, else the CPU. Raises UsageError."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind = name.partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise UsageError(f"unknown device {name!r}; choose from auto, cpu, cuda, cuda:N")
    if kind == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"device {name!r}: this torch sees no CUDA device; use --device cpu or install a CUDA build"
        )
    return torch.device(name)


class Weights(NamedTuple):
    """Where a model's weights are."""

    folder: Path
    gguf: str = ""  # name of a GGUF file in the folder; "" = its safetensors

    @property
    def path(self) -> Path:
        return self.folder / self.gguf


def find_weights(model: str) -> Weights:
    """The weights of a model given as a folder, a GGUF file or a hub id; downloads what is missing.

    Raises NotFound, Unauthorized, Unreachable, or UnsupportedModel if the folder holds no weights.
    """
    path = user_path(model)
    path = path if path.exists() else _download(model)
    if not is_gguf(path):
        return Weights(path)
    file = model_file(str(path), "*.gguf")
    return Weights(file.parent, file.name)


def _download(model: str) -> Path:
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise NotFound(
            f"no folder {model!r}; give an existing model folder or a hub id such as Qwen/Qwen3-0.6B", "model"
        )
    try:
        return fetch_pinned(model, partial(_snapshot, model))
    except HFValidationError as error:
        raise NotFound(f"{model!r} is neither a folder nor a hub id: {error}", "model") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise _hub_error(model, error) from error


def _snapshot(model: str, commit: str | None) -> Path:
    return Path(snapshot_download(model, revision=commit, allow_patterns=HUB_PATTERNS))


def _hub_error(model: str, error: OSError) -> OpenSledError:
    status = (
        error.response.status_code if isinstance(error, HfHubHTTPError) and error.response is not None else 0
    )
    if status == 403:
        return Unauthorized(
            f"the hub refuses {model!r}: accept its licence on the hub, then run: hf auth login", "model"
        )
    if status in (401, 404):  # the hub answers 401 for what does not exist, too
        return NotFound(
            f"the hub has no model {model!r}; check the name, or run hf auth login if it is private", "model"
        )
    if error.errno in REFUSALS:
        path = Path(error.filename or HF_HUB_CACHE)
        why = why_not_written(path, error)
        return ModelError(f"{path} cannot be written: {why}, or name another folder in HF_HOME")
    return Unreachable(
        f"no folder {model!r}, and the hub cannot be reached ({error}); give a local model folder"
    )


def read_config(weights: Weights) -> Any:
    """The model's config. Raises UnsupportedModel for quantized weights, and what this transformers does not know."""
    if weights.gguf:
        from verify_server.engine.torch import gguf_config

        return gguf_config.read_config(weights.path)
    try:
        model_sizes.require_sane(weights.folder / "config.json")
        config = AutoConfig.from_pretrained(weights.folder, trust_remote_code=False)
    except OpenSledError:
        raise
    except Exception as error:  # transformers validates configs with errors of many kinds
        raise UnsupportedModel(
            f"{weights.folder}: transformers {transformers.__version__} cannot read it: {first_line(error)}"
        ) from error
    _refuse_quantized(weights.folder, config)
    return config


def _refuse_quantized(folder: Path, config: Any) -> None:
    """Raises UnsupportedModel where the config of the whole or of its text says that the weights are quantized."""
    parts = (config, config.get_text_config(decoder=True))
    stated = [
        getattr(part, key, None) for part in parts for key in ("quantization_config", "compression_config")
    ]
    if (
        folder / "quantize_config.json"
    ).is_file():  # beside a config.json that is silent, as GPTQ's first tools did
        stated.append({"quant_method": "gptq"})
    if (found := next((each for each in stated if each is not None), None)) is not None:
        method = found.get("quant_method") if isinstance(found, dict) else None
        raise UnsupportedModel(
            f"{folder} holds quantized weights ({method or 'by a method that its config.json does not name'}), which "
            "engine torch does not compute; use --engine vllm, or a GGUF file of this model with --engine llamacpp"
        )


def pick_dtype(name: str, device: torch.device, weights: Weights) -> torch.dtype:
    """ "auto" is bfloat16, on a CPU only if it computes that fast and the weights are no wider; else float32.

    Raises UsageError.
    """
    if name == "auto":
        fast = device.type != "cpu" or (has_fast_bfloat16() and not _is_wide(weights))
        return torch.bfloat16 if fast else torch.float32
    if name not in DTYPES:
        raise UsageError(f"unknown dtype {name!r}; choose from auto, {', '.join(DTYPES)}")
    return DTYPES[name]


def has_fast_bfloat16() -> bool:
    """Whether this processor multiplies in bfloat16: AVX512-BF16 or AMX on x86, BF16 on Arm."""
    features = torch.cpu.get_capabilities()
    return any(features.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _is_wide(weights: Weights) -> bool:
    """Whether the weights have more than 16 bits."""
    if weights.gguf:
        from verify_server.engine.torch import gguf_model

        return gguf_model.is_wide(weights.path)
    dtype = getattr(read_config(weights), "dtype", None)
    return not isinstance(dtype, torch.dtype) or dtype.itemsize > 2


def load_network(weights: Weights, device: torch.device, dtype: torch.dtype) -> PreTrainedModel:
    """The model in evaluation mode, attention dispatched to `attention.NAME`. Raises UnsupportedModel.

    It reads a config of its own: two models that share one also share its attention implementation. Of a
    vision-language model it is the whole; `image_encoder.decoder_of` has its decoder.
    """
    network = _from_gguf(weights, dtype) if weights.gguf else _from_safetensors(weights, dtype)
    return network.to(device).eval().requires_grad_(False)


def _from_gguf(weights: Weights, dtype: torch.dtype) -> PreTrainedModel:
    from verify_server.engine.torch import gguf_model

    with no_init_weights():
        network: PreTrainedModel = AutoModelForCausalLM.from_config(
            read_config(weights), dtype=dtype, attn_implementation=NAME
        )
    network.tie_weights()  # part of the initialization that was left out
    gguf_model.fill(network, weights.path)
    return network


def _from_safetensors(weights: Weights, dtype: torch.dtype) -> PreTrainedModel:
    transformers.utils.logging.disable_progress_bar()  # it would tear the lines around it; we tell what goes on
    usual = transformers.utils.logging.get_verbosity()
    transformers.utils.logging.set_verbosity_error()  # instead of its report of many lines, one of ours
    try:
        kind, attention = _class_of(weights)
        network, report = kind.from_pretrained(
            weights.folder,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
            output_loading_info=True,
            **_experts(dtype),
        )
    except SafetensorError as error:
        raise UnsupportedModel(
            f"the weights in {weights.folder} cannot be read: {first_line(error)}; download them again"
        ) from error
    except Exception as error:  # transformers and torch raise many kinds
        cause = OTHER_SHAPES if "mismatched" in str(error) else first_line(error)
        raise UnsupportedModel(
            f"{weights.folder} cannot be loaded as a causal language model: {cause}"
        ) from error
    finally:
        transformers.utils.logging.set_verbosity(usual)
    if missing := sorted(report["missing_keys"]):
        raise UnsupportedModel(
            f"{weights.folder} lacks weights of its architecture: {', '.join(missing[:3])}"
        )
    if unused := sorted(report["unexpected_keys"]):
        log.warning("%d weights in %s are not used, such as %s", len(unused), weights.folder, unused[0])
    return network


def _class_of(weights: Weights) -> tuple[Any, str | dict[str, str]]:
    """How transformers loads the model, and by which attention. Raises UnsupportedModel, see `require_family`."""
    config = read_config(weights)
    if not image_encoder.sees(config):
        return AutoModelForCausalLM, NAME
    image_encoder.require_family(config)
    return AutoModelForImageTextToText, {"text_config": NAME, "vision_config": "sdpa"}


def _experts(dtype: torch.dtype) -> dict[str, str]:
    """torch's grouped matrix product knows no float64; one expert after the other does."""
    return {"experts_implementation": "eager"} if dtype == torch.float64 else {}


def eos_ids(network: PreTrainedModel) -> tuple[int, ...]:
    """Token ids that end a sequence; the generation config knows more of them than the model config."""
    for config in (network.generation_config, network.config, network.config.get_text_config(decoder=True)):
        found = getattr(config, "eos_token_id", None)
        if found is not None:
            return tuple(found) if isinstance(found, (list, tuple)) else (found,)
    return ()
