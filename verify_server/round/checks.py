"""Checks of a device's draft on arrival, before it costs any computation."""

import math

from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import Draft, DraftBlock, DraftToken, SparseDistribution
from verify_server.round.offer import DraftLimits
from verify_server.rules.base import AcceptanceRule

MAX_CANDIDATES = 256  # ids of one draft distribution
ROUNDING = 1e-3  # how far from 1 the float32 probabilities of a distribution may sum


def check_draft(draft: Draft, limits: DraftLimits, prompt: int, rule: AcceptanceRule) -> None:
    """Raises InvalidRequest or Unsupported, naming the field, for an invalid draft.

    `limits`: limits of the session; `prompt`: length of its prompt, in tokens. A rule with `draft_probs` needs the
    distribution that each token was drawn from; other rules accept none.
    """
    block = draft.block
    _check_size(block, limits.max_draft, limits.max_tree)
    if block.base < prompt:
        raise InvalidRequest(f"base {block.base} lies inside the prompt ({prompt})", "base")
    _check_tokens(block, limits.vocab_size, rule)


def _check_size(block: DraftBlock, max_draft: int, max_tree: int) -> None:
    count = len(block.tokens)
    if not block.parents:
        if count > max_draft:
            raise InvalidRequest(f"draft of {count} tokens; this server takes at most {max_draft}", "tokens")
    elif not max_tree:
        raise Unsupported("this sequence takes no draft trees; send a chain, without parents", "parents")
    elif count > max_tree:
        raise InvalidRequest(f"draft tree of {count} tokens; this server takes at most {max_tree}", "tokens")


def _check_tokens(block: DraftBlock, vocab_size: int, rule: AcceptanceRule) -> None:
    ids = block.ids
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        raise InvalidRequest(f"a draft id is outside the vocabulary of {vocab_size}", "tokens")
    for token in block.tokens:
        if rule.draft_probs:
            _check_source(token, vocab_size)
        elif token.drawn_from is not None:
            raise Unsupported("this rule takes no probabilities; leave draft_probs unset", "draft_probs")


def _check_source(token: DraftToken, vocab_size: int) -> None:
    source = token.drawn_from
    if source is None:
        raise InvalidRequest(
            "this rule needs the distribution that each draft token was drawn from", "draft_probs"
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
