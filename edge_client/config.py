"""What `opensled edge` and `opensled generate` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from edge_client.drafters import DRAFTERS
from opensled.address import host_port
from opensled.config import option


@dataclass(frozen=True)
class LinkConfig:
    """How a device reaches its server, and how it drafts."""

    server: str = option("127.0.0.1:7411", "address of the verification server", check=host_port)
    token_file: str = option("", "file with the bearer token for the server", metavar="FILE")
    tls: bool = option(False, "connect with TLS")
    tls_ca: str = option(
        "", "certificates (PEM) to trust instead of the system's; turns TLS on", metavar="FILE"
    )
    drafter: str = option("llamacpp", f"{', '.join(DRAFTERS.names())}, or module:Class of your own")
    draft_model: str = option(
        "tiny-draft", "draft model: a bundled name, a file or a folder", metavar="MODEL"
    )
    draft_length: int = option(
        4, "most tokens of a draft block; 0 = let the server decode", low=0, metavar="K"
    )
    stop: str = option(
        "fixed",
        "when a block ends: at its length, or also before the first token below --confidence",
        choices=("fixed", "confidence"),
    )
    confidence: float = option(0.4, "threshold of --stop confidence (c_th)", low=0, high=1, metavar="P")
    threads: int = option(0, "threads of the draft model; 0 = physical cores less one", low=0, metavar="N")
    cache_dir: str = option("~/.cache/opensled", "where tokenizers of servers are kept", metavar="FOLDER")


@dataclass(frozen=True)
class EdgeConfig(LinkConfig):
    """A device that serves the OpenAI-compatible API."""

    http: str = option("127.0.0.1:8411", "address of the API; port 0 takes a free one", check=host_port)
    parallel: int = option(
        4, "sequences that draft at the same time; more are decoded by the server", low=1, metavar="N"
    )
    insecure: bool = option(False, "serve the API beyond this machine, to anybody who can reach it")


@dataclass(frozen=True)
class GenerateConfig(LinkConfig):
    """One prompt, one answer."""

    prompt: str = option("", "what to answer; - reads it from standard input", metavar="TEXT")
    raw: bool = option(False, "continue the prompt as it is, without the chat template")
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
    json: bool = option(False, "print the answer and its statistics as JSON")
