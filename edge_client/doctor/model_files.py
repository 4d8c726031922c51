"""Checks the files of this device (configuration, secrets, cache) and the port of its API."""

import errno
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from edge_client.device.config import DeviceConfig, DoctorConfig, EdgeConfig
from edge_client.doctor.finding import Finding, fail, ok, report_error, warn
from opensled.cli import config as layers
from opensled.cli import paired
from opensled.cli.config_file import read_file
from opensled.cli.config_trust import require_trust
from opensled.core.errors import OpenSledError, UsageError
from opensled.core.files import CLIENT_FLAGS, read_authorities, read_identity, read_secret_text, user_path
from opensled.net.address import host_port, join_host_port, listener

Config = TypeVar("Config", bound=DeviceConfig)

SCARCE = 100 << 20  # bytes; with less free space the cache soon cannot be written


def check_files(config: DoctorConfig) -> list[Finding]:
    """Configuration and pairing, secrets, the cache and the port."""
    return [
        *check_config_files(),
        *check_pairing(config),
        *check_secrets(config),
        check_cache(user_path(config.cache_dir)),
        check_port(config.http),
    ]


def with_edge_section(config: Config, section: str) -> Config:
    """`config`, with the settings of [edge] in the configuration files for options that are at their defaults.

    `section` is its own. What comes from pairing counts as a default. Raises UsageError for a bad file, and where a
    secret of [edge] would go where the file of the current folder says.
    """
    plain, own = type(config)(), paired.values({})
    given = {"server": config.server} if own and config.server != own["server"] else {}
    edge = layers.resolve(EdgeConfig, "edge", given)
    decided = layers.merge_layers(type(config), section, {}).from_folder
    kept = {name: value for name, value in decided.items() if getattr(config, name) == value}
    require_trust(layers.options(type(config)), vars(edge), kept)
    names = {item.name for item in layers.options(EdgeConfig)}
    shared = [item.name for item in layers.options(type(config)) if item.name in names]
    base = {**vars(plain), **({} if given else own)}
    unset = [name for name in shared if getattr(config, name) == base[name] and name not in given]
    return replace(config, **{name: getattr(edge, name) for name in unset})


def check_config_files() -> list[Finding]:
    """Which files exist and which options they set, without values: some are secrets."""
    try:
        found = [(path, read_file(path)) for path in layers.config_files()]
        layers.resolve(EdgeConfig, "edge", {})
    except UsageError as error:
        remedy = "correct the file, or leave it out: OPENSLED_NO_CONFIG=1, without OPENSLED_CONFIG"
        return [report_error("configuration", error, remedy)]
    if not found:
        return [
            ok("configuration", "no file; ./opensled.toml or ~/.config/opensled/config.toml would be read")
        ]
    return [ok("configuration", f"{path}: {_summary(document)}") for path, document in found]


def check_pairing(config: DoctorConfig) -> list[Finding]:
    """The server that this device was paired with, and whether it is the one that is examined."""
    try:
        server = paired.paired_server()
    except UsageError as error:
        return [
            report_error(
                "pairing", error, "pair this device again, with a code of opensled pair on the server"
            )
        ]
    if not server:
        return []
    used = config.token_file == paired.values({})["token_file"]
    return [ok("pairing", f"with {server}" + ("" if used else "; its token is not used for this server"))]


def _summary(document: dict[str, object]) -> str:
    tables = {f"[{name}]": table for name, table in document.items() if isinstance(table, dict)}
    above = [name for name, value in document.items() if not isinstance(value, dict)]
    parts = {"above all sections, it": above, **tables} if above else tables
    return (
        "; ".join(f"{name} sets {', '.join(part) or 'nothing'}" for name, part in parts.items())
        or "nothing set"
    )


def check_secrets(config: DeviceConfig) -> list[Finding]:
    """The files with this device's credentials and with trusted certificates."""
    findings = []
    if config.token_file:
        findings.append(_check_token(config.token_file))
    if config.tls_ca:
        findings.append(
            _readable("trusted certificates", config.tls_ca, lambda: read_authorities(config.tls_ca))
        )
    if config.client_cert or config.client_key:
        shown = f"{config.client_cert} and {config.client_key}"
        findings.append(
            _readable(
                "own certificate",
                shown,
                lambda: read_identity(config.client_cert, config.client_key, CLIENT_FLAGS),
            )
        )
    return findings


def _check_token(path: str) -> Finding:
    try:
        tokens = read_secret_text(path, "token file").split()
    except OpenSledError as error:
        return report_error("token file", error, f"chmod 600 {path}")
    if not tokens:
        return fail("token file", f"{path} is empty", f"write the token into {path}")
    if len(tokens) > 1:
        return warn(
            "token file", f"{path} holds {len(tokens)} words; the first is the token", "leave the others out"
        )
    return ok("token file", f"{path}, closed to others")


def _readable(check: str, shown: str, read: Callable[[], object]) -> Finding:
    try:
        read()
    except OpenSledError as error:
        return report_error(check, error, "ask the operator of the server for the right file")
    return ok(check, shown)


def check_cache(folder: Path) -> Finding:
    """Whether the cache can be written; without it tokenizers (some megabytes) are fetched at every start."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            free = shutil.disk_usage(folder).free
    except OSError as error:
        return warn(
            "cache",
            f"{folder} cannot be written: {error.strerror}",
            f"mkdir -p {folder} && chmod u+rwx {folder}",
        )
    detail = f"{folder}, {free / 1e6:,.0f} MB free"
    return (
        warn("cache", detail, f"make room on the disk of {folder}") if free < SCARCE else ok("cache", detail)
    )


def check_port(address: str) -> Finding:
    """Whether `opensled edge` could listen there."""
    (host, port), check = host_port(address), "API port"
    try:
        listener(address).close()
    except PermissionError:
        return fail(
            check, f"{address}: ports below 1024 belong to root", "opensled edge --http 127.0.0.1:8411"
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return warn(
                check,
                f"{address} is in use, perhaps by an opensled edge that runs already",
                f"see who has it: ss -ltnp 'sport = :{port}'; or choose another: --http {join_host_port(host, 0)}",
            )
        return fail(check, f"{address}: {error.strerror}", "opensled edge --http 127.0.0.1:8411")
    return ok(check, f"{address} is free")
