"""deploy/server/compose.yaml, and the `docker run` of docs/operations.md: what `opensled serve` and Docker take."""

import http.server
import re
import shlex
import shutil
import ssl
import subprocess
import threading
from pathlib import Path

import pytest
import yaml

from lab.testbed.credentials import Authority
from opensled.cli.config import options
from opensled.cli.main import CONFIGS, _parser
from tests.test_compose_files import free_port, healthy
from verify_server.front.draining import longest_end

ROOT = Path(__file__).parents[1]
PATH = ROOT / "deploy/server/compose.yaml"
FILE = yaml.safe_load(PATH.read_text())
SERVER = FILE["services"]["server"]
PAGE = (ROOT / "docs/operations.md").read_text()


def parsed(words):
    verb, *arguments = words
    assert verb == "serve"
    return _parser(verb, options(CONFIGS.get(verb))).parse_args(arguments)


def run_words():
    """The `docker run` of the page: its own words, and the server's."""
    (command,) = re.findall(r"^docker run (.*?)\n```", PAGE, re.M | re.S)
    words = shlex.split(command.replace("\\\n", " "))
    return words[: words.index("serve")], words[words.index("serve") :]


def test_opensled_takes_both_commands_and_they_are_the_same():
    composed = {**vars(parsed(SERVER["command"])), "model": ""}
    assert composed == {**vars(parsed(run_words()[1])), "model": ""}
    assert composed["tls_cert"] and composed["tokens"] and composed["metrics"] and composed["log_json"]


def test_there_is_time_to_drain():
    longest = longest_end(float(parsed(SERVER["command"]).drain))
    assert int(SERVER["stop_grace_period"].removesuffix("s")) > longest
    docker = run_words()[0]
    assert int(docker[docker.index("--stop-timeout") + 1]) > longest


def test_it_starts_again_and_its_health_is_its_readiness():
    assert SERVER["restart"] == "unless-stopped" and "unless-stopped" in run_words()[0]
    port = parsed(SERVER["command"]).metrics.rpartition(":")[2]
    assert SERVER["environment"] == {"HEALTH": f"https {port}"} and f"HEALTH=https {port}" in run_words()[0]


def test_it_may_write_only_what_is_its_own_and_metrics_stay_here():
    assert SERVER["read_only"] and SERVER["cap_drop"] == ["ALL"]
    assert SERVER["security_opt"] == ["no-new-privileges:true"]
    assert [each for each in SERVER["volumes"] if not each.endswith(":ro")] == ["home:/home/opensled"]
    # A named volume takes the owner that the folder has in the image.
    dockerfile = (ROOT / "deploy/docker/verify.Dockerfile").read_text()
    assert "--create-home opensled" in dockerfile and "WORKDIR /home/opensled" in dockerfile
    beyond = [each for each in SERVER["ports"] if not each.startswith("127.0.0.1:")]
    assert [each.partition(":")[0] for each in beyond] == ["7411", "8411"]
    docker = run_words()[0]
    published = [docker[at + 1] for at, word in enumerate(docker) if word == "--publish"]
    assert published == SERVER["ports"]


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_itself_takes_the_file():
    words = ["docker-compose", "--file", PATH, "config", "--quiet"]
    environment = {"PATH": "/usr/bin:/bin"}
    told = subprocess.run(words, capture_output=True, text=True, env={**environment, "MODEL": "target"})
    assert told.returncode == 0, told.stderr
    told = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert told.returncode and "name what is to be served" in told.stderr


@pytest.mark.parametrize(("status", "code"), [(200, 0), (503, 1)])
def test_the_check_wants_readiness_over_tls_whatever_name_the_certificate_has(tmp_path, status, code):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    for name, content in zip(("cert", "key"), Authority("another").server("192.0.2.1")):
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert healthy("https", server.server_port).returncode == code
        server.shutdown()
    assert healthy("https", free_port()).returncode == 1
