"""The Triton kernels in Triton's interpreter: they compute what a dense formula says, and a row's bits do not depend on
what is computed beside it. (This shows the order of the sums, and not the bits of a GPU.)"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given

from tests.attention_cases import Shape, Step, error, random_step
from tests.hypothesis_profiles import tried
from tests.test_paged_attention import TOLERANCE
from verify_server.engine.base import Segment

triton = pytest.importorskip("triton", reason="Triton is not installed; make test installs it")

from hypothesis import strategies as st  # noqa: E402

from verify_server.engine.attention import backend_of  # noqa: E402
from verify_server.engine.triton_attention import SPLIT  # noqa: E402

SHORT = st.builds(random_step, st.integers(0, 2**32), st.just(90), st.just(20), st.just(2))


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(step=SHORT, by_path=st.booleans())
@tried(6)
def test_the_kernels_compute_what_the_formula_says(dtype, step, by_path) -> None:
    assert error(step.by(backend_of("triton"), dtype, by_path), step.expected(dtype)) < TOLERANCE[dtype]


SHAPE = Shape(kv_heads=1, folded=3, size=16, value_size=16, window=None)
TEXT = 2 * SPLIT + 40


def segment(start: int, count: int, parents: tuple[int, ...] = ()) -> Segment:
    """Of one text, always in the same blocks."""
    blocks = tuple([(7 * index) % 71 for index in range(-(-(start + count) // 16))])
    return Segment((0,) * count, start, blocks, count, parents)


@pytest.mark.parametrize("window", [None, 50])
def test_a_row_has_the_same_bits_alone_in_a_crowd_and_in_any_chunk(window) -> None:
    """In float64: numpy's float32 product, which the interpreter takes, depends on a row's place in the matrix."""
    shape = Shape(**{**vars(SHAPE), "window": window})
    first = TEXT - 30
    whole = Step(shape, [segment(first, 30)], 71)
    rows = whole.by(backend_of("triton"), torch.float64)
    crowd = Segment((0,) * 5, 0, (70,), 5)
    for start, count in ((first, 1), (first + 3, 7), (first + 29, 1), (first + 11, 17)):
        for company in ([], [crowd]):
            own = Step(shape, [*company, segment(start, count)], 71)
            own.query[-count:] = whole.query[start - first :][:count]
            given = own.by(backend_of("triton"), torch.float64)[-count:]
            assert torch.equal(given, rows[start - first :][:count])


def slot(place: int) -> int:
    """Where the text's token at `place` is."""
    return (7 * (place // 16)) % 71 * 16 + place % 16


@pytest.mark.parametrize("text", [30, SPLIT - 2])
def test_a_branch_by_path_has_the_bits_of_its_chain(text) -> None:
    """Also where a split ends inside the tree."""
    parents = (-1, 0, 0, 2, 1, -1, 5)
    tree = Step(SHAPE, [segment(text, 1 + len(parents), parents)], 71)
    given = tree.by(backend_of("triton"), torch.float64, by_path=True)
    for node in range(len(parents)):
        path = [node]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        chain = Step(SHAPE, [segment(text, 1 + len(path))], 71)
        for place, each in enumerate(path, 1):
            target, source = slot(text + place), slot(text + 1 + each)
            chain.keys[target], chain.values[target] = tree.keys[source], tree.values[source]
            chain.query[place] = tree.query[1 + each]
        assert torch.equal(chain.by(backend_of("triton"), torch.float64)[-1], given[1 + node])


def test_rows_that_are_none_are_zero() -> None:
    """A packed batch is padded; its last rows belong to nobody."""
    step = random_step(3, 60, 33, 1)
    assert step.by(backend_of("triton"), torch.float32).isfinite().all()
