"""The probe at load finds shapes in which bits do not depend on the batch, and fails closed where there are none."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.tiny_models import by_rows, random_model
from tests.tiny_models import folder as folder
from verify_server.engine.base import Segment
from verify_server.engine.torch import geometry, loading, sdpa
from verify_server.engine.torch.packing import padded_rows
from verify_server.engine.torch.torch_engine import load

MOST = 96


def network(folder: Path, dtype: torch.dtype):
    return loading.load_network(loading.find_weights(str(folder)), torch.device("cpu"), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_a_level_that_is_called_exact_is(family, dtype, folder):
    """Each row of a chunk, by itself in a crowd, at both ends of a step: the bits of the text computed at once."""
    engine = load(str(folder(family)), "cpu", dtype, 64 * 16, numerics="exact", max_rows=MOST)
    text = [(37 * position) % 90 for position in range(MOST)]
    whole = engine.forward([Segment(tuple(text), 0, tuple(range(6)), MOST)]).logits
    for count in range(1, 20):
        start = 4 * count
        crowd = [
            Segment(tuple(text[:count]), 0, (20 + place, 40 + place), count) for place in range(count % 3)
        ]
        own = Segment(tuple(text[start : start + count]), start, tuple(range(6)), count)
        logits = engine.forward([*crowd, own]).logits
        assert torch.equal(logits[-count:], whole[start : start + count])
        if crowd:
            assert torch.equal(logits[:count], whole[:count])


@pytest.mark.parametrize(("border", "found"), [(3, 4), (10, 16), (30, 32)])
def test_the_smallest_multiple_that_holds_is_found(border, found, folder, monkeypatch):
    probed = network(folder("llama"), torch.float32)
    monkeypatch.setattr(nn.Linear, "forward", by_rows(border))
    shapes = geometry.find(probed, "sdpa", MOST)
    assert shapes is not None
    assert shapes.rows >= found


def test_a_kernel_that_changes_at_large_steps_only_is_noticed(folder, monkeypatch):
    """Up to 64 rows nothing depends on the batch; a step of 90 has other bits: only tiles of 64 hold."""
    probed = network(folder("llama"), torch.float32)
    head = probed.get_output_embeddings().weight.shape
    dependent = by_rows(90)
    monkeypatch.setattr(
        nn.Linear,
        "forward",
        lambda layer, inputs: (
            nn.functional.linear(inputs, layer.weight)
            if layer.weight.shape == head
            else dependent(layer, inputs)
        ),
    )
    shapes = geometry.find(probed, "sdpa", MOST)
    assert shapes is not None and shapes.tile == 64
    below = geometry.find(probed, "sdpa", 64)
    assert below is not None and below.rows <= 64


def test_a_kernel_for_every_number_of_rows_is_met_by_tiles(folder, monkeypatch):
    """No multiple holds; with tiles each product has one shape, and the level is exact all the same."""
    plain = nn.functional.linear

    def by_count(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        return plain(inputs, layer.weight, layer.bias) * (1 + 2**-20 * (inputs.shape[-2] % 61))

    monkeypatch.setattr(nn.Linear, "forward", by_count)
    engine = load(str(folder("llama")), "cpu", "float32", 64 * 16, max_rows=300)
    assert (engine.info.numerics, engine._model.geometry.tile) == ("exact", 16)
    text = tuple([(37 * position) % 90 for position in range(MOST)])
    whole = engine.forward([Segment(text, 0, tuple(range(6)), MOST)]).logits
    own = Segment(text[40:45], 40, tuple(range(6)), 5)
    other = Segment(text[:30], 0, (20, 21), 30)
    assert torch.equal(engine.forward([other, own]).logits, torch.cat([whole[:30], whole[40:45]]))


@pytest.mark.parametrize("queries", [11, 19, 43, 63])
def test_a_number_of_queries_that_a_kernel_computes_in_its_own_way_is_found(queries, folder, monkeypatch):
    """torch takes rows by 32 and a single row that is left by itself: pieces of 11 queries of 3 heads, with AMX."""
    plain, probed = sdpa.scaled_dot_product_attention, network(folder("llama"), torch.float32)
    config = probed.config
    folded = config.num_attention_heads // config.num_key_value_heads

    def by_count(rows, *tensors, **words):
        out = plain(rows, *tensors, **words)
        return out * (1 + 2**-20) if rows.shape[-2] == queries * folded else out

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", by_count)
    shapes = geometry.find(probed, "sdpa", MOST)
    assert shapes is not None and shapes.queries == 4


def test_where_nothing_holds_the_level_is_fast(folder, monkeypatch):
    plain, calls = sdpa.scaled_dot_product_attention, iter(range(10**9))

    def drifting(queries, *tensors, **words):
        return plain(queries, *tensors, **words) * (1 + 2**-20 * (next(calls) % 2))

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", drifting)
    assert load(str(folder("llama")), "cpu", "float32", 64 * 16, max_rows=MOST).info.numerics == "fast"


@pytest.mark.parametrize("multiple", geometry.ROWS)
def test_rows_are_padded_to_few_numbers_and_by_little(multiple):
    counts = {padded_rows(count, multiple) for count in range(1, 513)}
    assert counts == set(geometry._counts(multiple, 512))
    assert len(counts) <= 64
    assert all(count % multiple == 0 for count in counts)
    assert all(padded_rows(count, multiple) - count < max(multiple, 8, count / 4) for count in range(1, 513))


def test_a_processor_that_adds_neighbours_without_rounding_is_seen_through(folder, monkeypatch):
    """Products in bfloat16 are added in pairs: opposite neighbours left no rounding, and AMX passed for exact."""

    def by_pairs(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        products = inputs.double()[..., None, :] * layer.weight.double()
        pairs = products.unflatten(-1, (-1, 2)).sum(-1).float().unbind(-1)
        total = torch.zeros_like(pairs[0])
        for pair in pairs if inputs.shape[-2] < 10 else reversed(pairs):
            total = total + pair
        return total.to(inputs.dtype)

    probed = network(folder("llama"), torch.bfloat16)
    monkeypatch.setattr(nn.Linear, "forward", by_pairs)
    rows = geometry._rows_of(probed, 64)
    assert rows is not None and rows.rows == 16


def test_batches_of_one_matrix_are_computed_as_the_matrix(folder, monkeypatch):
    """Torch has other kernels for some of them, which no probe of the layers has met."""
    plain = nn.functional.linear

    def by_shape(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        odd = inputs.ndim > 2 and inputs.shape[-2] % 3 == 1
        return plain(inputs, layer.weight, layer.bias) * (1 + 2**-20 * odd)

    monkeypatch.setattr(nn.Linear, "forward", by_shape)
    assert load(str(folder("llama")), "cpu", "float32", 64 * 16, max_rows=MOST).info.numerics == "exact"


# The layers of SmolLM2: processors choose other kernels for matrices of real sizes.
REAL = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
REAL |= {"head_dim": 64, "num_hidden_layers": 2, "vocab_size": 2000, "initializer_range": 0.05}


@pytest.mark.parametrize("dtype", [pytest.param("bfloat16", marks=pytest.mark.long), "float32"])
def test_layers_of_real_sizes_are_exact_in_steps_of_all_sizes(dtype, tmp_path):
    engine = load(str(random_model("llama", tmp_path, **REAL)), "cpu", dtype, 64 * 16, numerics="exact")
    text, blocks = tuple([(37 * position) % 1900 for position in range(400)]), tuple(range(25))
    whole = engine.forward([Segment(text, 0, blocks, 400)]).logits
    for size in (7, 33, 60, 130, 200):
        own = tuple(range(26, 51))
        parts = [
            engine.forward([Segment(text[start : start + size], start, own, min(size, 400 - start))]).logits
            for start in range(0, 400, size)
        ]
        assert torch.equal(torch.cat(parts), whole), f"in steps of {size}"
