"""Files and folders that people give as a model: what is said of those that are none, and which file is taken."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from opensled.core.errors import OpenSledError
from opensled.models.model_kind import is_gguf
from opensled.models.store import model_file

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 4711\n"
PAPERS = {
    "lora": {"base_model_name_or_path": "org/base"},
    "bert": {"architectures": ["BertModel"]},
    "rank": {"architectures": ["XLMRobertaForSequenceClassification"]},
    "t5": {"is_encoder_decoder": True},
    "mlx": {"quantization": {"bits": 4}, "quantization_config": {"bits": 4}},
    "exl2": {"quantization_config": {"quant_method": "exl2"}},
    "index": {"weight_map": {"a": "model-00001-of-00002.safetensors"}},
}
# What is given ("." = the folder) in a folder of files, each with its content: what is said, or "=" and what is taken
GIVEN = """
mm.gguf | x.gguf=llama mm.gguf=clip/mmproj | projector .* give the model's own GGUF file \\(x.gguf\\)
. | x-Q8_0.gguf=llama mmproj-f16.gguf=clip/mmproj | =x-Q8_0.gguf
. | mmproj-f16.gguf=clip/mmproj | projector
. | x-F16.gguf=llama x-Q4_K_M.gguf=llama x-Q8_0.gguf=llama x-MTP-Q4_K_M.gguf=llama | =x-Q4_K_M.gguf
. | x-1b-Q4_K_M.gguf=llama x-3b-Q4_K_M.gguf=llama | has several
lora.gguf | lora.gguf=llama/adapter | is an adapter \\(LoRA\\)
imatrix.gguf | imatrix.gguf=/imatrix | statistics for quantizing
x.gguf | x.gguf=llama/0 | is damaged: it says that it has 0 layers
. | x.gguf=llama/513 | is damaged: it says that it has 513 layers
x.gguf | x.gguf=llama/2147483647 | is damaged: it says that it has 2147483647 layers
x.gguf | x.gguf=llama/+2 | is damaged: it uses 2 of 0 experts
x.gguf | x.gguf=llama/@block_count:513 | is damaged: it says that it has 513 layers
x.gguf | x.gguf=llama/@expert_used_count:2 | is damaged: it uses 2 of 0 experts
. | x.gguf=llama/@attention.layer_norm_rms_epsilon:-1.0 | 'llama.attention.layer_norm_rms_epsilon' is -1.0
x.gguf | x.gguf=llama/@attention.layer_norm_epsilon:.nan | 'llama.attention.layer_norm_epsilon' is nan
x.gguf | x.gguf=llama/@context_length:7 | 'llama.context_length' is 7
x.gguf | x.gguf=llama/@context_length:64 | =x.gguf
. | x.gguf=llama/~blk.0.attn_norm.weight | 'blk.0.attn_norm.weight' is empty, or not of 32-bit floats
v.gguf | v.gguf=llama/-0 | a vocabulary without weights
e.gguf | e.gguf=nomic-bert | a model for embeddings or ranking
e.gguf | e.gguf=qwen3/-pooling | a model for embeddings or ranking
f.gguf | f.gguf=flux | pictures or sound
f.gguf | f.gguf=sd3 | pictures or sound
Modelfile | Modelfile=FROM x.gguf=llama | give the file or name behind its FROM
f.gguf | f.gguf=stranger | pictures or sound
. | model_index.json={} config.json={} x.safetensors=x | for diffusers
. | config.json={} adapter_config.json=lora adapter_model.safetensors=x optimizer.pt=x | is an adapter \\(LoRA\\)
x.gguf.part1of2 | x.gguf.part1of2=x | join all parts
. | x.gguf.part1of2=x x.gguf.part2of2=x | join all parts
x.gguf-split-a | x.gguf-split-a=x | join all parts
m-00001-of-00002-Q4_K_M.gguf | m-00001-of-00002-Q4_K_M.gguf=llama | rename all parts
. | m-00001-of-00002-Q4_K_M.gguf=llama m-00002-of-00002-Q4_K_M.gguf=llama | rename all parts
a.gguf | a.gguf=<html> | is a web page
. | tokenizer.json={} tokenizer_config.json={} | has no weights, only what belongs to them
. | adapter_config.json=lora adapter_model.safetensors=x | is an adapter \\(LoRA\\) of org/base
adapter_model.safetensors | adapter_config.json=lora adapter_model.safetensors=x | is an adapter \\(LoRA\\) of org/base
. | config.json=bert model.safetensors=x | embeddings, ranking or sorting
. | config.json=rank model.safetensors=x | embeddings, ranking or sorting
. | params.json={} consolidated.00.pth=x tokenizer.model=x | Meta's own form
. | modules.json={} config.json={} model.safetensors=x | embeddings, ranking or sorting
. | config.json=mlx model.safetensors=x | MLX
. | config.json=t5 model.safetensors=x | has an encoder beside its decoder
. | config.json={} openvino_model.bin=x openvino_model.xml=x | holds OpenVINO
. | config.json={} x.litertlm=x | for phones \\(LiteRT
x.bin | x.bin=lmgg | is GGML, older than GGUF
ggml-x.bin | ggml-x.bin=x | holds GGML
latest | latest={"schemaVersion":2} | is Ollama's list of a model's files
. | a/config.json={} a/model.safetensors=x | give .*/a
. | config.json=exl2 output.safetensors=x | ExLlama
. | config.json={} model.safetensors.index.json=index | model-00001-of-00002.safetensors, .* is missing
. | config.json={} m-00001-of-00002.safetensors=x | m-00002-of-00002.safetensors is missing
. | config.json={} m-00001-of-00001.safetensors=x | no model.safetensors.index.json
. | config.json={} onnx/model.onnx=x | holds ONNX, which only drafts
. | config.json={} pytorch_model.bin=x | pickled weights are never opened
. | x.gguf=lfs | x.gguf is a pointer of git-lfs, .* git lfs pull
. | x.gguf=lfs y.gguf=llama | =y.gguf
. | config.json={} tokenizer.json=lfs model.safetensors=x | tokenizer.json is a pointer of git-lfs
x.onnx | x.onnx=lfs | is a pointer of git-lfs
. | x-00001-of-00002.gguf=llama x-00002-of-00002.gguf=llama | =x-00001-of-00002.gguf
x-00002-of-00002.gguf | x-00001-of-00002.gguf=llama x-00002-of-00002.gguf=llama | =x-00001-of-00002.gguf
. | x-00001-of-00002.gguf=llama | x-00002-of-00002.gguf is missing beside it
x-00001-of-00002.gguf | x-00001-of-00002.gguf=llama | x-00002-of-00002.gguf is missing beside it
x.gguf.part | x.gguf.part=x | is a download that has not ended
. | x.gguf.crdownload=x | x.gguf.crdownload is a download that has not ended
. | .cache/huggingface/download/x.incomplete=x | is a download that has not ended
. | Q4_K_M/x.gguf=llama | give .*/Q4_K_M
x.gguf | x.gguf=>gone | links to .*gone, which is gone
. | x.gguf=>gone | links to .*gone, which is gone
snapshots/c0 | blobs/1=llama snapshots/c0/x.gguf=>../../blobs/1 | =x.gguf
config.json | config.json={} | belongs to a model; give its folder
x.llamafile | x.llamafile=x | is packed; unpack it
sha256-00 | sha256-00=llama | =sha256-00
"""


def put(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    architecture, _, kind = content.partition("/")
    if content.startswith(">"):
        path.symlink_to(content[1:])
    elif (path.suffix == ".gguf" and content not in ("lfs", "<html>")) or "llama" in content:
        writer = gguf.GGUFWriter(path, architecture)
        if architecture not in ("flux", "stranger") and "block_count" not in kind:
            writer.add_uint32(f"{architecture}.block_count", int(kind) if kind.isdigit() else 1)
        if kind.startswith("@"):  # behind the vocabulary
            writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
            key, _, value = kind[1:].partition(":")
            (writer.add_float32 if "." in value else writer.add_uint32)(
                f"{architecture}.{key}", float(value.lstrip(".")) if "." in value else int(value)
            )
        elif kind.startswith("~"):
            writer.add_tensor(kind[1:], np.zeros(4, np.float16))
        elif kind.startswith("+"):
            writer.add_uint32(f"{architecture}.expert_used_count", int(kind))
        elif kind.startswith("-"):
            writer.add_uint32(f"{architecture}.pooling_type", 3 * (kind == "-pooling"))
        elif kind and not kind.isdigit():
            writer.add_type(kind)
        if kind != "-0":
            writer.add_tensor("a", np.zeros(4, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        path.write_text(
            LFS if content == "lfs" else json.dumps(PAPERS[content]) if content in PAPERS else content
        )


@pytest.mark.parametrize("row", GIVEN.strip().split("\n"))
def test_what_is_given_as_a_model(row, tmp_path):
    given, files, said = row.split(" | ")
    for file in files.split():
        name, _, content = file.partition("=")
        put(tmp_path / name, content)
    if said.startswith("="):
        assert is_gguf(tmp_path / given)
        assert model_file(str(tmp_path / given), "*.gguf").name == said[1:]
        return
    with pytest.raises(OpenSledError, match=said):  # of a server
        is_gguf(tmp_path / given) and model_file(str(tmp_path / given), "*.gguf")
    with pytest.raises(OpenSledError, match=said):  # of a device's draft
        model_file(str(tmp_path / given), "*.gguf")


def test_a_model_in_the_cache_of_the_hubs_own_tools(tmp_path):
    put(tmp_path / "refs/main", "c0")
    put(tmp_path / "snapshots/c0/x.gguf", "llama")
    assert model_file(str(tmp_path), "*.gguf") == tmp_path / "snapshots/c0/x.gguf"
