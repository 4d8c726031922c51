"""What the way to a draft server costs: a llama-server process against the built-in drafter on the same file.

    opensled pull smollm2
    python -m lab.benchmarks.draft_server [--quick] [--items N] [--out FOLDER]

SmolLM2 (135M, Q4_1) drafts for itself, along the texts that it wrote alone for the recorded drafts
(lab/testbed/recorded), half of them greedy, half at temperature 0.8. Each drafter drafts blocks of four; the tokens up
to the first wrong one and the target's next one are committed, as a server does. So each block begins with a verdict:
after a wrong token the stream is cut, and a request is made. No target runs: drafter and draft server share one core,
as on a device that has both, away from the target's machine. Each text goes to all drafters in turns.

`ms a block` is from verdict to block, the look ahead not counted; the way is what a block of the server takes longer.
"""

from __future__ import annotations

import statistics
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

from edge_client.draft_servers import server
from edge_client.draft_servers.address import draft_address
from edge_client.draft_servers.http_stream import fetch
from edge_client.draft_servers.server import ServerFactory
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.llamacpp import LlamaCppFactory
from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.peer_server import command, require, running
from lab.benchmarks.program import (
    add_quick_and_out,
    exit_code,
    folder_of,
    parser_of,
    pinned,
    say,
    table,
    write_json,
)
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.processes import free_port
from lab.testbed.provenance import provenance
from lab.testbed.traces import PACKAGED, ItemTrace, read_traces
from opensled.core.messages import Limits, ModelInfo
from opensled.core.noise import noise_key
from opensled.core.protocol import common_prefix
from opensled.core.sampling import Sampler
from opensled.core.vocabulary import fingerprint
from opensled.models.store import model_file
from opensled.text.tokenizer import TargetTokenizer
from verify_server.text.gguf_text import GgufText

MODEL = "smollm2"
BLOCK, CONTEXT, CORE = 4, 2048, 1
REQUESTS = 5  # behind each text
WHOLE = 8192  # tokens of a text that are read
OWN, BY_IDS, BY_TEXT = "built in", "llama-server, by ids", "llama-server, by text"
SAMPLED = {False: "greedy", True: "T = 0.8"}


def main(words: list[str] | None = None) -> int:
    parser = parser_of("draft_server", __doc__)
    parser.add_argument("--items", type=int, default=16, help="texts of each sampling")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _run(arguments))


def _run(arguments: Namespace) -> int:
    require()
    items, folder = 2 if arguments.quick else arguments.items, folder_of(arguments)
    origin = provenance()
    raw, request_ms = _measure(items)
    if folder:
        document = {"figure": "draft_server", **_figure(raw, request_ms).as_json(origin), "raw": raw}
        write_json(folder / "draft_server.json", document)
    print("\n".join([*_table(raw), f"a request that costs the server nothing: {request_ms:.2f} ms"]))
    return 0


Raw = dict[str, list[dict[str, Any]]]


def _measure(items: int) -> tuple[Raw, float]:
    """By drafter, each text: its counts, and the milliseconds of each block. And those of a request, the median."""
    text = GgufText(model_file(MODEL, "*.gguf"))
    tokenizer = TargetTokenizer(text.tokenizer_json)
    raw: Raw = {}
    requests = []
    with pinned(CORE), _drafters(tokenizer, text.eos_ids) as (drafters, url):
        for number, (trace, sampler, sampling) in enumerate(_texts(items, len(tokenizer.pieces))):
            for name in sorted(drafters, reverse=bool(number % 2)):
                found = follow(drafters[name], trace, sampler)
                raw.setdefault(name, []).append({"item": trace.item, "sampling": sampling, **found})
            requests += [_request_ms(url) for _ in range(REQUESTS)]
            say(f"{number + 1}: {trace.item}, {sampling}")
    return {name: raw[name] for name in (OWN, BY_IDS, BY_TEXT)}, statistics.median(requests)


def _request_ms(url: str) -> float:
    began = time.perf_counter()
    fetch(draft_address(url), "/health")
    return 1000 * (time.perf_counter() - began)


@contextmanager
def _drafters(
    tokenizer: TargetTokenizer, eos_ids: tuple[int, ...]
) -> Iterator[tuple[dict[str, Drafter], str]]:
    """One of each way; and the address of the server."""
    info = _info(tokenizer, eos_ids)
    model, port = model_file(MODEL, "*.gguf"), free_port()
    with ExitStack() as stack:
        found = stack.enter_context(running(command(model, port, 2, CONTEXT), port))
        made: dict[str, DrafterFactory] = {
            OWN: LlamaCppFactory(MODEL, 1, DrafterOptions(window=WHOLE)),
            BY_IDS: _server(found.url),
            BY_TEXT: _server(found.url),
        }
        for name, factory in made.items():
            with _withheld(name == BY_TEXT):
                factory.fit(info, tokenizer)
        drafters = {name: factory.create() for name, factory in made.items()}
        for drafter in drafters.values():
            stack.callback(drafter.close)
        yield drafters, found.url


