"""Options of `opensled relay` and their defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from edge_client.device.config import device_name
from edge_client.link.remote import RetryPolicy
from edge_client.offline.modes import LOCAL_GIVE_UP, OFFLINE_MODES, STALL
from opensled.cli.addresses import address_option
from opensled.cli.config import option
from opensled.core.messages import MATCH
from opensled.models.pasted_names import model_name
from verify_server.options.limits_config import LimitsConfig
from verify_server.options.serve_config import ServeConfig

_SERVES = {each.name: each for each in fields(ServeConfig)}


def serve_option(name: str) -> Any:
    """An option of `opensled serve` that means the same here."""
    return field(default=_SERVES[name].default, metadata=_SERVES[name].metadata)


@dataclass(frozen=True)
class RelayConfig(LimitsConfig):
    """A model beside its devices, and the server above it."""

    upstream: str = address_option(
        "127.0.0.1:7411",
        "address of the upstream server, whose target decides the text: opensled serve, or another relay",
        group="upstream server",
        often=True,
        port=7411,
    )
    upstream_token_file: str = option(
        "",
        "file with this relay's bearer token for the upstream server, file mode 600",
        metavar="FILE",
        sent_to=("upstream", "upstream_tls", "upstream_tls_ca", "upstream_tls_cert"),
        often=True,
    )
    upstream_tls: bool = option(False, "connect to the upstream server with TLS")
    upstream_tls_ca: str = option(
        "", "certificate authorities (PEM) to trust instead of the system's; turns TLS on", metavar="FILE"
    )
    upstream_tls_cert: str = option(
        "", "this relay's certificate (PEM), for servers that require one; turns TLS on", metavar="FILE"
    )
    upstream_tls_key: str = option(
        "", "private key of --upstream-tls-cert (PEM), file mode 600", metavar="FILE"
    )
    offline: str = option(
        STALL,
        "while the upstream server is unreachable: stall = wait for it; provisional = go on vetting, and have the "
        "tokens verified later; local-only = let this relay's model answer devices that accept unverified text (with "
        "--offline local-only)",
        choices=OFFLINE_MODES,
    )
    give_up: float = option(
        0.0,
        "seconds to retry before an answer ends with an error, or before this relay's model answers (local-only); "
        f"0 = {RetryPolicy().give_up:g}, with local-only {LOCAL_GIVE_UP:g}",
        low=0,
        metavar="SECONDS",
    )
    name: str = option(
        "",
        "name of this relay on the upstream server, which keeps its draft statistics under this name",
        check=device_name,
    )
    block: int = option(
        8,
        "number of vetted tokens to send as one block, if the upstream server allows so many",
        low=1,
        high=64,
        metavar="T",
    )
    bound: float = option(
        0.4,
        "minimum chance that the target accepts the whole block; below it the block is sent before it is full",
        low=0,
        high=1,
        metavar="P",
    )
    model: str = option(
        "tiny-hub",
        "model of this relay, smaller than the target and with the same vocabulary: a name listed by `opensled models "
        "list`, a folder or a GGUF file",
        bare=True,
        group="model and address of this relay",
        often=True,
        read=model_name,
    )
    listen: str = address_option(
        "127.0.0.1:7412",
        "address that devices connect to; port 0 = any free port",
        often=True,
        port=7412,
    )
    drain: float = serve_option("drain")
    engine: str = serve_option("engine")
    device: str = serve_option("device")
    dtype: str = serve_option("dtype")
    numerics: str = serve_option("numerics")
    gpu_layers: int = serve_option("gpu_layers")
    context: int = serve_option("context")
    threads: int = serve_option("threads")
    kv_tokens: int = serve_option("kv_tokens")
    max_sessions: int = serve_option("max_sessions")
    policy: str = serve_option("policy")
    draft_wait: float = serve_option("draft_wait")
    tls_cert: str = serve_option("tls_cert")
    tls_key: str = serve_option("tls_key")
    tls_client_ca: str = serve_option("tls_client_ca")
    tokens: str = serve_option("tokens")
    insecure: bool = serve_option("insecure")
    drafts: str = serve_option("drafts")
    metrics: str = serve_option("metrics")
    operator_keys: str = option(
        "", "file with operator keys, one per line; a key lets other machines read --metrics", metavar="FILE"
    )
    insecure_metrics: bool = serve_option("insecure_metrics")
    log_level: str = serve_option("log_level")
    log_json: bool = serve_option("log_json")
    json: bool = serve_option("json")

    @property
    def serving(self) -> ServeConfig:
        """As a server towards the devices; nothing drafts beside the relay's model."""
        shared = [each.name for each in fields(self) if each.name in _SERVES]
        same = {name: getattr(self, name) for name in shared}
        return ServeConfig(**same, rules=MATCH, server_drafter="none")
