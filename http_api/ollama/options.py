"""The object `options` of Ollama's API: how tokens are sampled, and how Ollama would load the model."""

from typing import Any

from http_api.fields import Fields, as_integer, require_object

# Ollama's name -> the name in the OpenAI API here
SERVED = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "seed": "seed",
    "stop": "stop",
    "num_predict": "max_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
}
# Ollama's own defaults (`DefaultOptions` in its api/types.go), but for `repeat_penalty`, which is off here: it would
# change the text of a chat without being asked for.
DEFAULTS: dict[str, Any] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
# What Ollama takes for "no value".
UNSET = {"seed": (-1,), "num_predict": (-1, -2)}
# They cannot change a text here. The target is loaded already, and by its server: memory, threads and batches are not
# the device's. A chat has the target's whole context and is never shortened (num_ctx, num_keep). The others belong to
# mirostat, which is off; and new lines are penalized like other tokens, as in Ollama today.
IGNORED = (
    "num_ctx", "num_keep", "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv",
    "use_mmap", "use_mlock", "logits_all", "penalize_newline", "mirostat_tau", "mirostat_eta",
)  # fmt: skip
# With a penalty `repeat_last_n` can only be -1: the whole answer counts.
NO_PENALTY = {"presence_penalty": 0, "frequency_penalty": 0, "repetition_penalty": 1}
OFF: dict[str, tuple[object, ...]] = {
    "typical_p": (1, 1.0),
    "tfs_z": (1, 1.0),
    "mirostat": (0,),
    "vocab_only": (False,),
    "embedding_only": (False,),
}


def sampling_fields(value: object) -> dict[str, Any]:
    """`options` as fields of the OpenAI API, not checked yet. Raises Unsupported for an option that nothing reads."""
    fields = Fields({} if value is None else require_object(value, "options"), "options.")
    given = {ours: taken for theirs, ours in SERVED.items() if (taken := _given(fields, theirs)) is not None}
    if any(given.get(name, off) != off for name, off in NO_PENALTY.items()):
        fields.only("repeat_last_n", -1)
    for name in (*IGNORED, "repeat_last_n"):
        fields.take(name)
    for name, allowed in OFF.items():
        fields.only(name, *allowed)
    fields.finish()
    return {**DEFAULTS, **given}


def _given(fields: Fields, name: str) -> Any:
    value = fields.take(name)
    return None if as_integer(value) in UNSET.get(name, ()) else value