def _server(url: str) -> ServerFactory:
    return ServerFactory("", 1, DrafterOptions(draft_url=url, window=WHOLE))


@contextmanager
def _withheld(is_withheld: bool) -> Iterator[None]:
    """While inside, a server's ids count as another vocabulary's."""
    before: Callable[..., bool] = server.has_vocabulary
    if is_withheld:
        server.has_vocabulary = lambda *facts: False
    try:
        yield
    finally:
        server.has_vocabulary = before


def _info(tokenizer: TargetTokenizer, eos_ids: tuple[int, ...]) -> ModelInfo:
    pieces = tokenizer.pieces
    limits = Limits(max_draft=16, context_length=CONTEXT)
    return ModelInfo(MODEL, len(pieces), fingerprint(pieces), eos_ids, limits, (), "", "", "", True)


def _texts(items: int, vocab_size: int) -> Iterator[tuple[ItemTrace, Sampler, str]]:
    """Recorded texts that fit the context, the samplings in turns."""
    asked = {item.id: item for item in recorded_items(MODEL)}
    seen = Counter[bool]()
    for trace in read_traces(PACKAGED / f"{MODEL}-llamacpp.jsonl.gz").items:
        item = asked[trace.item]
        is_sampled = item.params.temperature > 0
        if seen[is_sampled] >= items or len(trace.prompt_ids) + len(trace.target_ids) > CONTEXT // 2:
            continue
        seen[is_sampled] += 1
        yield trace, Sampler(item.params, noise_key(item.seed), vocab_size=vocab_size), SAMPLED[is_sampled]


def follow(drafter: Drafter, trace: ItemTrace, sampler: Sampler) -> dict[str, Any]:
    """Draft blocks while the target writes what it wrote. The first block, which reads the prompt, has no time."""
    drafter.begin(trace.prompt_ids, sampler)
    while drafter.read(512):
        pass
    written, place = trace.target_ids, 0
    counts, block_ms = Counter[str](), []
    while place < len(written):
        began = time.perf_counter()
        block = [token.id for token in islice(drafter.propose(), min(BLOCK, len(written) - place))]
        block_ms.append(round(1000 * (time.perf_counter() - began), 3))
        right = common_prefix(block, written[place:])
        counts.update(drafted=len(block), accepted=right)
        drafter.commit(written[place : place + right + 1])
        place += right + 1
    return {"tokens": len(written), **counts, "block_ms": block_ms[1:]}


def _of(raw: Raw, name: str, sampling: str) -> list[dict[str, Any]]:
    return [unit for unit in raw[name] if unit["sampling"] == sampling]


def share(units: list[dict[str, Any]]) -> float:
    """Accepted of drafted."""
    return sum(unit["accepted"] for unit in units) / max(1, sum(unit["drafted"] for unit in units))


def block_ms(units: list[dict[str, Any]]) -> float:
    """Median."""
    return statistics.median([ms for unit in units for ms in unit["block_ms"]])


def _figure(raw: Raw, request_ms: float) -> Figure:
    kinds = [(name, sampling) for name in raw for sampling in SAMPLED.values()]
    samples = {
        f"{name}, {sampling}": [
            round(statistics.median(unit["block_ms"]), 3) for unit in _of(raw, name, sampling)
        ]
        for name, sampling in kinds
    }
    return Figure(
        title="A draft server beside the built-in drafter",
        unit=f"ms from a verdict to a block of {BLOCK}, the median of each text",
        more_is_better=False,
        compared="SmolLM2 for itself on one core: a llama-server process against llama.cpp in process, same file",
        loses="The way to the server; at temperature 0.8 a request behind each token that the server did not choose.",
        samples=samples,
        ratios=tuple(
            Comparison(f"{name}, {sampling}", f"{name}, {sampling}", f"{OWN}, {sampling}")
            for name, sampling in kinds
            if name != OWN
        ),
        facts={
            "request_ms": round(request_ms, 3),
            "accepted": {
                f"{name}, {sampling}": round(share(_of(raw, name, sampling)), 4) for name, sampling in kinds
            },
        },
    )


def _table(raw: Raw) -> list[str]:
    rows = []
    for sampling in SAMPLED.values():
        own = block_ms(_of(raw, OWN, sampling))
        for name in raw:
            units = _of(raw, name, sampling)
            ms = block_ms(units)
            drafted = sum(unit["drafted"] for unit in units)
            rows.append(
                [
                    name,
                    sampling,
                    f"{share(units):.3f} of {drafted}",
                    f"{ms:.1f}",
                    f"{ms - own:+.1f}",
                    f"{ms / own:.2f}",
                ]
            )
    return table(["drafter", "sampling", "accepted", "ms a block", "the way", "ratio"], rows)


if __name__ == "__main__":
    sys.exit(main())
