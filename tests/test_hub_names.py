"""Names on a hub, and what the names of GGUF files tell."""

from __future__ import annotations

import pytest

from opensled.models.hub_names import HubName, choose_model, gguf_models, parse
from opensled.models.model_pairs import PAIRS, pair_of


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen/Qwen3-0.6B", HubName("Qwen/Qwen3-0.6B")),
        ("org/x-GGUF:Q4_K_M", HubName("org/x-GGUF", "Q4_K_M")),
        ("org/x:a-file.gguf", HubName("org/x", "a-file.gguf")),
        ("tiny", None),
        ("models/x.gguf", None),
        ("models/pytorch_model.bin", None),
        ("../x", None),
        ("a/..", None),
        ("a/b/c", None),
        ("a/b..c", None),
        ("a--b/c", None),
        ("/a/b", None),
        ("a/b:", None),
        ("a/b:../c", None),
        ("a/b\n", None),
        ("ä/b", None),
    ],
)
def test_names(name, expected):
    assert parse(name) == expected
    assert expected is None or str(expected) == name


@pytest.mark.parametrize(
    ("file", "quant"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "Q4_1"),
        ("Llama-3.2-1B-Instruct-Q4_0_4_8.gguf", "Q4_0_4_8"),
        ("Llama-3.2-1B-Instruct-IQ3_M.gguf", "IQ3_M"),
        ("x-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("model-f16.gguf", "F16"),
        ("model-bf16-00001-of-00001.gguf", "BF16"),
        ("q8/Q8_0.GGUF", "Q8_0"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("llama-3.2-1b.gguf", "llama-3.2-1b"),
    ],
)
def test_the_quantization_in_a_files_name(file, quant):
    assert [model.quant for model in gguf_models([file])] == [quant]


def test_which_is_taken_first():
    names = [
        "a-f32.gguf",
        "a-q8_0.gguf",
        "a-q2_k.gguf",
        "a-q4_k_m.gguf",
        "mmproj-a-f16.gguf",
        "a.imatrix.gguf",
    ]
    models = gguf_models(names)
    assert [model.quant for model in models] == ["Q4_K_M", "Q8_0", "F32", "Q2_K"]
    assert choose_model(models, "") is models[0] and choose_model([], "") is None
    assert choose_model(models, "q2_K") is models[3] and choose_model(models, "a-q2_k.gguf") is models[3]
    assert choose_model(models, "Q3_K") is None


def test_a_split_model_counts_once_and_only_if_it_is_whole():
    parts = [f"b/x-q4_0-{n:05}-of-00003.gguf" for n in (3, 1, 2)]
    (model,) = gguf_models([*parts, "y-q8_0-00001-of-00002.gguf"])
    assert model.files == tuple(sorted(parts)) and model.stem == "x-q4_0"


def test_the_pairs_have_names_of_a_hub():
    for name, pair in PAIRS.items():
        assert parse(pair.target).choice and parse(pair.draft).choice and parse(name) is None
        assert pair_of(name) is not None and pair_of(pair.target) is not None
        assert pair_of(pair.target.partition(":")[0] + ":Q2_K") is not None
    assert pair_of("tiny") is None
