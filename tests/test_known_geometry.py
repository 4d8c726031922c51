"""A start that remembers what an earlier one found is quick, and as exact as that was: nothing is believed untried."""

import json
import os
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from opensled.core.errors import SelfTestFailed
from opensled.models import remembered
from tests.tiny_models import by_rows, random_model
from tests.tiny_models import folder as folder
from verify_server.engine.base import Segment
from verify_server.engine.torch import geometry, known_geometry, loading, sdpa, selftest, short_model
from verify_server.engine.torch.packing import Attend, Geometry
from verify_server.engine.torch.torch_engine import load

MOST = 96


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch) -> Path:
    """Where results are kept."""
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path))
    return tmp_path / "self-tests"


@pytest.fixture
def searches(monkeypatch) -> list[None]:
    """Grows with each search among all geometries."""
    made, find = [], geometry.find
    monkeypatch.setattr(geometry, "find", lambda *arguments: (made.append(None), find(*arguments))[1])
    return made


def start(folder: Path, **options):
    return load(str(folder), "cpu", "float32", 64 * 16, max_rows=MOST, **options)


def require_exact(engine) -> None:
    text = tuple([(37 * position) % 90 for position in range(MOST)])
    whole = engine.forward([Segment(text, 0, tuple(range(6)), MOST)]).logits
    own, other = Segment(text[40:45], 40, tuple(range(6)), 5), Segment(text[:30], 0, (20, 21), 30)
    assert torch.equal(engine.forward([other, own]).logits, torch.cat([whole[:30], whole[40:45]]))


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_the_second_start_knows_the_geometry_of_the_first(family, folder, kept, searches):
    first, second = start(folder(family)), start(folder(family))
    assert len(searches) == 1
    assert second._model.geometry == first._model.geometry
    assert first.info.numerics == second.info.numerics == "exact"
    assert second._model.memory.bytes_per_token() == first._model.memory.bytes_per_token()
    require_exact(second)
    (file,) = kept.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("border", [10, 30, 90])
def test_a_result_that_other_kernels_gave_is_not_used(border, folder, monkeypatch, searches):
    """The processor, or a library that no version tells, is another one now: only larger multiples of rows hold."""
    before = start(folder("llama"))._model.geometry
    monkeypatch.setattr(nn.Linear, "forward", by_rows(border))
    now = start(folder("llama"))
    assert len(searches) == 2
    assert now.info.numerics == "exact"
    found = now._model.geometry
    assert before.rows < border and (border <= max(found.rows, found.head_rows) or 0 < found.tile < border)
    require_exact(now)
    require_exact(start(folder("llama")))
    assert len(searches) == 2  # what was found anew has taken the place of the old


def test_attention_that_depends_on_its_neighbours_now_is_noticed(folder, monkeypatch, searches):
    assert not start(folder("llama"))._model.geometry.alone
    plain = sdpa.scaled_dot_product_attention

    def by_batch(queries, *tensors, **words):
        out = plain(queries, *tensors, **words)
        return out * (1 + 2**-20) if len(queries) > 1 else out

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", by_batch)
    assert start(folder("llama"))._model.geometry.alone
    assert len(searches) == 2


def test_a_model_that_computes_wrongly_now_is_refused(folder, monkeypatch):
    start(folder("mistral"))
    masked = sdpa._mask
    monkeypatch.setattr(sdpa, "_mask", lambda group, window, *rest: masked(group, None, *rest))
    with pytest.raises(SelfTestFailed):
        start(folder("mistral"))


GOOD = {"rows": 4, "queries": 4, "span": 64, "by_path": True, "alone": False, "head_rows": 64, "tile": 0}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[" * 1000,
        "null",
        "{}",
        '{"geometry": 3, "layers": 1}',
        json.dumps({"geometry": GOOD | {"more": 1}, "layers": 1}),
        json.dumps({"geometry": GOOD | {"rows": "4"}, "layers": 1}),
        json.dumps({"geometry": GOOD, "layers": None}),
        json.dumps({"geometry": GOOD, "layers": 1}).rjust(5000),
    ],
)
def test_a_damaged_result_is_none(content, tmp_path):
    (tmp_path / "file.json").write_text(content)
    assert known_geometry.Memory(tmp_path / "file.json").recall() is None


@pytest.mark.parametrize(
    ("changed", "layers"),
    [
        ({"rows": 0}, 1),
        ({"rows": 1}, 1),
        ({"queries": 1, "span": 16}, 1),
        ({"head_rows": 10**9}, 1),
        ({"tile": 3}, 1),
        ({}, 0),
        ({}, 10**9),
    ],
)
def test_a_wrong_result_costs_a_search_and_nothing_else(changed, layers, folder, kept, monkeypatch, searches):
    monkeypatch.setattr(nn.Linear, "forward", by_rows(3))  # so that rows = 1 holds on no machine
    start(folder("llama"))
    (file,) = kept.iterdir()
    found = file.read_text()
    file.write_text(json.dumps({"geometry": GOOD | changed, "layers": layers}))
    require_exact(start(folder("llama")))
    assert len(searches) == 2
    assert file.read_text() == found


