"""Answers judged by the same weights on the processor, in float64, with transformers' own attention."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from lab.benchmarks.gpu.answer_texts import Question
from opensled.core.noise import gumbel
from verify_server.engine.torch.backend_check import TOLERANCE
from verify_server.engine.torch.loading import find_weights, load_network
from verify_server.engine.torch.selftest import attending_by
from verify_server.gpu_check.equality import SPREADS


class Judge:
    """Of answers that were computed in `dtype`: the weights are rounded to it."""

    def __init__(self, path: str, dtype: torch.dtype) -> None:
        self.allowed = SPREADS * TOLERANCE[dtype]  # in spreads of the logits
        self._network = load_network(find_weights(path), torch.device("cpu"), torch.float64)
        for weight in self._network.parameters():
            weight.data = weight.data.to(dtype).double()
        self._known: dict[tuple[Question, tuple[int, ...]], np.ndarray] = {}

    def verdict(self, answers: Iterable[tuple[Question, tuple[int, ...]]]) -> dict[str, Any]:
        """How many tokens are not the processor's choice: near ties, and wrong ones."""
        with attending_by(self._network, "eager"):
            gaps = np.concatenate([self._gaps(*each) for each in answers])
        wrong = int((~(gaps <= self.allowed)).sum())  # NaN is wrong, too
        flips = int((gaps > 0).sum()) - wrong
        return {"flips": flips, "worst_gap": float(gaps.max()), "allowed_gap": self.allowed, "wrong": wrong}

    def _gaps(self, question: Question, tokens: tuple[int, ...]) -> np.ndarray:
        """[tokens] how far each lies below the best, in spreads of the logits."""
        key = question, tokens
        if key not in self._known:
            self._known[key] = self._computed(question, tokens)
        return self._known[key]

    @torch.inference_mode()
    def _computed(self, question: Question, tokens: tuple[int, ...]) -> np.ndarray:
        text, begin = (*question.prompt, *tokens), len(question.prompt)
        logits = self._network(input_ids=torch.tensor([text[:-1]]), use_cache=False).logits[0]
        rows = logits[begin - 1 :].double().numpy()
        scores, warmth = rows, question.params.temperature
        if warmth:
            ids = np.arange(rows.shape[1])
            scores = rows + warmth * np.stack(
                [gumbel(question.key, begin + at, ids) for at in range(len(rows))]
            )
        chosen = scores[np.arange(len(rows)), list(tokens)]
        gaps: np.ndarray = (scores.max(-1) - chosen) / rows.std(-1)
        return gaps
