"""`opensled serve --engine vllm`: starts `vllm serve --opensled` in place of this process.

Options of the target become vLLM's own; what rules devices (tokens, limits, policy) is told by the
environment, as option.py reads it. An option that neither of them serves is refused. The API over HTTP is vLLM's.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import NoReturn

from opensled.cli.config import Option, options
from opensled.core.errors import OpenSledError, UsageError
from opensled.models.model_kind import is_gguf
from opensled.models.store import is_hub_id, model_path
from opensled.net.address import host_port, join_host_port, listener, web_origins
from opensled.process.host_memory import available_host_bytes
from opensled.process.logs import tell
from verify_server.access.security import Tenants, Tls
from verify_server.engine.memory_plan import CONTEXTS, MEMORY_SHARE
from verify_server.front import service
from verify_server.options.serve_config import AUTO_DRAFTER, ServeConfig, model_names
from verify_server.round.loaded_model import model_id_of
from vllm_plugin import drafters, versions

# Options that rule devices, and that the plug-in serves
TOLD = (
    *("tls_cert", "tls_key", "tls_client_ca", "tokens", "paired", "insecure", "pad_frames"),
    *("policy", "draft_wait", "max_sessions", "max_draft", "max_tree", "min_pace", "max_pace"),
    *("tenant_sessions", "tenant_prompt", "tenant_positions", "tenant_max_pace"),
    *("client_streams", "client_calls", "client_messages", "shared_address"),
)
# Options that have no meaning there -> what to do instead
MEANINGLESS = {
    **dict.fromkeys(("gpu_layers", "pivots"), "leave it out"),
    **dict.fromkeys(("loose_rules", "trust_device_probabilities"), "use --engine torch"),
    **dict.fromkeys(("keep_text", "keep_text_mb", "keep_text_days", "drafts"), "use --engine torch"),
    **dict.fromkeys(("metrics", "insecure_metrics"), "vLLM's API has its metrics at /metrics: add --http"),
    **dict.fromkeys(("http_wait", "lenient", "operator_keys"), "the API is vLLM's; leave it out"),
    "attention": "add --vllm attention_backend=NAME instead",
    "device": "vLLM computes on what its build is for; choose among GPUs with CUDA_VISIBLE_DEVICES",
    "tenant_kv_tokens": "vLLM keeps no KV budget of a tenant; set tenant-sessions",
    "batch": "a step is vLLM's own; leave it out",
    "announce": "name this server on each device with --server HOST:PORT",
    "log_json": "set VLLM_LOGGING_CONFIG_PATH to a file of your own",
    "json": "leave it out",
}
# Arguments of vLLM that options of ours rule
OURS = {
    "model": "use --model instead",
    "dtype": "use --dtype instead",
    "max_model_len": "use --context instead",
    "speculative_config": "use --server-drafter and --draft-model instead",
    "enable_prefix_caching": "use --no-prefix-cache instead",
    "max_num_seqs": "use --max-sessions instead",
    "max_num_batched_tokens": "set max-step-tokens of [serve] instead",
    "num_gpu_blocks_override": "use --kv-tokens instead",
    "served_model_name": "use --served-model-name instead",
    **dict.fromkeys(("host", "port", "uds"), "use --http instead"),
    **dict.fromkeys(("ssl_certfile", "ssl_keyfile"), "use --tls-cert and --tls-key instead"),
    **dict.fromkeys(("scheduler_cls", "worker_cls", "opensled"), "OpenSLED sets it itself; leave it out"),
    "opensled_listen": "use --listen instead",
}
CPU_BLOCK = 32  # tokens: vLLM's attention on a processor takes multiples of it
# The processes of one model are their product
PROCESSES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
OWN_DRAFTER = "vllm:"


def serve(config: ServeConfig, tls: Tls | None, tenants: Tenants) -> NoReturn:
    """Become vLLM's server. Raises UsageError for what has no meaning there, NotFound, and OpenSledError for a taken
    port."""
    versions.require()
    if tenants.kv_budgets:
        raise UsageError(f"engine vllm has no KV budgets of tenants; remove kv_tokens from {config.tokens}")
    config = asyncio.run(_with_free_ports(config, tls))
    command = command_of(config, cpu=versions.computes_on_cpu())
    versions.prepare(config.threads, config.log_level)
    tell(f"loading {config.model}")
    if config.http:
        tell(f"HTTP API of vLLM at {config.http}")
    os.execve(command[0], command, environment(config, os.environ))


async def _with_free_ports(config: ServeConfig, tls: Tls | None) -> ServeConfig:
    """With a number in place of port 0 of --http. A taken port is an error now: loading takes a minute."""
    async with service.loading(config.listen, tls):
        pass
    if not config.http:
        return config
    try:
        with listener(config.http) as taken:
            return replace(config, http=join_host_port(host_port(config.http)[0], taken.getsockname()[1]))
    except OSError as error:
        raise OpenSledError(
            f"cannot listen on {config.http}: {error.strerror}; choose another --http"
        ) from error


def command_of(config: ServeConfig, cpu: bool) -> list[str]:
    """The command that serves `config`; `cpu`: vLLM computes on a processor. Raises UsageError, NotFound."""
    for problem in _problems(config):
        raise UsageError(f"engine vllm: {problem}")
    given = read(config.vllm)
    return [
        *(sys.executable, "-m", "vllm_plugin.serve", _model(config.model)),
        *("--opensled", f"--opensled-listen={config.listen}"),
        *_target(config),
        *_memory(config, given, cpu),
        *_api(config),
        *_drafter(config),
        *[_flag(key, value) for key, value in given.items()],
    ]


def environment(config: ServeConfig, outer: dict[str, str] | os._Environ[str]) -> dict[str, str]:
    """`outer`, with TOLD in place of all options of a server and of configuration files."""
    ours = {item.variable for item in options(ServeConfig)} | {"OPENSLED_CONFIG"}
    kept = {name: value for name, value in outer.items() if name not in ours}
    return kept | _told(config) | {"OPENSLED_NO_CONFIG": "1"}


def processes(config: ServeConfig) -> int:
    """How many processes compute a model together. Raises UsageError."""
    given = read(config.vllm)
    return prod(_number(given, name, 1) for name in PROCESSES)


def _number(given: dict[str, str], name: str, otherwise: int) -> int:
    value = given.get(name, str(otherwise))
    if not re.fullmatch("[0-9]+", value):
        raise UsageError(f"--vllm {name}={value}: write a whole number")
    return int(value)


def read(text: str) -> dict[str, str]:
    """vLLM's arguments KEY=VALUE in a text: one in a line, or blanks between them. Raises UsageError."""
    found = {}
    for one in filter(None, re.split(r"\n|\s+(?=[\w-]+=)", text.strip())):
        key, equals, value = one.partition("=")
        name = key.strip().lstrip("-").replace("-", "_")
        if not equals:
            raise UsageError(f"--vllm {one}: write KEY=VALUE, for example --vllm gpu_memory_utilization=0.8")
        if name in OURS:
            raise UsageError(f"--vllm {name}: {OURS[name]}")
        found[name] = value.strip()
    return found


