"""`opensled serve --engine vllm`: starts `vllm serve --opensled` with the options that it was given.

Options of the target become vLLM's own; what rules devices (tokens, limits, policy) is told by the environment. The
API over HTTP is vLLM's: without --http it listens at a socket that this process alone may open.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import NoReturn

from opensled.cli.config import options
from opensled.core.errors import UsageError
from opensled.models.store import is_hub_id
from opensled.net.address import host_port
from opensled.process.logs import tell
from verify_server.options.serve_config import AUTO_DRAFTER, ServeConfig, model_names
from verify_server.round.loaded_model import model_id_of
from vllm_plugin import versions

# Options of ours -> vLLM's, given where they differ from the default
PASSED = {
    "dtype": "--dtype",
    "context": "--max-model-len",
    "max_sessions": "--max-num-seqs",
    "tls_cert": "--ssl-certfile",
    "tls_key": "--ssl-keyfile",
}
MEANINGLESS = {  # option -> what to do instead
    "gpu_layers": "it is for engine llamacpp",
    "attention": "add --vllm attention_backend=NAME instead",
    "kv_tokens": "add --vllm kv_cache_memory_bytes=N or gpu_memory_utilization=SHARE instead",
    "numerics": "set VLLM_BATCH_INVARIANT=1 for vLLM's kernels that do not depend on the batch",
    "device": "vLLM computes on what its build is for; choose among GPUs with CUDA_VISIBLE_DEVICES",
    "tenant_kv_tokens": "vLLM keeps no KV budget of a tenant; set tenant-sessions",
    "loose_rules": "vLLM decides by the rule match alone; use --engine torch",
    "trust_device_probabilities": "vLLM decides by the rule match alone; use --engine torch",
    "replicas": "add --vllm data_parallel_size=N, or start a server for each GPU behind opensled gateway",
    "metrics": "vLLM's API has its metrics at /metrics: add --http",
}
OWN_DRAFTER = "vllm:"


def serve(config: ServeConfig) -> NoReturn:
    """Become vLLM's server. Raises UsageError for what has no meaning there."""
    for problem in _problems(config):
        raise UsageError(f"engine vllm: {problem}")
    versions.require()
    tell(f"loading {config.model}")
    model = config.model
    if not is_hub_id(model):
        from vllm_plugin.model_folder import folder_of

        model = str(folder_of(model))
    words = [model, "--opensled", "--opensled-listen", config.listen, *_words(config)]
    os.environ.update(_environment(config))
    os.execv(sys.executable, [sys.executable, "-m", "vllm_plugin.serve", *words])


def _problems(config: ServeConfig) -> Iterator[str]:
    known = {item.name: item for item in options(ServeConfig)}
    for name, instead in MEANINGLESS.items():
        if getattr(config, name) != known[name].default:
            yield f"--{known[name].key} has no meaning there: {instead}"
    if config.http and config.tokens:
        yield "--http is vLLM's own API, which knows no tenants: leave it out, or --tokens, and set VLLM_API_KEY"
    if config.dtype in ("stored", "float64"):
        yield f"--dtype {config.dtype}: vLLM computes in float32, bfloat16 or float16"
    if config.rules not in ("", "match"):
        yield f"it decides by the rule match alone, not {config.rules}; leave out rules"
    drafter = config.server_drafter
    if drafter not in (AUTO_DRAFTER, "none") and not drafter.startswith(OWN_DRAFTER):
        yield f"--server-drafter {drafter} is not served there; choose one of vLLM's, such as vllm:ngram"


def _words(config: ServeConfig) -> list[str]:
    default = ServeConfig()
    found = ["--served-model-name", model_id_of(config.model), *model_names(config.served_model_name)]
    for name, flag in PASSED.items():
        if (value := getattr(config, name)) != getattr(default, name) or name == "max_sessions":
            found += [flag, str(value)]
    if not config.shares_prefixes:
        found.append("--no-enable-prefix-caching")
    if config.graphs == "off":
        found.append("--enforce-eager")
    return [*found, *_address(config), *_drafter(config), *_given(config.vllm)]


def _address(config: ServeConfig) -> list[str]:
    if config.http:
        host, port = host_port(config.http)
        return ["--host", host, "--port", str(port)]
    return ["--uds", str(Path(tempfile.mkdtemp(prefix="opensled-")) / "api")]


def _drafter(config: ServeConfig) -> list[str]:
    if not config.server_drafter.startswith(OWN_DRAFTER):
        return []
    from vllm_plugin.drafters import speculative_config

    name = config.server_drafter.removeprefix(OWN_DRAFTER)
    import json

    return [
        "--speculative-config",
        json.dumps(speculative_config(name, config.draft_model, config.server_draft)),
    ]


def _given(text: str) -> Iterator[str]:
    for line in filter(None, map(str.strip, text.split("\n"))):
        key, equals, value = line.partition("=")
        if not equals:
            raise UsageError(f"--vllm {line}: write KEY=VALUE, for example --vllm gpu_memory_utilization=0.8")
        flag = "--" + key.strip().lstrip("-").replace("_", "-")
        yield from [flag] if value in ("True", "true") else [flag, value.strip()]


def _environment(config: ServeConfig) -> dict[str, str]:
    """The options that differ from their defaults, as the plug-in reads them."""
    default = ServeConfig()
    named = {each.name: getattr(config, each.name) for each in fields(config)}
    return {
        f"OPENSLED_{name.upper()}": str(value)
        for name, value in named.items()
        if value != getattr(default, name) and name not in ("engine", "model", "listen", "http", "vllm")
    }
