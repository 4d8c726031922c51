"""Real processes: the server is killed under a chat in a terminal and a client of the API, and comes back."""

import json
import random
import threading
import time

import httpx
import pytest

from lab.testbed.processes import Process, settings
from lab.testbed.reference import Reference
from opensled.cli.colour import CODES
from opensled.models.store import model_path
from tests.gated_target import GATE, reached
from tests.loops import block_until
from tests.outages import LENGTH, QUESTION, expected_text
from tests.terminal import Screen
from tests.vt import Terminal

STORY = [{"role": "user", "content": "Write a short story about a rabbit in the big city."}]
MARK = f"\x1b[{CODES['guess']}m"


def serve(gate, address="127.0.0.1:0"):
    engine = ["--engine", "tests.gated_target:load", "--model", "fake", "--server-drafter", "none"]
    return Process(["serve", *engine, "--listen", address], environment={GATE: str(gate)})


def chat(server, tmp_path, *arguments, drafter="lookup", **options):
    common = ["chat", "--server", server, "--drafter", drafter, "--no-history"]
    variables = settings(cache_dir=tmp_path)
    return Screen(*common, "--max-tokens", str(LENGTH), *arguments, **variables, **options)


def shown(screen, columns):
    """What the terminal shows after the question."""
    terminal = Terminal(columns, 40)
    terminal.feed(screen.output.split(f"{QUESTION}\r\n", 1)[1].replace("\r\n", "\n"))
    return terminal.lines


class Client(threading.Thread):
    """Reads one streamed answer of a device's API: its text, and the comments in between."""

    def __init__(self, edge, **fields):
        super().__init__(daemon=True)
        self._url, self.text, self.comments = f"http://{edge}/v1/chat/completions", "", []
        self._body = {"stream": True, **fields}
        self.start()

    def run(self):
        with httpx.stream("POST", self._url, json=self._body, timeout=60) as response:
            for line in response.iter_lines():
                if line.startswith(":"):
                    self.comments.append(line)
                elif line.startswith("data: {"):
                    choices = json.loads(line.removeprefix("data: "))["choices"]
                    self.text += choices[0]["delta"].get("content") or ""


def test_a_server_that_is_killed_and_returns_changes_nothing_in_a_chat(tmp_path):
    gate, columns = tmp_path / "open", 44
    with serve(gate) as first:
        address = first.wait_ready()
        with chat(address, tmp_path, "--offline", "provisional", columns=columns) as screen:
            screen.expect("> ")
            screen.type(f"{QUESTION}\n")
            block_until(reached(gate).exists)
            screen.expect("E")
            first.kill()
            screen.expect(MARK)
            screen.expect("(waiting")
            screen.expect("server,")  # a row may end at any blank
            assert "waitingfortheserver" in "".join("".join(shown(screen, columns)).split())
            gate.touch()
            with serve(gate, address) as second:
                second.wait_ready()
                screen.expect(f"{LENGTH} tokens")
                lines = shown(screen, columns)
                screen.expect("> ")
                screen.type("/exit\n")
                assert screen.finish() == 0
    answer, _, account = "".join("".join(lines).split()).partition(f"{LENGTH}tokens,")
    assert answer == "".join(expected_text().split()) and account
    assert "waiting" not in "".join(lines)


@pytest.mark.long
def test_generate_waits_with_a_line_that_goes_away(tmp_path):
    gate = tmp_path / "open"
    with serve(gate) as first:
        address = first.wait_ready()
        arguments = ["generate", "--server", address, "--drafter", "none", QUESTION]
        arguments += ["--max-tokens", str(LENGTH)]
        with Screen(*arguments, columns=60, **settings(cache_dir=tmp_path)) as screen:
            screen.expect("E")
            first.kill()
            screen.expect("waiting for the server, ")
            gate.touch()
            with serve(gate, address) as second:
                second.wait_ready()
                assert screen.finish() == 0
    terminal = Terminal(60, 40)
    terminal.feed(screen.output.replace("\r\n", "\n"))
    assert "".join("".join(terminal.lines).split()) == "".join(expected_text().split())


def test_local_only_says_whose_words_they_are(tmp_path):
    serve_tiny = ["serve", "--engine", "llamacpp", "--model", "tiny", "--listen", "127.0.0.1:0"]
    saved = tmp_path / "saved.json"
    with Process(serve_tiny) as server:
        options = ["--offline", "local-only", "--system", "Be kind.", "--max-tokens", "12"]
        with chat(server.wait_ready(), tmp_path, *options, drafter="llamacpp") as screen:
            screen.expect("> ")
            server.kill()
            screen.type(f"{QUESTION}\n")
            screen.expect("this device's small model answers")
            screen.expect(f"\x1b[{CODES['magenta']}m")
            screen.expect("all of them by the draft model alone")
            screen.expect("> ")
            screen.type(f"/save {saved}\n")
            screen.expect("saved to")
            screen.type("/exit\n")
            assert screen.finish() == 0
    answer = json.loads(saved.read_text())["messages"][-1]
    assert answer["local"] is True and answer["content"]


def survive(kills, seed=0):
    """Answers of the tiny target under kills at random moments of outages of random length; each must be its own."""
    draw, reference, answers = random.Random(seed), Reference(model_path("tiny")), 0
    arguments = ["serve", "--model", "tiny", "--dtype", "float64", "--listen"]
    server = Process([*arguments, "127.0.0.1:0"])
    address = server.wait_ready()
    edge_arguments = ["edge", "--server", address, "--http", "127.0.0.1:0", "--threads", "1"]
    try:
        with Process([*edge_arguments, "--offline", "provisional"]) as edge:
            url = edge.wait_ready()
            while kills > 0:
                answers += 1
                sampling = {"temperature": draw.choice([0, 0.8]), "seed": answers}
                expected, _ = reference.generate(
                    reference.render_chat(STORY), max_tokens=96, ignore_eos=True, **sampling
                )
                client = Client(url, model="tiny", messages=STORY, max_tokens=96, ignore_eos=True, **sampling)
                for _ in range(draw.randint(1, 2)):
                    characters = len(client.text) + draw.randint(1, 120)
                    block_until(lambda: len(client.text) >= characters or not client.is_alive())  # noqa: B023
                    server.kill()
                    time.sleep(draw.uniform(0, 1.5))  # the length of an outage, not a wait for anything
                    server = Process([*arguments, address])
                    server.wait_ready()
                    kills -= 1
                client.join(60)
                assert client.text == reference.decode(expected)
    finally:
        server.stop()


@pytest.mark.long
def test_answers_of_a_real_target_survive_its_kills():
    survive(4)
