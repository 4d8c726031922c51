"""What `opensled edge` and `opensled generate` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.drafters import OFF, plain_names
from edge_client.lengths import LENGTH_POLICIES
from edge_client.lengths.base import UNADVISED, LengthOptions
from edge_client.offline.absence import HEARTBEAT, LOCAL_PATIENCE, OFFLINE_MODES, STALL
from edge_client.remote import RetryPolicy
from opensled.address import host_port, web_origins
from opensled.config import option
from opensled.errors import UsageError
from opensled.logs import LEVELS
from opensled.messages import MATCH, MAX_DEVICE, MAX_PACE, RATIO, SamplingParams

COLOR_CHOICES = ("auto", "always", "never")
COLOR_HELP = "auto: on a terminal, unless NO_COLOR is set"


def device_name(name: str) -> None:
    """Raises UsageError for what `Open.device` cannot hold."""
    if len(name.encode("utf-8", "surrogateescape")) > MAX_DEVICE:
        raise UsageError(f"a device's name has at most {MAX_DEVICE} bytes")
    if not name.isprintable():
        raise UsageError("a device's name is text without control characters")


@dataclass(frozen=True)
class DeviceConfig:
    """How a device reaches its server, and how it drafts."""

    server: str = option(
        "127.0.0.1:7411", "address of the verification server", metavar="HOST:PORT", check=host_port
    )
    token_file: str = option("", "bearer token for the server, file mode 600", metavar="FILE")
    tls: bool = option(False, "connect with TLS")
    tls_ca: str = option(
        "", "certificates (PEM) to trust instead of the system's; turns TLS on", metavar="FILE"
    )
    tls_cert: str = option(
        "", "this device's certificate (PEM), for a server that asks for one; turns TLS on", metavar="FILE"
    )
    tls_key: str = option("", "private key of --tls-cert (PEM), file mode 600", metavar="FILE")
    rule: str = option(
        MATCH,
        "acceptance rule: match is exact whatever the device sends; ratio trusts the device's own probabilities",
        choices=(MATCH, RATIO),
    )
    drafter: str = option(
        "chain:cacheback,llamacpp",
        f"{', '.join(plain_names())}, chain:A,B (the first one that is sure drafts), accelerated:A (tables speed "
        "the model A up), or module:Class of your own",
        metavar="NAME",
    )
    draft_model: str = option(
        "tiny-draft", "draft model: a bundled name, a file or a folder", metavar="MODEL"
    )
    draft_table: str = option(
        "",
        "frozen table of drafters with tables; left out, the one beside the draft model; off = none",
        metavar="FILE",
    )
    personal_table: str = option(
        OFF,
        "keep what these drafters learn from your texts in this file, from one run to the next; off = forget it",
        metavar="FILE",
    )
    draft_length: int = option(
        0,
        "most tokens of a draft block; 0 = as many as pay (--stop adaptive, predicted), or as the server hints, "
        f"{UNADVISED} if it does not (--stop fixed, confidence)",
        low=0,
        metavar="K",
    )
    stop: str = option(
        "adaptive",
        "when a block ends. adaptive: at the length that commits most tokens per second, as measured, or nothing is "
        "drafted where that does not pay; predicted: also where its tokens will hardly be accepted, as learned from "
        "verdicts; fixed: at its length; confidence: also before the first token below --confidence; or "
        "module:Class of your own",
        metavar="NAME",
        check=LENGTH_POLICIES.get,
    )
    confidence: float = option(
        LengthOptions.confidence,
        "threshold of --stop confidence (c_th); of --stop predicted only until it is known what tokens cost",
        low=0,
        high=1,
        metavar="P",
    )
    draft_tree: int = option(
        60,
        "most tokens of a draft tree, of drafters that have trees; 0 = chains only. With --stop adaptive a tree has to "
        "commit more tokens per second than a chain, as measured",
        low=0,
        metavar="N",
    )
    battery_floor: float = option(
        LengthOptions.battery_floor,
        "percent of the battery below which a device that runs on it drafts nothing (--stop adaptive, predicted)",
        low=0,
        high=100,
        metavar="PERCENT",
    )
    look_ahead: bool = option(
        True, "draft on while a verdict travels; without it a device rests then, and saves power"
    )
    lookahead_branches: int = option(
        2,
        "verdicts other than full acceptance that are drafted ahead too, where the draft model has time for it; "
        "llama.cpp only",
        low=0,
        high=15,
        metavar="N",
    )
    threads: int = option(
        0, "threads of the draft model; 0 = as calibrated, else physical cores less one", low=0, metavar="N"
    )
    pace: float = option(
        0.0,
        "tokens/s that answers need, which the server promises, or has no room; 0 = no promise",
        low=0,
        high=MAX_PACE,
        metavar="RATE",
    )
    background: bool = option(False, "nobody waits for the answers: under load they give way to others")
    device_name: str = option(
        "",
        "under this name the server remembers how this device drafts; drawn for each run if left out",
        metavar="NAME",
        check=device_name,
    )
    offline: str = option(
        STALL,
        "while the server is away: stall; provisional, draft on and have it verified later; local-only, let the "
        "draft model answer alone",
        choices=OFFLINE_MODES,
    )
    give_up: float = option(
        0.0,
        "seconds for which a lost server is tried again before an answer ends by an error, or by the draft model's "
        f"words; 0 = {RetryPolicy().give_up:g}, with local-only {LOCAL_PATIENCE:g}",
        low=0,
        metavar="SECONDS",
    )
    cache_dir: str = option("~/.cache/opensled", "where tokenizers of servers are kept", metavar="FOLDER")
    log_level: str = option("warning", "least important messages to log", choices=LEVELS)
    log_json: bool = option(False, "log one JSON object a line")


@dataclass(frozen=True)
class EdgeConfig(DeviceConfig):
    """A device that serves the OpenAI-compatible API."""

    http: str = option(
        "127.0.0.1:8411", "address of the API; port 0 takes a free one", metavar="HOST:PORT", check=host_port
    )
    parallel: int = option(
        4, "sequences that draft at the same time; more are decoded by the server", low=1, metavar="N"
    )
    http_keys: str = option(
        "", "API keys, one of which every request must carry: one a line, file mode 600", metavar="FILE"
    )
    http_tls_cert: str = option("", "certificate chain (PEM) of the API; turns HTTPS on", metavar="FILE")
    http_tls_key: str = option("", "private key of --http-tls-cert (PEM), file mode 600", metavar="FILE")
    cors_origin: str = option(
        "",
        "web pages that may use the API, such as https://chat.example; several with commas between",
        metavar="ORIGIN",
        check=web_origins,
    )
    insecure: bool = option(
        False, "serve the API beyond this machine without TLS, or to anybody who can reach it"
    )
    heartbeat: float = option(
        HEARTBEAT,
        "seconds between the comments that keep a stream open while the server is away; 0 = none",
        low=0,
        metavar="SECONDS",
    )
    metrics: str = option(
        "", "address for Prometheus metrics, such as 127.0.0.1:9411", metavar="HOST:PORT", check=host_port
    )
    insecure_metrics: bool = option(
        False, "show the metrics beyond this machine, to anybody who can reach them"
    )


@dataclass(frozen=True)
class SamplingConfig(DeviceConfig):
    """What answers are like."""

    max_tokens: int = option(256, "most tokens of the answer", low=1, high=2**31 - 1, metavar="N")
    temperature: float = option(0.0, "0 = always the likeliest token", low=0, high=100, metavar="T")
    top_k: int = option(0, "keep the K likeliest tokens only; 0 = off", low=0, high=2**31 - 1, metavar="K")
    top_p: float = option(
        1.0, "keep the likeliest tokens that together reach P; 1 = off", low=1e-9, high=1, metavar="P"
    )
    seed: int | None = option(
        None,
        "same seed, same answer; left out, the server draws one",
        low=-(2**63),
        high=2**63 - 1,
        metavar="N",
    )

    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
        )


@dataclass(frozen=True)
class GenerateConfig(SamplingConfig):
    """One prompt, one answer."""

    prompt: str = option("", "what to answer; - reads it from standard input", metavar="TEXT")
    raw: bool = option(False, "continue the prompt as it is, without the chat template")
    json: bool = option(False, "print the answer and its statistics as JSON")


@dataclass(frozen=True)
class ChatConfig(SamplingConfig):
    """A conversation in the terminal."""

    system: str = option("", "system message, for the model to keep to", metavar="TEXT")
    show_drafts: bool = option(False, "colour every token by who wrote it: this device or the server")
    color: str = option("auto", COLOR_HELP, choices=COLOR_CHOICES)
    history: bool = option(True, "keep the lines typed, for the arrow keys of the next conversation")


@dataclass(frozen=True)
class CalibrateConfig(DeviceConfig):
    """What to measure: the draft model and the link that the other flags and files set up."""

    out: str = option(
        "", "where to write the profile; left out, where everything else finds it", metavar="FILE"
    )
    json: bool = option(False, "print the profile as JSON")


@dataclass(frozen=True)
class DoctorConfig(DeviceConfig):
    """What to examine: this device, as the other flags and files would set it up."""

    http: str = option(
        "127.0.0.1:8411", "address that `opensled edge` would serve on", metavar="HOST:PORT", check=host_port
    )
    root: str = option(
        "/", "examine a board by a copy of its /proc, /sys and /etc below this folder", metavar="FOLDER"
    )
    link: str = option(
        "wifi-good", "link to assume where no server can be asked: a name of `opensled profile list`"
    )
    color: str = option("auto", COLOR_HELP, choices=COLOR_CHOICES)
    json: bool = option(False, "print the findings as JSON")
