"""The Triton kernels in Triton's interpreter: they compute what a dense formula says, and a row's bits do not depend on
what is computed beside it. (This shows the order of the sums, and not the bits of a GPU.)"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given

from lab.benchmarks.gpu.attention_cases import TOLERANCE, Shape, error, random_step
from tests.hypothesis_profiles import tried

triton = pytest.importorskip("triton", reason="Triton is not installed; make test installs it")

from hypothesis import strategies as st  # noqa: E402

from lab.benchmarks.gpu.kernel_bits import (  # noqa: E402
    LARGE,
    PARENTS,
    SMALL,
    TREE_TEXTS,
    Place,
    same_as_chains,
    same_in_any_company,
)
from verify_server.engine.torch.attention import backend_of  # noqa: E402

SHORT = st.builds(random_step, st.integers(0, 2**32), st.just(90), st.just(20), st.just(2))


@pytest.mark.parametrize("dtype", TOLERANCE)
@given(step=SHORT, by_path=st.booleans())
@tried(6)
def test_the_kernels_compute_what_the_formula_says(dtype, step, by_path):
    assert error(step.by(backend_of("triton"), dtype, by_path), step.expected(dtype)) < TOLERANCE[dtype]


SHAPE = Shape(kv_heads=1, folded=3, size=16, value_size=16)
# Numpy's float32 product depends on a row's place in the matrix
PLACE = Place(torch.float64, torch.device("cpu"))


@pytest.mark.parametrize("window", [None, 50])
def test_a_row_has_the_same_bits_alone_in_a_crowd_and_in_any_chunk(window):
    company = SMALL._replace(chunks=LARGE.chunks[1:] if window else SMALL.chunks)
    found = same_in_any_company(replace(SHAPE, window=window), PLACE, company)
    assert found["holds"] and found["pairs"] == 4 * len(company.chunks)


@pytest.mark.parametrize("text", TREE_TEXTS)
def test_a_branch_by_path_has_the_bits_of_its_chain(text):
    """Also where a split ends inside the tree."""
    found = same_as_chains(SHAPE, PLACE, (text,))
    assert found["holds"] and found["pairs"] == len(PARENTS)


def test_rows_that_are_none_are_zero():
    """A packed batch is padded; its last rows belong to nobody."""
    assert random_step(3, 60, 33, 1).by(backend_of("triton"), torch.float32).isfinite().all()
