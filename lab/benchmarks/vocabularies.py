"""How often drafts stand if the draft's vocabulary is not the target's: by text, against the same model by ids.

    opensled pull smollm2
    python -m lab.benchmarks.vocabularies [--quick] [--items N] [--out FOLDER]

The texts are those that the targets wrote alone for the recorded drafts (lab/testbed/recorded): half of them greedy,
half at temperature 0.8. Each drafter drafts blocks of four; the tokens up to the first wrong one and the target's next
one are committed, as a server does. No clock is read, so other work on the machine does not matter. `passes` counts the
forward passes of the draft model behind the prompt: a word that waits for its end costs some.

Pairs: SmolLM2 (135M, Q4_1) for itself with its ids withheld, which shows what the way by text loses; the same with
the first 16,384 ids of its vocabulary only, so that it cuts words otherwise than the target; its draft of six layers;
and the tiny draft and SmolLM2 for each other, which learned other languages.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from edge_client.drafters.base import Drafter, DrafterOptions, ModelDrafter
from edge_client.drafters.by_text import ByTextDrafter
from edge_client.drafters.llamacpp import LlamaCppFactory
from edge_client.drafters.model_text import DraftTokenizer, ModelText
from lab.benchmarks.figure import Comparison, Figure
from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, table, write_json
from lab.testbed.emulation.recorded_items import recorded_items
from lab.testbed.provenance import provenance
from lab.testbed.traces import PACKAGED, ItemTrace, read_traces
from opensled.core.noise import noise_key
from opensled.core.protocol import common_prefix
from opensled.core.sampling import Sampler
from opensled.models.gguf_file import read_metadata
from opensled.models.store import model_file, model_path
from opensled.text.tokenizer import TargetTokenizer
from verify_server.text import gguf_tokenizer
from verify_server.text.gguf_text import GgufText

BLOCK = 4  # tokens
TRIMMED = 16_384  # ids
WHOLE = DrafterOptions(window=8192)
SAMPLED = {True: "T = 0.8", False: "greedy"}


class Target(NamedTuple):
    """A target, and what it wrote."""

    name: str
    tokenizer: TargetTokenizer
    eos_ids: tuple[int, ...]


class Contender(NamedTuple):
    """One way to draft for a target."""

    target: str
    draft: str
    way: str  # "same ids", "by text", "by text, first 16,384 ids"

    @property
    def name(self) -> str:
        return f"{self.draft} for {self.target}, {self.way}"


IDS, TEXT, FEWER = "same ids", "by text", f"by text, first {TRIMMED:,} ids"
CONTENDERS = (  # the fast ones first
    Contender("tiny", "tiny-draft", IDS),
    Contender("tiny", "tiny-draft", TEXT),
    Contender("tiny", "smollm2-draft", TEXT),
    Contender("smollm2", "tiny-draft", TEXT),
    Contender("smollm2", "smollm2-draft", IDS),
    Contender("smollm2", "smollm2-draft", TEXT),
    Contender("smollm2", "smollm2", IDS),
    Contender("smollm2", "smollm2", TEXT),
    Contender("smollm2", "smollm2", FEWER),
)


class TrimmedTokenizer(TargetTokenizer):
    """A byte-level BPE with the first ids of a larger one: each later merge is left out."""

    def __init__(self, metadata: dict[str, Any], size: int) -> None:
        tokens = metadata["tokenizer.ggml.tokens"][:size]
        known = set(tokens)
        merges = [merge for merge in metadata["tokenizer.ggml.merges"] if merge.replace(" ", "") in known]
        less = {
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.token_type": metadata["tokenizer.ggml.token_type"][:size],
        }
        super().__init__(gguf_tokenizer.build({**metadata, **less}).to_str().encode())
        self.size, self.frame = size, self.encode("")
        self.ends = frozenset({int(metadata["tokenizer.ggml.eos_token_id"])})


class Passes:
    """Counts the forward passes of a draft model."""

    def __init__(self, model: ModelDrafter) -> None:
        self.count, self._forward = 0, model.forward
        model.forward = self._counted  # type: ignore[method-assign]

    def _counted(self, tokens: Sequence[int], start: int) -> np.ndarray:
        self.count += 1
        return self._forward(tokens, start)


def main(words: list[str] | None = None) -> int:
    parser = parser_of("vocabularies", __doc__)
    parser.add_argument("--items", type=int, default=4, help="texts of each kind, half of them greedy")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    return exit_code(lambda: _run(arguments))


def _run(arguments: Namespace) -> int:
    items, folder = 1 if arguments.quick else arguments.items, folder_of(arguments)
    origin = provenance(f"python -m lab.benchmarks.vocabularies --items {items}")
    raw: dict[str, list[dict[str, Any]]] = {}
    for contender in CONTENDERS:
        raw[contender.name] = _measure(contender, items)
        if folder:  # what is measured so far
            document = {"figure": "vocabularies", **_figure(raw).as_json(origin), "raw": raw}
            write_json(folder / "vocabularies.json", document)
    print("\n".join(_table(raw)))
    return 0


def _figure(raw: dict[str, Any]) -> Figure:
    samples = {
        f"{name}, {sampling}": [share(each) for each in by_kind(units, sampling)]
        for name, units in raw.items()
        for sampling in SAMPLED.values()
    }
    ratios = [
        Comparison(
            f"{each.name}, {sampling}",
            f"{each.name}, {sampling}",
            f"{each._replace(way=IDS).name}, {sampling}",
        )
        for each in CONTENDERS
        for sampling in SAMPLED.values()
        if each.way != IDS
    ]
    return Figure(
        title="Drafts of other vocabularies, by text",
        unit="of the drafted tokens accepted",
        more_is_better=True,
        compared=(
            f"Blocks of {BLOCK} on the recorded texts of the target, one value for each kind of text: the draft model by "
            "text, against the same model by ids where it has the target's."
        ),
        loses=(
            "A draft by text is greedy, so at temperature 0.8 it lacks the shared noise. A word that waits for its end "
            "costs passes. A model that learned another language is hardly ever right, whatever its vocabulary."
        ),
        samples=samples,
        ratios=tuple(
            each for each in ratios if each.ours in samples and all(samples.get(each.against, (0,)))
        ),
        facts={
            "block": BLOCK,
            "passes a drafted token": {name: _passes(units) for name, units in raw.items()},
        },
    )


def _passes(units: Sequence[dict[str, Any]]) -> float:
    return round(sum(unit["passes"] for unit in units) / max(1, sum(unit["drafted"] for unit in units)), 3)


def share(units: Sequence[dict[str, Any]]) -> float:
    """Accepted of drafted."""
    return sum(unit["accepted"] for unit in units) / max(1, sum(unit["drafted"] for unit in units))


def by_kind(units: Sequence[dict[str, Any]], sampling: str) -> list[list[dict[str, Any]]]:
    """Those of a sampling, for each kind of text."""
    found: dict[str, list[dict[str, Any]]] = {}
    for unit in units:
        if unit["sampling"] == sampling:
            found.setdefault(unit["kind"], []).append(unit)
    return [found[kind] for kind in sorted(found)]


def _table(raw: dict[str, Any]) -> Iterator[str]:
    """By draft and sampling."""
    rows = []
    for name, units in raw.items():
        for sampling in SAMPLED.values():
            some = [unit for unit in units if unit["sampling"] == sampling]
            total: Counter[str] = sum((Counter(_numbers(unit)) for unit in some), Counter())
            if total:
                rows.append(
                    [
                        name,
                        sampling,
                        f"{share(some):.3f}",
                        *(f"{total[up] / total[low]:.2f}" for up, low in COLUMNS),
                    ]
                )
    yield from table(["draft", "sampling", "accepted", "tokens a verdict", "passes a drafted token"], rows)


COLUMNS = (("tokens", "verdicts"), ("passes", "drafted"))


def _numbers(unit: dict[str, Any]) -> dict[str, int]:
    return {name: unit[name] for name in ("tokens", "verdicts", "drafted", "accepted", "passes")}


def _measure(contender: Contender, items: int) -> list[dict[str, Any]]:
    target = _target(contender.target)
    factory = LlamaCppFactory(contender.draft, 1, WHOLE)
    model = factory.create_model()
    passes, drafter = Passes(model), _drafter(contender, model, factory, target)
    asked = {item.id: item for item in recorded_items(contender.target)}
    units, seen = [], Counter[tuple[str, bool]]()
    for trace in read_traces(PACKAGED / f"{contender.target}-llamacpp.jsonl.gz").items:
        item = asked[trace.item]
        kind, is_sampled = trace.task or item.task or "tasks", item.params.temperature > 0
        seen[kind, is_sampled] += 1
        if seen[kind, is_sampled] > max(1, items // 2):
            continue
        sampler = Sampler(item.params, noise_key(item.seed), vocab_size=len(target.tokenizer.pieces))
        found = follow(drafter, trace, sampler, passes)
        units.append({"item": trace.item, "kind": kind, "sampling": SAMPLED[is_sampled], **found})
    drafter.close()
    say(f"{contender.name}: {share(units):.3f} of the drafted tokens stand")
    return units


def _target(name: str) -> Target:
    if name == "tiny":
        return Target(name, TargetTokenizer((model_path(name) / "tokenizer.json").read_bytes()), (0,))
    text = GgufText(model_file(name, "*.gguf"))
    return Target(name, TargetTokenizer(text.tokenizer_json), text.eos_ids)


def _drafter(contender: Contender, model: ModelDrafter, factory: LlamaCppFactory, target: Target) -> Drafter:
    if contender.way == IDS:
        return model
    own: DraftTokenizer = factory.tokenizer()
    if contender.way == FEWER:
        own = TrimmedTokenizer(read_metadata(model_file(contender.draft, "*.gguf")), TRIMMED)
    return ByTextDrafter(ModelText(model, own), target.tokenizer, target.eos_ids)


def follow(drafter: Drafter, trace: ItemTrace, sampler: Sampler, passes: Passes) -> dict[str, int]:
    """Draft blocks while the target writes what it wrote."""
    drafter.begin(trace.prompt_ids, sampler)
    while drafter.read(512):
        pass
    written, place, before = trace.target_ids, 0, passes.count
    found = Counter[str](tokens=len(written))
    while place < len(written):
        block = [token.id for token in islice(drafter.propose(), min(BLOCK, len(written) - place))]
        right = common_prefix(block, written[place:])
        found.update(verdicts=1, drafted=len(block), accepted=right)
        drafter.commit(written[place : place + right + 1])
        place += right + 1
    return {**found, "passes": passes.count - before}


if __name__ == "__main__":
    sys.exit(main())
