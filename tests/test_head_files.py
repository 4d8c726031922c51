"""A head's two files: what is saved is what is loaded, and no damaged or false file is."""

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lab.training.heads.head_writer import LARGEST, save
from opensled.core.errors import NotFound, UnsupportedModel
from opensled.models.store import model_path
from tests.fakes import FakeText
from verify_server.drafting.heads import HEADS, attach
from verify_server.drafting.heads.base import HeadShape
from verify_server.drafting.heads.head_file import (
    ABOUT,
    DRAFT_IDS,
    GROUP,
    SCALES,
    WEIGHTS,
    HeadFile,
    config_digest,
    load,
)
from verify_server.engine.torch import torch_engine
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel

SHAPE = HeadShape("specformer", (0, 1, 2), 24, 4, 2, 8, 40, 5, 11, 500.0, 3)
IDS = np.array([2, 3, 5, 8, 9, 12, 20, 21, 30, 44, 60], np.int32)
A_MATRIX, A_VECTOR = "down.weight", "context_norm.weight"
Tensors = dict[str, Tensor]


def made(folder: Path, shape: HeadShape = SHAPE) -> HeadFile:
    """A head of weights of very different sizes, in its files."""
    torch.manual_seed(1)
    head = HEADS.get(shape.kind)(shape)
    with torch.no_grad():
        for weight in head.parameters():
            weight.copy_(torch.randn_like(weight) * 10.0 ** torch.randint(-6, 3, (*weight.shape[:-1], 1)))
    own = HeadFile(folder, head.eval(), IDS, "some target", "its vocabulary", "its sizes", {"rows": 7})
    save(own)
    return own


@pytest.fixture
def saved(tmp_path: Path) -> HeadFile:
    return made(tmp_path / "head")


@pytest.mark.parametrize("kind", HEADS.names())
def test_what_is_saved_is_what_is_loaded(tmp_path, kind):
    taps, markov = (SHAPE.taps, 3) if kind == "specformer" else ((2,), 0)
    own = made(tmp_path, replace(SHAPE, kind=kind, taps=taps, markov=markov))
    found = load(tmp_path)
    assert found.head.shape == own.head.shape and type(found.head) is type(own.head)
    assert found.draft_ids.dtype == np.int32 and np.array_equal(found.draft_ids, own.draft_ids)
    assert (found.target, found.vocabulary, found.config) == (own.target, own.vocabulary, own.config)
    assert found.training == own.training and not found.head.training
    wanted, weights = own.head.state_dict(), found.head.state_dict()
    assert list(weights) == list(wanted)
    for name, weight in weights.items():
        assert weight.dtype == torch.float32
        if weight.ndim < 2:
            assert torch.equal(weight, wanted[name])
        else:
            step = wanted[name].abs().amax(-1, keepdim=True) / LARGEST
            assert ((weight - wanted[name]).abs() <= step * 0.5001).all(), name
    assert sorted(path.name for path in tmp_path.iterdir()) == [ABOUT, WEIGHTS]  # no part of a file is left


def of_groups(folder: Path) -> HeadFile:
    """A head of 4 bits, most of whose rows are whole groups."""
    own = made(folder, replace(SHAPE, size=2 * GROUP, inner=GROUP + 8))
    save(own, bits=4)
    return own


def test_four_bits_take_half_the_room_and_come_close(tmp_path):
    own = of_groups(tmp_path)
    tensors, found = load_file(tmp_path / WEIGHTS), load(tmp_path).head.state_dict()
    assert {tensors[name].dtype for name in (A_MATRIX, "inner.up.weight")} == {torch.uint8}
    assert tensors["inner.down.weight"].dtype == torch.int8  # its rows are of 40
    for name, weight in own.head.state_dict().items():
        if tensors[name].dtype != torch.uint8:
            continue
        assert tensors[name].numel() * 2 == weight.numel()
        rows, error = weight.flatten(1), (found[name] - weight).flatten(1)
        # Of what a float16 scale can tell: others are rows of numbers below 1e-5.
        large = rows.abs().amax(-1) > 1e-3
        assert (error.norm(dim=-1) < 0.12 * rows.norm(dim=-1))[large].all(), name


@pytest.mark.parametrize(("make", "bits"), [(made, 8), (of_groups, 4)])
@torch.no_grad()
def test_a_row_of_zeros_is_one(make, bits, tmp_path):
    own = make(tmp_path)
    own.head.get_parameter(A_MATRIX)[3] = 0
    save(own, bits=bits)
    found = load(tmp_path).head.get_parameter(A_MATRIX)
    assert found[3].eq(0).all() and found[4].ne(0).any()


