"""Checks of a GGUF target at load, failing closed: rollback and company must not change its logits.

Recurrent models and others that keep what they were told must be refused: they give wrong tokens without any error.
"""

from __future__ import annotations

import numpy as np

from opensled.errors import EngineError, SelfTestFailed, UnsupportedModel
from opensled.llama import LlamaModel
from verify_server.engine.llama_cache import LlamaCache
from verify_server.engine.llama_sequences import Piece

CELLS = 256  # the least that llama.cpp makes
LENGTH, SPLIT, WRONG = 24, 10, 5  # tokens of the probe, of its first part, of the draft that is rejected
# Largest root-mean-square difference of the same logits from two batches, relative to their spread: rounding of
# quantized models stays below 0.02, and the key of a token that should be gone makes it about 1.
TOLERANCE = 0.1


def run(model: LlamaModel, threads: int) -> None:
    """Raises UnsupportedModel or SelfTestFailed. Uses a small cache of its own."""
    _refuse_stateful(model)
    cache = LlamaCache(model, CELLS, 3, threads)
    try:
        _compare(model, *_twice(cache, model))
    except EngineError as error:
        raise UnsupportedModel(f"{model.path} does not compute as a decoder: {error}") from error
    finally:
        cache.close()


def _refuse_stateful(model: LlamaModel) -> None:
    if state := model.state():
        raise UnsupportedModel(
            f"{model.path} {state}: rejected tokens could not be taken back; choose a model of plain attention"
        )


def _twice(cache: LlamaCache, model: LlamaModel) -> tuple[np.ndarray, np.ndarray]:
    """The same logits [LENGTH - SPLIT, vocabulary] of a sequence alone, and of one with a rollback, in company."""
    tokens = [7919 * (index + 1) % model.vocab_size for index in range(LENGTH)]
    wrong = [(token + 1) % model.vocab_size for token in tokens]
    alone = cache.decode([Piece(0, 0, tokens, LENGTH - SPLIT)])
    cache.decode([Piece(1, 0, tokens[:SPLIT], 0), Piece(2, 0, wrong, 0)])
    cache.decode([Piece(1, SPLIT, wrong[SPLIT:][:WRONG], WRONG)])
    if cache.truncate(1, SPLIT) != SPLIT:
        raise UnsupportedModel(
            f"{model.path}: llama.cpp cannot take {WRONG} tokens back from its cache; choose a model of plain attention"
        )
    company = Piece(2, LENGTH, tokens[:3], 1)
    again = cache.decode([company, Piece(1, SPLIT, tokens[SPLIT:], LENGTH - SPLIT)])
    return alone, again[1:]


def _compare(model: LlamaModel, alone: np.ndarray, again: np.ndarray) -> None:
    error = np.sqrt(np.square(again - alone).mean()) / alone.std()
    if not error <= TOLERANCE:  # NaN fails, too
        raise SelfTestFailed(
            f"{model.path}: logits after a rollback differ by {error:.1e} of their spread (allowed {TOLERANCE:.0e}); "
            "this model would give wrong tokens"
        )
