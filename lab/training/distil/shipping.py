"""From a checkpoint to the folder that OpenSLED ships: layers, graph, curve and a card with what was measured."""

import json
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

from transformers import LlamaForCausalLM

from lab.training.distil.agreement import Agreement, Answers, agreement, of_graph, of_model
from lab.training.distil.shipped_graph import write_graph
from lab.training.distil.shipped_layers import write_layers
from lab.training.distil.target_model import load_target
from opensled.core.files import write_whole
from opensled.models.draft_assembly import assemble_gguf
from opensled.models.draft_pull import LAYERS, transpose, unpack
from opensled.models.onnx_assembly import GRAPH, PLAN, assemble_onnx
from verify_server.text.gguf_text import GgufText

NAME = "smollm2-draft"
CURVE = "curve.jsonl"
CARD = Path(__file__).with_name("card.md")  # of the model, without figures
LICENCE = Path(__file__).resolve().parents[3] / "LICENSE"  # Apache 2.0, as the target's
THREADS = 2
MEASURED = "<!-- measured -->\n"  # where the figures go in the card


def ship(draft: LlamaForCausalLM, target: Path, run: Path, heldout: Path, folder: Path) -> None:
    """Write layers, graph, curve, licence, and a README.md with the figures to `folder`."""
    folder.mkdir(exist_ok=True)
    shutil.copyfile(LICENCE, folder / "LICENSE")
    with tempfile.TemporaryDirectory() as scratch:
        layers = Path(scratch) / "layers.gguf"
        write_layers(draft, layers, NAME)
        pack(layers, folder / LAYERS)
    write_graph(draft, GgufText(target).tokenizer_json, folder)
    (folder / CURVE).write_text((run / CURVE).read_text())
    measured = _measured(draft, target, run, heldout, folder)
    (folder / "README.md").write_text(CARD.read_text().replace(MEASURED, measured))


def pack(path: Path, packed: Path) -> None:
    """See `unpack`. Raises NotFound, UnsupportedModel."""
    write_whole(packed, zlib.compress(transpose(path, path.read_bytes(), back=False), 9))


def _measured(draft: LlamaForCausalLM, target: Path, run: Path, heldout: Path, folder: Path) -> str:
    rows = {"in float32": of_model(draft)}
    with tempfile.TemporaryDirectory() as name:
        made = Path(name)
        gguf = made / f"{NAME}.gguf"
        unpack(folder / LAYERS, made / "layers.gguf")
        assemble_gguf(made / "layers.gguf", target, gguf)
        assemble_onnx(folder, gguf, made)
        rows |= {
            "GGUF, as shipped": of_model(load_target(gguf)),
            "ONNX, as shipped": of_graph(made / GRAPH, THREADS),
        }
        table = "\n".join(_table(rows, heldout))
    sizes = {each: (folder / each).stat().st_size for each in (LAYERS, GRAPH, PLAN)}
    shipped = ", ".join(f"`{each}` {size:,} bytes" for each, size in sizes.items())
    return f"\nShipped: {shipped}.\n\n{table}\n\n{_curve(run / CURVE)}\n"


def _table(rows: dict[str, Answers], heldout: Path) -> Iterator[str]:
    shards = [heldout / f"{name}.npz" for name in ("greedy", "sampled")]
    found = {name: [agreement(answers, shard) for shard in shards] for name, answers in rows.items()}
    kinds = list(next(iter(found.values()))[0].by_kind)
    yield f"| file | {' | '.join(kinds)} | mean | 1 - TV |"
    yield "|---" * (len(kinds) + 3) + "|"
    for name, (greedy, sampled) in found.items():
        yield f"| {name} | {' | '.join(_shares(greedy))} | {greedy.mean:.3f} | {sampled.overlap:.3f} |"


def _shares(found: Agreement) -> list[str]:
    return [f"{share:.3f}" for share in found.by_kind.values()]


def _curve(path: Path) -> str:
    """The learning curve as a table of some ten points."""
    points = [json.loads(line) for line in path.read_text().splitlines()]
    step = max(1, len(points) // 10)
    shown = [*points[:-1:step], points[-1]]
    lines = ["| tokens trained on | agreement, mean over kinds | 1 - TV |", "|---|---|---|"]
    lines += [
        f"| {point['tokens']:,} | {point['agreement']:.3f} | {point['overlap']:.3f} |" for point in shown
    ]
    return "\n".join(lines)
