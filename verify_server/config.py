"""What `opensled serve` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.address import host_port
from opensled.config import option
from opensled.logs import LEVELS
from scheduler import POLICIES
from verify_server.engine import ENGINES


@dataclass(frozen=True)
class ServeConfig:
    """One verification server."""

    model: str = option("tiny", "target: a bundled name, a folder, a GGUF file, or a hub id ORG/MODEL")
    listen: str = option(
        "127.0.0.1:7411",
        "address of the gRPC service; port 0 takes a free one",
        metavar="HOST:PORT",
        check=host_port,
    )
    engine: str = option("torch", f"{', '.join(ENGINES.names())}, or module:callable of your own")
    device: str = option("auto", "auto, cpu, cuda or cuda:1")
    dtype: str = option(
        "auto", "precision of the target", choices=("auto", "float64", "float32", "bfloat16", "float16")
    )
    numerics: str = option(
        "auto", "exact: bits do not depend on the batch; fast: any kernel", choices=("auto", "exact", "fast")
    )
    gpu_layers: int = option(
        -1,
        "layers of a GGUF target to put on the GPU; -1 = all, if llama.cpp was built for one",
        low=-1,
        metavar="N",
    )
    context: int = option(0, "positions to serve at most; 0 = all the model has", low=0, metavar="N")
    threads: int = option(
        0, "CPU threads of the target; 0 = as torch chooses, all cores for GGUF", low=0, metavar="N"
    )
    policy: str = option("fcfs", f"scheduling: {', '.join(POLICIES.names())}, or module:Class of your own")
    draft_wait: float = option(
        0.25,
        "seconds to wait for a device's draft before decoding without it; inf = for ever",
        low=0,
        metavar="S",
    )
    batch: int = option(
        0, "drafts that policy static waits for; 0 = one of every session", low=0, metavar="N"
    )
    max_draft: int = option(16, "longest draft block, in tokens", low=1, metavar="N")
    max_step_tokens: int = option(512, "most tokens that one forward pass computes", low=1, metavar="N")
    kv_tokens: int = option(0, "KV cache size, in tokens; 0 = what memory allows", low=0, metavar="N")
    max_sessions: int = option(256, "most sequences at the same time", low=1, metavar="N")
    tls_cert: str = option("", "certificate chain (PEM); with --tls-key turns TLS on", metavar="FILE")
    tls_key: str = option("", "private key of the certificate (PEM), file mode 600", metavar="FILE")
    tls_client_ca: str = option(
        "",
        "let only clients in that have a certificate of this authority (PEM); without --tokens its common name is "
        "the tenant",
        metavar="FILE",
    )
    tokens: str = option(
        "",
        "bearer tokens that may connect: TOKEN TENANT [max_sessions=N] [max_prompt=N] a line, file mode 600",
        metavar="FILE",
    )
    tenant_sessions: int = option(
        0, "most sequences of one tenant at the same time; 0 = no limit", low=0, metavar="N"
    )
    tenant_prompt: int = option(0, "most tokens of a tenant's prompt; 0 = no limit", low=0, metavar="N")
    trust_device_probabilities: bool = option(
        False, "serve rule ratio, under which a device that lies decides what its user reads"
    )
    insecure: bool = option(False, "listen beyond this machine without TLS, or to clients nobody knows")
    metrics: str = option(
        "", "address for Prometheus metrics, such as 127.0.0.1:9410", metavar="HOST:PORT", check=host_port
    )
    insecure_metrics: bool = option(
        False, "show the metrics beyond this machine, to anybody who can reach them"
    )
    log_level: str = option("warning", "least important messages to log", choices=LEVELS)
    log_json: bool = option(False, "log one JSON object a line")
    json: bool = option(False, "print the totals of the run as JSON at the end")
