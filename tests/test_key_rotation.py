"""Keys change while real processes run: an old one counts until it is removed, a new one at once, and none restarts."""

import json
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from lab.testbed.processes import Process, free_port
from opensled.core.files import write_whole
from tests.gated_target import GATE, reached
from tests.loops import block_until

SERVE = ("serve", "--engine", "tests.gated_target:load", "--listen", "127.0.0.1:0")
ASKED = {"prompt": "Hi", "temperature": 0, "max_tokens": 80, "stream": True}
SOON = 5.0  # seconds in which an edit counts, on a busy machine; a look at a file comes each second
PATIENCE = 30.0


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Place:
    """A server with its HTTP API, a device of it, and the files of their keys."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.gate = folder, folder / "edge.log", folder / "gate"
        self.write("tokens", "old kitchen\nother garage\n")
        self.write("operators", "operator-old\n")
        self.write("keys", "key-old\n")
        self.write("token", "old\n")

    def write(self, name: str, text: str) -> None:
        write_whole(self.folder / name, text.encode(), private=True)

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def start(self, stack: ExitStack) -> None:
        own = f"127.0.0.1:{free_port()}"
        flags = ("--http", own, "--tokens", self.path("tokens"), "--operator-keys", self.path("operators"))
        environment = {GATE: str(self.gate)}
        server = stack.enter_context(Process((*SERVE, *flags), isolated=True, environment=environment))
        self.server = server.wait_ready()
        self.api = f"http://{own}"
        flags = ("--token-file", self.path("token"), "--http-keys", self.path("keys"))
        edge = ("edge", "--server", self.server, *flags, "--http", "127.0.0.1:0", "--drafter", "lookup")
        device = stack.enter_context(Process(edge, isolated=True, log=self.log))
        self.device = f"http://{device.wait_ready()}"

    def status(self, base: str, key: str, path: str = "/v1/models") -> int:
        return httpx.get(base + path, headers=bearer(key), timeout=PATIENCE).status_code

    def completion(self, base: str, key: str) -> httpx.Response:
        body = {**ASKED, "max_tokens": 4, "stream": False}
        return httpx.post(f"{base}/v1/completions", json=body, headers=bearer(key), timeout=PATIENCE)


@pytest.fixture
def place(tmp_path):
    found = Place(tmp_path)
    with ExitStack() as stack:
        found.start(stack)
        yield found


def test_tokens_change_and_answers_under_way_end_as_they_would(place):
    """At the server's API and, with the same file, over gRPC through a device that gets its new token."""
    assert place.status(place.api, "old") == 200 and place.status(place.api, "new") == 401
    with httpx.stream(
        "POST", f"{place.api}/v1/completions", json=ASKED, headers=bearer("old"), timeout=PATIENCE
    ) as answer:
        lines = answer.iter_lines()
        assert answer.status_code == 200 and next(lines).startswith("data: ")
        block_until(reached(place.gate).exists)
        place.write("tokens", "old kitchen\nnew kitchen\nother garage\n")
        assert place.status(place.api, "new") == 200, "a new token counts at once"
        assert place.status(place.api, "old") == 200, "the old one until it is removed"
        place.write("tokens", "new kitchen\nother garage\n")
        block_until(lambda: place.status(place.api, "old") == 401, SOON)
        place.gate.touch()
        data = [line[6:] for line in lines if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    assert json.loads(data[-2])["choices"][0]["finish_reason"] == "length"
    refused = place.completion(place.device, "key-old")
    assert refused.status_code == 401 and "pair this device again" in refused.json()["error"]["message"]
    ready = httpx.get(f"{place.device}/readyz")
    assert ready.status_code == 503
    assert (
        f"the server at {place.server} refuses this device, whose key was revoked or replaced" in ready.text
    )
    place.write("token", "new\n")
    block_until(lambda: place.completion(place.device, "key-old").status_code == 200, SOON)
    assert httpx.get(f"{place.device}/readyz").status_code == 200
    log = place.log.read_text()
    assert f"the server at {place.server} refuses this device" in log and "lets this device in again" in log


def test_keys_of_operators_and_of_a_devices_api_change(place):
    for base, file, old, new, path in (
        (place.api, "operators", "operator-old", "operator-new", "/page/events"),
        (place.device, "keys", "key-old", "key-new", "/page/events"),
    ):
        with httpx.stream("GET", base + path, headers=bearer(old), timeout=PATIENCE) as looks:
            lines = looks.iter_lines()
            assert looks.status_code == 200 and next(lines).startswith("data: ")
            place.write(file, f"{old}\n{new}\n")
            assert opens(base + path, old) and opens(base + path, new)
            place.write(file, f"{new}\n")
            assert not opens(base + path, old) and opens(base + path, new), "at once"
            for _ in lines:  # what the removed key has opened ends, at its next look
                pass
        place.write(file, "two words\n")
        assert opens(base + path, new), "an edit that cannot be used changes nothing"
    assert place.status(place.api, "operator-new") == 401, "an operator is no tenant"
    assert not opens(f"{place.api}/page/events", "other"), "and a tenant no operator"


def opens(url: str, key: str) -> bool:
    with httpx.stream("GET", url, headers=bearer(key), timeout=PATIENCE) as response:
        assert response.status_code in (200, 401)
        return response.status_code == 200
