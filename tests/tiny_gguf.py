"""Random-weight GGUF files of a few thousand parameters, one per family, for tests of the llama.cpp engine."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from lab.training.export_gguf import write_gguf
from opensled.models.store import model_path
from tests.tiny_drafts import TOKENIZER_JSON

WIDTH, HEADS, KV_HEADS, HEAD, FFN, LAYERS, CONTEXT = 48, 4, 2, 16, 80, 2, 512
WINDOW = 24  # positions that gemma2's sliding layers see
STATE, INNER = 8, 96  # of mamba
VOCABULARY = 2048  # the tiny family's

Shapes = Iterator[tuple[str, tuple[int, ...]]]


def random_gguf(
    family: str, path: Path, seed: int = 0, pre: str = "qwen2", spoiled: int | None = None
) -> Path:
    """Writes a model of `family` with the tiny family's tokenizer, split as `pre`; the same for the same seed.

    `spoiled`: an id whose embedding is no number, while its logits are as ever.
    """
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    _ARCHITECTURES[family][0](writer)
    add_tokenizer(writer, pre)
    chance = np.random.default_rng(seed)
    for name, shape in _ARCHITECTURES[family][1]():
        spread = 1.0 if name.endswith("norm.weight") else 0.2  # attention must matter enough to change tokens
        tensor = (chance.normal(size=shape) * spread).astype(np.float32)
        if spoiled is not None and name == "token_embd.weight":
            writer.add_tensor("output.weight", tensor.copy())
            tensor[spoiled] = np.nan
        writer.add_tensor(name, tensor)
    save(writer)
    return path


def save(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    """The tiny family's byte-level BPE, from its tokenizer.json."""
    saved = json.loads(TOKENIZER_JSON)
    pieces = sorted(saved["model"]["vocab"], key=saved["model"]["vocab"].get)
    special = {token["content"] for token in saved["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(pieces)
    writer.add_token_types([3 if piece in special else 1 for piece in pieces])
    writer.add_token_merges([" ".join(merge) for merge in saved["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def _attention(writer: gguf.GGUFWriter, kv_heads: int = KV_HEADS) -> None:
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-5)


def _gemma2(writer: gguf.GGUFWriter) -> None:
    _attention(writer)
    writer.add_sliding_window(WINDOW)
    writer.add_attn_logit_softcapping(20.0)
    writer.add_final_logit_softcapping(30.0)


def _mamba(writer: gguf.GGUFWriter) -> None:
    writer.add_feed_forward_length(0)
    writer.add_head_count(0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_ssm_conv_kernel(4)
    writer.add_ssm_inner_size(INNER)
    writer.add_ssm_state_size(STATE)
    writer.add_ssm_time_step_rank(4)


def _t5(writer: gguf.GGUFWriter) -> None:
    _attention(writer, HEADS)
    writer.add_layer_norm_eps(1e-5)
    writer.add_relative_attn_buckets_count(8)
    writer.add_decoder_start_token_id(0)


def _ends() -> Shapes:
    yield "token_embd.weight", (VOCABULARY, WIDTH)
    yield "output_norm.weight", (WIDTH,)


def _llama_tensors() -> Shapes:
    yield from _ends()
    for layer in range(LAYERS):
        yield from _block(f"blk.{layer}.")


def _block(at: str) -> Shapes:
    yield at + "attn_norm.weight", (WIDTH,)
    yield at + "attn_q.weight", (HEADS * HEAD, WIDTH)
    yield at + "attn_k.weight", (KV_HEADS * HEAD, WIDTH)
    yield at + "attn_v.weight", (KV_HEADS * HEAD, WIDTH)
    yield at + "attn_output.weight", (WIDTH, HEADS * HEAD)
    yield at + "ffn_norm.weight", (WIDTH,)
    yield at + "ffn_gate.weight", (FFN, WIDTH)
    yield at + "ffn_up.weight", (FFN, WIDTH)
    yield at + "ffn_down.weight", (WIDTH, FFN)


def _gemma2_tensors() -> Shapes:
    yield from _llama_tensors()
    for layer in range(LAYERS):
        yield f"blk.{layer}.post_attention_norm.weight", (WIDTH,)
        yield f"blk.{layer}.post_ffw_norm.weight", (WIDTH,)


def _mamba_tensors() -> Shapes:
    yield from _ends()
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        yield at + "attn_norm.weight", (WIDTH,)
        yield at + "ssm_in.weight", (2 * INNER, WIDTH)
        yield at + "ssm_conv1d.weight", (INNER, 4)
        yield at + "ssm_conv1d.bias", (INNER,)
        yield at + "ssm_x.weight", (4 + 2 * STATE, INNER)
        yield at + "ssm_dt.weight", (INNER, 4)
        yield at + "ssm_dt.bias", (INNER,)
        yield at + "ssm_a", (INNER, STATE)
        yield at + "ssm_d", (INNER,)
        yield at + "ssm_out.weight", (WIDTH, INNER)


def _t5_tensors() -> Shapes:
    yield "token_embd.weight", (VOCABULARY, WIDTH)
    for side in ("enc", "dec"):
        yield f"{side}.output_norm.weight", (WIDTH,)
        for layer in range(LAYERS):
            yield from _t5_block(f"{side}.blk.{layer}.", side)


def _t5_block(at: str, side: str) -> Shapes:
    yield at + "attn_rel_b.weight", (8, HEADS)
    for part in ("attn", "cross_attn")[: 2 if side == "dec" else 1]:
        yield at + f"{part}_norm.weight", (WIDTH,)
        for name in ("q", "k", "v"):
            yield at + f"{part}_{name}.weight", (HEADS * HEAD, WIDTH)
        yield at + f"{part}_o.weight", (WIDTH, HEADS * HEAD)
    yield at + "ffn_norm.weight", (WIDTH,)
    yield at + "ffn_gate.weight", (FFN, WIDTH)
    yield at + "ffn_up.weight", (FFN, WIDTH)
    yield at + "ffn_down.weight", (WIDTH, FFN)


_ARCHITECTURES = {
    "llama": (_attention, _llama_tensors),
    "gemma2": (_gemma2, _gemma2_tensors),
    "mamba": (_mamba, _mamba_tensors),
    "t5": (_t5, _t5_tensors),
}
SPM_WORDS = (
    "▁the",
    "▁th",
    "he",
    "▁t",
    "th",
    "in",
    "▁in",
    "ing",
    "▁a",
    "an",
    "▁an",
    "er",
    "▁▁",
    "é",
    "你",
    "你好",
    "ter",
)


def sentencepiece_gguf(path: Path, prefix=True, template="", name="", more=(), add_bos=True) -> Path:
    """A random llama with a SentencePiece vocabulary: control tokens, bytes, characters and words by score.

    `more`: further tokens with their types.
    """
    more = dict(more)
    characters = sorted({*"▁abcdefghijklmnopqrstuvwxyzT.,!0123456789é你好"})
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    pieces += [word for word in SPM_WORDS if word not in pieces]
    types = [2, 3, more.get("</s>", 3), *[6] * 256, *[1] * (len(pieces) - 259)]
    types += [kind for piece, kind in more.items() if piece not in pieces]
    pieces += [piece for piece in more if piece not in pieces]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(pieces) - 259)][::-1]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    _attention(writer)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(pieces)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(prefix)
    writer.add_add_bos_token(add_bos)
    if name:
        writer.add_name(name)
    if template:
        writer.add_chat_template(template)
    chance = np.random.default_rng(0)
    for name, shape in _llama_tensors():
        shape = (len(pieces), WIDTH) if name == "token_embd.weight" else shape
        writer.add_tensor(name, chance.normal(size=shape).astype(np.float32))
    save(writer)
    return path


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "tiny-q8_0.gguf"
    write_gguf(model_path("tiny"), path, "Q8_0")
    return path


@pytest.fixture
def source(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(stored, tmp_path / "tiny-q8_0.gguf"))
