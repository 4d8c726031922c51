"""A storm: for minutes everything at once, in a random order. All texts are those of engine torch at the end."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from openai import InternalServerError

from lab.testbed.processes import Process, free_port
from tests.vllm.answers import QUESTIONS, Answer, by_torch, prompt_of
from tests.vllm.known_devices import answered, describe
from tests.vllm.test_devices import STORY, STYLES, assert_same
from tests.vllm.test_serve import (
    CHAIN,
    KINDS,
    ask,
    assert_equal,
    at_once,
    counted,
    edge,
    serve,
    tenants_file,
)
from tests.vllm.test_texts import KINDS as TOKEN_KINDS

pytestmark = pytest.mark.long
SECONDS, AT_ONCE, SEED = 120, 16, 54
DRAFTERS = ("none", "lookup", "cacheback", "llamacpp", CHAIN)


class Storm:
    """Readers that ask one thing after the other; the server is killed beside them."""

    def __init__(self, server: str, devices: list[str], known: list[Answer], wanted: list) -> None:
        self._server, self._devices, self._known, self._wanted = server, devices, known, wanted
        self._info = asyncio.run(describe(server, "one"))
        self._ends = time.monotonic() + SECONDS
        self.seen: Counter[str] = Counter()
        self._pause = threading.Event()

    @property
    def over(self) -> bool:
        return time.monotonic() > self._ends

    def read(self, seed: int) -> None:
        chance = random.Random(SEED + seed)
        while not self.over:
            chance.choice((self._over_http, self._over_grpc, self._leave))(chance)

    def _over_http(self, chance: random.Random) -> None:
        place = chance.randrange(len(KINDS))
        try:
            found = ask(chance.choice(self._devices), KINDS[place], (2 * QUESTIONS)[place])
        except InternalServerError:  # no server at the moment, which is said before an answer begins
            self.seen["refused"] += 1
            self._pause.wait(0.5)
            return
        assert_equal([found], [self._wanted[place]])
        self.seen["http"] += 1

    def _over_grpc(self, chance: random.Random, most: int = 0) -> None:
        known, style = chance.choice(self._known), STYLES[chance.choice([*STYLES])]
        token = chance.choice(("one", "two"))
        written = asyncio.run(
            answered(self._server, self._info, known, style, chance.randrange(1 << 30), token, most)
        )
        if not most:
            assert_same(written, known)
            self.seen["grpc"] += 1

    def _leave(self, chance: random.Random) -> None:
        self._over_grpc(chance, most=chance.randrange(1, 8))
        self.seen["left"] += 1


@pytest.mark.parametrize("drafter", ["none", "vllm:ngram"])
def test_no_text_changes(drafter, tmp_path):
    listen, api, metrics = (f"127.0.0.1:{free_port()}" for _ in range(3))
    with serve("torch", "--http", api, "--server-drafter", "none") as process:
        process.wait_ready(600)
        wanted = at_once(api)
    options = ("--kv-tokens", "768", "--context", "512", "--tokens", tenants_file(tmp_path))
    with ExitStack() as ends:

        def start() -> Process:
            arguments = (*options, "--server-drafter", drafter, "--metrics", metrics)
            process = ends.enter_context(serve("vllm", *arguments, listen=listen))
            process.wait_ready(600)
            return process

        target = start()
        devices = [
            ends.enter_context(device(listen, name, tmp_path, number)).wait_ready(300)
            for number, name in enumerate(DRAFTERS)
        ]
        storm, kills, preempted = Storm(listen, devices, answers(), wanted), 0, 0.0
        with ThreadPoolExecutor(AT_ONCE) as threads:
            asked = [threads.submit(storm.read, number) for number in range(AT_ONCE)]
            chance, pause = random.Random(SEED), threading.Event()
            while not storm.over and not any(each.done() for each in asked):
                pause.wait(chance.uniform(15, 45))
                preempted += counted(metrics, "preemptions_total")
                target.kill()
                kills, target = kills + 1, start()
            for each in asked:
                each.result()
    print(drafter, dict(storm.seen), "killed:", kills, "preempted at least:", preempted)
    assert kills and preempted and min(storm.seen[name] for name in ("http", "grpc", "left")) > 10


def answers() -> list[Answer]:
    """Of each kind, with short and long prompts, by engine torch."""
    asked = [
        Answer(prompt_of(question + more), **kind)
        for question, kind in zip(QUESTIONS, TOKEN_KINDS.values())
        for more in ("", STORY)
    ]
    return [by_torch(each) for each in asked]


def device(server: str, drafter: str, folder: Path, number: int) -> Process:
    token = folder / f"token {number}"
    token.write_text(("one", "two")[number % 2])
    token.chmod(0o600)
    return edge(server, drafter, "--token-file", str(token), "--give-up", "400")
