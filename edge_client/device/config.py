"""Options of the device commands (`edge`, `doctor`, `profile calibrate`; prompt_config.py) and their defaults."""

from dataclasses import dataclass
from typing import ClassVar

from edge_client.drafters import AUTO, OFF, plain_names, require_drafter
from edge_client.lengths import LENGTH_POLICIES
from edge_client.lengths.base import UNADVISED, LengthOptions
from edge_client.link.link_config import LinkConfig
from edge_client.link.remote import RetryPolicy
from edge_client.offline.modes import LOCAL_GIVE_UP, OFFLINE_MODES, STALL
from http_api.backend import HEARTBEAT
from opensled.cli.addresses import address_option
from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.core.messages import MATCH, MAX_DEVICE, MAX_PACE
from opensled.models.pasted_names import model_name
from opensled.net.address import web_origins
from opensled.process.logs import LEVELS

COLOR_CHOICES = ("auto", "always", "never")
COLOR_HELP = "use colours; auto: on a terminal, unless NO_COLOR is set"


def device_name(name: str) -> None:
    """Raises UsageError for a name that `Open.device` cannot hold."""
    if len(name.encode("utf-8", "surrogateescape")) > MAX_DEVICE:
        raise UsageError(f"the name of the device is too long; the maximum is {MAX_DEVICE} bytes in UTF-8")
    if not name.isprintable():
        raise UsageError("the name of the device has characters that cannot be printed; use printable ones")


@dataclass(frozen=True)
class DeviceConfig(LinkConfig):
    """How a device reaches its server, and how it drafts."""

    rule: str = option(
        MATCH,
        "acceptance rule for draft tokens; the server must serve it. match: always exact; ratio: exact if the device "
        "sends its true probabilities; fly, pad: may change the text (docs/loose-rules.md); options follow a colon",
        metavar="NAME",
        group="server",
    )
    drafter: str = option(
        AUTO,
        f"drafter: auto, {', '.join(plain_names())}, chain:A,B (each block comes from the first drafter that is sure), "
        "accelerated:A (tables speed up draft model A), or your own module:Class. auto: chain:lookup,server with "
        "--draft-url; else chain:lookup,cacheback,llamacpp if a draft model fits the target, else lookup",
        metavar="NAME",
        check=require_drafter,
        group="drafting",
        often=True,
    )
    draft_model: str = option(
        "",
        "draft model: a name listed by `opensled models list`, a GGUF file or an ONNX folder; default: the model on "
        "this machine that belongs to the target; with --draft-url: the name of the server's model",
        metavar="MODEL",
        often=True,
        read=model_name,
    )
    draft_url: str = address_option(
        "",
        "let a server of yours draft: llama-server, Ollama, LM Studio, or another one with OpenAI's /v1/completions, "
        "such as http://mac.local:11434; it gets the text of all your prompts and answers",
        often=True,
        port=11434,
        scheme="http://",
        metavar="URL",
    )
    draft_key: str = option(
        "",
        "file with the key that the server at --draft-url wants, file mode 600",
        metavar="FILE",
        file_only=True,
        sent_to=("draft_url", "draft_ca"),
    )
    draft_ca: str = option(
        "",
        "certificate authorities (PEM) to trust for --draft-url instead of the system's",
        metavar="FILE",
        file_only=True,
    )
    draft_table: str = option(
        "",
        "frozen table for drafters that use tables; default: the table next to the draft model; off = none",
        metavar="FILE",
        file_only=True,
    )
    personal_table: str = option(
        OFF,
        "file in which these drafters store what they learn from your texts; off = forget it at the end",
        metavar="FILE",
    )
    draft_window: int = option(
        0,
        "maximum number of prompt tokens that the draft model reads, from the beginning and the end of the text; fewer "
        "make drafts start sooner and do not change the answer; 0 = as many as it reads in 1.5 s (llamacpp, onnx)",
        low=0,
        metavar="N",
        file_only=True,
    )
    draft_length: int = option(
        0,
        f"maximum draft length, in tokens; 0 = the server's hint (--stop hint), {UNADVISED} (--stop fixed, confidence)",
        low=0,
        metavar="K",
    )
    stop: str = option(
        "hint",
        "policy that sets the draft length. hint: the server sets it, from costs and gains of all its users; "
        f"{UNADVISED} tokens until its first hint; fixed: --draft-length, or a shorter hint; confidence: as fixed, and "
        "a block ends before the first token below `confidence`; or your own module:Class",
        metavar="NAME",
        check=LENGTH_POLICIES.get,
    )
    confidence: float = option(
        LengthOptions.confidence,
        "minimum confidence of a draft token under --stop confidence (c_th)",
        low=0,
        high=1,
        metavar="P",
        file_only=True,
    )
    draft_tree: int = option(
        LengthOptions.tree,
        "maximum size of a draft tree, in tokens, if the drafter has trees; 0 = chains only (docs/draft-length.md)",
        low=0,
        metavar="N",
        file_only=True,
    )
    battery_floor: float = option(
        20.0,
        "minimum battery charge for drafting, in percent, while the device is unplugged; 0 = no minimum",
        low=0,
        high=100,
        metavar="PERCENT",
        file_only=True,
    )
    look_ahead: bool = option(
        True,
        "draft the next block while the server verifies the last one; off = wait, which saves power",
        file_only=True,
    )
    threads: int = option(
        0,
        "CPU threads of the draft model; 0 = physical cores minus one, or fewer while they are faster (llama.cpp)",
        low=0,
        high=1024,
        metavar="N",
    )
    pace: float = option(
        0.0,
        "minimum tokens/s of each answer; the server guarantees it or refuses the request; 0 = no guarantee",
        group="requests to the server",
        low=0,
        high=MAX_PACE,
        metavar="RATE",
    )
    background: bool = option(
        False, "give answers of this device a low priority, since no reader waits for them"
    )
    device_name: str = option(
        "",
        "name of this device on the server's page; the server also keeps its draft statistics under this name; "
        "default: the name given at pairing, else a new name for each run",
        metavar="NAME",
        check=device_name,
    )
    pad_frames: bool = option(
        False,
        "send frames of fixed sizes, which do not reveal to an observer how many tokens they hold",
        group="privacy",
    )
    fallback: str = address_option(
        "",
        "address of another server, for the time when --server is unreachable; the same credentials must hold there; "
        "usually the server above a relay",
        group="while the server is unreachable",
        port=7411,
    )
    offline: str = option(
        STALL,
        "while the server is unreachable: stall = wait for it; provisional = show drafts and verify them later; "
        "local-only = let the draft model answer alone",
        choices=OFFLINE_MODES,
    )
    give_up: float = option(
        0.0,
        "seconds to retry before an answer ends with an error, or before the draft model answers (local-only); "
        f"0 = {RetryPolicy().give_up:g}, with local-only {LOCAL_GIVE_UP:g}",
        low=0,
        metavar="SECONDS",
    )
    cache_dir: str = option(
        "~/.cache/opensled",
        "folder for tokenizers received from servers",
        metavar="FOLDER",
        group="files and logs",
        file_only=True,
    )
    log_level: str = option("warning", "minimum level of log messages", choices=LEVELS)
    log_json: bool = option(False, "write log messages as JSON, one object per line")


