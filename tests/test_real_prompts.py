"""The prompts of benchmarks/real_prompts.py, and how their ratios are summed up; the measurement needs a real model."""

from __future__ import annotations

import json

from benchmarks.real_prompts import KINDS, PROMPTS, mean_ratio, text_of


def test_every_kind_has_ten_prompts_and_two_of_them_are_long() -> None:
    document = json.loads(PROMPTS.read_text())
    for kind in KINDS:
        texts = {text_of(prompt, document["characters"]) for prompt in document[kind]}
        assert len(texts) >= 10
        if kind in ("summary", "retrieval"):
            assert min(map(len, texts)) > 2500  # some 700 tokens and more


def test_the_mean_is_that_of_the_ratios_with_an_interval_around_it() -> None:
    assert mean_ratio([4.0, 1.0], [2.0, 2.0]) == {"mean": 1.0, "low": 0.5, "high": 2.0}
