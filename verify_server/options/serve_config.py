"""Options of `opensled serve` and their defaults."""

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.net.address import host_port, web_address, web_origins
from opensled.process.logs import LEVELS
from scheduler import POLICIES
from scheduler.cluster.ray_guard import networks
from verify_server.options.access_config import AccessConfig
from verify_server.options.adapt_config import AdaptConfig
from verify_server.options.gpu_config import GpuConfig
from verify_server.options.limits_config import LimitsConfig
from verify_server.options.registries import ENGINES, SERVER_DRAFTERS

MAX_NAME = 128  # characters of a further name; chosen
AUTO_DRAFTER = "auto"


def model_names(listed: str) -> tuple[str, ...]:
    """The names in a comma-separated list, each once; raises UsageError for one that no request could spell."""
    names = tuple(dict.fromkeys(name.strip() for name in listed.split(","))) if listed else ()
    for name in names:
        if not name or len(name) > MAX_NAME or not name.isprintable() or any(map(str.isspace, name)):
            raise UsageError(
                f"{name[:MAX_NAME]!r} is not a name of a model; write up to {MAX_NAME} characters without blanks, "
                "such as gpt-4o,my-model"
            )
    return names


@dataclass(frozen=True)
class ServeConfig(LimitsConfig, GpuConfig, AdaptConfig, AccessConfig):
    """One verification server."""

    model: str = option(
        "tiny",
        "target: a name of `opensled models list`, a folder, a GGUF file, or a hub id ORG/MODEL",
        group="the target, and where it is served",
        often=True,
    )
    listen: str = option(
        "127.0.0.1:7411",
        "address that devices connect to; port 0 takes a free one",
        metavar="HOST:PORT",
        check=host_port,
        often=True,
    )
    http: str = option(
        "",
        "address of an HTTP API (OpenAI's and Ollama's) of the server itself, for clients without a device; a "
        "port alone is one of 127.0.0.1; default: none",
        metavar="[HOST:]PORT",
        check=web_address,
        often=True,
    )
    operator_keys: str = option(
        "",
        "file with the keys of operators, one a line: who has one sees all devices and tenants on the page of --http, "
        "and may read --metrics from other machines; default: everybody on this machine, unless --tokens or "
        "--tls-client-ca is given",
        metavar="FILE",
    )
    drain: float = option(
        30.0,
        "seconds for which answers under way may go on after SIGTERM, while new ones are refused; devices then take "
        "theirs to the next server, and answers over HTTP end with an error; 0 = at once",
        low=0,
        high=86_400,
        metavar="SECONDS",
    )
    served_model_name: str = option(
        "",
        "further names by which HTTP APIs, also those of devices, take the target; comma-separated",
        metavar="NAMES",
        check=model_names,
    )
    lenient: bool = option(
        False, "leave out fields of HTTP requests that nothing reads, instead of refusing the request"
    )
    cors_origin: str = option(
        "",
        "origins of web pages that may use the HTTP API, such as https://chat.example; comma-separated",
        metavar="ORIGIN",
        check=web_origins,
    )
    engine: str = option(
        "auto",
        f"{', '.join(ENGINES.names())}, or your own module:callable; auto: llamacpp for a GGUF file, else torch, "
        "whichever is installed",
        often=True,
    )
    device: str = option("auto", "what computes the target: auto, cpu, cuda or cuda:1", often=True)
    dtype: str = option(
        "auto",
        "precision of the target; engine llamacpp: float16 widens a quantized file, stored leaves it as it is, auto "
        "widens those of up to 300 million parameters",
        choices=("auto", "float64", "float32", "bfloat16", "float16", "stored"),
    )
    numerics: str = option(
        "auto", "exact: bits do not depend on the batch; fast: any kernel", choices=("auto", "exact", "fast")
    )
    gpu_layers: int = option(
        -1,
        "layers of a GGUF target on the GPU; -1 = all, if llama.cpp was built for a GPU",
        low=-1,
        metavar="N",
    )
    context: int = option(
        0,
        "most tokens of a sequence, prompt and answer; 0 = all that the model has",
        low=0,
        metavar="N",
        often=True,
    )
    threads: int = option(
        0, "CPU threads of the target; 0 = what is fastest here, timed at the first start", low=0, metavar="N"
    )
    vllm: str = option(
        "",
        "engine argument of vLLM for --engine vllm, such as tensor_parallel_size=2; may be given several times",
        metavar="KEY=VALUE",
        several=True,
    )
    policy: str = option(
        "goodput",
        f"scheduling: {', '.join(POLICIES.names())}, or your own module:Class",
        group="scheduling and drafts",
    )
    draft_wait: float = option(
        0.25,
        "seconds to wait for a draft before decoding without it: for every device (fcfs, static), or for a device "
        "that has not drafted yet (goodput, which learns); inf = no limit",
        low=0,
        metavar="S",
    )
    batch: int = option(
        0,
        "drafts that policy static waits for; 0 = one from every session",
        low=0,
        metavar="N",
        file_only=True,
    )
    drafter: str = option(
        AUTO_DRAFTER,
        f"drafter beside the target: {', '.join(SERVER_DRAFTERS.names())}, or your own module:callable; devices draft "
        "as well. vllm:NAME: vLLM's own (ngram, suffix, mtp, eagle3, dflash, draft_model). auto: lookup, with engine "
        "vllm vllm:ngram, with --draft-model model; none with policies other than goodput",
        often=True,
        apart=True,
    )
    draft_model: str = option(
        "",
        "draft model of --drafter model, named like the target, or the folder of a draft head or early exit; default: "
        "the one that belongs to the target",
        metavar="MODEL",
        apart=True,
    )
    server_draft: int = option(
        4,
        "tokens of the server's own drafts under policy fcfs; goodput chooses, static has none",
        low=1,
        metavar="N",
        file_only=True,
    )
    max_step_tokens: int = option(
        512, "most tokens that one forward pass computes", low=1, metavar="N", file_only=True
    )
    kv_tokens: int = option(
        0, "KV cache size, in tokens; 0 = the available memory", low=0, metavar="N", group="memory and places"
    )
    prefix_cache: bool = option(
        True,
        "share KV cache between a tenant's texts with the same beginning; no effect for policy static",
    )
    max_sessions: int = option(256, "most sequences at the same time", low=1, metavar="N", often=True)
    min_pace: float = option(
        0.0,
        "tokens/s promised to every admitted sequence; sequences that would break the promise are refused; 0 = only "
        "sequences that ask for a pace get a promise",
        low=0,
        metavar="N",
        file_only=True,
    )
    max_pace: float = option(
        0.0,
        "highest pace that the server promises, in tokens/s; 0 = min-pace, or without it half of what one sequence "
        "alone would get",
        low=0,
        metavar="N",
        file_only=True,
    )
    trust_device_probabilities: bool = option(
        False,
        "serve rules such as ratio, under which a device that lies decides what its user reads",
        group="rules, and privacy on the network",
    )
    rules: str = option(
        "",
        "acceptance rules to serve, comma-separated: registered names, or your own module:Class; "
        "empty = all registered rules",
        metavar="NAMES",
        file_only=True,
    )
    loose_rules: str = option(
        "",
        "rules that sequences may ask for though they change what users read, comma-separated: fly, pad, or your own "
        "module:Class; read docs/loose-rules.md first; empty = none",
        metavar="NAMES",
    )
    pivots: str = option(
        "",
        "folder of the pivot classifier for rule pad (opensled train-pivots); empty = the one that comes with OpenSLED",
        metavar="FOLDER",
    )
    pad_frames: bool = option(
        False,
        "require of every device that frames have fixed sizes, which do not tell how many tokens they hold",
    )
    metrics: str = option(
        "",
        "address for Prometheus metrics and for probes, such as 127.0.0.1:9410; opensled top shows them; beyond this "
        "machine with TLS and --operator-keys",
        metavar="HOST:PORT",
        check=host_port,
        group="metrics and logs",
        often=True,
    )
    insecure_metrics: bool = option(
        False,
        "serve the metrics beyond this machine without TLS, to every client that reaches them",
        file_only=True,
    )
    replicas: int = option(
        0,
        "servers of the target on Ray, each with its own GPU, behind this process as their gateway; 0 = this process "
        "alone, or with --ray-address the existing replicas",
        low=0,
        metavar="N",
        group="several replicas",
    )
    replica_gpus: float = option(
        1.0,
        "GPUs of each replica, also a fraction, or one for each process of --vllm tensor_parallel_size; no effect if "
        "Ray has none",
        low=0,
        metavar="X",
        file_only=True,
    )
    ray_address: str = option(
        "",
        "Ray cluster to join; without it --replicas starts one here",
        metavar="HOST:PORT",
        check=host_port,
    )
    ray_network: str = option(
        "",
        "private networks besides loopback on which Ray may listen, such as 10.0.0.0/24,fd00::/8",
        metavar="NETWORKS",
        check=networks,
    )
    proxy: bool = option(
        False, "pass streams through the gateway, for devices that cannot reach the replicas"
    )
    log_level: str = option(
        "warning", "lowest level of messages to log", choices=LEVELS, group="logs and totals"
    )
    log_json: bool = option(False, "log one JSON object per line")
    json: bool = option(False, "print the totals of the run as JSON at the end")

    @property
    def shares_prefixes(self) -> bool:
        """Whether sequences share KV.

        SLED as published (policy static) shares none, and pads its batches with positions that shared blocks would
        hold.
        """
        return self.prefix_cache and self.policy != "static"
