"""Records what a hub's model writes beside the texts of a target, and what the device drafts behind that.

    python -m lab.testbed.emulation.hub_recorder [--target NAME] [--hub NAME] [--drafter NAME] [--out FOLDER]

The texts, and the device's drafts on them, are those of emulation/recorder.py, whose file must be there. At each of
their places the hub's model draws its own token with the noise of the same key. Where that is another one than the
text's, it writes on to its own end, and at each place of that the drafter is asked for one token. The file is
hub-TARGET-HUB.jsonl.gz; see lab/testbed/tiers.py. At the end a table shows how often each two agree.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.emulation.recorder import DIGITS, info_of, sampler_of
from lab.testbed.emulation.target_texts import ends_of, load_target
from lab.testbed.load.load import Item
from lab.testbed.provenance import provenance
from lab.testbed.recordings import PAIRS, recording
from lab.testbed.target_text import text_of
from lab.testbed.tiers import Aside, HubTrace, HubTraces, agreement, joined, write_hub
from lab.testbed.traces import PACKAGED, ItemTrace, TraceSet, read_traces
from opensled.core.errors import OpenSledError, VocabularyMismatch
from opensled.core.noise import noise_key
from opensled.core.protocol import cut
from verify_server.engine.base import SampleRequest, Segment
from verify_server.kv.blocks import BlockPool, BlockTable
from verify_server.round.loaded_model import ServedModel


def main(words: list[str] | None = None) -> int:
    arguments = _arguments(words)
    try:
        path = arguments.out / f"hub-{arguments.target}-{Path(arguments.hub).stem}.jsonl.gz"
        traces = read_traces(recording(arguments.target, arguments.drafter))
        hub = record_hub(arguments.hub, traces, recorded_items(arguments.target))
        write_hub(path, hub)
        print(f"{path}: {path.stat().st_size} bytes", *agreement(joined(traces, hub).items), sep="\n")
    except OpenSledError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.testbed.emulation.hub_recorder")
    add = parser.add_argument
    add("--target", default="tiny", choices=[*PAIRS], help="default %(default)s")
    add(
        "--hub", default="tiny-hub", metavar="NAME", help="as for opensled relay --model; default %(default)s"
    )
    add("--drafter", default="llamacpp", metavar="NAME", help="default %(default)s")
    add("--out", type=Path, default=PACKAGED, help="folder to write to; default %(default)s")
    return parser.parse_args(words)


def record_hub(hub: str, traces: TraceSet, items: Sequence[Item]) -> HubTraces:
    """Of all items of `traces`. Raises OpenSledError for a model that is not here, or that has another vocabulary."""
    model, pair = load_target(hub), PAIRS[traces.target]
    if model.text.fingerprint != text_of(pair.target).fingerprint:
        raise VocabularyMismatch(
            f"{hub!r} and {pair.target!r} do not share a vocabulary; take one family's models"
        )
    factory = DRAFTERS.get(traces.drafter)(pair.draft, 1)
    factory.fit(info_of(model))
    drafter, asked = factory.create(), {item.id: item for item in items}
    written = []
    for number, trace in enumerate(traces.items, 1):
        asides = tuple(_asides(model, drafter, asked[trace.item], trace))
        written.append(HubTrace(trace.item, trace.target_ids, asides))
        print(f"{hub}: {number} of {len(traces.items)} items", file=sys.stderr, flush=True)
    drafter.close()
    origin = {**provenance(), "dtype": model.engine.info.dtype, "draft_model": factory.name}
    return HubTraces(traces.target, hub, traces.drafter, origin, tuple(written))


def _asides(hub: ServedModel, drafter: Drafter, item: Item, trace: ItemTrace) -> list[Aside]:
    """Where the hub leaves the text, and how it goes on there."""
    writer = HubWriter(hub, item, trace)
    found = []
    for place, ids in writer.ways():
        start = (*trace.prompt_ids, *trace.target_ids[:place], ids[0])
        drafter.begin(start, sampler_of(hub, item))
        drafts = list(_drafts(drafter, ids[1:]))
        found.append(Aside(place, ids, tuple(id for id, _ in drafts), tuple(chance for _, chance in drafts)))
    return found[::-1]


def _drafts(drafter: Drafter, ids: Sequence[int]) -> Iterator[tuple[int, float]]:
    """What the drafter proposes before each of `ids`, and its confidence."""
    for id in ids:
        token = next(iter(drafter.propose()))
        yield token.id, round(token.confidence, DIGITS)
        drafter.commit([id])


class HubWriter:
    """A hub's model beside one text, which it has read as a whole."""

    def __init__(self, hub: ServedModel, item: Item, trace: ItemTrace) -> None:
        self._engine, self._item, self._trace = hub.engine, item, trace
        info, self._key = hub.engine.info, noise_key(item.seed)
        self._table = BlockTable(BlockPool(info.num_blocks, info.block_size))
        self._ends = ends_of(hub.engine, item, len(trace.prompt_ids))

    def ways(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each place where its token is not the text's, and what it writes there to its end, the last place first: so
        the KV before a place is still that of the text."""
        start, text = len(self._trace.prompt_ids), self._trace.target_ids
        tokens = [*self._trace.prompt_ids, *text]
        own = self._own(tokens[:-1], 0, len(text))
        for place in reversed(range(len(text))):
            if own[place] != text[place]:
                yield place, self._way(tokens[: start + place], own[place])

    def _way(self, tokens: list[int], first: int) -> tuple[int, ...]:
        length = len(tokens)
        news, reason = cut((first,), length, self._ends)
        while not reason:
            tokens.extend(news)
            own = self._own(tokens[-1:], len(tokens) - 1, 1)
            news, reason = cut(own, len(tokens), self._ends)
        return (*tokens[length:], *news)

    def _own(self, fresh: Sequence[int], start: int, rows: int) -> list[int]:
        """Its own tokens after each of the last `rows` of `fresh`, which begin at position `start`."""
        end = start + len(fresh)
        self._table.grow(end)
        scores = self._engine.forward([Segment(tuple(fresh), start, tuple(self._table.blocks), rows=rows)])
        return scores.sample_one(SampleRequest([*range(rows)], self._item.params, self._key, end - rows + 1))


if __name__ == "__main__":
    sys.exit(main())
