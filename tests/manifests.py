"""The manifests of deploy/kubernetes, and their server as a real process."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lab.testbed.credentials import Authority
from lab.testbed.processes import Process, free_port

FOLDER = Path(__file__).parents[1] / "deploy/kubernetes"
ACCESS = "/etc/opensled"  # where the manifests mount the secret
TOKEN, METRICS_KEY = "a-token-of-users", "the-key-of-prometheus"
# A target for this machine instead of the manifests' one.
TINY = ("--engine=torch", "--model=tiny", "--dtype=float64", "--threads=1", "--log-level=warning")


def documents() -> list[dict[str, Any]]:
    return [each for path in sorted(FOLDER.glob("*.yaml")) for each in yaml.safe_load_all(path.read_text())]


def manifest(kind: str) -> dict[str, Any]:
    (found,) = [each for each in documents() if each["kind"] == kind]
    return found


def pod_spec() -> dict[str, Any]:
    spec: dict[str, Any] = manifest("Deployment")["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    (only,) = pod_spec()["containers"]
    found: dict[str, Any] = only
    return found


def option(name: str) -> str:
    """The value of a flag in the manifests' command."""
    (value,) = [word.partition("=")[2] for word in container()["args"] if word.startswith(f"--{name}=")]
    return str(value)


def write_access(folder: Path) -> None:
    """What the secret holds, for servers on 127.0.0.1."""
    authority = Authority("a cluster")
    cert, key = authority.server("127.0.0.1")
    keys = METRICS_KEY.encode()
    contents = {"ca.crt": authority.pem, "tls.crt": cert, "tls.key": key, "operator-keys": keys + b"\n"}
    for name, content in {**contents, "tokens": f"{TOKEN} users\n".encode(), "metrics-key": keys}.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(content)


class Pod:
    """The manifests' command as a real process on ports of this machine; use it in a `with`."""

    def __init__(self, access: Path, flags: Sequence[str] = TINY) -> None:
        """`access`: see `write_access`; `flags`: behind those of the manifests."""
        named = {each["name"]: each["containerPort"] for each in container()["ports"]}
        self.ports = {name: free_port() for name in named}
        words = [word.replace(ACCESS, str(access)) for word in container()["args"]]
        for name, number in named.items():
            words = [word.replace(f"0.0.0.0:{number}", f"0.0.0.0:{self.ports[name]}") for word in words]
        self.process = Process([*words, *flags], isolated=True)

    def address(self, port: str) -> str:
        return f"127.0.0.1:{self.ports[port]}"

    def probe(self, name: str) -> tuple[int, str]:
        """Status and body of what the probe of that name asks, as a kubelet asks it; 0 = no answer."""
        asked, context = container()[name], ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        get = asked["httpGet"]
        url = f"{get['scheme'].lower()}://{self.address(get['port'])}{get['path']}"
        try:
            with urllib.request.urlopen(
                url, timeout=asked.get("timeoutSeconds", 1), context=context
            ) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def __enter__(self) -> Pod:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.stop()
