"""Figure `peer`: chats of the right size that share what real chats share, and ratios corrected for two builds."""

from __future__ import annotations

import pytest

from lab.benchmarks.peer import ALL, OURS, PEER, SHORT, Cell, Results, figure, raw_ratio
from lab.benchmarks.peer_chats import percentile
from lab.benchmarks.peer_prompts import LONG, Chats
from lab.benchmarks.peer_raw import PROMPT_MS, TOKEN_MS
from opensled.models.store import model_file


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


def results(cell: Cell, prompt_ms: float, token_ms: float) -> Results:
    speeds = {PROMPT_MS: [prompt_ms], TOKEN_MS: [token_ms]}
    return Results(
        samples={cell.series(OURS): [90.0], cell.series(PEER): [100.0]},
        first_ms={cell.series(OURS): {"p50": 12.0}, cell.series(PEER): {"p50": 10.0}},
        cpu_ms={cell.series(OURS): 10.0, cell.series(PEER): 9.0},
        raw_ms={"llama-cpp-python": speeds, "xllamacpp": {PROMPT_MS: [1.0], TOKEN_MS: [10.0]}},
    )


def test_a_slower_build_is_not_our_fault():
    """Ours takes a tenth longer for the same tokens."""
    cell = Cell(8, SHORT, 0.0)
    found = results(cell, 1.1, 11.0)
    assert raw_ratio(cell, found) == pytest.approx(1.1)
    facts = figure(model_file("tiny", "*.gguf"), (cell,), found).facts["cells"][cell.name]
    assert facts["ratio corrected for raw speed"] == pytest.approx(0.99)
    assert facts["CPU of the server, theirs over ours"] == pytest.approx(0.9)
    assert facts["time to first text, p50, ours over theirs"] == pytest.approx(1.2)


def test_every_cell_has_a_name_of_its_own():
    assert len({cell.name for cell in ALL}) == len(ALL)
    assert Cell(1, SHORT, 0.8).name == "1 user, 40 tokens, T=0.8" and Cell(4, LONG, 0.0).name.startswith(
        "4 users"
    )
