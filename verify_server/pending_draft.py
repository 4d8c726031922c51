"""A device's draft at the server: what it must be before it costs any computation, and what of it is verified.

A draft is checked as it arrives. Then it is kept until it is planned.
"""

import math
from typing import NamedTuple

from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import Draft, DraftBlock, DraftToken, SparseDistribution
from verify_server.acceptance.base import AcceptanceRule
from verify_server.draft_budget import DraftBudget
from verify_server.sequence import Sequence
from verify_server.trees import depth_first, no_deeper, no_wider

MAX_CANDIDATES = 256  # ids of one draft distribution
ROUNDING = 1e-3  # how far from 1 the float32 probabilities of a distribution may sum


class PendingDraft(NamedTuple):
    """A draft not yet planned: as it arrived, what of it still drafts beyond the truth, and when it came."""

    draft: Draft
    rest: DraftBlock
    since: float
    # For each token of `rest` the chance that it stands with all before it; () = the device does not say
    reach: tuple[float, ...] = ()


class DraftLimits(NamedTuple):
    """What a draft of one session may be."""

    vocab_size: int  # ids that a draft may hold
    max_draft: int  # tokens of a chain
    max_tree: int = 0  # tokens of a tree; 0 = chains only
    tree_reads: int = 0  # positions that its branches may read together; 0 = any number (`EngineInfo`)
    least_draft: int = 0  # tokens of the shortest chain that its rule makes full use of; 0 = any


def check_draft(draft: Draft, limits: DraftLimits, prompt: int, rule: AcceptanceRule) -> None:
    """Raises InvalidRequest or Unsupported, naming the field, for a draft that a session does not take.

    `limits`: of the session; `prompt`: tokens of its prompt. A rule with `draft_probs` needs the distribution that each
    token was drawn from; others take none.
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


def verified(
    rest: DraftBlock,
    most: int | None,
    limits: DraftLimits,
    budget: DraftBudget,
    sequence: Sequence,
    now: float,
) -> DraftBlock:
    """What of a draft that follows the text is verified: a chain, or a tree in the engine's order.

    `most`: tokens that the plan has for it, None = all. `now`: seconds.
    """
    useful, length = sequence.useful, len(sequence)
    most = len(rest.tokens) if most is None else most
    if not rest.parents:
        return rest.first(min(useful, budget.longest(limits.max_draft, length, now), most))
    allowed = budget.longest(limits.max_tree, length, now)
    # What a tree needs beyond the longest chain it takes of free memory: no other session loses KV for it.
    room = max(limits.max_draft, sequence.memory.reach() - length)
    tree = no_deeper(rest, useful).first(min(allowed, room, most))
    if limits.tree_reads:
        tree = no_wider(tree, max(1, limits.tree_reads // length))
    return depth_first(tree)
