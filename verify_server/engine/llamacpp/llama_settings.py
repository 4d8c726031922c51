"""What the `llamacpp` engine derives from a file and the user's wishes: layers on a GPU, context and KV pool."""

from opensled.core.errors import UnsupportedModel, UsageError
from opensled.models.llama import LlamaModel, uses_gpus
from opensled.process.host_memory import free_host_bytes

BLOCK = 16  # tokens per KV block: finer ones would share a little more, at more bookkeeping
# Without --kv-tokens: as many full contexts as this, within a part of the free memory.
CONTEXTS = 8
MEMORY_SHARE = 0.25
KV_BYTES = 2  # of a number in the cache: float16, llama.cpp's default


def gpu_layers(device: str, wanted: int) -> int | None:
    """Layers to put on a GPU: 0 on the CPU, None = all."""
    if device not in ("auto", "cpu", "cuda"):
        raise UsageError(
            f"engine llamacpp knows --device auto, cpu and cuda, not {device!r}; CUDA_VISIBLE_DEVICES picks the GPU"
        )
    if not uses_gpus() and (device == "cuda" or wanted > 0):
        raise UsageError(
            "this llama.cpp was built without a GPU; run: CMAKE_ARGS=-DGGML_CUDA=on pip install "
            "--force-reinstall --no-cache-dir llama-cpp-python"
        )
    if device == "cpu" and wanted > 0:
        raise UsageError(f"--gpu-layers {wanted} and --device cpu exclude each other; leave one of them out")
    if device == "cpu" or not uses_gpus():
        return 0
    return wanted if wanted >= 0 else None


def context_length(model: LlamaModel, context: int) -> int:
    """Positions to serve."""
    longest = model.context_length
    if longest <= 0:
        raise UnsupportedModel(
            f"{model.path} names no context length; convert it again with a current llama.cpp"
        )
    return min(context or longest, longest)


def num_blocks(kv_tokens: int, context: int, model: LlamaModel) -> int:
    """Of the KV pool."""
    if not kv_tokens:
        budget = int(free_host_bytes() * MEMORY_SHARE)
        kv_tokens = min(CONTEXTS * context, budget // max(1, KV_BYTES * 2 * model.layers * model.kv_width))
    return max(1, -(-kv_tokens // BLOCK))
