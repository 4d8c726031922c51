"""Options of the verbs of a device (`edge`, `doctor`, `profile calibrate`; prompt_config.py) and their defaults."""

from dataclasses import dataclass
from typing import ClassVar

from edge_client.drafters import OFF, plain_names
from edge_client.lengths import LENGTH_POLICIES
from edge_client.lengths.base import UNADVISED, LengthOptions
from edge_client.link.link_config import LinkConfig
from edge_client.link.remote import RetryPolicy
from edge_client.offline.modes import LOCAL_GIVE_UP, OFFLINE_MODES, STALL
from http_api.backend import HEARTBEAT
from opensled.cli.config import option
from opensled.core.errors import UsageError
from opensled.core.messages import MATCH, MAX_DEVICE, MAX_PACE
from opensled.net.address import host_port, web_origins
from opensled.process.logs import LEVELS

AUTO = "auto"
COLOR_CHOICES = ("auto", "always", "never")
COLOR_HELP = "auto: on a terminal, unless NO_COLOR is set"


def device_name(name: str) -> None:
    """Raises UsageError for a name that `Open.device` cannot hold."""
    if len(name.encode("utf-8", "surrogateescape")) > MAX_DEVICE:
        raise UsageError(f"a device's name has at most {MAX_DEVICE} bytes")
    if not name.isprintable():
        raise UsageError("a device's name is text without control characters")


@dataclass(frozen=True)
class DeviceConfig(LinkConfig):
    """How a device reaches its server, and how it drafts."""

    rule: str = option(
        MATCH,
        "acceptance rule that the server serves: match is exact whatever the device sends, ratio trusts the device's "
        "own probabilities, fly and pad change what you read (docs/loose-rules.md); options follow a colon",
        metavar="NAME",
        group="the server",
    )
    drafter: str = option(
        AUTO,
        "what drafts. auto: a draft model with lookup and tables (chain:lookup,cacheback,llamacpp) if one fits the "
        f"target, else lookup; or {', '.join(plain_names())}, chain:A,B (the first one that is sure drafts), "
        "accelerated:A (tables speed model A up), or your own module:Class",
        metavar="NAME",
        group="drafting",
        often=True,
    )
    draft_model: str = option(
        "",
        "draft model: a name of `opensled models list`, a GGUF file or an ONNX folder; default: the one on this "
        "machine that belongs to the target",
        metavar="MODEL",
        often=True,
    )
    draft_table: str = option(
        "",
        "frozen table for drafters with tables; default: the one beside the draft model; off = none",
        metavar="FILE",
    )
    personal_table: str = option(
        OFF,
        "file that keeps what these drafters learn from your texts between runs; off = forget it",
        metavar="FILE",
    )
    draft_window: int = option(
        0,
        "most tokens of a text that the draft model reads, of its beginning and its end; drafts begin the sooner, the "
        "text stays the same; 0 = as many as it reads in 1.5 s, as measured (llamacpp, onnx)",
        low=0,
        metavar="N",
        file_only=True,
    )
    draft_length: int = option(
        0,
        f"most tokens of a draft block; 0 = what the server's hint says (--stop hint), {UNADVISED} (--stop fixed, "
        "confidence)",
        low=0,
        metavar="K",
    )
    stop: str = option(
        "hint",
        "when a draft block ends. hint: where the server says, which knows what drafts cost and gain all its users; at "
        f"{UNADVISED} tokens while it says nothing; fixed: at --draft-length, or at a shorter hint; confidence: also "
        "before the first token below `confidence`; or your own module:Class",
        metavar="NAME",
        check=LENGTH_POLICIES.get,
    )
    confidence: float = option(
        LengthOptions.confidence,
        "threshold of --stop confidence (c_th)",
        low=0,
        high=1,
        metavar="P",
        file_only=True,
    )
    draft_tree: int = option(
        LengthOptions.tree,
        "most tokens of a draft tree, where the drafter has trees; 0 = chains only (docs/draft-length.md)",
        low=0,
        metavar="N",
        file_only=True,
    )
    battery_floor: float = option(
        20.0,
        "charge in percent below which a device on its battery drafts nothing; 0 = it drafts at any charge",
        low=0,
        high=100,
        metavar="PERCENT",
        file_only=True,
    )
    look_ahead: bool = option(
        True, "draft on while a verdict travels; off = rest then, and save power", file_only=True
    )
    threads: int = option(
        0, "threads of the draft model; 0 = calibrated, else physical cores less one", low=0, metavar="N"
    )
    pace: float = option(
        0.0,
        "tokens/s that answers need; the server promises this pace or refuses; 0 = no promise",
        group="what the device asks of the server",
        low=0,
        high=MAX_PACE,
        metavar="RATE",
    )
    background: bool = option(False, "no reader waits for the answers: under load they give way to others")
    device_name: str = option(
        "",
        "name of this device on the server's page, under which the server also remembers how it drafts; default: the "
        "name that it is paired under, else a new one for each run",
        metavar="NAME",
        check=device_name,
    )
    pad_frames: bool = option(
        False,
        "give frames fixed sizes, which do not tell an observer how many tokens they hold",
        group="privacy on the network",
    )
    fallback: str = option(
        "",
        "server to ask while --server cannot be reached, with the same credentials: the one above a relay",
        metavar="HOST:PORT",
        check=host_port,
        group="when the server is away",
    )
    offline: str = option(
        STALL,
        "while the server is away: stall waits for it; provisional drafts on and verifies later; local-only lets the "
        "draft model answer alone",
        choices=OFFLINE_MODES,
    )
    give_up: float = option(
        0.0,
        "seconds to retry a lost server before an answer ends with an error, or with the draft model's "
        f"words; 0 = {RetryPolicy().give_up:g}, with local-only {LOCAL_GIVE_UP:g}",
        low=0,
        metavar="SECONDS",
    )
    cache_dir: str = option(
        "~/.cache/opensled",
        "folder for the tokenizers of servers",
        metavar="FOLDER",
        group="files and logs",
        file_only=True,
    )
    log_level: str = option("warning", "lowest level of messages to log", choices=LEVELS)
    log_json: bool = option(False, "log one JSON object per line")


