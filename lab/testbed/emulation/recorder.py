"""Records what a real target writes and what real drafters propose, for devices that replay it.

    python -m lab.testbed.emulation.recorder [--target NAME] [--draft NAME] [--drafter NAME ...] [--out FOLDER]
    python -m lab.testbed.emulation.recorder --target smollm2 --drafter llamacpp lookup

At every place of the target's text the drafter is asked what it proposes next, with the text up to there as its truth,
just as the edge loop asks it. The items are those of emulation/recorded_items.py. Each one is kept in a .part file when
it is done: a run that was ended goes on from there. The files are TARGET-DRAFTER.jsonl.gz; one that is there already
stays, so remove it to record it anew. Texts that another drafter's file has are not written again.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.emulation.target_texts import ends_of, load_target, write_text
from lab.testbed.emulation.trace_parts import add_to_part, read_part
from lab.testbed.load.load import Item
from lab.testbed.provenance import provenance
from lab.testbed.recordings import PAIRS
from lab.testbed.traces import PACKAGED, ItemTrace, Proposal, TraceSet, read_traces, rounds, write_traces
from opensled.core.errors import OpenSledError
from opensled.core.messages import Limits, ModelInfo
from opensled.core.noise import noise_key
from opensled.core.protocol import cut
from opensled.core.sampling import Sampler
from verify_server.round.loaded_model import ServedModel

LONGEST = 8  # tokens proposed at each place: blocks can be replayed up to this length
DIGITS = 4  # of a confidence
WITH_MODEL = ("llamacpp", "onnx")  # drafters that can write by themselves

Texts = dict[str, ItemTrace]  # what the target wrote, by item


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    try:
        target, texts = load_target(arguments.target), Texts()
        for drafter in arguments.drafter:
            _record_file(arguments, target, drafter, texts)
    except OpenSledError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.testbed.emulation.recorder")
    add = parser.add_argument
    add("--target", default="tiny", metavar="NAME", help="as for opensled serve --model; default %(default)s")
    add("--draft", default="", metavar="NAME", help="as for opensled edge --draft-model; default: the pair's")
    add(
        "--drafter", nargs="+", default=["llamacpp", "lookup"], metavar="NAME", help="default llamacpp lookup"
    )
    add("--items", type=int, default=0, metavar="N", help="only the first N items; default all")
    add("--out", type=Path, default=PACKAGED, help="folder to write to; default %(default)s")
    arguments = parser.parse_args(words)
    if not arguments.draft and arguments.target not in PAIRS:
        parser.error(f"name the draft model of {arguments.target} with --draft")
    arguments.draft = arguments.draft or PAIRS[arguments.target].draft
    return arguments


def _record_file(arguments: argparse.Namespace, target: ServedModel, drafter: str, texts: Texts) -> None:
    """One file, from where an earlier run ended; none if it is there already."""
    name = Path(arguments.target).stem
    path = arguments.out / f"{name}-{drafter}.jsonl.gz"
    if path.is_file():
        print(f"kept: {path}", flush=True)
        return
    texts.update(_written(arguments.out, name, target.engine.info.dtype))
    recorder = Recorder(target, drafter, arguments.draft, texts, name)
    items = recorded_items(arguments.target)[: arguments.items or None]
    part = path.with_suffix(".part")
    done = {trace.item: trace for trace in read_part(part, recorder.head)}
    for number, item in enumerate(items, 1):
        if item.id not in done:
            done[item.id] = recorder.trace(item)
            add_to_part(part, recorder.head, done[item.id])
            print(f"{drafter}: {number} of {len(items)} items", file=sys.stderr, flush=True)
    traces = recorder.traces([done[item.id] for item in items])
    write_traces(path, traces)
    part.unlink(missing_ok=True)
    print(f"{path}: {path.stat().st_size} bytes\n{table(traces)}", flush=True)


def _written(folder: Path, name: str, dtype: str) -> Texts:
    """What files in `folder` say that this target wrote."""
    files = [read_traces(path) for path in folder.glob(f"{name}-*.jsonl.gz")]
    known = [traces for traces in files if traces.target == name and traces.origin.get("dtype") == dtype]
    return {
        trace.item: replace(trace, proposals=(), alone_ids=()) for traces in known for trace in traces.items
    }


class Recorder:
    """One drafter with its model beside a target; close it when done."""

    def __init__(
        self, target: ServedModel, drafter: str, draft: str, texts: Texts | None = None, name: str = "tiny"
    ) -> None:
        """`texts`: what the target, called `name`, wrote already. Raises OpenSledError for a draft model that is not
        here, or that has another vocabulary."""
        factory = DRAFTERS.get(drafter)(draft, 1)
        factory.fit(info_of(target))
        self._target, self._drafter, self._model = target, drafter, factory.create()
        self._texts = {} if texts is None else texts
        info = target.engine.info
        self.head = {"target": name, "drafter": drafter, "draft_model": factory.name, "dtype": info.dtype}

    def trace(self, item: Item) -> ItemTrace:
        """What the target writes on an item, and what the drafter proposes there."""
        if item.id not in self._texts:
            self._texts[item.id] = write_text(self._target, item)
        trace = self._texts[item.id]
        trace = replace(trace, proposals=tuple(_proposals(self._target, self._model, item, trace)))
        if self._drafter in WITH_MODEL:
            trace = replace(trace, alone_ids=_alone(self._target, self._model, item, trace))
        return trace

    def traces(self, items: Sequence[ItemTrace]) -> TraceSet:
        """All of them, with where they come from."""
        self._model.close()
        assert len({trace.prompt_ids for trace in items}) == len(items), (
            "a device finds its item by the prompt"
        )
        told = {key: self.head[key] for key in ("draft_model", "dtype")}
        target, drafter = self.head["target"], self.head["drafter"]
        command = f"python -m lab.testbed.emulation.recorder --target {target} --drafter {drafter}"
        return TraceSet(target, drafter, {**provenance(command), **told}, tuple(items))


def record(target: ServedModel, drafter: str, items: Sequence[Item], draft: str = "tiny-draft") -> TraceSet:
    """What `target` writes and `drafter` proposes on each item."""
    recorder = Recorder(target, drafter, draft)
    return recorder.traces([recorder.trace(item) for item in items])


def info_of(target: ServedModel) -> ModelInfo:
    """What a device would be told of the vocabulary."""
    text, info = target.text, target.engine.info
    limits, hashed = Limits(LONGEST, info.context_length), text.tokenizer_hash
    return ModelInfo(
        target.model_id,
        text.vocab_size,
        text.fingerprint,
        info.eos_ids,
        limits,
        (),
        info.numerics,
        "",
        hashed,
        bool(text.chat_template),
    )


def sampler_of(target: ServedModel, item: Item) -> Sampler:
    """By which a device draws on an item."""
    made = Sampler(item.params, noise_key(item.seed))
    return replace(made, vocab_size=target.text.vocab_size)


def _proposals(target: ServedModel, drafter: Drafter, item: Item, trace: ItemTrace) -> Iterator[Proposal]:
    """At every place of the text."""
    drafter.begin(trace.prompt_ids, sampler_of(target, item))
    for token in trace.target_ids:
        block = tuple(islice(drafter.propose(), LONGEST))
        confidences = tuple(round(each.confidence, DIGITS) for each in block)
        yield Proposal(tuple(each.id for each in block), confidences)
        drafter.commit([token])


def _alone(target: ServedModel, drafter: Drafter, item: Item, trace: ItemTrace) -> tuple[int, ...]:
    """What the draft model writes by itself, up to its end."""
    drafter.begin(trace.prompt_ids, sampler_of(target, item))
    block = tuple(islice(drafter.propose(), item.max_tokens))
    base = len(trace.prompt_ids)
    return cut([each.id for each in block], base, ends_of(target.engine, item, base))[0]


def table(traces: TraceSet, length: int = 4) -> str:
    """Acceptance and tokens per round with blocks of `length`, for each task and for all."""
    tasks = {item.id: item.task for item in recorded_items(traces.target)}
    groups: dict[str, list[ItemTrace]] = {}
    for trace in traces.items:
        groups.setdefault(trace.task or tasks.get(trace.item, "other"), []).append(trace)
    groups["all"] = list(traces.items)
    lines = [f"{'task':<14}{'items':>6}{'tokens':>8}{'first':>8}{'accepted':>10}{'tokens/round':>14}"]
    return "\n".join([*lines, *(_line(name, group, length) for name, group in groups.items())])


def _line(name: str, traces: Sequence[ItemTrace], length: int) -> str:
    each = [pair for trace in traces for pair in rounds(trace, length)]
    ones = [pair for trace in traces for pair in rounds(trace, 1)]
    tokens = sum(len(trace.target_ids) for trace in traces)
    shares = f"{_share(ones):>8.3f}{_share(each):>10.3f}"
    return f"{name:<14}{len(traces):>6}{tokens:>8}{shares}{tokens / len(each):>14.3f}"


def _share(rounds: Sequence[tuple[int, int]]) -> float:
    """Accepted of drafted; 0 without a draft."""
    drafted, accepted = (sum(column) for column in zip(*rounds))
    return accepted / drafted if drafted else 0.0


if __name__ == "__main__":
    sys.exit(main())