def test_the_level_is_exact_where_nothing_can_be_kept(folder, tmp_path, monkeypatch, searches):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert [start(folder("llama")).info.numerics for _ in range(2)] == ["exact", "exact"]
    assert len(searches) == 2


def test_few_results_are_kept(kept):
    known = known_geometry.Known(Geometry(**GOOD), 1)
    for number in range(remembered.MAX_FILES + 3):
        file = kept / f"{number}.json"
        known_geometry.Memory(file).keep(known)
        os.utime(file, (number, number))
    assert len(list(kept.iterdir())) == remembered.MAX_FILES
    assert known_geometry.Memory(kept / f"{number}.json").recall() == known
    assert known_geometry.Memory(kept / "0.json").recall() is None


def test_a_result_belongs_to_all_that_it_depends_on(folder, monkeypatch):
    path = folder("llama")

    def place(dtype=torch.float32, backend="sdpa", max_rows=MOST) -> Path | None:
        network = loading.load_network(loading.find_weights(str(path)), torch.device("cpu"), dtype)
        return known_geometry.memory_of(network, path, backend, max_rows).path

    usual = place()
    assert place() == usual
    others = [place(torch.float64), place(backend="other"), place(max_rows=MOST + 1)]
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    others.append(place())
    torch.set_num_threads(threads)
    for name, made in (("ATEN_CPU_CAPABILITY", "default"), ("MKL_CBWR", "COMPATIBLE")):
        with monkeypatch.context() as changed:
            changed.setenv(name, made)
            others.append(place())
    with monkeypatch.context() as changed:
        changed.setattr(known_geometry, "_processor", lambda: ["model name: another"])
        others.append(place())
    os.utime(path / "model.safetensors", (1, 1))
    others.append(place())
    assert len({usual, *others}) == 1 + len(others)


def network(path: Path):
    return loading.load_network(loading.find_weights(str(path)), torch.device("cpu"), torch.float32)


@pytest.mark.parametrize(("family", "enough"), [("llama", 1), ("gemma2", 2), ("qwen3", 1)])
def test_the_first_layers_hold_one_of_every_kind(family, enough, folder):
    """Layers of gemma2 attend to all and to a window in turns."""
    whole = network(folder(family))
    calls = [
        Attend(layer, 0.25, window=9 if family == "gemma2" and layer % 2 == 0 else None) for layer in range(3)
    ]
    assert short_model.enough_layers(whole, calls) == enough
    with short_model.shorten(whole, enough):
        assert len(whole.model.layers) == enough
    assert len(whole.model.layers) == 3
    assert isinstance(whole.get_output_embeddings(), nn.Linear)


@pytest.mark.parametrize("changed", ["shape", "fact", "module", "call"])
def test_a_layer_that_differs_in_anything_is_of_another_kind(changed, folder):
    whole = network(folder("llama"))
    calls = [Attend(layer, 0.25) for layer in range(3)]
    last = whole.model.layers[2]
    if changed == "shape":
        last.mlp.up_proj = nn.Linear(48, 90, bias=False)
    elif changed == "fact":
        last.self_attn.scaling = 0.5
    elif changed == "module":
        last.mlp.act_fn = nn.ReLU()
    else:
        calls[2] = Attend(2, 0.25, window=9)
    assert short_model.enough_layers(whole, calls) == 3


def test_bits_that_depend_on_the_batch_in_a_late_layer_of_its_own_kind_are_noticed(folder, monkeypatch):
    """The only layer that attends to a window is the last one, and only there neighbours change the bits."""
    plain, calls = selftest.shorten, []
    monkeypatch.setattr(selftest, "shorten", lambda *given: (calls.append(given[1]), plain(*given))[1])
    path = random_model(
        "gemma2", folder("llama").parent / "late", layer_types=["full_attention"] * 2 + ["sliding_attention"]
    )
    start(path)
    assert set(calls) == {3}


@pytest.mark.parametrize(("border", "counts"), [(0, (1, 2)), (MOST + 1, (2,)), (10, (2,))])
def test_no_number_of_threads_is_tried_that_gives_other_bits(border, counts, folder, monkeypatch, request):
    """With one thread those of all steps are others than with two, or those of steps of few rows."""
    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))

    def forward(layer: nn.Linear, inputs: torch.Tensor) -> torch.Tensor:
        return by_rows(border if torch.get_num_threads() == 1 else 0)(layer, inputs)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    monkeypatch.setattr("verify_server.engine.torch.torch_engine.usable_cores", lambda: 2)
    engine = start(folder("llama"), threads=0)
    assert (engine.info.numerics, engine._threads.counts) == ("exact", counts)