def test_a_loaded_head_is_saved_as_it_was(saved, tmp_path):
    """Rounding what is rounded changes nothing."""
    again = replace(load(saved.folder), folder=tmp_path / "again")
    save(again)
    for name, tensor in load_file(again.folder / WEIGHTS).items():
        assert torch.allclose(tensor, load_file(saved.folder / WEIGHTS)[name])
    assert (again.folder / ABOUT).read_text() == (saved.folder / ABOUT).read_text()


def test_a_loaded_head_does_not_change_with_its_file(saved):
    """Somebody copies another one over it while a server runs; a shorter one would even end the process."""
    found, path = load(saved.folder), saved.folder / WEIGHTS
    before = {name: weight.clone() for name, weight in found.head.state_dict().items()}
    with path.open("r+b") as file:
        file.write(bytes(path.stat().st_size))
    assert all(torch.equal(weight, before[name]) for name, weight in found.head.state_dict().items())
    assert np.array_equal(found.draft_ids, IDS)


def refused(folder: Path, said: str | None, file: str, error: type[Exception] = UnsupportedModel) -> None:
    """In one line that names the file."""
    with pytest.raises(error, match=said) as caught:
        load(folder)
    assert str(folder / file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_are_missing(saved, tmp_path):
    (saved.folder / WEIGHTS).unlink()
    refused(saved.folder, "lacks its weights", WEIGHTS, NotFound)
    (saved.folder / ABOUT).unlink()
    refused(saved.folder, "holds no draft head", ABOUT, NotFound)
    refused(tmp_path / "nowhere", "holds no draft head", ABOUT, NotFound)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b'{"format": 1, "shape": {', "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[1]", "not of format 1"),
        (b'{"shape": {}}', "not of format 1"),
        (b'{"format": 2}', "not of format 1"),
        (b'{"format": 1}', "not that of a head"),
        (b'{"format": 1, "shape": [3]}', "not that of a head"),
    ],
)
def test_a_description_that_is_none(saved, text, said):
    (saved.folder / ABOUT).write_bytes(text)
    refused(saved.folder, said, ABOUT)


SIZES = ("size", "heads", "kv_heads", "head_size", "inner", "length", "vocabulary")
FALSE_SHAPES: list[tuple[str, Any]] = [
    *((name, value) for name in SIZES for value in (0, -3, "24", None, 2.0, True, [4])),
    ("kv_heads", 3),  # does not divide the heads
    ("head_size", 7),  # cannot be turned by halves
    ("kind", "unheard of"),
    ("kind", None),
    ("kind", ["ctc"]),
    ("kind", "ctc"),  # has a blank, and so no bias between neighbours
    *(("taps", value) for value in ([], [0, -1, 2], ["0"], "012", 3, [0.5], None)),
    *(("markov", value) for value in (-1, "3", 1.5, None)),
    *(("rope_theta", value) for value in (0, -1.0, "10000", float("nan"), float("inf"), 10**400, None, True)),
    ("unheard of", 1),
]


def described(folder: Path, **changes: object) -> None:
    about = json.loads((folder / ABOUT).read_text())
    (folder / ABOUT).write_text(json.dumps({**about, "shape": about["shape"] | changes}))


@pytest.mark.parametrize(("name", "value"), FALSE_SHAPES, ids=str)
def test_a_shape_that_is_none(saved, name, value):
    described(saved.folder, **{name: value})
    refused(saved.folder, None, ABOUT)


@pytest.mark.parametrize("name", ["taps", "kind", *SIZES])
def test_a_shape_that_lacks_something(saved, name):
    about = json.loads((saved.folder / ABOUT).read_text())
    del about["shape"][name]
    (saved.folder / ABOUT).write_text(json.dumps(about))
    refused(saved.folder, name, ABOUT)