def _flag(name: str, value: str) -> str:
    dashed = name.replace("_", "-")
    if value.lower() in ("true", "false"):
        return f"--{dashed}" if value.lower() == "true" else f"--no-{dashed}"
    return f"--{dashed}={value}"


def _told(config: ServeConfig) -> dict[str, str]:
    known = {item.name: item for item in options(ServeConfig)}
    given = {known[name].variable: getattr(config, name) for name in TOLD if _is_set(config, known[name])}
    return {name: str(value) for name, value in given.items()}


def _is_set(config: ServeConfig, item: Option) -> bool:
    return bool(getattr(config, item.name) != item.default)


def _problems(config: ServeConfig) -> Iterator[str]:
    """Name each option that has no meaning there, with the way out."""
    for item in options(ServeConfig):
        if item.name in MEANINGLESS and _is_set(config, item):
            yield f"{item.key if item.file_only else item.flag} has no meaning there: {MEANINGLESS[item.name]}"
    if config.http and config.tokens:
        yield "--http is vLLM's own API, which knows no tenants: leave out --http, or --tokens and set VLLM_API_KEY"
    if config.cors_origin and not config.http:
        yield "--cors-origin is for the API at --http: add that, or leave it out"
    if config.dtype in ("stored", "float64"):
        yield f"--dtype {config.dtype}: vLLM computes in float32, bfloat16 or float16"
    if config.numerics == "exact":
        yield "--numerics exact: leave it out, and set VLLM_BATCH_INVARIANT=1 on GPUs; or use --engine torch"
    if config.rules not in ("", "match"):
        yield f"it decides by the rule match alone, not {config.rules}; leave out rules, or use --engine torch"
    yield from _drafter_problems(config)


