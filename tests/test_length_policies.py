"""What holds for every registered draft-length policy, and for one of your own.

Run: .venv/bin/python -m pytest tests/test_length_policies.py -q
"""

from __future__ import annotations

import pytest

from edge_client.device import _length_policy
from edge_client.lengths import LENGTH_POLICIES, length_policy
from edge_client.lengths.adaptive import Adaptive
from edge_client.lengths.base import DraftLengthPolicy, LengthOptions, pulled
from edge_client.lengths.confidence import ConfidenceLength
from edge_client.lengths.fixed import FixedLength
from edge_client.prompt_config import GenerateConfig
from opensled.drafting.status import DraftStatus
from opensled.errors import UsageError
from opensled.messages import DraftBlock, DraftToken


class Pairs(DraftLengthPolicy):
    """The least that a policy of one's own must say."""

    def most(self, limit: int, hint: int | None = None, ready: int = 0) -> int:
        return min(limit, 2 if hint is None else hint)

    @property
    def status(self) -> DraftStatus:
        return DraftStatus(True, "k = 2", 2)


NAMES = [*LENGTH_POLICIES.names(), f"{__name__}:Pairs"]
TOKEN = DraftToken(1, 0.9)


@pytest.fixture(params=NAMES)
def policy(request: pytest.FixtureRequest) -> DraftLengthPolicy:
    return length_policy(request.param, LengthOptions(length=6, tree=8))


def rounds(policy: DraftLengthPolicy, count: int = 40) -> None:
    """Rounds of a device that drafts ten times as fast as its server decodes."""
    base = 10
    for number in range(count):
        length = policy.most(16)
        block = DraftBlock(base, tuple(pulled(policy, iter([TOKEN] * 16), length, lambda: False)))
        if block.tokens:
            policy.drafted(len(block.tokens), 0.005 * len(block.tokens))
            accepted = min(len(block.tokens), number % 5)
            policy.answered(block, accepted, 0.06)
        else:
            accepted = 0
            policy.streamed(1, 0.05)
        base += accepted + 1


def test_a_block_never_exceeds_its_limit_the_hint_or_the_length_of_its_owner(
    policy: DraftLengthPolicy,
) -> None:
    for _ in range(3):
        for limit in (0, 1, 3, 16):
            assert 0 <= policy.most(limit) <= min(limit, 6)
            assert 0 <= policy.most(limit, 2, 1) <= min(limit, 2)
            assert 0 <= policy.ahead(limit, 2) <= min(limit, 2)
            assert 0 <= policy.nodes(limit) <= limit
        rounds(policy)


def test_a_hint_of_zero_means_no_drafts(policy: DraftLengthPolicy) -> None:
    rounds(policy)
    assert policy.most(16, 0) == policy.ahead(16, 0) == policy.nodes(16, 0) == 0


def test_a_pulled_block_stops_where_it_must(policy: DraftLengthPolicy) -> None:
    rounds(policy)
    assert not list(pulled(policy, iter([TOKEN] * 4), 4, lambda: True))
    assert len(list(pulled(policy, iter([TOKEN] * 2), 4, lambda: False))) <= 2


def test_it_says_what_it_does(policy: DraftLengthPolicy) -> None:
    rounds(policy)
    status = policy.status
    assert status.words
    assert status.length <= 6
    assert status.drafting == (policy.most(16) > 0)
    assert isinstance(policy.needs_confidence, bool)


def test_what_the_flags_mean() -> None:
    adaptive = _length_policy(GenerateConfig(draft_length=5, battery_floor=0))
    assert isinstance(adaptive, Adaptive) and adaptive.top(16, 9) == 5
    doubtful = _length_policy(GenerateConfig(stop="confidence", draft_tree=0))
    assert doubtful == ConfidenceLength(4, True, confidence=0.4)
    assert _length_policy(GenerateConfig(stop="fixed", draft_length=2)) == FixedLength(2, tree=60)


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(UsageError, match="choose from adaptive, fixed, confidence"):
        length_policy("longest", LengthOptions())
    with pytest.raises(UsageError, match="no draft-length policy"):
        length_policy("edge_client.lengths.base:UNADVISED", LengthOptions())
