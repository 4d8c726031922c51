"""SmolLM2 behind engine torch at level exact: drafts, and other sequences in the batch, change no text.

make test-real                             # a few prompts, answers of 16 tokens: minutes
OPENSLED_REAL_PROMPTS=60 make test-real    # all of lab/benchmarks/real_prompts.json: hours without fast bfloat16
"""

import asyncio

import pytest

from tests.real_texts import AT_ONCE, COUNT, MODEL, SAMPLINGS, answers
from verify_server.engine.torch.torch_engine import TorchEngine, load

DRAFTERS_TESTED = ("none", "llamacpp", "cacheback", "lookup")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not MODEL.is_file(), reason="needs SmolLM2; run: opensled pull smollm2"),
]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    found = load(str(MODEL), device="cpu", dtype=request.param, numerics="exact", kv_tokens=AT_ONCE * 1536)
    assert (found.info.numerics, found.info.dtype) == ("exact", request.param)
    return found


_expected: dict[tuple[str, str], list[tuple[int, ...]]] = {}


def expected(engine: TorchEngine, sampling: dict) -> list[tuple[int, ...]]:
    """What the engine writes alone, one sequence at a time, without drafts."""
    key = (engine.info.dtype, str(sampling))
    if key not in _expected:
        _expected[key] = asyncio.run(answers(engine, "none", sampling, 1))
    return _expected[key]


@pytest.mark.parametrize("at_once", [1, AT_ONCE], ids=["one by one", "at once"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("drafter", DRAFTERS_TESTED)
def test_a_text_is_the_engines_own(engine, drafter, sampling, at_once):
    given = asyncio.run(answers(engine, drafter, sampling, at_once))
    assert given == expected(engine, sampling)
    assert len(given) == min(COUNT, 60) and all(given)
