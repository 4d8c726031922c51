"""Requests made to hurt get a proper answer in bounded time and memory, and other answers go on meanwhile."""

import itertools
import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from lab.testbed.processes import Process, free_port
from tests.fake_backend import FakeBackend, call
from tests.flood_bodies import CHAT, HELLO, hostile

READ_SECONDS = 2.0  # of processor time to read one request of any size, a few times what it takes
ANSWER_SECONDS = 60.0  # to answer one, on a busy machine: what takes long is bounded in processor time
GROWTH = 500  # MiB of the server over all of them
FLOOD_SECONDS, ATTACKERS = 120.0, 4
MAX_STALLED = 10.0  # seconds between two tokens of the bystander, on two cores shared with the attackers


@pytest.mark.timed
def test_each_is_read_or_refused_soon():
    for each in hostile():
        started = time.process_time()
        status = call(FakeBackend(), each.path, content=each.body, headers=each.headers).status_code
        assert status in {200, *each.statuses}, each.name
        assert time.process_time() - started < READ_SECONDS, each.name


@contextmanager
def served(folder: Path):
    """A server and its address; an attacker and a reader have a key each."""
    tokens = folder / "tokens.txt"
    tokens.write_text("attacker-key attacker\nreader-key reader\n")
    tokens.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    serve = ["serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1", "--http", address]
    with Process([*serve, "--tokens", str(tokens)], isolated=True) as server:
        server.wait_ready()
        yield server, f"http://{address}"


def memory(server: Process) -> float:
    """MiB of its process."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


def client(url: str, name: str, address: str) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=address)
    headers = {"Authorization": f"Bearer {name}-key"}
    return httpx.Client(transport=transport, base_url=url, headers=headers, timeout=120)


class Bystander:
    """Reads answers one after the other, and times the longest wait between two pieces."""

    def __init__(self, url: str) -> None:
        self._client = client(url, "reader", "127.0.0.2")
        self.texts: list[str] = []
        self.stalls: list[float] = []

    def read(self) -> None:
        """One answer."""
        body = {"messages": HELLO, "max_tokens": 24, "temperature": 0, "stream": True}
        text, latest, longest = "", time.monotonic(), 0.0
        with self._client.stream("POST", CHAT, json=body) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                now = time.monotonic()
                longest, latest = max(longest, now - latest), now
                if line.startswith("data: {"):
                    piece = json.loads(line.removeprefix("data: "))
                    assert "error" not in piece, piece
                    text += piece["choices"][0]["delta"].get("content", "")
        self.texts.append(text)
        self.stalls.append(longest)

    def read_until(self, ended: threading.Event) -> None:
        while not ended.is_set():
            self.read()


@pytest.mark.long
def test_a_server_answers_each_and_serves_others_meanwhile(tmp_path):
    with served(tmp_path) as (server, url):
        attacker, bystander = client(url, "attacker", "127.0.0.1"), Bystander(url)
        bystander.read()
        before, slowest = memory(server), (0.0, "")
        for each in hostile():
            started = time.monotonic()
            response = attacker.post(each.path, content=each.body, headers=each.headers)
            seconds = time.monotonic() - started
            assert response.status_code in each.statuses, (
                each.name,
                response.status_code,
                response.text[:200],
            )
            slowest = max(slowest, (seconds, each.name)) if "64 prompts" not in each.name else slowest
        assert slowest[0] < ANSWER_SECONDS, slowest
        print(f"\neach alone: the slowest {slowest}; memory {before:.0f} MiB, then {memory(server):.0f}")
        statuses = flood(url, bystander)
        after = memory(server)
        print(f"flooded {FLOOD_SECONDS:.0f} s by {ATTACKERS}: {sum(statuses.values())} requests, {statuses}")
        stalled = max(bystander.stalls)
        print(f"bystander: {len(bystander.texts)} answers, stalled {stalled:.2f} s at most; {after:.0f} MiB")
        assert not any(status >= 500 and status != 503 for status in statuses)
        assert len(set(bystander.texts)) == 1 and len(bystander.texts) > 10
        assert stalled < MAX_STALLED and after - before < GROWTH


def flood(url: str, bystander: Bystander) -> dict[int, int]:
    """All of them over and over by several attackers, while the bystander reads; how often each status came."""
    requests = [each for each in hostile() if "64 prompts" not in each.name]
    ended = threading.Event()
    statuses: dict[int, int] = {}
    lock = threading.Lock()

    def attack(number: int) -> None:
        attacker = client(url, "attacker", "127.0.0.1")
        offset = number * len(requests) // ATTACKERS
        for each in itertools.cycle(requests[offset:] + requests[:offset]):
            if ended.is_set():
                return
            status = attacker.post(each.path, content=each.body, headers=each.headers).status_code
            with lock:
                statuses[status] = statuses.get(status, 0) + 1

    threads = [threading.Thread(target=attack, args=(number,)) for number in range(ATTACKERS)]
    reader = threading.Thread(target=bystander.read_until, args=(ended,))
    for thread in (*threads, reader):
        thread.start()
    ended.wait(FLOOD_SECONDS)
    ended.set()
    for thread in (*threads, reader):
        thread.join()
    return statuses
