"""How often draft tokens stand on a real pair: rules `match` and `ratio` against the optimal coupling, by temperature.

    opensled pull smollm2
    python -m lab.benchmarks.coupling [--quick] [--positions N] [--out FOLDER]

The target is SmolLM2 in float32; the drafts are its 4-bit file (Q4_1), and that file made worse (Q4_0). All are
read at the same positions of texts that the 4-bit model wrote at temperature 0.8, as answers to the prompts of
`real_prompts.json`. Under `ratio` a token of the draft stands with probability sum(min(target, draft)), the
draft cut to the candidates that a device draws from (Leviathan et al. 2023, arXiv 2211.17192, section 3.4). Over the
whole vocabulary that is 1 - TV, which no rule exceeds. Under `match` it stands if both argmaxes over the shared noise
agree, counted over many noise keys.
"""

import itertools
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import torch
from transformers import PreTrainedModel

from lab.benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, say, table, write_json
from lab.testbed.plain_llama import plain_llama
from lab.testbed.provenance import SEED, provenance
from opensled.core.messages import ChatMessage
from opensled.core.noise import gumbel, noise_key
from opensled.core.sampling import DRAFT_CANDIDATES, most_likely, softmax
from opensled.models.llama import listen
from opensled.models.store import model_file
from verify_server.engine.torch import loading, selftest
from verify_server.text.gguf_text import GgufText

PROMPTS = Path(__file__).with_name("real_prompts.json")
KINDS = ("chat", "questions", "arithmetic", "translation")
TEMPERATURES = (0.3, 0.6, 0.8, 1.0)
ANSWER, CONTEXT = 40, 512  # tokens
KEYS = 24  # noise keys for each position
WORSE = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0


class Place(NamedTuple):
    """Logits after one prefix, each float64 [vocabulary]."""

    kind: str
    target: np.ndarray
    draft: np.ndarray


class Chances(NamedTuple):
    """Probabilities that the draft's token stands at a place."""

    match: float
    ratio: float
    optimal: float  # 1 - TV over the whole vocabulary


def chances(place: Place, temperature: float, noises: Sequence[np.ndarray]) -> Chances:
    """`noises`: Gumbel noise over the vocabulary, one for each key."""
    target, draft = softmax(place.target / temperature), softmax(place.draft / temperature)
    ids = most_likely(place.draft, DRAFT_CANDIDATES)
    cut = softmax(place.draft[ids] / temperature)
    agreed = [
        int((place.target / temperature + noise).argmax())
        == int(ids[(place.draft[ids] / temperature + noise[ids]).argmax()])
        for noise in noises
    ]
    return Chances(
        statistics.fmean(agreed),
        float(np.minimum(target[ids], cut).sum()),
        float(np.minimum(target, draft).sum()),
    )


def texts(path: Path, count: int) -> Iterator[tuple[str, list[int], int]]:
    """Kind, ids and length of the prompt of `count` answers."""
    text, prompts = GgufText(path), json.loads(PROMPTS.read_text())
    writer = _open(path)
    chosen = [
        (kind, prompt)
        for prompt_of_each in zip(*map(prompts.get, KINDS))
        for kind, prompt in zip(KINDS, prompt_of_each)
    ]
    for kind, prompt in chosen[:count]:
        ids = list(text.render([ChatMessage("user", prompt["ask"])]))
        written = writer.generate(ids, temp=0.8, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0)
        yield kind, ids + list(itertools.islice(written, ANSWER)), len(ids)


def _open(path: Path) -> llama_cpp.Llama:
    return plain_llama(path, n_ctx=CONTEXT, seed=SEED, n_threads=2)


def _places(network: PreTrainedModel, draft: llama_cpp.Llama, written: Sequence[Any]) -> Iterator[Place]:
    for kind, ids, start in written:
        with torch.inference_mode(), selftest.attending_by(network, "eager"):
            target = network(input_ids=torch.tensor([ids]), use_cache=False).logits[0, start - 1 : -1]
        draft.reset()
        draft.eval(ids)
        for row, own in zip(target.double().numpy(), draft.scores[start - 1 : len(ids) - 1].astype(float)):
            yield Place(kind, row, own)


def measure(path: Path, positions: int) -> dict[str, Any]:
    """Mean chances by pair, kind and temperature."""
    listen()
    network = loading.load_network(loading.find_weights(str(path)), torch.device("cpu"), torch.float32)
    written = list(texts(path, positions // ANSWER))
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, file in (("Q4_1", path), ("Q4_0", _quantized(path, Path(folder) / "q4_0.gguf"))):
            result[name] = _pair(network, _open(file), written, name)
    return result


def _pair(
    network: PreTrainedModel, draft: llama_cpp.Llama, written: Sequence[Any], name: str
) -> dict[str, Any]:
    found: dict[tuple[str, float], list[Chances]] = {}
    greedy: dict[str, list[bool]] = {}
    for number, place in enumerate(_places(network, draft, written)):
        greedy.setdefault(place.kind, []).append(bool(place.target.argmax() == place.draft.argmax()))
        ids = np.arange(len(place.target))
        noises = [gumbel(noise_key(key), number, ids) for key in range(KEYS)]
        for temperature in TEMPERATURES:
            found.setdefault((place.kind, temperature), []).append(chances(place, temperature, noises))
        if number % 40 == 39:
            say(f"{name}: {number + 1} positions")
    return {
        kind: {
            "positions": len(greedy[kind]),
            "0": {"match": statistics.fmean(greedy[kind])},
            **{
                str(temperature): {
                    rule: round(statistics.fmean(values), 4)
                    for rule, values in zip(Chances._fields, zip(*found[kind, temperature]))
                }
                for temperature in TEMPERATURES
            },
        }
        for kind in greedy
    }


def _quantized(source: Path, path: Path) -> Path:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = WORSE, True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(path).encode(), params):
        raise RuntimeError(f"llama.cpp cannot quantize {source}")
    return path


def _tell(pairs: dict[str, Any]) -> None:
    rows = [
        [pair, kind, temperature, *(f"{cell[rule]:.3f}" if rule in cell else "" for rule in Chances._fields)]
        for pair, kinds in pairs.items()
        for kind, cells in kinds.items()
        for temperature, cell in cells.items()
        if temperature != "positions"
    ]
    print("\n".join(table(["draft", "kind", "T", *Chances._fields], rows)))


def main() -> int:
    parser = parser_of("coupling", __doc__)
    parser.add_argument("--positions", type=int, default=640, help="positions in all; default 640")
    add_quick_and_out(parser)
    arguments = parser.parse_args()
    positions = 160 if arguments.quick else arguments.positions
    origin = provenance(f"python -m lab.benchmarks.coupling --positions {positions}")
    pairs = measure(model_file("smollm2", "*.gguf"), positions)
    if folder := folder_of(arguments):
        facts = {"figure": "coupling", "label": "real", "keys": KEYS, "pairs": pairs}
        write_json(folder / "coupling.json", facts | {"provenance": origin})
    _tell(pairs)
    return 0


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
