"""The manifests of deploy/kubernetes, and the server of deploy/server as the process of a pod."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import yaml

from lab.testbed.credentials import Authority
from lab.testbed.processes import Process, free_port

FOLDER = Path(__file__).parents[1] / "deploy/kubernetes"
COMMAND = yaml.safe_load((FOLDER.parent / "server/compose.yaml").read_text())["services"]["server"]["command"]
PORTS = {"grpc": 7411, "http": 8411, "metrics": 9410}
ACCESS = "/etc/opensled"  # where secrets are mounted
TOKEN = "a-token-of-users"
# A target for this machine.
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
    """The files of the secret, for servers on 127.0.0.1."""
    authority = Authority("a cluster")
    cert, key = authority.server("127.0.0.1")
    contents = {"ca.crt": authority.pem, "tls.crt": cert, "tls.key": key, "operator-keys": b"an-operator\n"}
    for name, content in {**contents, "tokens": f"{TOKEN} users\n".encode()}.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes(content)


class Pod:
    """A server in production as a real process on ports of this machine; use it in a `with`."""

    def __init__(self, access: Path) -> None:
        """`access`: see `write_access`."""
        self.ports = {name: free_port() for name in PORTS}
        words = [word.replace(ACCESS, str(access)) for word in COMMAND]
        for name, number in PORTS.items():
            words = [word.replace(f"0.0.0.0:{number}", f"0.0.0.0:{self.ports[name]}") for word in words]
        self.process = Process([*words, *TINY], isolated=True)

    def address(self, port: str) -> str:
        return f"127.0.0.1:{self.ports[port]}"

    def probe(self) -> tuple[int, str]:
        """Status and body of its readiness, asked as a kubelet asks; 0 = no answer."""
        timeout, context = container()["readinessProbe"]["timeoutSeconds"], ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            url = f"https://{self.address('metrics')}/readyz"
            with urllib.request.urlopen(url, timeout=timeout, context=context) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def __enter__(self) -> Pod:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.stop()
