"""The graph of the draft's ONNX form without its numbers, and the plan by which a device fills them in.

The graph comes from onnxruntime-genai's model builder, as that of `tiny-draft`; its names say what each tensor is.
"""

import json
import tempfile
from pathlib import Path

import onnx
from transformers import LlamaForCausalLM

from lab.training.export import run_builder
from opensled.models.onnx_assembly import DATA, GRAPH, PLAN, GraphPiece

PRECISION = "int4"  # in blocks of 32, rounded without data
# Parts of the builder's names -> tensors of the GGUF file.
MATRICES = {
    "attn.qkv_proj": ("attn_q", "attn_k", "attn_v"),
    "attn.o_proj": ("attn_output",),
    "mlp.gate_proj": ("ffn_gate",),
    "mlp.up_proj": ("ffn_up",),
    "mlp.down_proj": ("ffn_down",),
    "input_layernorm": ("attn_norm",),
    "post_attention_layernorm": ("ffn_norm",),
}
ENDINGS = {".MatMul.weight_Q4": "quants", ".MatMul.weight_scales": "scales", ".weight": "float32"}
ROTATIONS = {"cos_cache": "cosines", "sin_cache": "sines"}


def write_graph(draft: LlamaForCausalLM, tokenizer_json: bytes, folder: Path) -> None:
    """Graph and plan into `folder`. Raises RuntimeError if the builder fails."""
    with tempfile.TemporaryDirectory() as name:
        made = _built(draft, tokenizer_json, Path(name))
        graph = onnx.load(made / GRAPH, load_external_data=False)
        model = json.loads((made / "genai_config.json").read_text())["model"]
    pieces = [
        _piece(tensor, draft.config.num_hidden_layers)
        for tensor in graph.graph.initializer
        if tensor.external_data
    ]
    onnx.save(graph, folder / GRAPH)
    found = [
        {"offset": each.offset, "bytes": each.bytes, "form": each.form, "tensors": each.tensors}
        for each in sorted(pieces, key=lambda piece: piece.offset)
    ]
    (folder / PLAN).write_text(json.dumps({"model": model, "pieces": found}, indent=1) + "\n")


def _built(network: LlamaForCausalLM, tokenizer_json: bytes, scratch: Path) -> Path:
    """What the builder makes of a model, in a folder of `scratch`."""
    source, made = scratch / "source", scratch / "made"
    network.save_pretrained(source)
    (source / "tokenizer.json").write_bytes(tokenizer_json)
    (source / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    run_builder(source, made, PRECISION)
    return made


def _piece(tensor: onnx.TensorProto, layers: int) -> GraphPiece:
    place = {entry.key: entry.value for entry in tensor.external_data}
    assert place["location"] == DATA, place
    where = int(place.get("offset", 0)), int(place["length"])
    if tensor.name in ROTATIONS:
        return GraphPiece(*where, ROTATIONS[tensor.name])
    ending = next(each for each in ENDINGS if tensor.name.endswith(each))
    return GraphPiece(*where, ENDINGS[ending], _tensors(tensor.name.removesuffix(ending), layers))


def _tensors(name: str, layers: int) -> tuple[str, ...]:
    """The GGUF names of what the builder calls `model.layers.N.PART` or `lm_head`."""
    if name == "lm_head":
        return ("token_embd.weight",)
    number, part = name.removeprefix("model.layers.").split(".", 1)
    if int(number) == layers:
        return ("output_norm.weight",)
    return tuple(f"blk.{number}.{each}.weight" for each in MATRICES[part])
