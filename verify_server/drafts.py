"""What a draft must be before it costs any computation."""

from __future__ import annotations

import math

from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import DraftBlock, DraftToken, SparseDistribution

MAX_CANDIDATES = 256  # ids of one draft distribution
ROUNDING = 1e-3  # how far from 1 the float32 probabilities of a distribution may sum


def check_draft(block: DraftBlock, vocab_size: int, with_probs: bool) -> None:
    """Raises InvalidRequest or Unsupported, naming the field, unless the tokens of `block` can be verified.

    `with_probs`: the rule needs the distribution each token was drawn from; other rules take none.
    """
    ids = block.ids
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise InvalidRequest(f"a draft id is outside the vocabulary of {vocab_size}", "tokens")
    for token in block.tokens:
        if with_probs:
            _check_source(token, vocab_size)
        elif token.drawn_from is not None:
            raise Unsupported("this rule takes no probabilities; leave draft_probs unset", "draft_probs")


def _check_source(token: DraftToken, vocab_size: int) -> None:
    source = token.drawn_from
    if source is None:
        raise InvalidRequest(
            "this rule needs the distribution each draft token was drawn from", "draft_probs"
        )
    problem = _problem(source, vocab_size) or (token.id not in source.ids and "does not hold the token drawn")
    if problem:
        raise InvalidRequest(f"the distribution of a draft token {problem}", "draft_probs")


def _problem(source: SparseDistribution, vocab_size: int) -> str:
    if len(source.ids) != len(source.probs):
        return f"has {len(source.ids)} ids and {len(source.probs)} probabilities"
    if len(source.ids) > MAX_CANDIDATES:
        return f"has {len(source.ids)} ids; at most {MAX_CANDIDATES} are taken"
    if len(set(source.ids)) < len(source.ids):
        return "holds an id twice"
    if any(not 0 <= id < vocab_size for id in source.ids):
        return f"has an id outside the vocabulary of {vocab_size}"
    if not all(0 < prob < math.inf for prob in source.probs):  # also false for NaN
        return "has a probability that is not positive and finite"
    if abs(sum(source.probs) - 1) > ROUNDING:
        return "does not sum to 1"
    return ""
