"""Options of `opensled serve` and their defaults."""

from dataclasses import dataclass

from http_api.waiting_room import WAIT_SECONDS
from opensled.cli.addresses import address_option
from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.models.pasted_names import model_name
from opensled.net.address import web_origins
from opensled.process.logs import LEVELS
from scheduler import POLICIES
from scheduler.cluster.ray_guard import networks
from verify_server.options.access_config import AccessConfig
from verify_server.options.adapt_config import AdaptConfig
from verify_server.options.limits_config import LimitsConfig
from verify_server.options.registries import ATTENTION, ENGINES, GRAPHS, SERVER_DRAFTERS
from verify_server.rules import RULES

MAX_NAME = 128  # characters of a further name; chosen
AUTO_DRAFTER = "auto"


def model_names(listed: str) -> tuple[str, ...]:
    """The names in a comma-separated list, each once; raises UsageError for one that no request could spell."""
    names = tuple(dict.fromkeys(name.strip() for name in listed.split(","))) if listed else ()
    for name in names:
        if not name or len(name) > MAX_NAME or not name.isprintable() or any(map(str.isspace, name)):
            raise UsageError(
                f"{name[:MAX_NAME]!r} is not a valid model name: write 1 to {MAX_NAME} characters without blanks; "
                "for example gpt-4o,my-model"
            )
    return names


def require_drafters(listed: str) -> None:
    """Raises UsageError, which names the choices, if one of the names, with "+" between them, is no drafter."""
    for name in listed.split("+"):
        SERVER_DRAFTERS.require(name, AUTO_DRAFTER)


def require_rules(listed: str) -> None:
    """Raises UsageError, which names the choices, if one of the comma-separated names is no rule."""
    for name in filter(None, map(str.strip, listed.split(","))):
        RULES.require(name)


