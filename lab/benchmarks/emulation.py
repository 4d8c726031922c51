"""How exact the emulators are: what they deliver, over what the profiles say."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge_client.drafters import DRAFTERS
from edge_client.lengths.fixed import FixedLength
from edge_client.round.draft_job import BlockBudget
from edge_client.round.drafting import Drafting, DraftThread
from hw_profiles import catalog
from hw_profiles.step_cost import HardwareProfile
from lab.benchmarks.cell_turns import DILATION
from lab.benchmarks.figure import Comparison, Figure
from lab.testbed.cells import REGIMES
from lab.testbed.emulation.emulated_accelerator import EmulatedEngine, Totals
from lab.testbed.emulation.paced import PacedFactory
from lab.testbed.emulation.replay import ReplayDrafts
from lab.testbed.emulation.step_law import StepLaw
from lab.testbed.emulation.target_texts import load_target
from lab.testbed.load.records import between
from lab.testbed.recordings import BUNDLED
from lab.testbed.traces import ItemTrace, read_traces
from opensled.core.messages import Draft, DraftBlock, DraftToken, Prefill, SamplingParams, Verdict
from opensled.core.noise import noise_key
from opensled.core.protocol import EndRules, Truth, common_prefix
from opensled.core.sampling import Sampler
from scheduler.fcfs import Fcfs
from verify_server.round.block_target import BlockTarget
from verify_server.round.loop import VerifyLoop
from verify_server.round.machine import StepMachine
from verify_server.round.offer import DraftLimits
from verify_server.round.sequence import Sequence
from verify_server.round.session import Session
from verify_server.round.sources import DraftSources
from verify_server.round.terms import Terms
from verify_server.rules.match import Match

REGIME, DEVICE, SIZE = "dense-1k", "orin-nano-super", "0.5b"
D = DILATION[REGIME]
LENGTH = 4  # tokens of a draft block
PROMPT = tuple(range(300, 340))
WRONG = (DraftToken(7),) * LENGTH  # what is drafted costs the same whether it stands or not
EXACT = 0.95  # delivered time may be 5 % off
PARAMS = SamplingParams(temperature=0.8, max_tokens=900, ignore_eos=True)

Pair = tuple[float, float]  # delivered and due, emulated ms


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    sessions: tuple[int, ...]
    devices: tuple[int, ...]
    steps: int
    blocks: int
    repeats: int


def measure(quick: bool) -> Figure:
    """Steps of the emulated accelerator, and blocks of emulated devices."""
    size = Size((1, 8), (1, 16), 5, 3, 1) if quick else Size((1, 8, 32), (1, 16, 64), 60, 8, 5)
    engine = EmulatedEngine(load_target().engine, StepLaw.of(REGIMES[REGIME]), D)
    totals: dict[str, Totals] = {}
    contenders = {f"step, {n} sessions": _steps(engine, n, size.steps, totals) for n in size.sessions}
    contenders |= {f"block, {n} devices": _replayed(n, size.blocks) for n in size.devices}
    contenders["block, live drafter"] = _live(size.blocks)
    samples = _in_turns(contenders, size.repeats)
    return Figure(
        title="Exactness of the emulators",
        unit="ms",
        more_is_better=False,
        compared=(
            f"Emulated time delivered against the time due by the profile, both in emulated ms (dilation {D:g}). "
            f"Steps: the product's loop over the emulated accelerator (regime {REGIME}, every session with drafts of "
            f"{LENGTH}), from one step to the next, so with planning, commits and thread hops; no network. Blocks: "
            f"{LENGTH} tokens on {DEVICE} with a {SIZE} draft, replayed by so many coroutines at the same time, or by "
            "one real drafter in its thread; prompts are not counted."
        ),
        loses=(
            "What the loop does between two steps comes on top of a step's time: real milliseconds over dilated ones, "
            "growing with the sessions. Timers of an event loop are up to 1 ms late."
        ),
        samples=samples,
        ratios=tuple(Comparison(name, f"{name}, delivered", f"{name}, due", EXACT) for name in contenders),
        facts={"dilation": D, "real work": {name: _told(each) for name, each in totals.items()}},
    )


def _in_turns(contenders: Mapping[str, Callable[[], Pair]], repeats: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    for _ in range(repeats):
        for name, run in contenders.items():
            delivered, due = run()
            samples.setdefault(f"{name}, delivered", []).append(delivered)
            samples.setdefault(f"{name}, due", []).append(due)
    return samples


def _told(totals: Totals) -> dict[str, Any]:
    return {
        "share of the time due": round(totals.work_s / totals.due_s, 4),
        "late steps": totals.late_steps,
        "timer's error per step, ms": round(1000 * totals.overshot_s / max(1, totals.steps), 4),
    }


# -- the accelerator --------------------------------------------------------------------------------------------


def _steps(
    engine: EmulatedEngine, sessions: int, steps: int, totals: dict[str, Totals]
) -> Callable[[], Pair]:
    """Mean step of a loop with so many sessions; `totals` keeps the latest run's."""

    def run() -> Pair:
        seconds, since = asyncio.run(_loop(engine, sessions, steps))
        totals[f"{sessions} sessions"] = since
        return _emulated_ms(seconds / since.steps), _emulated_ms(since.due_s / since.steps)

    return run