@pytest.mark.parametrize("power", [5, 8, 18, 40])
@pytest.mark.parametrize("name", [name for name in SIZES if name not in ("heads", "kv_heads")])
def test_a_huge_shape_takes_no_memory(saved, name, power):
    """The weights say how large the head is."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    described(saved.folder, **{name: 10**power})
    refused(saved.folder, None, ABOUT if power > 8 else WEIGHTS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


@pytest.mark.parametrize("kept", [0, 4, 200, -1])
def test_weights_that_were_cut(saved, kept):
    path = saved.folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:kept])
    refused(saved.folder, "cannot be read", WEIGHTS)


def with_number(name: str, value: float) -> Callable[[Tensors], object]:
    return lambda tensors: tensors[name].view(-1)[2:3].fill_(value)


def with_ids(*ids: float, dtype: torch.dtype = torch.int32) -> Callable[[Tensors], object]:
    return changed(DRAFT_IDS, lambda _: torch.tensor(ids, dtype=dtype))


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: change(tensors[name]).contiguous()})


FALSE_WEIGHTS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "a matrix is missing": (lambda tensors: tensors.pop(A_MATRIX), A_MATRIX),
    "a vector is missing": (lambda tensors: tensors.pop(A_VECTOR), A_VECTOR),
    "scales are missing": (lambda tensors: tensors.pop(A_MATRIX + SCALES), A_MATRIX),
    "one too many": (lambda tensors: tensors.update(more=torch.ones(2)), "more"),
    "a matrix is turned": (changed(A_MATRIX, lambda found: found.T), A_MATRIX),
    "a row is missing": (changed(A_MATRIX, lambda found: found[1:]), A_MATRIX),
    "a vector is longer": (changed(A_VECTOR, lambda found: found.repeat(2)), A_VECTOR),
    "one scale for all": (changed(A_MATRIX + SCALES, lambda found: found[:1]), A_MATRIX),
    "scales of two sides": (changed(A_MATRIX + SCALES, lambda found: found[:, None]), A_MATRIX),
    "a matrix of floats": (changed(A_MATRIX, lambda found: found.float()), A_MATRIX),
    "a vector of whole numbers": (changed(A_VECTOR, lambda found: found.int()), A_VECTOR),
    "NaN in a vector": (with_number(A_VECTOR, float("nan")), A_VECTOR),
    "an infinite scale": (with_number(A_MATRIX + SCALES, float("inf")), A_MATRIX),
    "NaN for a scale": (with_number(A_MATRIX + SCALES, float("nan")), A_MATRIX),
    "no ids": (lambda tensors: tensors.pop(DRAFT_IDS), "which 11 ids"),
    "an id too few": (with_ids(*range(10)), "which 11 ids"),
    "an id too many": (with_ids(*range(12)), "which 11 ids"),
    "ids of floats": (with_ids(*range(11), dtype=torch.float32), "which 11 ids"),
    "a negative id": (with_ids(-1, *range(10)), "ascending"),
    "ids in no order": (with_ids(1, 0, *range(2, 11)), "ascending"),
    "an id twice": (with_ids(0, 0, *range(2, 11)), "ascending"),
}


FALSE_FOURS: dict[str, tuple[Callable[[Tensors], object], str]] = {
    "scales are missing": (lambda tensors: tensors.pop(A_MATRIX + SCALES), A_MATRIX),
    "a group is missing": (changed(A_MATRIX, lambda found: found[:, GROUP // 2 :]), "groups"),
    "scales of rows": (changed(A_MATRIX + SCALES, lambda found: found[:, 0]), A_MATRIX),
    "no rows": (changed(A_MATRIX + SCALES, lambda found: found[0, 0]), A_MATRIX),
    "scales of float32": (changed(A_MATRIX + SCALES, Tensor.float), "groups"),
    "an infinite scale": (with_number(A_MATRIX + SCALES, float("inf")), A_MATRIX),
}


FALSE = {name: (made, *fault) for name, fault in FALSE_WEIGHTS.items()}
FALSE |= {f"four bits: {name}": (of_groups, *fault) for name, fault in FALSE_FOURS.items()}


@pytest.mark.parametrize("fault", FALSE)
def test_weights_that_do_not_fit(tmp_path, fault):
    make, plant, said = FALSE[fault]
    make(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    plant(tensors)
    save_file(tensors, tmp_path / WEIGHTS)
    refused(tmp_path, said, WEIGHTS)


def test_an_id_that_the_target_does_not_have_is_refused(tmp_path):
    """It has the right vocabulary, but an embedding of fewer ids."""
    engine = torch_engine.load(str(model_path("tiny")), device="cpu", kv_tokens=160)
    config = engine.network.config
    own = made(tmp_path, replace(SHAPE, size=config.hidden_size))
    own = replace(own, vocabulary=FakeText().fingerprint, config=config_digest(config))
    target, serving = (
        ServedModel("tiny", engine, FakeText()),
        ServeConfig(model="tiny", draft_model=str(tmp_path)),
    )
    for last, fits in ((config.vocab_size - 1, True), (config.vocab_size, False)):
        save(replace(own, draft_ids=np.array([*IDS[:-1], last], np.int32)))
        if fits:
            assert attach.specformer(serving, target)
            continue
        with pytest.raises(UnsupportedModel, match=f"drafts id {last}") as caught:
            attach.specformer(serving, target)
        assert str(tmp_path) in str(caught.value)
