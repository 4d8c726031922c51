"""From frames to text: a trie's scores are those of all alignments, counted one by one."""

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.head_texts import collapse
from tests.hypothesis_profiles import tried
from verify_server.drafting.heads.collapse import ROOT, Trie, best_chain, best_trie

BLANK = 9
ALL = 10_000  # paths, ids or nodes: more than there are


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ([7, 7, BLANK, 7, 3, 3], [7, 7, 3]),
        ([BLANK, BLANK, BLANK], []),
        ([], []),
        ([7, 7, 7], [7]),
        ([7, 3, 7], [7, 3, 7]),
        ([BLANK, 7, BLANK], [7]),
    ],
)
def test_what_a_path_of_frames_says(path, text):
    """Of the first one, dropping blanks before repeats would leave [7, 3]."""
    assert collapse(path, BLANK) == text


def drawn_frames(frames: int, tokens: int, seed: int, spread: float = 2.0) -> np.ndarray:
    """float32 [frames, tokens + 1] of log-probabilities; the last column is the blank."""
    logits = np.random.default_rng(seed).normal(size=(frames, tokens + 1)) * spread
    return (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)


def counted(log_probs: np.ndarray) -> dict[tuple[int, ...], float]:
    """Of every text that the frames can begin with, the log-probability of all paths that begin with it."""
    frames, columns = log_probs.shape
    found: dict[tuple[int, ...], list[float]] = {}
    for path in itertools.product(range(columns), repeat=frames):
        text = collapse(path, columns - 1)
        score = sum(float(log_probs[frame, id]) for frame, id in enumerate(path))
        for depth in range(1, len(text) + 1):
            found.setdefault(tuple(text[:depth]), []).append(score)
    return {text: float(np.logaddexp.reduce(scores)) for text, scores in found.items()}


def texts(trie: Trie) -> list[tuple[int, ...]]:
    """What stands from the root to each node; a parent must stand before it."""
    found: list[tuple[int, ...]] = []
    for node, (id, parent) in enumerate(zip(trie.ids, trie.parents, strict=True)):
        assert ROOT <= parent < node
        found.append((*(found[parent] if parent != ROOT else ()), id))
    return found


def check_form(trie: Trie, blank: int) -> None:
    """Parents first, nothing twice, no blank, and the children of one parent in the order of their scores."""
    found = texts(trie)
    assert len(set(found)) == len(found) == len(trie.scores)
    assert blank not in trie.ids
    for parent in {ROOT, *range(len(found))}:
        scores = [score for score, above in zip(trie.scores, trie.parents) if above == parent]
        assert scores == sorted(scores, reverse=True)
        if parent != ROOT:
            assert all(score <= trie.scores[parent] for score in scores)


@pytest.mark.parametrize(
    ("frames", "tokens", "seed"), [(1, 3, 0), (3, 1, 1), (3, 3, 2), (4, 3, 3), (5, 2, 4)]
)
def test_scores_are_those_of_all_alignments(frames, tokens, seed):
    log_probs = drawn_frames(frames, tokens, seed)
    trie = best_trie(log_probs, tokens, top_k=ALL, beam=ALL, most=ALL)
    check_form(trie, tokens)
    wanted = counted(log_probs)
    assert set(texts(trie)) == set(wanted)
    for text, score in zip(texts(trie), trie.scores):
        assert score == pytest.approx(wanted[text], abs=1e-5)


def test_a_narrow_search_finds_what_its_paths_stand_for():
    """With few ids a frame, and few paths, the scores are those of the likeliest such paths alone."""
    log_probs = drawn_frames(4, 5, seed=8)
    top = [np.argsort(-row)[:3] for row in log_probs]
    scored = [
        (sum(float(log_probs[frame, id]) for frame, id in enumerate(path)), path)
        for path in itertools.product(*top)
    ]
    wanted: dict[tuple[int, ...], list[float]] = {}
    for score, path in sorted(scored, reverse=True)[:6]:
        text = collapse([int(id) for id in path], 5)
        for depth in range(1, len(text) + 1):
            wanted.setdefault(tuple(text[:depth]), []).append(score)
    trie = best_trie(log_probs, 5, top_k=3, beam=6, most=ALL)
    found = dict(zip(texts(trie), trie.scores))
    assert found == pytest.approx({text: np.logaddexp.reduce(own) for text, own in wanted.items()}, abs=1e-5)


@tried(60)
@given(
    st.integers(1, 7),
    st.integers(1, 12),
    st.integers(0, 10**6),
    st.sampled_from([0.0, 1.0, 5.0, 300.0]),
    st.integers(1, 6),
    st.integers(1, 40),
    st.integers(1, 20),
)
def test_any_frames_make_a_trie(frames, tokens, seed, spread, top_k, beam, most):
    log_probs = drawn_frames(frames, tokens, seed, spread)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trie = best_trie(log_probs, tokens, top_k, beam, most)
    check_form(trie, tokens)
    assert len(trie.ids) <= most
    assert np.isfinite(trie.scores).all() and max(trie.scores, default=0.0) <= 1e-4
    assert trie.scores == sorted(trie.scores, reverse=True)


def test_fewer_nodes_are_the_best_ones():
    log_probs = drawn_frames(5, 4, seed=5)
    every = best_trie(log_probs, 4, top_k=ALL, beam=ALL, most=ALL)
    best = dict(zip(texts(every), every.scores))
    few = best_trie(log_probs, 4, top_k=ALL, beam=ALL, most=7)
    assert list(zip(texts(few), few.scores)) == sorted(best.items(), key=lambda item: -item[1])[:7]


def test_a_chain_follows_the_best_children():
    """The best node of depth two lies behind the second-best one of depth one, and is not on the chain."""
    trie = Trie([5, 6, 7, 8, 5, 9], [ROOT, ROOT, 1, 0, 2, 0], [-0.9, -1.0, -1.1, -2.0, -2.5, -3.0])
    assert best_chain(trie) == Trie([5, 8], [ROOT, 0], [-0.9, -2.0])


@tried(30)
@given(st.integers(1, 6), st.integers(1, 8), st.integers(0, 10**6))
def test_a_chain_is_that_of_a_search_for_the_best_child(frames, tokens, seed):
    trie = best_trie(drawn_frames(frames, tokens, seed), tokens)
    ids, last = [], ROOT
    while children := [node for node, parent in enumerate(trie.parents) if parent == last]:
        last = max(children, key=lambda node: trie.scores[node])
        ids.append(trie.ids[last])
    chain = best_chain(trie)
    assert chain.ids == ids and chain.parents == list(range(-1, len(ids) - 1))
    assert chain.scores == sorted(chain.scores, reverse=True)


@pytest.mark.parametrize("others", [-1e3, -1e30, -np.inf])
@pytest.mark.parametrize("top_k", [1, 4, ALL])
def test_frames_that_are_all_blank_make_no_draft(others, top_k):
    """Whatever is said of the other ids, and without a warning: NaN would go on to the server."""
    log_probs = np.full((5, 4), others, np.float32)
    log_probs[:, 3] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trie = best_trie(log_probs, 3, top_k)
        assert trie == best_chain(trie) == Trie([], [], [])


def test_an_id_that_is_certain_counts_once():
    """Where no other id is possible, the search must not take the same one again."""
    log_probs = np.full((3, 5), -np.inf, np.float32)
    log_probs[:, 0] = 0
    assert best_trie(log_probs, 4) == Trie([0], [ROOT], [0.0])


def test_a_head_of_nan_makes_no_draft():
    log_probs = drawn_frames(4, 3, seed=1)
    log_probs[2] = np.nan
    assert best_trie(log_probs, 3).ids == []