@dataclass(frozen=True)
class EdgeConfig(DeviceConfig):
    """A device that serves the OpenAI-compatible API."""

    OFTEN: ClassVar = ("tls_ca", "device_name", "offline")

    host: str = option(
        "",
        "with --pair: the server as this device calls it, HOST or HOST:PORT; default: the one that announces itself",
        positional=True,
        optional=True,
        metavar="HOST",
        group="pairing",
    )
    pair: str = option(
        "",
        "pair this device first, with the code that opensled pair shows on the server; the server, its authority and "
        "a token are then remembered for all commands of this device",
        metavar="CODE",
        often=True,
        typed=True,
    )
    http: str = option(
        "127.0.0.1:8411",
        "address of the API; port 0 takes a free one",
        metavar="HOST:PORT",
        check=host_port,
        group="the API of this device",
        often=True,
    )
    parallel: int = option(
        4, "sequences that draft at the same time; the server decodes the others", low=1, metavar="N"
    )
    http_keys: str = option(
        "",
        "file with the API keys, one per line, mode 600; every request must carry one",
        metavar="FILE",
        often=True,
    )
    http_tls_cert: str = option("", "certificate chain (PEM) of the API; turns HTTPS on", metavar="FILE")
    http_tls_key: str = option("", "private key of --http-tls-cert (PEM), file mode 600", metavar="FILE")
    cors_origin: str = option(
        "",
        "origins of web pages that may use the API, such as https://chat.example; comma-separated",
        metavar="ORIGIN",
        check=web_origins,
    )
    lenient: bool = option(
        False, "leave out fields of requests that nothing reads, instead of refusing the request"
    )
    insecure: bool = option(False, "serve the API beyond this machine without TLS, or without keys")
    heartbeat: float = option(
        HEARTBEAT,
        "seconds between the comments that keep a stream open while the server is away or reads the prompt; 0 = none",
        low=0,
        metavar="SECONDS",
        file_only=True,
    )
    metrics: str = option(
        "",
        "address for Prometheus metrics and for probes, such as 127.0.0.1:9411; beyond this machine with --http-keys "
        "and --http-tls-cert",
        metavar="HOST:PORT",
        check=host_port,
        group="metrics",
    )
    insecure_metrics: bool = option(
        False,
        "serve the metrics beyond this machine without TLS, to every client that reaches them",
        file_only=True,
    )


@dataclass(frozen=True)
class CalibrateConfig(DeviceConfig):
    """What to measure: the configured draft model and link."""

    out: str = option(
        "",
        "file for the profile; default: where the other verbs find it",
        metavar="FILE",
        group="the profile",
        often=True,
    )
    json: bool = option(False, "print the profile as JSON", often=True)


@dataclass(frozen=True)
class DoctorConfig(DeviceConfig):
    """What to examine: this device as configured."""

    http: str = option(
        "127.0.0.1:8411",
        "address that `opensled edge` would serve on",
        metavar="HOST:PORT",
        check=host_port,
        group="what to examine, and how to show it",
        often=True,
    )
    root: str = option(
        "/", "examine a board from a copy of its /proc, /sys and /etc below this folder", metavar="FOLDER"
    )
    link: str = option("wifi-good", "link to assume without a server: a name of `opensled profile list`")
    color: str = option("auto", COLOR_HELP, choices=COLOR_CHOICES)
    json: bool = option(False, "print the findings as JSON", often=True)