def _emulated_ms(seconds: float) -> float:
    return 1000 * seconds / D


async def _loop(engine: EmulatedEngine, count: int, steps: int) -> tuple[float, Totals]:
    """Real seconds of about `steps` steps, prompts left out, and what they were to take."""
    loop = VerifyLoop(StepMachine(BlockTarget(engine), Fcfs(float("inf")), HardwareProfile()), time.monotonic)
    sessions = [_session(loop, number) for number in range(count)]
    devices = [asyncio.ensure_future(_draft_on(loop, session)) for session in sessions]
    serving = asyncio.ensure_future(loop.run())
    await _until(lambda: all(len(session.sequence.tokens) > len(PROMPT) + 2 for session in sessions))
    begun = engine.totals.steps
    await _until(lambda: engine.totals.steps > begun)
    started, before = time.perf_counter(), replace(engine.totals)
    await _until(lambda: engine.totals.steps >= before.steps + steps)
    seconds, since = time.perf_counter() - started, between(before, engine.totals)
    for task in (serving, *devices):
        task.cancel()
    await asyncio.gather(serving, *devices, return_exceptions=True)
    loop.close()
    return seconds, since


def _session(loop: VerifyLoop, number: int) -> Session:
    ends = EndRules(frozenset(), frozenset(), len(PROMPT) + PARAMS.max_tokens)
    sequence = Sequence(PROMPT, len(PROMPT), ends, loop.machine.target.memory.place("", 0, {}))
    limits = DraftLimits(loop.machine.target.facts.vocab_size, LENGTH)
    session = Session(
        number, "local", sequence, Terms(PARAMS, noise_key(number), Match()), DraftSources(limits)
    )
    loop.add(session)
    loop.attach(session, len(PROMPT))
    return session


async def _draft_on(loop: VerifyLoop, session: Session) -> None:
    """A device that answers every verdict with a draft at once."""
    counter = 0
    while isinstance(message := await session.outbox.get(), Verdict | Prefill):
        if isinstance(message, Verdict):
            counter += 1
            loop.submit(session, Draft(counter, DraftBlock(message.base + len(message.tokens), WRONG)))


async def _until(condition: Callable[[], bool]) -> None:
    """Asked once for every turn of the event loop that something else caused, or a millisecond later."""
    while not condition():
        await asyncio.sleep(0.001)


# -- devices ----------------------------------------------------------------------------------------------------


def _replayed(devices: int, blocks: int) -> Callable[[], Pair]:
    """Mean block of so many replaying devices at the same time."""
    traces = {trace.prompt_ids: trace for trace in _long_texts()}
    speed = catalog.device(DEVICE).draft(SIZE)

    async def all_of_them() -> list[float]:
        texts = list(traces.values())
        work = [
            _drafting(ReplayDrafts(traces, speed, FixedLength(LENGTH), D), texts[number % len(texts)], blocks)
            for number in range(devices)
        ]
        return [seconds for each in await asyncio.gather(*work) for seconds in each]

    return lambda: _mean_block(asyncio.run(all_of_them()))


def _live(blocks: int) -> Callable[[], Pair]:
    """Mean block of one real drafter."""
    factory = PacedFactory(DRAFTERS.get("llamacpp")("tiny-draft", 1), catalog.device(DEVICE).draft(SIZE), D)
    trace = _long_texts()[0]

    def run() -> Pair:
        thread = DraftThread(factory.create(), FixedLength(LENGTH))
        try:
            return _mean_block(asyncio.run(_drafting(thread, trace, blocks)))
        finally:
            thread.close()

    return run


def _long_texts() -> list[ItemTrace]:
    """Texts of many rounds."""
    traces = read_traces(BUNDLED)
    return [trace for trace in traces.items if trace.finish_reason == "length"]


def _mean_block(seconds: list[float]) -> Pair:
    due = 1000 * catalog.device(DEVICE).draft(SIZE).draft_s(LENGTH)
    return _emulated_ms(sum(seconds) / len(seconds)), due


async def _drafting(drafts: Drafting, trace: ItemTrace, blocks: int) -> list[float]:
    """Real seconds of each full block after the first, which reads the prompt; verdicts come at once."""
    truth, taken = Truth(trace.prompt_ids), []
    drafts.begin(truth, Sampler(SamplingParams(temperature=0), bytes(16)))
    for number in range(blocks + 1):
        started = time.perf_counter()
        block = (await drafts.draft(truth, BlockBudget(LENGTH))).block
        if number and len(block.tokens) == LENGTH:
            taken.append(time.perf_counter() - started)
        place = len(truth) - truth.prompt_length
        accepted = common_prefix(block.ids, trace.target_ids[place:])
        news = trace.target_ids[place : place + accepted + 1]
        truth.extend(Verdict(len(truth), news, accepted, number + 1))
    drafts.interrupt()
    return taken
