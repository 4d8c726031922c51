"""How often llama.cpp's choice of a token depends on what else is in its batch: numerics level `fast`, counted.

The same prompts are answered by the same server without drafts and with them, one at a time and eight at once. Where
two answers part, one token flipped; what follows has another history and is not compared.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edge_client.device.config import DeviceConfig
from edge_client.device.device import connect
from lab.benchmarks.figure import Figure
from lab.testbed.processes import Process
from lab.testbed.prompts import Chat, heldout_chats, messages_of
from lab.testbed.provenance import SEED
from lab.testbed.reference import Reference, Sampling, key_of_seed
from lab.training.export_gguf import KINDS, write_gguf
from opensled.core.answer import Task
from opensled.core.messages import SamplingParams
from opensled.models.store import model_path

AT_ONCE = 8
TEMPERATURES = (0.0, 0.8)
# Run -> drafter, answers at once. The first is what the others are compared with.
RUNS = {
    "alone": ("none", 1),
    "alone, once more": ("none", 1),
    "drafts": ("llamacpp", 1),
    f"{AT_ONCE} at once": ("none", AT_ONCE),
    f"drafts, {AT_ONCE} at once": ("llamacpp", AT_ONCE),
}
BASE = next(iter(RUNS))

Answers = list[tuple[int, ...]]  # token ids by prompt


@dataclass
class Count:
    """Two runs, token by token."""

    compared: int = 0  # tokens with the same history
    # of each flip: logits between the two tokens, by the reference
    leads: list[float] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Flips per 1,000 tokens."""
        return 1000 * len(self.leads) / self.compared

    def as_json(self) -> dict[str, Any]:
        return {
            "flips": len(self.leads),
            "tokens": self.compared,
            "largest_lead": float(f"{max(self.leads, default=0.0):.3g}"),
        }


def measure(quick: bool) -> Figure:
    """Flips by kind of weights, and by what shared the batch with an answer."""
    prompts, max_tokens, kinds = (
        [chat for chats in heldout_chats() for chat in chats[: 1 if quick else 16]],
        16 if quick else 64,
        ("F16",) if quick else tuple(KINDS),
    )
    counts = asyncio.run(_count_all(prompts, max_tokens, kinds))
    return Figure(
        title="Flips of engine llamacpp",
        unit="flips per 1,000 tokens",
        more_is_better=False,
        compared=(
            "`opensled serve --engine llamacpp` on the tiny target, held-out prompts: token ids with `--drafter "
            "llamacpp` or eight answers at once, against `--drafter none` one answer at a time, until the first "
            "difference of each answer. 'Once more' asks again: the prefix cache has the prompt then, so only its end "
            "is computed, in another batch. A lead is how far apart the two tokens stand, noise included, for the "
            "float64 reference with the float16 weights, in logits."
        ),
        loses=(
            "Numerics level `fast`: rounding depends on the batch, so a near tie may fall either way. Rule `match` "
            "commits the target's own choice in either case, and the text stays one the target writes."
        ),
        samples={name: [count.rate] for name, count in counts.items()},
        facts={
            "prompts": len(prompts),
            "max tokens": max_tokens,
            "counts": {name: count.as_json() for name, count in counts.items()},
        },
    )


async def _count_all(prompts: Sequence[Chat], max_tokens: int, kinds: Sequence[str]) -> dict[str, Count]:
    reference = Reference(model_path("tiny"))
    counts: dict[str, Count] = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            path = Path(folder) / f"tiny-{kind.lower()}.gguf"
            write_gguf(model_path("tiny"), path, kind)
            for temperature in TEMPERATURES:
                answers = await _answers(path, prompts, temperature, max_tokens)
                for run in list(RUNS)[1:]:
                    count = _compare(reference, prompts, temperature, answers[BASE], answers[run])
                    counts[f"{kind}, T={temperature:g}, {run}"] = count
    return counts


async def _answers(
    path: Path, prompts: Sequence[Chat], temperature: float, max_tokens: int
) -> dict[str, Answers]:
    """What one server answers in each run."""
    weights = ("--model", str(path), "--dtype", "stored")  # their kind is what is compared
    flags = (
        "--engine",
        "llamacpp",
        *weights,
        "--drafter",
        "none",
        "--threads",
        "1",
        "--listen",
        "127.0.0.1:0",
    )
    with Process(("serve", *flags), isolated=True) as server:
        address = server.wait_ready()
        tasks = [
            Task(
                messages_of(messages),
                SamplingParams(temperature=temperature, seed=SEED + index, max_tokens=max_tokens),
            )
            for index, messages in enumerate(prompts)
        ]
        return {run: await _ask_all(address, *RUNS[run], tasks) for run in RUNS}


async def _ask_all(address: str, drafter: str, at_once: int, tasks: Sequence[Task]) -> Answers:
    device = await connect(DeviceConfig(server=address, drafter=drafter, threads=1), parallel=at_once)
    places = asyncio.Semaphore(at_once)

    async def ask(task: Task) -> tuple[int, ...]:
        async with places:
            return tuple([token async for chunk in device.answer(task) for token in chunk.token_ids])

    try:
        return list(await asyncio.gather(*map(ask, tasks)))
    finally:
        await device.close()


def _compare(
    reference: Reference,
    prompts: Sequence[Chat],
    temperature: float,
    base: Answers,
    other: Answers,
) -> Count:
    count = Count()
    for index, (one, two) in enumerate(zip(base, other)):
        parted = next((at for at, pair in enumerate(zip(one, two)) if pair[0] != pair[1]), None)
        if parted is None:
            count.compared += len(one)
            continue
        count.compared += parted + 1
        ids = [*reference.render_chat(prompts[index]), *one[:parted]]
        scores = Sampling(temperature, key=key_of_seed(SEED + index)).scores(
            reference.logits(ids)[0], len(ids)
        )
        lead = np.abs(scores[one[parted]] - scores[two[parted]]) * (temperature or 1.0)
        count.leads.append(float(lead))
    return count
