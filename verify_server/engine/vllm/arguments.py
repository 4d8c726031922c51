"""vLLM's own engine arguments: those that this server sets, and those that an operator passes through by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from opensled.core.errors import UsageError

# Without these nothing works: no option sets them.
FIXED: Mapping[str, Any] = {
    "scheduler_cls": "verify_server.engine.vllm.scheduler.FleetScheduler",
    "worker_cls": "verify_server.engine.vllm.worker.FleetWorker",
    "async_scheduling": False,  # else a step's drafts are planned before the step before it has ended
    "disable_log_stats": True,
    "use_tqdm_on_load": False,
}
# In vLLM's `additional_config`: full contexts that KV is for on a processor, where nothing else says how much it gets
KV_CONTEXTS = "opensled_kv_contexts"
# Options of the server that rule an argument of vLLM
OURS: Mapping[str, str] = {
    "model": "--model",
    "dtype": "--dtype",
    "max_model_len": "--context",
    "speculative_config": "--server-drafter and --draft-model",
    "enable_prefix_caching": "--no-prefix-cache",
    "max_num_seqs": "--max-sessions",
    "max_num_scheduled_tokens": "max-step-tokens of [serve]",
    "num_gpu_blocks_override": "--kv-tokens",
}
NOT_SERVED: Mapping[str, str] = {
    "pipeline_parallel_size": "a step is one call here; use tensor_parallel_size",
    "data_parallel_size": "start a server for each, behind opensled gateway",
}


def read(given: Sequence[str], known: Sequence[str] = ()) -> dict[str, Any]:
    """Arguments of vLLM from KEY=VALUE; a value is JSON, or else a string. Raises UsageError.

    `known`: names of arguments; () = those of vLLM's own dataclass.
    """
    known = known or names()
    found: dict[str, Any] = {}
    for one in given:
        key, equals, value = one.partition("=")
        key = _name(key)
        if not equals:
            raise UsageError(f"--vllm {one}: write KEY=VALUE, for example --vllm gpu_memory_utilization=0.8")
        _check(key, known)
        found[key] = _value(value.strip())
    return found


def processes(given: Sequence[str]) -> int:
    """That compute a model together, by the arguments in the form of `read`; vLLM is not needed. Raises UsageError."""
    found = 1
    for one in given:
        key, _, value = one.partition("=")
        if _name(key) == "tensor_parallel_size":
            if not value.strip().isdigit() or not int(value):
                raise UsageError(f"--vllm {one}: write a number of processes, such as tensor_parallel_size=2")
            found = int(value)
    return found


def _name(key: str) -> str:
    return key.strip().lstrip("-").replace("-", "_")


def names() -> list[str]:
    """Of all arguments of the vLLM that is installed."""
    from vllm.engine.arg_utils import EngineArgs

    return [field.name for field in fields(EngineArgs)]


def _check(key: str, known: Sequence[str]) -> None:
    if key in FIXED:
        raise UsageError(f"--vllm {key}: OpenSLED sets it itself; leave it out")
    if key in OURS:
        raise UsageError(f"--vllm {key}: use {OURS[key]} instead")
    if key in NOT_SERVED:
        raise UsageError(f"--vllm {key}: not served; {NOT_SERVED[key]}")
    if key not in known:
        near = get_close_matches(key, known, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"--vllm {key}: vLLM has no such engine argument{hint}")


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    try:
        return json.loads(text)
    except ValueError:
        return text
