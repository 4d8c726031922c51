"""What the device's drafter and the server's engine share of llama.cpp: weights, token spellings, error messages.

A context (KV cache) belongs to its creator; ctypes releases the GIL while llama.cpp computes.
"""

import ctypes
import os
import re
import weakref
from collections import deque
from pathlib import Path
from typing import Any

from opensled.core.errors import UnsupportedModel
from opensled.models import llama_api
from opensled.process import distribution

llama_cpp: Any = llama_api.load()

LOG_ERROR = 4  # ggml's GGML_LOG_LEVEL_ERROR

# llama.cpp's latest error lines, to name the cause of a failed call.
_complaints: deque[str] = deque(maxlen=3)


@llama_cpp.llama_log_callback
def _log(level: int, text: bytes, _: Any) -> None:
    if level == LOG_ERROR:
        _complaints.append(text.decode("utf-8", "replace").strip())


def listen() -> None:
    """Silence llama.cpp and keep its error messages."""
    llama_cpp.llama_log_set(_log, ctypes.c_void_p(0))


def forget_complaints() -> None:
    """Forget older messages, before a call whose failure must be explained."""
    _complaints.clear()


def cause() -> str:
    """Why the last call failed, in llama.cpp's words."""
    return "; ".join(_complaints) or "it gave no reason"


def _not_loaded(path: Path, why: str) -> str:
    if unknown := re.search(r"unknown model architecture: '([^']*)'", why):
        upgrade = "pip install --upgrade llama-cpp-python"
        if llama_api.package() == llama_api.PREBUILT:
            upgrade = distribution.command("llamacpp")
        return f"{path} has architecture {unknown[1]!r}, which this llama.cpp does not know; a newer one may: {upgrade}"
    return f"llama.cpp cannot load {path}: {why}; try another GGUF file"


def _uses_amx() -> bool:
    """Whether this llama.cpp multiplies with AMX, which ends the process at the first token on some processors.

    https://github.com/ggml-org/llama.cpp/issues/20824. It does so only with weights that it rearranged at load, so they
    are left as they are. llama.cpp has one switch for all rearranging, so that for its other kernels is lost, too.
    """
    return b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()


class LlamaModel:
    """Owns the weights of one GGUF file; freed once, when unused or when Python exits.

    `gpu_layers`: layers on a GPU; None = llama.cpp's choice (all, if it was built for one).
    Raises UnsupportedModel.
    """

    def __init__(self, path: Path, gpu_layers: int | None = None) -> None:
        listen()
        llama_cpp.llama_backend_init()
        forget_complaints()
        params = llama_cpp.llama_model_default_params()
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        params.use_extra_bufts = params.use_extra_bufts and not _uses_amx()
        self.path = path
        self.handle = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise UnsupportedModel(_not_loaded(path, cause()))
        weakref.finalize(self, llama_cpp.llama_model_free, self.handle)
        if llama_cpp.llama_model_has_encoder(self.handle):
            raise UnsupportedModel(f"{path} has an encoder; draft and target must be decoder-only")
        self.vocabulary = llama_cpp.llama_model_get_vocab(self.handle)
        self.vocab_size: int = llama_cpp.llama_vocab_n_tokens(self.vocabulary)

    @property
    def context_length(self) -> int:
        """Positions the model was trained for."""
        return int(llama_cpp.llama_model_n_ctx_train(self.handle))

    def pieces(self) -> list[str]:
        """The spelling of every token id, as in tokenizer.json."""
        texts = (llama_cpp.llama_vocab_get_text(self.vocabulary, token) for token in range(self.vocab_size))
        return [text.decode("utf-8", "replace") for text in texts]

    def tokenize(self, text: str) -> list[int]:
        """llama.cpp's own token ids of `text`, without a frame; spellings of special tokens count as such."""
        data = text.encode()
        room = len(data) + 8  # a token spells at least one byte, but for a space put in front
        ids = (ctypes.c_int32 * room)()
        count = llama_cpp.llama_tokenize(self.vocabulary, data, len(data), ids, room, False, True)
        return list(ids[: max(0, count)])

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one id; of a special token the bytes of its name."""
        room = 64
        while True:
            text = ctypes.create_string_buffer(room)
            size = int(llama_cpp.llama_token_to_piece(self.vocabulary, token, text, room, 0, True))
            if size >= 0:
                return text.raw[:size]
            room = -size  # it says how many it needs

    def frame(self) -> tuple[int, ...]:
        """The ids that the model wants in front of every text."""
        wants = llama_cpp.llama_vocab_get_add_bos(self.vocabulary)
        return (int(llama_cpp.llama_vocab_bos(self.vocabulary)),) if wants else ()

    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a generation: end of text, of turn, of message."""
        ends = llama_cpp.llama_vocab_is_eog
        return tuple(id for id in range(self.vocab_size) if ends(self.vocabulary, id))

    def state(self) -> str:
        """Why this model cannot roll tokens back; "" if it uses plain attention."""
        for holds, words in (
            (llama_cpp.llama_model_is_recurrent, "is recurrent"),
            (llama_cpp.llama_model_is_hybrid, "has recurrent layers"),
            (llama_cpp.llama_model_is_diffusion, "is a diffusion model"),
        ):
            if holds(self.handle):
                return words
        return ""

    @property
    def layers(self) -> int:
        return int(llama_cpp.llama_model_n_layer(self.handle))

    @property
    def kv_width(self) -> int:
        """Numbers of the keys that one layer keeps for a token, and of the values; roughly: layers may differ."""
        heads, kv_heads, width = (
            int(count(self.handle))
            for count in (
                llama_cpp.llama_model_n_head,
                llama_cpp.llama_model_n_head_kv,
                llama_cpp.llama_model_n_embd,
            )
        )
        return width * kv_heads // max(1, heads)

    @property
    def params(self) -> int:
        """Numbers among the weights."""
        return int(llama_cpp.llama_model_n_params(self.handle))

    def precision(self) -> str:
        """The name of its quantization, such as "Q4_K - Medium"."""
        text = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self.handle, text, len(text))
        return text.value.decode("utf-8", "replace").split(" ", 2)[-1]


def requantize(source: Path, sink: Path, kind: str) -> None:
    """Write a quantized GGUF file again with its matrices in `kind`, F16 or Q8_0, by llama.cpp's own quantizer.

    Raises UnsupportedModel with llama.cpp's reason, a full disk among them; a part of `sink` may be there then.
    """
    listen()
    llama_cpp.llama_backend_init()
    forget_complaints()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True  # of a quantized source
    if llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(sink), params):
        raise UnsupportedModel(f"llama.cpp cannot write {source} in {kind}: {cause()}")


def build() -> str:
    """What decides how llama.cpp rounds here: its version, and the instructions that it uses."""
    return f"{llama_cpp.__version__} {llama_cpp.llama_print_system_info().decode('utf-8', 'replace')}"


def uses_gpus() -> bool:
    """Whether the installed llama.cpp was built for one."""
    return bool(llama_cpp.llama_supports_gpu_offload())
