"""Loads a target into vLLM, tests it, and says what it is."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opensled.core.errors import OpenSledError, SelfTestFailed, UnsupportedModel, UsageError, first_line
from opensled.core.messages import ChatMessage
from opensled.process.host_memory import available_host_bytes
from opensled.process.logs import tell_long
from verify_server.engine.base import EngineInfo, known_ends
from verify_server.engine.load_progress import told_tested
from verify_server.engine.memory_plan import CONTEXTS, MEMORY_SHARE
from verify_server.engine.vllm import arguments
from vllm_plugin import drafters, versions
from verify_server.engine.vllm.arguments import KV_CONTEXTS

if TYPE_CHECKING:
    from verify_server.engine.vllm.core import VllmCore
    from verify_server.round.loaded_model import TextCodec

BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"  # chooses kernels of which no row depends on the batch
NUMERICS = ("auto", "exact", "fast")
CPU_BLOCK = 32  # tokens: vLLM's attention on a processor takes multiples of it
QUESTIONS = ("What is the capital of Italy?", "Name three animals.", "Write one sentence about the moon.")


def load(
    model: str,
    text: TextCodec,
    *,
    dtype: str = "auto",
    context: int = 0,
    kv_tokens: int = 0,
    longest_draft: int = 16,
    drafter: str = "none",
    draft_model: str = "",
    numerics: str = "auto",
    device: str = "auto",
    sequences: int = 0,
    step_tokens: int = 0,
    prefix_cache: bool = True,
    graphs: bool = True,
    given: Sequence[str] = (),
) -> tuple[VllmCore, EngineInfo]:
    """A tested target: a folder or a hub id, whatever vLLM reads.

    `context`: positions to serve, 0 = all the model has; `kv_tokens`: KV memory in tokens, 0 = vLLM's choice on a GPU,
    on a processor as engine torch chooses;
    `longest_draft`: draft tokens of a sequence in a step; `drafter`, `draft_model`: see `drafters.speculative_config`;
    `numerics`: "exact" insists on it, which takes vLLM's batch-invariant kernels; `device`: "auto", "cpu" or "cuda";
    `sequences`: that vLLM has at once, `step_tokens`: of a step, both 0 = vLLM's choice; `graphs`: CUDA graphs, where
    there is a GPU; `given`: arguments of vLLM, as KEY=VALUE, above all others. Raises UsageError, UnsupportedModel,
    SelfTestFailed.
    """
    if numerics not in NUMERICS:
        raise UsageError(f"unknown numerics {numerics!r}; choose from {', '.join(NUMERICS)}")
    speculative = drafters.speculative_config(drafter, draft_model, longest_draft)
    versions.require()
    versions.prepare()
    with tell_long("still starting vLLM"):
        if numerics == "exact":
            _require_exact()
        _require_device(device)
        passed = arguments.read(given)
        _require_ray(passed)
        ours: dict[str, Any] = {"model": model, "dtype": dtype, "speculative_config": speculative}
        if context:
            ours["max_model_len"] = context
        sizes = _sizes(sequences, step_tokens)
        sizes |= {"enable_prefix_caching": prefix_cache, "enforce_eager": not (graphs and _has_graphs())}
        core = _start({**sizes, **passed, **_memory(passed, kv_tokens), **ours, **arguments.FIXED})
    try:
        return core, _self_test(core, model, text, numerics)
    except BaseException:
        core.close()
        raise


def _require_exact() -> None:
    """Ask vLLM for kernels whose rows do not depend on the batch. Raises UsageError where it has none."""
    from vllm.platforms import current_platform

    if not (current_platform.is_cuda() and current_platform.has_device_capability(80)):
        raise UsageError(
            "--numerics exact: vLLM has batch-invariant kernels for GPUs of compute capability 8.0 and later; leave "
            "the flag out, or use --engine torch"
        )
    os.environ[BATCH_INVARIANT] = "1"


def _require_device(device: str) -> None:
    """Raises UsageError where vLLM computes elsewhere: what it computes on is a matter of its build."""
    from vllm.platforms import current_platform

    found = str(current_platform.device_type)
    if device not in ("auto", found):
        raise UsageError(
            f"--device {device}: the vLLM that is installed computes on {found}; leave the flag out, and choose among "
            "GPUs with CUDA_VISIBLE_DEVICES"
        )


def _has_graphs() -> bool:
    """On a processor vLLM has no CUDA graphs, and would compile the model at each start, for a minute."""
    from vllm.platforms import current_platform

    return not current_platform.is_cpu()


def _require_ray(given: Mapping[str, Any]) -> None:
    """Raises UsageError where vLLM is to compute by Ray, and cannot: it would start a Ray first."""
    from vllm.platforms import current_platform

    if given.get("distributed_executor_backend") == "ray" and not current_platform.ray_device_key:
        raise UsageError(
            "--vllm distributed_executor_backend=ray: vLLM computes on GPUs by Ray, here on "
            f"{current_platform.device_type}; leave it out"
        )


def _sizes(sequences: int, step_tokens: int) -> dict[str, int]:
    """Sequences that rest keep their place in vLLM, so it has as many as the server."""
    found = {"max_num_seqs": sequences, "max_num_scheduled_tokens": max(sequences, step_tokens)}
    return {name: value for name, value in found.items() if value}


def _start(wanted: Mapping[str, Any]) -> VllmCore:
    """Raises UnsupportedModel: vLLM says why."""
    from verify_server.engine.vllm import core

    try:
        return core.start(wanted)
    except OpenSledError:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"vLLM does not start: {_reason(error)}; --log-level debug shows its log"
        ) from error


def _reason(error: Exception) -> str:
    """In one line. vLLM checks its arguments by pydantic, whose first line only counts what is wrong."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return first_line(error)
    reasons = [
        (".".join(map(str, each["loc"])), first_line(ValueError(each["msg"]))) for each in error.errors()
    ]
    return "; ".join([f"{name}: {reason}" if name else reason for name, reason in reasons])


