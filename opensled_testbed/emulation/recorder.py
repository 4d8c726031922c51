"""Records what the real target writes and the real drafters propose, for devices that replay it.

    python -m opensled_testbed.emulation.recorder [DRAFTER ...] [--out FOLDER]

The items are a documented mixture: held-out tasks of the tiny family in turns, half of each greedy and half at
temperature 0.8 with a seed, at most 64 tokens each. At every place of the target's text the drafter is asked what it
proposes next, with the text up to there as its truth, just as the edge loop asks it.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter
from opensled.errors import OpenSledError
from opensled.messages import is_chat
from opensled.noise import noise_key
from opensled.protocol import EndRules, cut
from opensled.sampling import Sampler
from opensled_testbed.load.load import Item
from opensled_testbed.load.sources import heldout_items
from opensled_testbed.provenance import provenance
from opensled_testbed.traces import PACKAGED, ItemTrace, Proposal, TraceSet, rounds, write_traces
from verify_server.config import ServeConfig
from verify_server.engine import ENGINES
from verify_server.engine.base import SampleRequest, Segment, TargetEngine
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.target import Target

MODEL, DRAFT_MODEL = "tiny", "tiny-draft"
COUNT, SEED, MAX_TOKENS = 120, 0, 64
LONGEST = 8  # tokens proposed at each place: blocks can be replayed up to this length
DIGITS = 4  # of a confidence
WITH_MODEL = ("llamacpp", "onnx")  # drafters that can write by themselves


def recorded_items() -> list[Item]:
    """The items of the packaged recordings; the same ones each time."""
    return heldout_items(COUNT, SEED, MAX_TOKENS)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m opensled_testbed.emulation.recorder")
    parser.add_argument("drafters", nargs="*", metavar="DRAFTER", help="default: llamacpp lookup")
    parser.add_argument("--out", type=Path, default=PACKAGED, help="folder to write to; default %(default)s")
    arguments = parser.parse_args(words)
    try:
        target = load_target()
        for drafter in arguments.drafters or ("llamacpp", "lookup"):
            traces = record(target, drafter, recorded_items())
            path = arguments.out / f"{MODEL}-{drafter}.jsonl.gz"
            write_traces(path, traces)
            print(f"{path}: {path.stat().st_size} bytes\n{table(traces)}", flush=True)
    except OpenSledError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def load_target() -> Target:
    """The real one, on one thread as the testbed's servers have it."""
    target: Target = ENGINES.get("torch")(ServeConfig(model=MODEL, threads=1, device="cpu"))
    return target


def record(target: Target, drafter: str, items: Sequence[Item]) -> TraceSet:
    """What `target` writes and `drafter` proposes on each item."""
    factory = DRAFTERS.get(drafter)(DRAFT_MODEL, 1)
    model, traces = factory.create(), []
    for item in items:
        trace = write_text(target, item)
        trace = replace(trace, proposals=tuple(_proposals(target, model, item, trace)))
        if drafter in WITH_MODEL:
            trace = replace(trace, alone_ids=_alone(target, model, item, trace))
        traces.append(trace)
    model.close()
    assert len({trace.prompt_ids for trace in traces}) == len(traces), "a device finds its item by the prompt"
    origin = provenance(f"python -m opensled_testbed.emulation.recorder {drafter}")
    return TraceSet(MODEL, drafter, {**origin, "draft_model": factory.name}, tuple(traces))


def write_text(target: Target, item: Item) -> ItemTrace:
    """The target's own text, token by token, without any draft."""
    engine, prompt = target.engine, _prompt_ids(target, item)
    tokens, reason = list(prompt), ""
    ends = _ends(engine, item, len(prompt))
    table = BlockTable(BlockPool(engine.info.num_blocks, engine.info.block_size))
    computed = 0
    while not reason:
        table.grow(len(tokens))
        segment = Segment(tuple(tokens[computed:]), computed, tuple(table.blocks), rows=1)
        scores = engine.forward([segment])
        computed = len(tokens)
        own = scores.sample_one(SampleRequest([0], item.params, noise_key(item.seed), computed))
        news, reason = cut(own, computed, ends)
        tokens.extend(news)
    return ItemTrace(item.id, prompt, tuple(tokens[len(prompt) :]), reason, ())


def _prompt_ids(target: Target, item: Item) -> tuple[int, ...]:
    if isinstance(item.prompt, str):
        return target.text.encode(item.prompt)
    if is_chat(item.prompt):
        return target.text.render(item.prompt)
    return item.prompt  # type: ignore[return-value]


def _ends(engine: TargetEngine, item: Item, prompt: int) -> EndRules:
    eos = frozenset() if item.ignore_eos else frozenset(engine.info.eos_ids)
    return EndRules(eos, frozenset(), min(prompt + item.max_tokens, engine.info.context_length))


def _sampler(target: Target, item: Item) -> Sampler:
    made = Sampler(item.params, noise_key(item.seed))
    return replace(made, vocab_size=target.text.vocab_size)


def _proposals(target: Target, drafter: Drafter, item: Item, trace: ItemTrace) -> Iterator[Proposal]:
    """At every place of the text."""
    drafter.begin(trace.prompt_ids, _sampler(target, item))
    for token in trace.target_ids:
        block = tuple(islice(drafter.propose(), LONGEST))
        confidences = tuple(round(each.confidence, DIGITS) for each in block)
        yield Proposal(tuple(each.id for each in block), confidences)
        drafter.commit([token])


def _alone(target: Target, drafter: Drafter, item: Item, trace: ItemTrace) -> tuple[int, ...]:
    """What the draft model writes by itself, up to its end."""
    drafter.begin(trace.prompt_ids, _sampler(target, item))
    block = tuple(islice(drafter.propose(), item.max_tokens))
    base = len(trace.prompt_ids)
    return cut([each.id for each in block], base, _ends(target.engine, item, base))[0]


def table(traces: TraceSet, length: int = 4) -> str:
    """Acceptance and tokens per round with blocks of `length`, for each task and for all."""
    tasks = {item.id: item.task for item in recorded_items()}
    groups: dict[str, list[ItemTrace]] = {}
    for trace in traces.items:
        groups.setdefault(tasks.get(trace.item, "other"), []).append(trace)
    groups["all"] = list(traces.items)
    lines = [f"{'task':<14}{'items':>6}{'tokens':>8}{'accepted':>10}{'tokens/round':>14}"]
    return "\n".join([*lines, *(_line(name, group, length) for name, group in groups.items())])


def _line(name: str, traces: Sequence[ItemTrace], length: int) -> str:
    each = [pair for trace in traces for pair in rounds(trace, length)]
    drafted, accepted = (sum(column) for column in zip(*each))
    tokens = sum(len(trace.target_ids) for trace in traces)
    share = accepted / drafted if drafted else 0.0
    return f"{name:<14}{len(traces):>6}{tokens:>8}{share:>10.3f}{tokens / len(each):>14.3f}"


if __name__ == "__main__":
    sys.exit(main())