def _drafter_problems(config: ServeConfig) -> Iterator[str]:
    drafter = config.server_drafter
    if drafter.startswith(OWN_DRAFTER):
        return
    if drafter not in (AUTO_DRAFTER, "none"):
        names = ", ".join(f"{OWN_DRAFTER}{each}" for each in drafters.NAMES)
        yield f"--server-drafter {drafter} is not served there; choose one of vLLM's: {names}"
    if config.draft_model:
        yield f"--draft-model {config.draft_model} has no drafter that takes it; add --server-drafter vllm:draft_model"
    if config.server_draft != ServeConfig.server_draft:
        yield "server-draft has no drafter: add --server-drafter vllm:ngram, or leave it out"


def _model(name: str) -> str:
    """A folder, or a hub id, which vLLM downloads; a GGUF file is written as a folder. Raises NotFound."""
    if is_hub_id(name):
        return name
    path = model_path(name)
    if not is_gguf(path):
        return str(path)
    from vllm_plugin.model_folder import folder_of

    return str(folder_of(name))


def _target(config: ServeConfig) -> Iterator[str]:
    yield from ("--served-model-name", model_id_of(config.model), *model_names(config.served_model_name))
    yield f"--max-num-seqs={config.max_sessions}"
    if config.dtype != "auto":
        yield f"--dtype={config.dtype}"
    if config.context:
        yield f"--max-model-len={config.context}"
    if config.max_step_tokens != ServeConfig.max_step_tokens:
        yield f"--max-num-batched-tokens={max(config.max_step_tokens, config.max_sessions)}"
    if not config.shares_prefixes:
        yield "--no-enable-prefix-caching"
    yield from (f"--shutdown-timeout={round(config.drain)}", "--no-use-tqdm-on-load")


def _memory(config: ServeConfig, given: dict[str, str], cpu: bool) -> Iterator[str]:
    """On a processor vLLM's own choices fit a machine that does nothing else, and it would compile for a minute."""
    block = _number(given, "block_size", CPU_BLOCK if cpu else 0)
    if config.kv_tokens and not block:
        raise UsageError("engine vllm: --kv-tokens needs the size of a KV block: add --vllm block_size=16")
    if config.kv_tokens:
        yield f"--num-gpu-blocks-override={-(-config.kv_tokens // block) + 1}"  # vLLM keeps one for itself
    if "enforce_eager" not in given and (cpu or config.graphs == "off"):
        yield "--enforce-eager"
    if not cpu:
        return
    if "block_size" not in given:
        yield f"--block-size={CPU_BLOCK}"
    if not given.keys() & {"gpu_memory_utilization", "kv_cache_memory_bytes"}:
        yield f"--kv-cache-memory-bytes={_cpu_bytes(config)}"


def _cpu_bytes(config: ServeConfig) -> int:
    """Memory for KV: some full contexts within a share of the memory, or one within half of it."""
    free = available_host_bytes() // processes(config)
    share = int(MEMORY_SHARE["cpu"] * free)
    try:
        stated = json.loads((model_path(config.model) / "config.json").read_bytes())
        text = stated.get("text_config", stated)
        heads = text["num_attention_heads"]
        width = text.get("head_dim") or text["hidden_size"] // heads
        token = 2 * 4 * text["num_hidden_layers"] * (text.get("num_key_value_heads") or heads) * width
        context = (config.context or text["max_position_embeddings"]) * token
    except (OpenSledError, OSError, ValueError, LookupError, TypeError, AttributeError):
        return share  # it is still to be downloaded, or states its sizes otherwise
    return min(CONTEXTS * context, max(share, min(context, free // 2))) + CPU_BLOCK * token


def _api(config: ServeConfig) -> Iterator[str]:
    """The address of vLLM's API, and who may ask there."""
    yield from ("--uvicorn-log-level=warning", "--disable-uvicorn-access-log")
    if not config.http:
        return
    host, port = host_port(config.http)
    yield from (f"--host={host}", f"--port={port}")
    yield f"--allowed-origins={json.dumps(list(web_origins(config.cors_origin)))}"
    if config.tls_cert:
        yield from (f"--ssl-certfile={config.tls_cert}", f"--ssl-keyfile={config.tls_key}")
    if config.tls_client_ca:
        yield from (f"--ssl-ca-certs={config.tls_client_ca}", "--ssl-cert-reqs=2")


def _drafter(config: ServeConfig) -> Iterator[str]:
    if config.server_drafter.startswith(OWN_DRAFTER):
        name = config.server_drafter.removeprefix(OWN_DRAFTER)
        own = config.draft_model
        if own and name == "draft_model":
            own = _model(own)
        yield "--no-async-scheduling"  # else drafts of devices share no step with those of vLLM's drafter
        yield f"--speculative-config={json.dumps(drafters.speculative_config(name, own, config.server_draft))}"
