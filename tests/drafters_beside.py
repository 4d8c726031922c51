"""Drafters beside target `tiny` in float64: what they are asked, sessions that lose their KV, the reference's texts."""

import asyncio
import random
from collections.abc import Callable, Sequence

from edge_client.drafters.none import NoneDrafter
from opensled.core.messages import SamplingParams
from opensled.models.store import model_path
from scheduler.fcfs import Fcfs
from tests.fakes import FakeEngine, FakeText, OracleDrafter, continuation
from tests.loops import in_loop
from tests.system import CALM, ask, running
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.torch import torch_engine
from verify_server.engine.torch.torch_engine import TorchEngine
from verify_server.round.drafter import Ask, Proposal, ServerDrafter
from verify_server.round.machine import StepMachine

TOKENS, PROMPTS = 16, ("The river is", "The river is deep. A b c d a b c d", "def add(a, b):", "The river")
FOUR = Fcfs(float("inf"), 4)


def fresh_engine(kv_tokens: int = 160) -> TorchEngine:
    """With memory for about three of the texts at once."""
    folder = str(model_path("tiny"))
    return torch_engine.load(folder, device="cpu", dtype="float64", kv_tokens=kv_tokens, numerics="fast")


class Vocabulary(FakeText):
    fingerprint = "of tiny"


class Returns(ServerDrafter):
    """Returns whatever `make` makes of what is asked."""

    def __init__(self, make: Callable[[Sequence[Ask]], object]) -> None:
        self._make = make

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return self._make(asks)  # type: ignore[return-value]


class Broken(ServerDrafter):
    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        raise RuntimeError("out of order")


class Recorder(ServerDrafter):
    """Drafts as `inner` does, and keeps what was asked and proposed."""

    def __init__(self, inner: ServerDrafter) -> None:
        self.inner, self.seen = inner, list[tuple[Ask, Proposal]]()
        self.lodge, self.place = inner.lodge, inner.place

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        made = self.inner.propose(asks)
        self.seen += [(ask._replace(tokens=tuple(ask.tokens)), one) for ask, one in zip(asks, made)]
        return made


class ScriptDrafter(OracleDrafter):
    """A device whose drafts are those of a known text, with errors."""

    def __init__(self, script: Sequence[int], seed: int) -> None:
        super().__init__(0.7, seed, lambda context: script[len(context)] if len(context) < len(script) else 7)


class Evicting(StepMachine):
    """Takes somebody's KV away before every fourth plan."""

    chance, plans = random.Random(5), 0

    def plan(self, now):
        self.plans += 1
        holders = [session for session in self.sessions.values() if session.sequence.computed]
        if holders and self.plans % 4 == 0:
            self.chance.choice(holders).forget_kv()
        return super().plan(now)


@in_loop
async def written(engine, drafter, prompts, devices, params, machine=Evicting):
    """The answers, all asked at once, and what the server counted."""
    limits = SessionLimits(linger=0.2)
    async with running(
        engine, drafter=drafter, policy=FOUR, machine=machine, limits=limits, max_step_tokens=160
    ) as network:
        asking = [
            ask(network, prompt, device, own)
            for prompt, device, own in zip(prompts, devices, params, strict=True)
        ]
        answers = await asyncio.gather(*asking)
        return [answer.tokens for answer in answers], network.manager.loop.machine.stats


def texts_as_asked(engine, drafter, reference, temperature, preempted=1):
    """All prompts twice, every other one on a device that drafts: equal texts; what the server counted."""
    prompts = [tuple(reference.encode(text)) for text in (*PROMPTS, *PROMPTS)]
    params = [SamplingParams(temperature, max_tokens=TOKENS, seed=seed) for seed in range(len(prompts))]
    options = {"temperature": temperature, "max_tokens": TOKENS, "ignore_eos": False}
    texts = [reference.generate(prompt, seed=own.seed, **options)[0] for prompt, own in zip(prompts, params)]
    devices = [
        ScriptDrafter((*prompt, *text), seed) if seed % 2 else NoneDrafter()
        for seed, (prompt, text) in enumerate(zip(prompts, texts))
    ]
    answers, stats = written(engine, drafter, prompts, devices, params)
    assert [list(answer) for answer in answers] == texts
    assert stats.own.tokens > 50 and stats.preempted >= preempted


PROMPT = [3, 1, 4, 1, 5]
EXPECTED = tuple(continuation(PROMPT, 40))


def engine(**options) -> FakeEngine:
    return FakeEngine(num_blocks=400, **options)


@in_loop
async def counted(
    drafter: ServerDrafter,
    target: FakeEngine,
    prompts=(PROMPT,),
    device=NoneDrafter,
    policy=FOUR,
    patience=CALM,
    **options,
):
    """The answers, and what the server counted."""
    async with running(target, drafter=drafter, policy=policy, **options) as network:
        answers = await asyncio.gather(
            *[ask(network, prompt, device(), patience=patience) for prompt in prompts]
        )
        return [answer.tokens for answer in answers], network.manager.loop.machine.stats
