"""Stage 5: how many users the real server holds on this card, with drafts of devices, of the server, of both, of none.

The server process, its policy, its gRPC streams and the edge loop of every device are the product's own. The devices'
and links' seconds come from profiles, and the drafts are replayed: the target's own answers, recorded in the same run,
each token right with a given probability.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from lab.benchmarks.gpu import replay
from lab.benchmarks.gpu.heard import summarise
from lab.benchmarks.gpu.replay import Recording
from lab.benchmarks.gpu.shapes import config_of, kv_numbers, weights_of, write_folder
from lab.benchmarks.gpu.stage import Stage
from lab.benchmarks.gpu.streams import Cell, Heard, play
from lab.testbed.load.records import ServerTotals, between
from lab.testbed.load.server_process import Running, ready
from lab.testbed.processes import Process, settings

ALONE, DRAFTING = "without a drafter", "with a drafter"  # the two servers
MARGIN = 5 << 30  # bytes of the card for each server beside weights and KV
CLOSING_S = 1.0  # of a cell, in which its streams end
MAX_DRAFT = 32  # tokens: a draft of 16, the server's longest, and the rest of a KV block
PACES = (10, 20, 30)  # tokens/s


class Policy(NamedTuple):
    """Who drafts."""

    name: str
    device: str = ""  # profile of the devices that draft; "" = none does
    server: str = ALONE


NONE, SERVER = Policy("no drafts"), Policy("server", "", DRAFTING)
NANO, PI = Policy("devices (Orin Nano)", "orin-nano"), Policy("devices (Pi 5)", "pi-5")
BOTH = Policy("both (Orin Nano)", "orin-nano", DRAFTING)
BOTH_PI = Policy("both (Pi 5)", "pi-5", DRAFTING)


class Plan(NamedTuple):
    """One cell to be measured."""

    context: int
    share: float  # of draft tokens that are right
    streams: int
    policy: Policy


class Scale(NamedTuple):
    """How much is measured."""

    shape: str
    streams: tuple[int, ...]  # the most valuable number first; the largest is recorded
    contexts: tuple[int, ...]
    shares: tuple[float, ...]
    policies: tuple[Policy, ...]
    tokens: int  # of an answer
    warm_s: float
    window_s: float
    clients: int  # processes that play devices


CORES = len(os.sched_getaffinity(0))
LARGE = Scale(
    shape="llama-8b",
    streams=(128, 32, 8, 64, 1),
    contexts=(512, 4096, 8192),
    shares=(0.7, 0.8, 0.6),
    policies=(NONE, NANO, SERVER, BOTH, PI, BOTH_PI),
    tokens=192,
    warm_s=1.2,
    window_s=2.5,
    clients=max(1, min(12, CORES - 3)),
)
MINIATURE = Scale(
    shape="llama-small",
    streams=(2,),
    contexts=(48,),
    shares=(0.7,),
    policies=(NONE, NANO, SERVER, BOTH),
    tokens=24,
    warm_s=0.2,
    window_s=2.4,
    clients=1,
)


def measure(stage: Stage) -> None:
    """Cells in order of value until the time is over."""
    scale = MINIATURE if stage.is_small else LARGE
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kv_tokens = 4096 if stage.is_small else _kv_tokens(scale.shape)
        stage.tell(scale=_told(scale), kv_tokens=kv_tokens, paces=PACES, recorded=[], cells=[])
        pool = stack.enter_context(ProcessPoolExecutor(scale.clients, mp_context=get_context("spawn")))
        warming = [pool.submit(abs, 1) for _ in range(scale.clients)]
        began = time.monotonic()
        servers = _servers(stack, stage, scale, folder, kv_tokens)
        stage.tell(servers_ready_s=round(time.monotonic() - began, 1))
        for each in warming:
            each.result()
        Bench(stage, scale, kv_tokens, pool, servers, folder / "texts.json").all()


def _told(scale: Scale) -> dict[str, Any]:
    return {**scale._asdict(), "policies": [each._asdict() for each in scale.policies]}


def _kv_tokens(shape: str) -> int:
    """Of each of two servers on one card, in bfloat16."""
    import torch

    config = config_of(shape)
    free: int = torch.cuda.mem_get_info()[0]
    return int((free / 2 - 2 * weights_of(config) - MARGIN) // (2 * kv_numbers(config)))


def _servers(
    stack: ExitStack, stage: Stage, scale: Scale, folder: Path, kv_tokens: int
) -> dict[str, Running]:
    """Both servers, started at the same time."""
    model = write_folder(folder / scale.shape, scale.shape)
    words = [
        *("serve", "--engine", "lab.benchmarks.gpu.random_target:load", "--model", str(model)),
        *("--device", stage.device, "--threads", "1", "--numerics", "fast", "--kv-tokens", str(kv_tokens)),
        *("--context", str(max(scale.contexts) + 2 * scale.tokens)),
        *("--max-sessions", "300", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
    ]
    told = {
        replay.TEXTS: str(folder / "texts.json"),
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        **settings(shared_address=True, client_calls=100_000, client_messages=1_000_000),
    }
    more = {ALONE: ["--server-drafter=none"], DRAFTING: ["--server-drafter=lab.benchmarks.gpu.replay:load"]}
    started = {
        name: stack.enter_context(Process([*words, *flags], isolated=True, environment=told))
        for name, flags in more.items()
    }
    return {name: ready(process, 1.0) for name, process in started.items()}


class Bench:
    """The servers, the devices' processes, and what was recorded so far."""

    def __init__(
        self,
        stage: Stage,
        scale: Scale,
        kv_tokens: int,
        pool: ProcessPoolExecutor,
        servers: dict[str, Running],
        texts: Path,
    ) -> None:
        self._stage, self._scale, self._kv_tokens = stage, scale, kv_tokens
        self._pool, self._servers, self._texts = pool, servers, texts
        self._vocabulary: int = config_of(scale.shape)["vocab_size"]
        self._recorded: dict[int, list[Recording]] = {}  # by context

    def all(self) -> None:
        """Every cell for which there is time and room."""
        left_out = []
        for plan in _plans(self._scale):
            most = self._room(plan.context)
            if plan.streams > most:
                left_out.append({**_facts(plan), "why": f"there is KV for {most} such texts"})
            elif self._stage.left < self._seconds(plan):
                left_out.append({**_facts(plan), "why": "the time was over"})
            else:
                self._measured(plan)
        self._stage.tell(left_out=left_out, holds=bool(self._stage.document["cells"]))

    def _room(self, context: int) -> int:
        """Texts for which there is KV, each with a draft behind its answer."""
        return self._kv_tokens // (context + self._scale.tokens + MAX_DRAFT)

    def _seconds(self, plan: Plan) -> float:
        """That a cell takes, with the recording before the first one of its context (a guess)."""
        recording = 0.0 if plan.context in self._recorded or self._stage.is_small else 10.0
        return self._scale.warm_s + self._scale.window_s + CLOSING_S + recording

    def _measured(self, plan: Plan) -> None:
        began = time.monotonic()
        try:
            users = self._users(plan)[: plan.streams]
            facts = self._cell(plan, users)
        except Exception as error:
            facts = {"error": f"{type(error).__name__}: {error}"}
        facts["took_s"] = round(time.monotonic() - began, 2)
        self._stage.document["cells"].append({**_facts(plan), **facts})
        self._stage.tell()

    def _users(self, plan: Plan) -> list[Recording]:
        """All users of a context with their answers, which are written without drafts when they are first wanted."""
        if plan.context not in self._recorded:
            count = min(max(self._scale.streams), self._room(plan.context))
            self._recorded[plan.context] = self._record(plan, count)
            replay.write_texts(self._texts, [each for several in self._recorded.values() for each in several])
        return self._recorded[plan.context]

    def _record(self, plan: Plan, count: int) -> list[Recording]:
        """One answer of each user by the server alone; the other server then reads the prompts as well."""
        began = time.monotonic()
        users = [Recording(number, plan.context, ()) for number in range(count)]
        heard = self._play(self._cell_of(NONE, plan, users, answers=1), began)
        texts = {each.user: each.texts[0] for each in heard if each.texts}
        reader = self._cell_of(SERVER, plan, users, answers=1)._replace(tokens=4)
        self._play(reader, began)
        entry = {
            "context": plan.context,
            "users": count,
            "answers": len(texts),
            "seconds": round(time.monotonic() - began, 2),
            "errors": [error for each in heard for error in each.errors][:3],
        }
        self._stage.document["recorded"].append(entry)
        return [each._replace(text=texts[each.user]) for each in users if each.user in texts]

    def _cell_of(
        self, policy: Policy, plan: Plan, users: Sequence[Recording], answers: int = 0, begin: float = 0.0
    ) -> Cell:
        end = begin + self._scale.window_s if begin else float("inf")
        return Cell(
            address=self._servers[policy.server].address,
            recordings=tuple(users),
            share=plan.share,
            device=policy.device,
            link="wifi-good",
            tokens=self._scale.tokens,
            vocabulary=self._vocabulary,
            begin=begin,
            end=end,
            answers=answers,
        )

    def _cell(self, plan: Plan, users: Sequence[Recording]) -> dict[str, Any]:
        begin = time.monotonic() + self._scale.warm_s
        cell = self._cell_of(plan.policy, plan, users, begin=begin)
        running = self._submitted(cell)
        server = self._servers[plan.policy.server]
        did = [_totals_at(server, moment) for moment in (cell.begin, cell.end)]
        heard = [each for future in running for each in future.result()]
        return summarise(heard, cell.begin, cell.end, PACES) | {"server": asdict(between(*did))}

    def _play(self, cell: Cell, began: float) -> list[Heard]:
        return [each for future in self._submitted(cell) for each in future.result()]

    def _submitted(self, cell: Cell) -> list[Any]:
        """Its users spread over the processes."""
        count = min(self._scale.clients, len(cell.recordings))
        parts = [cell.recordings[number::count] for number in range(count)]
        return [self._pool.submit(play, cell._replace(recordings=part)) for part in parts]


def _totals_at(server: Running, moment: float) -> ServerTotals:
    """What the server has done by then."""
    time.sleep(max(0.0, moment - time.monotonic()))
    return asyncio.run(server.totals())


def _facts(plan: Plan) -> dict[str, Any]:
    return {**plan._asdict(), "policy": plan.policy.name}


def _plans(scale: Scale) -> Iterator[Plan]:
    """All cells, the most valuable first: the first share and context whole, the other shares, then longer texts."""
    first, *others = scale.contexts
    for share, context in (*product(scale.shares, [first]), *product(scale.shares[:1], others)):
        is_first = share == scale.shares[0]
        for streams in scale.streams:
            for policy in scale.policies:
                if is_first or policy != NONE:  # without drafts no share is right
                    yield Plan(context, share, streams, policy)
