"""What a target needs of a device's memory is known before it is read; what does not fit is refused with numbers."""

import json
import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opensled.core.errors import UnsupportedModel, UsageError
from opensled.models.store import model_file, model_path
from opensled.process.host_memory import available_host_bytes
from tests.hypothesis_profiles import tried
from tests.tiny_models import random_model
from verify_server.engine.memory_plan import (
    GIB,
    MIN_KV,
    Demand,
    StoredTensor,
    Supply,
    Wish,
    list_tensors,
    loaded_size,
    plan_memory,
)
from verify_server.engine.torch import loading, memory_facts, torch_engine

# Llama 3.1 8B in bfloat16 on one card of 24 GiB, of which something is taken.
LLAMA = Demand(weights=int(14.96 * GIB), kv_token=131_072, graphs=GIB, scratch=GIB // 4)
CARD = Supply("cuda:0", 23 * GIB)
WISH = Wish(kv_tokens=0, context=131_072, dtype="bfloat16")


def test_what_is_left_goes_to_kv_but_for_a_part():
    plan = plan_memory(LLAMA, CARD, WISH)
    left = CARD.free - LLAMA.fixed
    assert 0.79 * left < plan.kv <= 0.8 * left
    assert plan.describe() == (
        "memory on cuda:0: weights 15.0 GiB, KV 5.4 GiB for 44,498 tokens, graphs 1.0 GiB, to compute in 0.2 GiB; "
        "23.0 GiB are free"
    )
    assert "graphs" not in plan_memory(LLAMA._replace(graphs=0), CARD, WISH).describe()


def test_as_many_tokens_as_are_asked_for_may_take_all_that_is_left():
    most = (CARD.free - LLAMA.fixed) // LLAMA.kv_token
    assert plan_memory(LLAMA, CARD, WISH._replace(kv_tokens=most)).kv_tokens == most
    with pytest.raises(UsageError, match=f"lower --kv-tokens to {most // 16 * 16} or less"):
        plan_memory(LLAMA, CARD, WISH._replace(kv_tokens=most + 1))


REFUSED = {
    "wide weights": (
        Supply("cuda", 8 * GIB),
        WISH._replace(dtype="float32"),
        "--dtype bfloat16",
        "tensor_parallel",
    ),
    "other cards": (
        Supply("cuda", 8 * GIB, 4),
        WISH,
        "up to 4 GPUs: --engine vllm --vllm tensor_parallel_size=4",
        "--dtype",
    ),
    "no room for a token": (Supply("cpu", LLAMA.fixed), WISH, "serve quantized weights", "--kv-tokens to"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_numbers_and_what_to_do(case):
    supply, wish, said, unsaid = REFUSED[case]
    with pytest.raises(
        UsageError, match=r"the target does not fit: .* needs 15\.0 GiB for weights"
    ) as raised:
        plan_memory(LLAMA, supply, wish)
    message = str(raised.value)
    assert said in message and unsaid not in message
    assert f"{supply.device} has" in message and "free" in message


@tried(200)
@given(
    st.builds(Demand, *[st.integers(0, 10**11)] * 4),
    st.integers(0, 10**12),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    st.sampled_from(["cpu", "cuda"]),
)
def test_a_plan_never_takes_more_than_there_is(demand, free, kv_tokens, context, device):
    try:
        plan = plan_memory(demand, Supply(device, free), Wish(kv_tokens, context, "float32"))
    except UsageError:
        assert free < demand.fixed + max(kv_tokens, MIN_KV) * demand.kv_token
        return
    assert demand.fixed + plan.kv <= free
    assert plan.kv_tokens == kv_tokens or MIN_KV <= plan.kv_tokens <= max(MIN_KV, 64 * context)


def test_weights_take_the_dtype_and_numbers_stay():
    assert loaded_size(StoredTensor("w", "BF16", 100, 200), 4) == 400
    assert loaded_size(StoredTensor("positions", "I64", 100, 800), 4) == 800


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3_moe"])
def test_the_weights_are_reckoned_to_the_byte(family, tmp_path):
    weights = loading.find_weights(str(random_model(family, tmp_path)))
    cpu = torch.device("cpu")
    network = loading.load_network(weights, cpu, torch.bfloat16)
    demand = memory_facts.memory_of(weights, cpu, torch.bfloat16, (0, 512), 64).demand
    held = {id(weight): weight.numel() * weight.element_size() for weight in network.parameters()}
    assert demand.weights == sum(held.values())
    engine = (
        torch_engine.load(str(tmp_path), "cpu", "bfloat16", 160, numerics="fast")
        if family == "llama"
        else None
    )
    if engine is not None:
        assert engine._model.memory.bytes_per_token() == demand.kv_token


def test_a_gguf_file_is_reckoned_as_it_is_dequantized():
    cpu = torch.device("cpu")
    weights = loading.find_weights(str(model_file("tiny", "*.gguf")))
    whole = loading.find_weights(str(model_path("tiny")))
    sizes = [
        memory_facts.memory_of(each, cpu, torch.float32, (0, 512), 64).demand.weights
        for each in (weights, whole)
    ]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.01)


def test_a_target_that_does_not_fit_is_not_read(tmp_path, monkeypatch):
    folder = random_model("llama", tmp_path)
    monkeypatch.setattr(memory_facts, "available_host_bytes", lambda: 50_000)
    monkeypatch.setattr(loading, "load_network", pytest.fail)
    with pytest.raises(UsageError, match="the target does not fit"):
        torch_engine.load(str(folder), "cpu", "float32")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        struct.pack("<Q", 1 << 60),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 9) + b'{"a": 1}}',
    ],
)
def test_a_damaged_file_is_no_crash(content, tmp_path):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UnsupportedModel, match="download them again"):
        list_tensors(tmp_path)


def test_heads_of_files_are_read_and_nothing_else(tmp_path):
    head = json.dumps(
        {"__metadata__": {}, "a": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}}
    ).encode()
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(struct.pack("<Q", len(head)) + head)
    assert list_tensors(tmp_path) == [StoredTensor("a", "F16", 6, 12)]


def test_copies_of_files_count_as_free_and_a_container_ends_at_its_limit(tmp_path):
    (tmp_path / "meminfo").write_text("MemFree: 100 kB\nMemAvailable: 4000000 kB\n")
    assert available_host_bytes(tmp_path / "meminfo", tmp_path) == 4_000_000 << 10
    (tmp_path / "memory.max").write_text("1000000000\n")
    (tmp_path / "memory.stat").write_text("anon 400000000\nfile 599000000\n")
    assert available_host_bytes(tmp_path / "meminfo", tmp_path) == 600_000_000
    assert available_host_bytes(tmp_path / "none", tmp_path / "none") > 0
    (tmp_path / "own").write_text("4:memory:/job\n3:cpu:/\n0::/service/x\n")
    for number, limit in ((500, "service/memory.max"), (300, "memory/job/memory.limit_in_bytes")):
        (tmp_path / limit).parent.mkdir(parents=True)
        (tmp_path / limit).write_text(f"{number}\n")
        assert available_host_bytes(tmp_path / "meminfo", tmp_path, tmp_path / "own") == number
