"""GGUF files that engine torch refuses by name, and how it serves one that it takes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from opensled.core.errors import NotFound, OpenSledError, UnsupportedModel, VocabularyMismatch
from opensled.models import gguf_file
from opensled.models.gguf_file import read_metadata
from opensled.models.llama import LlamaModel
from opensled.models.store import model_file
from tests.gguf_zoo import VOCABULARY, Zoo, quantize, write
from tests.tiny_drafts import TOKENIZER_JSON
from tests.tiny_gguf import add_tokenizer, random_gguf, save
from verify_server.engine.base import Segment
from verify_server.engine.torch import gguf_model, torch_engine
from verify_server.options.serve_config import ServeConfig
from verify_server.start import load_target
from verify_server.text.gguf_ends import ROLES, SPELLINGS, eos_ids

LLAMA = Zoo()
LOADED = ServeConfig(threads=1, kv_tokens=256)


def keyed(**keys: int | float | str) -> Zoo:
    """A llama with more keys; two underscores stand for a dot."""
    return dataclasses.replace(LLAMA, keys={key.replace("__", "."): value for key, value in keys.items()})


def refused(path: Path, said: str) -> None:
    with pytest.raises(UnsupportedModel, match=said) as caught:
        torch_engine.load(str(path), kv_tokens=64)
    assert str(path.parent) in str(caught.value)


# Refusals


def made(zoo: Zoo = LLAMA, **changes: str) -> Callable[[Path], object]:
    return lambda path: write(path, zoo, **changes)


def cut(part: float) -> Callable[[Path], object]:
    """In the middle of its weights."""
    return lambda path: path.write_bytes((whole := write(path, LLAMA).read_bytes())[: int(part * len(whole))])


def without_keys(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, "qwen2")
    writer.add_tensor("output_norm.weight", np.ones(4, np.float32))
    save(writer)


def one_of_two_parts(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint16("split.count", 2)
    save(writer)


NORM = "output_norm.weight"
# What makes the file, and what is said of it.
REFUSED = [
    (lambda path: random_gguf("mamba", path), "architecture 'mamba'.*qwen2.*--engine llamacpp"),
    (made(keyed(rope__scaling__type="yarn", rope__scaling__factor=4.0)), r"scales its RoPE \(yarn\)"),
    (made(keyed(rope__dimension_count=12)), r"rotates a part of its heads \(0.50\)"),
    (made(keyed(attention__value_length=48)), "values of another length"),
    (made(keyed(expert_count=4, expert_used_count=2)), r"sets llama\.expert_count"),
    (made(keyed(attention__sliding_window=12)), r"sets llama\.attention\.sliding_window"),
    (made(keyed(attention__head_count=0)), "states what no llama can have"),
    (made(keyed(attention__head_count=5)), "states what no llama can have"),
    (made(Zoo("gemma3")), "states no sliding window"),
    *[
        (made(left_out=name), f"lacks {name}; download it again")
        for name in ("token_embd.weight", NORM, "blk.1.attn_k.weight")
    ],
    (without_keys, r"lacks llama\.context_length; download it again"),
    (made(added="blk.0.attn_q.scale"), r"holds blk\.0\.attn_q\.scale, which no llama here has"),
    # Of one number, which torch would spread over all that belong there
    (made(left_out=NORM, added=NORM), r"holds output_norm\.weight as \(4,\), not as \(64,\)"),
    (cut(0.6), "ends in the middle of .*; download it again"),
    (cut(0.999), "ends in the middle of .*; download it again"),
    (lambda path: path.write_bytes(b"PK\3\4" + bytes(99)), "is not a readable GGUF file"),
    (lambda path: path.write_bytes(b"GGUF\3\0\0\0"), "download it again"),
    (one_of_two_parts, "is a part of a model only"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_a_file_that_would_be_read_wrongly_is_refused_by_name(make, said, tmp_path):
    make(tmp_path / "a.gguf")
    refused(tmp_path / "a.gguf", said)


def test_a_key_that_says_none_of_it_changes_nothing(tmp_path):
    path = write(tmp_path / "a.gguf", keyed(expert_count=0, rope__scaling__type="none"))
    assert torch_engine.load(str(path), numerics="fast", kv_tokens=64).info.vocab_size == VOCABULARY


@pytest.mark.parametrize(("kind", "said"), [("Q1_0", "holds Q1_0"), ("Q2_0", "holds (type 42|Q2_0)")])
def test_a_quantization_type_that_gguf_cannot_dequantize(kind, said, tmp_path):
    source = write(tmp_path / "a.gguf", dataclasses.replace(LLAMA, width=128, ffn=128, head=32))
    refused(quantize(source, tmp_path / "b.gguf", kind), f"{said}, which gguf .* cannot dequantize")


def test_a_folder_with_several_files(tmp_path):
    for name in ("a", "b"):
        write(tmp_path / f"{name}.gguf", LLAMA)
    with pytest.raises(NotFound, match=r"several \*\.gguf; name one by its path: a\.gguf, b\.gguf"):
        torch_engine.load(str(tmp_path))


# The engine


def test_the_engine_serves_a_file(tmp_path):
    write(tmp_path / "small.gguf", LLAMA)
    served = load_target.load_torch(dataclasses.replace(LOADED, model=str(tmp_path / "small.gguf")))
    assert served.model_id == "small"
    info = served.engine.info
    assert (info.vocab_size, info.context_length, info.eos_ids) == (VOCABULARY, 256, (0,))
    assert (info.numerics, info.dtype) == ("exact", "float32")
    prompt = served.text.encode("Turn on the kitchen light.")
    scores = served.engine.forward([Segment(prompt, 0, (3,), 2)])
    assert scores.logits.shape == (2, VOCABULARY)
    (tmp_path / "config.json").write_text("{}")  # as repositories of GGUF files have it
    folder = dataclasses.replace(LOADED, model=str(tmp_path))
    again = load_target.load_torch(folder).engine.forward([Segment(prompt, 0, (3,), 2)])
    assert np.array_equal(again.logits, scores.logits)


def test_another_models_tokenizer_beside_the_file(tmp_path):
    path = write(tmp_path / "a.gguf", LLAMA, pieces=("a", "b", "ab", *(f"<{id}>" for id in range(5))))
    (tmp_path / "tokenizer.json").write_bytes(TOKENIZER_JSON)
    with pytest.raises(VocabularyMismatch, match="spells its ids otherwise than the model"):
        load_target.load_torch(dataclasses.replace(LOADED, model=str(path), numerics="fast"))


def test_whether_a_file_is_wide(tmp_path):
    path = write(tmp_path / "a.gguf", LLAMA)
    assert gguf_model.is_wide(path)
    assert not gguf_model.is_wide(quantize(path, tmp_path / "b.gguf", "BF16"))


# The ends


def ended(path: Path, special: list[str], **ids: int) -> Path:
    """A llama with those special tokens from id 3 on; `ids` have a role."""
    roles = {f"tokenizer.ggml.{role}_token_id": id for role, id in ids.items()}
    return write(path, dataclasses.replace(LLAMA, keys=roles), pieces=("a", "b", "ab", *special))


def test_an_eot_beside_the_eos_ends_an_answer_too(tmp_path):
    path = ended(tmp_path / "a.gguf", ["<s>", "END", "TURN", "MORE"], eos=4, eot=5)
    assert torch_engine.load(str(path), numerics="fast", kv_tokens=64).info.eos_ids == (4, 5)
    assert LlamaModel(path).eos_ids() == (4, 5)


ONE_ROLE = [spelling for others in ROLES.values() for spelling in sorted(others)]


@pytest.mark.parametrize(
    "special",
    [
        *([spelling] for spelling in ONE_ROLE),
        sorted(SPELLINGS),
        *(sorted(SPELLINGS - less) for less in ({"<|return|>", "<|flush|>"}, {"<|call|>", "<|calls|>"})),
        *(sorted(SPELLINGS - {less}) for less in ("<|return|>", "<|calls|>", "<|tool_response>")),
        ["<|im_start|>", "<|eot|>", "<unk>", "<|begin_of_text|>", "<|fim_middle|>", "<pad>"],
    ],
    ids=lambda special: special[0],
)
def test_the_ends_are_llama_cpps(special, tmp_path):
    path = ended(tmp_path / "a.gguf", ["<s>", *special], eos=3)
    assert eos_ids(read_metadata(path)) == LlamaModel(path).eos_ids()


def test_an_architecture_that_llama_cpp_does_not_know(tmp_path):
    path = tmp_path / "a.gguf"
    path.write_bytes(model_file("tiny", "*.gguf").read_bytes().replace(b"llama", b"xlama", 1))
    with pytest.raises(
        UnsupportedModel, match=r"has architecture 'xlama', which this llama\.cpp does not know"
    ):
        LlamaModel(path)


# The choice of an engine


SAFE = ("config.json", "model.safetensors")


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Which engine `load_target.load` takes for a model, if only some modules are installed."""

    def choose(model: str, *installed: str) -> str:
        monkeypatch.setattr(load_target, "find_spec", lambda name: name if name in installed else None)
        monkeypatch.setattr(load_target, "load_torch", lambda config, host: "torch")
        monkeypatch.setattr(load_target, "load_llamacpp", lambda config: "llamacpp")
        return load_target.load(ServeConfig(model=model))

    return choose