@dataclass(frozen=True)
class EdgeConfig(DeviceConfig):
    """A device that serves the OpenAI-compatible API."""

    OFTEN: ClassVar = ("tls_ca", "device_name", "offline")

    host: str = option(
        "",
        "with --pair: address of the server, HOST or HOST:PORT; default: the server that announces itself",
        positional=True,
        optional=True,
        metavar="HOST",
        group="pairing",
    )
    pair: str = option(
        "",
        "pair this device with the server first, using the code shown by `opensled pair`; all commands of this device "
        "then use this server, its certificate authority and a token of its own",
        metavar="CODE",
        often=True,
        typed=True,
    )
    http: str = address_option(
        "127.0.0.1:8411",
        "address of the HTTP API; port 0 = any free port",
        group="HTTP API of this device",
        often=True,
        port=8411,
    )
    parallel: int = option(
        4,
        "maximum number of sequences that draft at the same time; the server decodes further ones without drafts",
        low=1,
        metavar="N",
    )
    http_keys: str = option(
        "",
        "file with API keys, one per line, file mode 600; each request must carry one of them",
        metavar="FILE",
        often=True,
    )
    http_tls_cert: str = option("", "certificate chain (PEM) of the HTTP API; turns HTTPS on", metavar="FILE")
    http_tls_key: str = option("", "private key of --http-tls-cert (PEM), file mode 600", metavar="FILE")
    cors_origin: str = option(
        "",
        "web origins allowed to use the HTTP API, for example https://chat.example; comma-separated",
        metavar="ORIGIN",
        check=web_origins,
    )
    lenient: bool = option(False, "ignore unknown fields of HTTP requests instead of refusing the request")
    insecure: bool = option(False, "allow other machines to use the HTTP API without TLS or without keys")
    heartbeat: float = option(
        HEARTBEAT,
        "seconds between comments that keep an HTTP stream open while no tokens arrive; 0 = no comments",
        low=0,
        metavar="SECONDS",
        file_only=True,
    )
    metrics: str = address_option(
        "",
        "address for Prometheus metrics and health probes, for example 127.0.0.1:9411; other machines can read them "
        "with --http-keys and --http-tls-cert",
        group="metrics",
        port=9411,
    )
    insecure_metrics: bool = option(
        False,
        "let other machines read the metrics without TLS and without a key",
        file_only=True,
    )


@dataclass(frozen=True)
class CalibrateConfig(DeviceConfig):
    """What to measure: the configured draft model and link."""

    out: str = option(
        "",
        "file for the profile; default: the file in which the other commands look for it",
        metavar="FILE",
        group="profile",
        often=True,
    )
    json: bool = option(False, "print the profile as JSON", often=True)


@dataclass(frozen=True)
class DoctorConfig(DeviceConfig):
    """The device to examine: this one, as configured."""

    root: str = option(
        "/",
        "folder with a copy of /proc, /sys and /etc of the board to examine",
        metavar="FOLDER",
        group="examination and output",
    )
    color: str = option("auto", COLOR_HELP, choices=COLOR_CHOICES)
    json: bool = option(False, "print the findings as JSON", often=True)
