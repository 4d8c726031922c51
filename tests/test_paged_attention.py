"""Backends of attention against a dense formula in float64: chunks, single rows, chains, trees, scattered blocks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.benchmarks.gpu.attention_cases import TOLERANCE, Shape, Step, error, full_tree, random_step
from tests.hypothesis_profiles import tried
from verify_server.engine.torch.attention import backend_of

STEPS = st.builds(random_step, st.integers(0, 2**32))


@pytest.mark.parametrize("name", ["sdpa", "gather"])
@pytest.mark.parametrize("dtype", TOLERANCE)
@given(step=STEPS, by_path=st.booleans())
@tried(25)
def test_a_backend_computes_what_the_formula_says(name, dtype, step, by_path):
    if name == "sdpa" and step.shape.value_size != step.shape.size:
        step = Step(Shape(**{**vars(step.shape), "value_size": step.shape.size}), step.segments, step.blocks)
    assert error(step.by(backend_of(name), dtype, by_path), step.expected(dtype)) < TOLERANCE[dtype]


@pytest.mark.parametrize("by_path", [False, True])
@pytest.mark.parametrize("text", [1, 16, 511, 512, 640])
def test_the_largest_tree_behind_a_text_that_fills_its_blocks(text, by_path):
    step = full_tree(Shape(2, 3, 16, 16), text)
    assert error(step.by(backend_of("gather"), torch.float64, by_path), step.expected(torch.float64)) < 1e-6
