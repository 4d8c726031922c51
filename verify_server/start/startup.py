"""What a server says at its start, on standard error: which target it serves, how, and what to run next."""

from __future__ import annotations

from importlib.util import find_spec

from opensled.net.address import host_port, is_loopback, join_host_port
from opensled.process.logs import announce, tell
from opensled.process.registry import remedy
from verify_server.engine.base import EngineInfo
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import LoadedModel

DEFAULT_ADDRESS = ServeConfig.listen

# Module -> what a server does not do without it.
OPTIONAL = {
    "grpc_health": "gRPC's health service is not served",
    "grpc_reflection": "gRPC's reflection is not served",
    "llguidance": "answers cannot be guided (JSON schemas, tools)",
}


def announce_lacking(*modules: str) -> None:
    """One line for each of these `OPTIONAL` modules that is not installed."""
    for module in modules:
        if find_spec(module) is None:
            announce(f"{OPTIONAL[module]}: no module {module}{remedy(module)}")


def tell_ready(target: LoadedModel, context: int, config: ServeConfig) -> None:
    """The target, and the next command for a server at `config.listen`. `context`: tokens of a sequence."""
    tell(f"{target.model_id} is ready: {describe_target(target.info, context)}")
    tell(f"next: {next_command(config, config.listen)}")


def describe_target(info: EngineInfo, context: int) -> str:
    """How the target is computed, in one line."""
    memory = info.num_blocks * info.block_size
    eyes = f", pictures of {info.images.rows} positions each" if info.images else ""
    return f"{info.way}, context {context:,} tokens, KV memory for {memory:,} tokens{eyes}"


def next_command(config: ServeConfig, address: str) -> str:
    """A device's command for this server; on another machine, if that can reach it. With --paired, how to add one."""
    host, port = host_port(address)
    if config.paired:
        return "opensled pair" + (f" --server-port {port}" if port != host_port(DEFAULT_ADDRESS)[1] else "")
    here = is_loopback(host)
    words = ["opensled", "chat" if here else "edge"]
    if address != DEFAULT_ADDRESS:
        words += [
            "--server",
            address if here or host not in ("0.0.0.0", "::") else join_host_port("THIS-MACHINE", port),
        ]
    if config.tls_cert:
        words += ["--tls-ca", "CA.pem"]
    if config.tls_client_ca:
        words += ["--client-cert", "CERT.pem", "--client-key", "KEY.pem"]
    if config.tokens:
        words += ["--token-file", "TOKEN"]
    return " ".join(words)