@pytest.mark.parametrize(
    ("files", "installed", "engine", "said"),
    [
        (("a.gguf",), ("torch", "llama_cpp"), "llamacpp", True),
        (("a.gguf",), ("torch",), "torch", True),
        (("a.gguf",), ("llama_cpp",), "llamacpp", True),
        (SAFE, ("torch", "llama_cpp"), "torch", False),
        ((*SAFE, "a.gguf"), ("torch", "llama_cpp"), "torch", False),
        ((*SAFE, "a.gguf"), ("llama_cpp",), "llamacpp", True),
    ],
)
def test_auto_takes_what_suits_the_files_and_is_installed(
    files, installed, engine, said, chosen, tmp_path, capsys
):
    for file in files:
        (tmp_path / file).write_bytes(b"GGUF")
    assert chosen(str(tmp_path), *installed) == engine
    line = f"engine {engine} serves {tmp_path}; --engine chooses another\n" if said else ""
    assert capsys.readouterr() == ("", line)


def test_auto_takes_a_file_as_its_folder(chosen, tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    assert chosen(str(tmp_path / "a.gguf"), "torch", "llama_cpp") == "llamacpp"


def test_a_hub_id_goes_to_torch(chosen, capsys):
    assert chosen("Qwen/Qwen3-0.6B", "torch", "llama_cpp") == "torch"
    assert capsys.readouterr().err == ""


SERVED = "served are a GGUF file, a folder with one, or a folder with config.json and"


@pytest.mark.parametrize(
    ("model", "files", "said"),
    [
        ("gone.gguf", (), r"gone\.gguf is missing: there is no such file or folder; models here: tiny"),
        ("sub/gone", (), "sub/gone is missing"),
        (
            "a.bin",
            ("a.bin",),
            f"a\\.bin holds pickled weights, which can run code and are never opened; {SERVED}",
        ),
        ("a.pt", ("a.pt",), "pickled"),
        ("a.onnx", ("a.onnx",), f"holds ONNX, which only drafts .*; {SERVED}"),
        ("a.gguf", ("a.gguf",), "it does not begin with GGUF; download it again"),
        ("model.safetensors", ("model.safetensors",), "is a part of a model; give its folder: "),
        ("", ("notes.md",), f"holds no model; {SERVED}"),
        ("", ("model.safetensors",), "no config.json"),
        ("", ("config.json", "pytorch_model.bin"), "pickled weights are never opened"),
    ],
)
def test_what_is_no_model_is_named_before_a_library_is_asked_for(
    model, files, said, chosen, tmp_path, capsys
):
    for file in files:
        (tmp_path / file).write_bytes(b"junk")
    for installed in (("torch", "llama_cpp"), ("llama_cpp",), ()):
        with pytest.raises(OpenSledError, match=said):
            chosen(str(tmp_path / model), *installed)
    assert capsys.readouterr().err == ""


def test_without_torch_safetensors_say_what_they_need(chosen, tmp_path, capsys):
    for file in SAFE:
        (tmp_path / file).write_bytes(b"junk")
    with pytest.raises(
        UnsupportedModel, match=r"holds safetensors, which need engine torch: .* --editable .*\[server\]"
    ):
        chosen(str(tmp_path), "llama_cpp")
    with pytest.raises(
        NotFound, match=r"run: opensled pull Qwen/Qwen3-0\.6B, or another repository with GGUF files"
    ):
        chosen("Qwen/Qwen3-0.6B", "llama_cpp")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("model", ["org/small-GGUF", "org/small-GGUF:Q4_K_M", "qwen2.5"])
def test_a_gguf_repository_that_was_not_pulled(model, chosen):
    with pytest.raises(NotFound, match=f"^{model} is not here; fetch it once: opensled pull {model} "):
        chosen(model, "torch", "llama_cpp")


def test_a_load_parses_the_file_once_and_a_changed_file_again(tmp_path, monkeypatch):
    parsed, parse = [], gguf_file._head

    def counted(reader):
        parsed.append(reader)
        return parse(reader)

    monkeypatch.setattr(gguf_file, "_head", counted)
    path = write(tmp_path / "a.gguf", LLAMA)
    load_target.load_torch(dataclasses.replace(LOADED, model=str(path), numerics="fast"))
    assert len(parsed) == 1
    write(path, keyed(rope__freq_base=123.0))
    assert read_metadata(path)["llama.rope.freq_base"] == 123.0
