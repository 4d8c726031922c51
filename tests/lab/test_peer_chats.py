"""The chats that servers are asked: of the right size, and with what real chats share."""

import pytest

from lab.benchmarks.peer_chats import percentile
from lab.benchmarks.peer_prompts import LONG, SHORT, Chats


def words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize(("kind", "least", "most"), [(SHORT, 20, 40), (LONG, 750, 850)])
def test_chats_share_their_system_prompt_and_nothing_else(kind, least, most):
    chats = Chats(kind, words)
    asked = [chats.next() for _ in range(20)]
    assert len({chat[0]["content"] for chat in asked}) == 1
    assert len({chat[1]["content"] for chat in asked}) == 20
    sizes = [sum(words(turn["content"]) for turn in chat) for chat in asked]
    assert least <= min(sizes) and max(sizes) <= most
    assert chats.greeting()[0] == asked[0][0]


@pytest.mark.parametrize(("share", "expected"), [(0.5, 5), (0.99, 10), (0.1, 1), (0.0, 1)])
def test_percentiles_are_values_that_were_seen(share, expected):
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], share) == expected