@dataclass(frozen=True)
class ServeConfig(LimitsConfig, AdaptConfig, AccessConfig):
    """One verification server."""

    model: str = option(
        "tiny",
        "target model: a name listed by `opensled models list`, a folder, a GGUF file, or a Hugging Face id ORG/MODEL; "
        "--model itself may be left out",
        bare=True,
        group="target and addresses",
        often=True,
        read=model_name,
    )
    listen: str = address_option(
        "127.0.0.1:7411",
        "address that devices connect to; port 0 = any free port",
        often=True,
        port=7411,
    )
    http: str = address_option(
        "",
        "address for the HTTP API (OpenAI, Anthropic and Ollama formats), for clients without a device; default: no "
        "HTTP API",
        often=True,
        port=8411,
    )
    http_wait: float = option(
        WAIT_SECONDS,
        "maximum seconds that a request over HTTP waits for a place while all are taken, before it is refused (429)",
        low=0,
        metavar="SECONDS",
        file_only=True,
    )
    operator_keys: str = option(
        "",
        "file with operator keys, one per line; a key gives access to the page of all devices and tenants at --http, "
        "and to --metrics from other machines; default: every user of this machine has access; with --tokens or "
        "--tls-client-ca nobody has",
        metavar="FILE",
    )
    drain: float = option(
        30.0,
        "seconds to finish running answers after SIGTERM, while new requests are refused; after that, devices continue "
        "on another server, and HTTP answers end with the text so far (finish reason length); 0 = stop at once",
        low=0,
        high=86_400,
        metavar="SECONDS",
    )
    served_model_name: str = option(
        "",
        "additional model names that the HTTP APIs of server and devices accept for the target; comma-separated",
        metavar="NAMES",
        check=model_names,
    )
    lenient: bool = option(False, "ignore unknown fields of HTTP requests instead of refusing the request")
    cors_origin: str = option(
        "",
        "web origins allowed to use the HTTP API, for example https://chat.example; comma-separated",
        metavar="ORIGIN",
        check=web_origins,
    )
    engine: str = option(
        "auto",
        f"engine that computes the target: {', '.join(ENGINES.names())}, or your own module:callable; auto: llamacpp "
        "for a GGUF file, else torch; if only one of them is installed, that one; vllm: starts `vllm serve`",
        check=ENGINES.require,
        often=True,
    )
    device: str = option("auto", "processor of the target: auto, cpu, cuda or cuda:1", often=True)
    dtype: str = option(
        "auto",
        "precision of the target; with engine llamacpp: stored keeps a quantized file as it is, float16 widens it, "
        "auto widens models of up to 300 million parameters",
        choices=("auto", "float64", "float32", "bfloat16", "float16", "stored"),
    )
    numerics: str = option(
        "auto",
        "exact: results do not depend on the batch, bit for bit; fast: any kernel",
        choices=("auto", "exact", "fast"),
    )
    gpu_layers: int = option(
        -1,
        "number of layers of a GGUF target on the GPU; -1 = all, if llama.cpp was built for a GPU",
        low=-1,
        metavar="N",
    )
    context: int = option(
        0,
        "maximum length of a sequence (prompt and answer), in tokens; 0 = the context length of the model",
        low=0,
        metavar="N",
        often=True,
    )
    threads: int = option(
        0,
        "CPU threads of the target; 0 = the fastest number, tried while it serves",
        low=0,
        high=1024,
        metavar="N",
    )
    vllm: str = option(
        "",
        "option of `vllm serve`, for --engine vllm, for example tensor_parallel_size=2; may be repeated",
        metavar="KEY=VALUE",
        several=True,
    )
    policy: str = option(
        "goodput",
        f"scheduling policy: {', '.join(POLICIES.names())}, or your own module:Class",
        check=POLICIES.require,
        group="scheduling and drafting",
    )
    draft_wait: float = option(
        0.25,
        "maximum seconds to wait for a device's draft before the target decodes without it; policy goodput learns the "
        "time of each device and uses this only before its first draft; inf = no limit",
        low=0,
        metavar="S",
    )
    batch: int = option(
        0,
        "number of drafts that policy static collects before a step; 0 = one from every session",
        low=0,
        metavar="N",
        file_only=True,
    )
    server_drafter: str = option(
        AUTO_DRAFTER,
        f"drafters of the server, in addition to those of the devices: {', '.join(SERVER_DRAFTERS.names())}, or your "
        "own module:callable; several (lookup+model): for each sequence and step the one that pays. With --engine vllm "
        "one of vLLM's, vllm:NAME (ngram, suffix, mtp, eagle3, dflash, draft_model), or none. auto: none with --engine "
        "vllm, else lookup (policy goodput), and model with --draft-model",
        check=require_drafters,
        metavar="DRAFTER",
        often=True,
        apart=True,
    )
    draft_model: str = option(
        "",
        "draft model for --server-drafter model (given like --model), or the folder of a draft head or early exit; "
        "default: the one that belongs to the target",
        metavar="MODEL",
        apart=True,
        read=model_name,
    )
    server_draft: int = option(
        4,
        "length of server drafts under policy fcfs, in tokens; goodput chooses the length itself, static uses none",
        low=1,
        metavar="N",
        file_only=True,
    )
    max_step_tokens: int = option(
        512, "maximum number of tokens in one forward pass", low=1, metavar="N", file_only=True
    )
    kv_tokens: int = option(
        0,
        "size of the KV cache, in tokens; 0 = for some full contexts, within a part of the free memory",
        low=0,
        metavar="N",
        group="memory and slots",
    )
    prefix_cache: bool = option(
        True,
        "share the KV cache between texts of a tenant that begin alike; no effect under policy static",
    )
    max_sessions: int = option(256, "maximum number of concurrent sequences", low=1, metavar="N", often=True)
    min_pace: float = option(
        0.0,
        "minimum tokens/s guaranteed to each sequence (excess ones are refused); 0 = only where requested",
        low=0,
        metavar="N",
        file_only=True,
    )
    max_pace: float = option(
        0.0,
        "maximum pace that the server guarantees, in tokens/s; 0 = min-pace, or without it half the pace of a sequence "
        "that is alone",
        low=0,
        metavar="N",
        file_only=True,
    )
    trust_device_probabilities: bool = option(
        False,
        "also serve acceptance rules that rely on probabilities sent by the device, such as ratio; a device that sends "
        "false ones changes its user's text",
        group="acceptance rules and privacy",
    )
    rules: str = option(
        "",
        "acceptance rules to serve, comma-separated: registered names, or your own module:Class; empty = all "
        "registered rules",
        metavar="NAMES",
        check=require_rules,
        file_only=True,
    )
    loose_rules: str = option(
        "",
        "also serve these loose rules, which may change the target's text, comma-separated: fly, pad, or your own "
        "module:Class; read docs/loose-rules.md first; empty = none",
        metavar="NAMES",
        check=require_rules,
    )
    pivots: str = option(
        "",
        "folder of the pivot classifier for rule pad (opensled train-pivots); empty = the bundled one",
        metavar="FOLDER",
    )
    pad_frames: bool = option(
        False,
        "require all devices to send frames of fixed sizes, which do not reveal how many tokens they hold",
    )
    metrics: str = address_option(
        "",
        "address for Prometheus metrics and health probes, for example 127.0.0.1:9410; `opensled top` shows the "
        "metrics; other machines can read them with TLS and --operator-keys",
        group="metrics and logs",
        often=True,
        port=9410,
    )
    insecure_metrics: bool = option(
        False,
        "let other machines read the metrics without TLS and without a key",
        file_only=True,
    )
    log_level: str = option("warning", "minimum level of log messages", choices=LEVELS)
    log_json: bool = option(False, "write log messages as JSON, one object per line")
    json: bool = option(False, "print the totals as JSON when the server stops")
    replicas: int = option(
        0,
        "number of replicas to start on Ray, each on its own GPU, with this process as their gateway; 0 = this process "
        "alone, or with --ray-address the existing replicas",
        low=0,
        metavar="N",
        group="replicas",
    )
    replica_gpus: float = option(
        1.0,
        "GPUs of each replica: a number, also a fraction; with --vllm tensor_parallel_size, one for each of its "
        "processes; no effect if Ray has no GPUs",
        low=0,
        metavar="X",
        file_only=True,
    )
    ray_address: str = address_option(
        "",
        "address of the Ray cluster to join; default: --replicas starts a cluster on this machine",
        port=6379,
    )
    ray_network: str = option(
        "",
        "private networks on which Ray may listen, in addition to loopback, for example 10.0.0.0/24,fd00::/8",
        metavar="NETWORKS",
        check=networks,
    )
    proxy: bool = option(
        False, "route all streams through the gateway, for devices that cannot reach the replicas"
    )

    attention: str = option(
        "auto",
        "attention kernel of engine torch: sdpa (torch's own) or triton (for GPUs; reads the paged KV cache in place); "
        "auto: the faster one that passes its test at load",
        choices=ATTENTION,
        group="GPU kernels",
        file_only=True,
    )
    graphs: str = option(
        "auto",
        "run small steps as CUDA graphs; auto: on a GPU with attention triton",
        choices=GRAPHS,
        file_only=True,
    )

    @property
    def shares_prefixes(self) -> bool:
        """Whether sequences share KV.

        SLED as published (policy static) shares none, and pads its batches with positions that shared blocks would
        hold.
        """
        return self.prefix_cache and self.policy != "static"
