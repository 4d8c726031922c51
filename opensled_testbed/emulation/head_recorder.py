"""Records what a draft head on a device proposes along the texts that a target wrote, for devices that replay it.

    opensled export-head --target smollm2 --head ctc --out smollm2-ctc-device
    python -m opensled_testbed.emulation.head_recorder --target smollm2 --head smollm2-ctc-device [--out FOLDER]

The texts are those of the pair's recording with its draft model. The target computes its hidden states along them, they
are rounded as they travel, and the device's own drafter proposes at every place. It is given the row of a position once
the token there is committed, so that there is no proposal behind the prompt, as on a device. One file for each kind of
head: TARGET-head-KIND.jsonl.gz.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edge_client.drafters.base import Drafter
from edge_client.drafters.head import HeadFactory
from opensled.errors import OpenSledError
from opensled.features import FeatureRows
from opensled_testbed.emulation.recorded_items import recorded_items
from opensled_testbed.emulation.recorder import info_of, propose_along, sampler_of, table
from opensled_testbed.emulation.target_texts import load_target
from opensled_testbed.load.load import Item
from opensled_testbed.provenance import provenance
from opensled_testbed.recordings import PAIRS, head_drafter, recording
from opensled_testbed.traces import PACKAGED, ItemTrace, Proposal, TraceSet, read_traces, write_traces
from verify_server.engine.base import Segment
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.target import Target


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    try:
        factory = HeadFactory(str(arguments.head), 1)
        traces = record_head(load_target(arguments.target), factory, arguments.target)
    except OpenSledError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    path = arguments.out / recording(arguments.target, traces.drafter).name
    write_traces(path, traces)
    print(f"{path}: {path.stat().st_size} bytes\n{table(traces)}", flush=True)
    return 0


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m opensled_testbed.emulation.head_recorder")
    add = parser.add_argument
    add("--target", default="smollm2", choices=PAIRS, help="default %(default)s")
    add(
        "--head",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="a head of it, which opensled export-head wrote",
    )
    add("--out", type=Path, default=PACKAGED, help="folder to write to; default %(default)s")
    return parser.parse_args(words)


def record_head(target: Target, factory: HeadFactory, pair: str) -> TraceSet:
    """The texts of the recording of `pair`, with what the head proposes. Raises VocabularyMismatch, UsageError."""
    factory.check_vocabulary(info_of(target))
    written, drafter = read_traces(recording(pair)), factory.create()
    items = {item.id: item for item in recorded_items(pair)}
    target.engine.tap()
    found = []
    for number, trace in enumerate(written.items, 1):
        proposals = _proposals(target, drafter, factory.features, items[trace.item], trace)
        found.append(replace(trace, proposals=tuple(proposals), alone_ids=()))
        print(f"{factory.name}: {number} of {len(written.items)} items", file=sys.stderr, flush=True)
    command = f"python -m opensled_testbed.emulation.head_recorder --target {pair} --head FOLDER"
    origin = {**provenance(command), "draft_model": factory.name, "dtype": written.origin["dtype"]}
    origin["states"] = f"{target.engine.info.dtype}, rounded to 8 bits"
    return TraceSet(pair, head_drafter(factory.about.kind), origin, tuple(found))


def _proposals(
    target: Target, drafter: Drafter, layers: Sequence[int], item: Item, trace: ItemTrace
) -> Iterator[Proposal]:
    """At every place of the text."""
    rows, prompt = _rows(target, (*trace.prompt_ids, *trace.target_ids), layers), len(trace.prompt_ids)
    drafter.begin(trace.prompt_ids, sampler_of(target, item))

    def committed(place: int) -> None:
        """The token number `place` of the text stands: rows before it are there."""
        first = 0 if place == 0 else prompt + place - 1
        drafter.features(_cut(rows, first, prompt + place))

    return propose_along(drafter, trace.target_ids, committed)


def _rows(target: Target, tokens: Sequence[int], layers: Sequence[int]) -> FeatureRows:
    """The hidden states of all tokens but the last, which no draft follows."""
    engine, count = target.engine, len(tokens) - 1
    blocks = BlockTable(BlockPool(engine.info.num_blocks, engine.info.block_size))
    blocks.grow(count)
    segment = Segment(tuple(tokens[:count]), 0, tuple(blocks.blocks), rows=1, features=tuple(layers))
    data, scales = engine.forward([segment]).features(layers, range(count))
    flat = tuple(scales.ravel().tolist())
    return FeatureRows(0, data.shape[-1], flat, data.tobytes(), tuple(layers))


def _cut(rows: FeatureRows, first: int, end: int) -> FeatureRows:
    """Those of positions from `first` to before `end`."""
    layers, each = len(rows.layers), len(rows.layers) * rows.size
    return rows._replace(
        first=first,
        scales=rows.scales[first * layers : end * layers],
        data=rows.data[first * each : end * each],
    )


if __name__ == "__main__":
    sys.exit(main())
