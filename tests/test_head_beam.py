"""Trees of a draft whose places are known apart: against all paths there are, and as a chain."""

from itertools import product

import numpy as np
import pytest
import torch

from lab.training.heads.pupil import greedy_chain
from verify_server.drafting.heads.beam import likeliest_tree
from verify_server.drafting.heads.collapse import ROOT, Trie, rank
from verify_server.drafting.heads.markov import NOT_DRAFTED, MarkovBias

PLACES, VOCABULARY = 3, 6


def bias_of(seed: int) -> MarkovBias:
    torch.manual_seed(seed)
    bias = MarkovBias(VOCABULARY, 2)
    torch.nn.init.normal_(bias.after)
    torch.nn.init.normal_(bias.towards)
    return bias.eval()


def logits_of(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(PLACES, VOCABULARY)).astype(np.float32) * 2


IDS = np.tile(np.arange(VOCABULARY), (PLACES, 1))


def paths(trie: Trie) -> dict[tuple[int, ...], float]:
    """By the ids from the root on."""
    found: list[tuple[int, ...]] = []
    for id, parent in zip(trie.ids, trie.parents):
        found.append((*(found[parent] if parent != ROOT else ()), id))
    return dict(zip(found, trie.scores))


@pytest.mark.parametrize("previous", [NOT_DRAFTED, 2])
@pytest.mark.parametrize("seed", range(4))
def test_with_every_way_open_all_paths_have_their_probability(seed, previous):
    bias, logits = bias_of(seed), logits_of(seed)
    trie = likeliest_tree(logits, IDS, previous, VOCABULARY**PLACES, bias.among)
    found = paths(trie)
    assert len(found) == sum(VOCABULARY**depth for depth in range(1, PLACES + 1))
    with torch.inference_mode():
        steps = [
            (torch.from_numpy(own) + bias(torch.tensor([NOT_DRAFTED, *range(VOCABULARY)]))).log_softmax(-1)
            for own in logits
        ]
    for path in product(range(VOCABULARY), repeat=PLACES):
        before = (previous, *path)
        expected = sum(
            step[before[place] + 1, id].item() for place, (step, id) in enumerate(zip(steps, path))
        )
        assert found[path] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_one_way_is_the_greedy_chain(seed):
    bias, logits = bias_of(seed), logits_of(seed)
    trie = likeliest_tree(logits, IDS, 3, 1, bias.among)
    with torch.inference_mode():
        [chain] = greedy_chain(torch.from_numpy(logits)[None], torch.tensor([3]), bias).tolist()
    assert trie.ids == chain and trie.parents == [ROOT, 0, 1]


def test_a_few_ways_hold_the_likeliest_tokens():
    logits = logits_of(9)
    whole = rank(likeliest_tree(logits, IDS, NOT_DRAFTED, 999, None), 8)
    narrow = rank(likeliest_tree(logits, IDS, NOT_DRAFTED, 4, None), 8)
    assert paths(narrow) == pytest.approx(paths(whole))
    assert all(parent < node for node, parent in enumerate(narrow.parents))


def test_only_candidates_are_drafted():
    ids = np.array([[4, 1], [0, 5], [3, 2]])
    trie = likeliest_tree(logits_of(1)[:, :2], ids, NOT_DRAFTED, 2, bias_of(1).among)
    depth: list[int] = []
    for id, parent in zip(trie.ids, trie.parents):
        depth.append(depth[parent] + 1 if parent != ROOT else 0)
        assert id in ids[depth[-1]]
    assert max(depth) == PLACES - 1