def _memory(given: Mapping[str, Any], kv_tokens: int) -> dict[str, Any]:
    """Arguments for KV memory; on a processor vLLM's own choices fit a machine that does nothing else."""
    from vllm.platforms import current_platform

    found: dict[str, Any] = _cpu_memory(given) if current_platform.is_cpu() else {}
    if kv_tokens:
        size = found.get("block_size", given.get("block_size"))
        if size is None:
            raise UsageError("--kv-tokens needs the size of a KV block on a GPU: add --vllm block_size=16")
        found["num_gpu_blocks_override"] = -(-kv_tokens // size) + 1  # vLLM keeps one for itself
    return found


def _cpu_memory(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"block_size": given.get("block_size", CPU_BLOCK)}
    if not given.keys() & {"gpu_memory_utilization", "kv_cache_memory_bytes"}:
        # vLLM starts only where this part of all memory is free; how much KV gets, `FleetWorker` decides
        found["gpu_memory_utilization"] = MEMORY_SHARE["cpu"] * available_host_bytes() / _all_host_bytes()
        found["additional_config"] = {**given.get("additional_config", {}), KV_CONTEXTS: CONTEXTS}
    return found


def _all_host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _self_test(core: VllmCore, model: str, text: TextCodec, numerics: str) -> EngineInfo:
    from verify_server.engine.vllm import selftest

    info = core.info(model)
    prompts = [_opening(text, question) for question in QUESTIONS]
    with told_tested():
        same_bits = selftest.run(core, prompts, info.dtype)
    if numerics == "exact" and not same_bits:
        raise SelfTestFailed("a row's bits depend on its batch in vLLM here; use --numerics fast or auto")
    ends = known_ends(text.eos_ids, info.vocab_size)
    # A few answers may agree by luck: where no kernel promises it, nothing is called exact.
    level = "exact" if numerics == "exact" else "fast"
    return dataclasses.replace(info, numerics=level, eos_ids=ends)


def _opening(text: TextCodec, question: str) -> tuple[int, ...]:
    """Token ids of a chat that begins with `question`; without a chat template, of the question."""
    return text.render([ChatMessage("user", question)]) if text.chat_template else text.encode(question)
