"""Checks of a GGUF target at load, failing closed: rollback, company and branches must not change its logits.

Recurrent models and others that keep what they were told must be refused: they give wrong tokens without any error.
"""

import numpy as np

from opensled.core.errors import EngineError, SelfTestFailed, UnsupportedModel
from opensled.models.llama import LlamaModel
from opensled.models.step_threads import StepThreads
from verify_server.engine.llamacpp.llama_batch import LlamaPiece
from verify_server.engine.llamacpp.llama_cache import LlamaCache

CELLS = 256  # the least that llama.cpp makes
LENGTH, SPLIT, WRONG = 24, 10, 5  # tokens of the probe, of its first part, of the draft that is rejected
# Tokens of the probe that have a wrong one beside them in its tree; each pair takes one more sequence
TWINS = 3
# Largest root-mean-square difference of the same logits from two batches, relative to their spread: rounding of
# quantized models stays below 0.02, and the key of a token that should be gone makes it about 1.
TOLERANCE = 0.1


def run(model: LlamaModel, threads: StepThreads) -> bool:
    """Whether draft trees are computed right, too. Raises UnsupportedModel or SelfTestFailed.

    Uses a small cache of its own.
    """
    _refuse_stateful(model)
    cache = LlamaCache(model, CELLS, 3 + TWINS, threads)
    try:
        alone, again = _twice(cache, model)
        _compare(model, alone, again)
        return _takes_trees(cache, model, alone)
    except EngineError as error:
        raise UnsupportedModel(f"{model.path} does not compute as a decoder: {error}") from error
    finally:
        cache.close()


def _refuse_stateful(model: LlamaModel) -> None:
    if state := model.state():
        raise UnsupportedModel(
            f"{model.path} {state}: rejected tokens could not be taken back; choose a model of plain attention"
        )


def _tokens(model: LlamaModel) -> tuple[list[int], list[int]]:
    """Those of the probe, and others."""
    tokens = [7919 * (index + 1) % model.vocab_size for index in range(LENGTH)]
    return tokens, [(token + 1) % model.vocab_size for token in tokens]


def _twice(cache: LlamaCache, model: LlamaModel) -> tuple[np.ndarray, np.ndarray]:
    """The same logits [LENGTH - SPLIT, vocabulary] of a sequence alone, and of one with a rollback, in company."""
    tokens, wrong = _tokens(model)
    alone = cache.decode([LlamaPiece(0, 0, tokens, LENGTH - SPLIT)])
    cache.decode([LlamaPiece(1, 0, tokens[:SPLIT], 0), LlamaPiece(2, 0, wrong, 0)])
    cache.decode([LlamaPiece(1, SPLIT, wrong[SPLIT:][:WRONG], WRONG)])
    if cache.truncate(1, SPLIT) != SPLIT:
        raise UnsupportedModel(
            f"{model.path}: llama.cpp cannot take {WRONG} tokens back from its cache; choose a model of plain attention"
        )
    company = LlamaPiece(2, LENGTH, tokens[:3], 1)
    again = cache.decode([company, LlamaPiece(1, SPLIT, tokens[SPLIT:], LENGTH - SPLIT)])
    return alone, again[1:]


def _takes_trees(cache: LlamaCache, model: LlamaModel, alone: np.ndarray) -> bool:
    """Whether the probe's next tokens, each of them beside a wrong one, have the logits they have `alone`."""
    tokens, wrong = _tokens(model)
    if cache.truncate(1, SPLIT) != SPLIT:
        return False
    twins = [each for pair in zip(wrong[SPLIT + 1 :], tokens[SPLIT + 1 :]) for each in pair][: 2 * TWINS]
    parents = tuple([index - index % 2 - 1 for index in range(len(twins))])
    piece = LlamaPiece(1, SPLIT, (tokens[SPLIT], *twins), 1 + len(twins), parents, tuple(range(3, 3 + TWINS)))
    try:
        given = cache.decode([piece])[::2]
    except EngineError:
        return False
    return _error(alone[: len(given)], given) <= TOLERANCE


def _error(alone: np.ndarray, again: np.ndarray) -> float:
    return float(np.sqrt(np.square(again - alone).mean()) / alone.std())


def _compare(model: LlamaModel, alone: np.ndarray, again: np.ndarray) -> None:
    error = _error(alone, again)
    if not error <= TOLERANCE:  # NaN fails, too
        raise SelfTestFailed(
            f"{model.path}: logits after a rollback differ by {error:.1e} of their spread (allowed {TOLERANCE:.0e}); "
            "this model would give wrong tokens"
        )
