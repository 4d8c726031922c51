"""llama.cpp's C API: of the package llama_cpp where it is installed, else of the library in the wheel xllamacpp.

That wheel needs no compiler. Its library exports the C API beside its own Python classes, so a draft model runs by the
same code, token by token, with no server and no port between. A server's engine asks for llama_cpp itself. Structures
are copied by value: a library whose structures are laid out otherwise is refused.
"""

import ctypes
from ctypes import c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

BUILT, PREBUILT = "llama_cpp", "xllamacpp"
REST = 512  # bytes behind the declared fields: a library must have room for all that it returns

Integers = ctypes.POINTER(c_int32)
LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


def package() -> str:
    """The package that brings llama.cpp here; the first choice where none is installed. Imports nothing."""
    return PREBUILT if find_spec(BUILT) is None and find_spec(PREBUILT) is not None else BUILT


@cache
def load() -> Any:
    """The package's functions and structures, under llama.cpp's names. Raises ImportError."""
    if package() == PREBUILT:
        return _prebuilt(metadata.version(PREBUILT))
    import llama_cpp

    return llama_cpp


class ModelParameters(ctypes.Structure):
    """How a file is loaded."""

    _fields_ = (
        *((name, c_void_p) for name in ("devices", "tensor_buft_overrides")),
        *((name, c_int32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode", "main_gpu")),
        *((name, c_void_p) for name in ("tensor_split", "progress_callback", "progress_callback_user_data")),
        ("kv_overrides", c_void_p),
        *((name, c_bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts", "no_host")),
        *((name, c_bool) for name in ("no_alloc", "load_mtp")),
        ("rest", ctypes.c_char * REST),
    )


class ContextParameters(ctypes.Structure):
    """How a KV cache is made. What a drafter sets comes first; what follows keeps llama.cpp's defaults."""

    _fields_ = (
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type")),
        ("rest", c_uint64 * (REST // 8)),
    )


class Batch(ctypes.Structure):
    """Tokens of one call."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", Integers),
        ("embd", ctypes.POINTER(c_float)),
        ("pos", Integers),
        ("n_seq_id", Integers),
        ("seq_id", ctypes.POINTER(Integers)),
        ("logits", ctypes.POINTER(c_int8)),
    )


# Function -> the types of its result and of its arguments.
FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_backend_init": (None,),
    "llama_batch_free": (None, Batch),
    "llama_batch_init": (Batch, c_int32, c_int32, c_int32),
    "llama_context_default_params": (ContextParameters,),
    "llama_decode": (c_int32, c_void_p, Batch),
    "llama_free": (None, c_void_p),
    "llama_get_logits_ith": (ctypes.POINTER(c_float), c_void_p, c_int32),
    "llama_get_memory": (c_void_p, c_void_p),
    "llama_init_from_model": (c_void_p, c_void_p, ContextParameters),
    "llama_log_set": (None, LogCallback, c_void_p),
    "llama_memory_clear": (None, c_void_p, c_bool),
    "llama_memory_seq_rm": (c_bool, c_void_p, c_int32, c_int32, c_int32),
    "llama_model_default_params": (ModelParameters,),
    "llama_model_desc": (c_int32, c_void_p, c_char_p, c_size_t),
    "llama_model_free": (None, c_void_p),
    "llama_model_get_vocab": (c_void_p, c_void_p),
    "llama_model_has_encoder": (c_bool, c_void_p),
    "llama_model_is_diffusion": (c_bool, c_void_p),
    "llama_model_is_hybrid": (c_bool, c_void_p),
    "llama_model_is_recurrent": (c_bool, c_void_p),
    "llama_model_load_from_file": (c_void_p, c_char_p, ModelParameters),
    "llama_model_n_ctx_train": (c_int32, c_void_p),
    "llama_model_n_embd": (c_int32, c_void_p),
    "llama_model_n_head": (c_int32, c_void_p),
    "llama_model_n_head_kv": (c_int32, c_void_p),
    "llama_model_n_layer": (c_int32, c_void_p),
    "llama_model_n_params": (c_uint64, c_void_p),
    "llama_print_system_info": (c_char_p,),
    "llama_set_n_threads": (None, c_void_p, c_int32, c_int32),
    "llama_supports_gpu_offload": (c_bool,),
    "llama_token_to_piece": (c_int32, c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool),
    "llama_tokenize": (c_int32, c_void_p, c_char_p, c_int32, Integers, c_int32, c_bool, c_bool),
    "llama_vocab_bos": (c_int32, c_void_p),
    "llama_vocab_get_add_bos": (c_bool, c_void_p),
    "llama_vocab_get_text": (c_char_p, c_void_p, c_int32),
    "llama_vocab_is_eog": (c_bool, c_void_p, c_int32),
    "llama_vocab_n_tokens": (c_int32, c_void_p),
}


def _prebuilt(version: str) -> SimpleNamespace:
    library = _open_library()
    api = SimpleNamespace(llama_log_callback=LogCallback, __version__=f"{PREBUILT} {version}")
    for name, (result, *arguments) in FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            raise _other_library(version, f"its library does not export {name}")
        function.restype, function.argtypes = result, arguments
        setattr(api, name, function)
    if not has_known_layout(api):
        raise _other_library(version, "the structures of its llama.cpp are laid out otherwise")
    return api


def _open_library() -> ctypes.CDLL:
    found = find_spec(PREBUILT)
    folders = (found and found.submodule_search_locations) or ()
    path = next((file for folder in folders for file in Path(folder).glob(f"{PREBUILT}*.so")), None)
    if path is None:
        raise ImportError(f"{PREBUILT} has no library here that OpenSLED can load")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        needed = "; install libgomp1, OpenMP's library" if "libgomp" in str(error) else ""
        raise ImportError(f"the library in {PREBUILT} cannot be loaded: {error}{needed}") from error


def _other_library(version: str, why: str) -> ImportError:
    """Its name makes the registry say which version to install."""
    return ImportError(f"{PREBUILT} {version} is of no use to this OpenSLED: {why}", name=PREBUILT)


def has_known_layout(api: Any) -> bool:
    """Whether llama.cpp's defaults are where the structures above have them."""
    model, context = api.llama_model_default_params(), api.llama_context_default_params()
    batch = api.llama_batch_init(1, 0, 1)
    pointers = (batch.token, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits)
    is_batch_known = batch.n_tokens == 0 and not batch.embd and all(map(bool, pointers))
    if is_batch_known:
        api.llama_batch_free(batch)
    declared = (
        *(model.n_gpu_layers, model.split_mode, model.vocab_only, model.use_extra_bufts),
        *(context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max, context.n_rs_seq),
        *(context.n_outputs_max, context.n_outputs_max_per_seq, context.n_threads, context.n_threads_batch),
    )
    return is_batch_known and declared == (-1, 1, False, True, 512, 2048, 512, 1, 0, 0, 1, 4, 4)
