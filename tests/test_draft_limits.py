"""A device draws its draft tokens within the limits of the request: what the target would draw from the same logits."""

from __future__ import annotations

import numpy as np
import pytest

from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import DRAFT_CANDIDATES, Sampler
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores

VOCABULARY, POSITIONS = 300, 200
KEY = noise_key(11)

LIMITED = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, logit_bias=((7, 30.0), (9, -30.0))),
    SamplingParams(temperature=1.5, top_k=1),
    SamplingParams(temperature=1.5, top_k=5),
    SamplingParams(temperature=2.0, top_k=DRAFT_CANDIDATES),
    SamplingParams(temperature=0.9, top_p=0.3),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
    SamplingParams(temperature=1.0, top_k=10, logit_bias=((7, 5.0), (8, -100.0))),
]


def rows() -> np.ndarray:
    return np.random.default_rng(3).normal(scale=3.0, size=(POSITIONS, VOCABULARY)).astype(np.float32)


@pytest.mark.parametrize("params", LIMITED, ids=str)
def test_a_draft_with_the_targets_logits_is_always_right(params) -> None:
    logits = rows()
    request = SampleRequest(range(POSITIONS), params, KEY, 40)
    target = NumpyScores(logits).sample_one(request)
    sampler = Sampler(params, KEY)
    assert [sampler.draw(row, 40 + number).id for number, row in enumerate(logits)] == target


def test_a_draft_without_the_limits_would_be_wrong() -> None:
    """So the test above says something: the same draws without top-k miss most of the tokens."""
    logits, params = rows(), SamplingParams(temperature=1.5, top_k=1)
    target = NumpyScores(logits).sample_one(SampleRequest(range(POSITIONS), params, KEY, 40))
    free = Sampler(SamplingParams(temperature=1.5), KEY)
    right = sum(free.draw(row, 40 + number).id == id for number, (row, id) in enumerate(zip(logits, target)))
    assert right < POSITIONS / 2
