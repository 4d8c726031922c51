"""Rule `fly`, by hand: which mismatches stand, and which never do."""

import itertools
from math import inf, log

import numpy as np
import pytest

from opensled.core.errors import InvalidRequest
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.noise import noise_key
from tests.rule_contract import decide_alone
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.rules.base import AcceptanceResult, DraftCheck, decided_ids
from verify_server.rules.fly import Fly
from verify_server.rules.match import Match

GREEDY = SamplingParams(temperature=0)
KEY = noise_key(1)
VOCABULARY = 8
WRONG = 5  # the target's own token is 0 everywhere
EOS = 7


def rows(count: int, spread: float = 1.0, **logits: float) -> NumpyScores:
    """`count` rows in which id 0 leads, by `spread`; `logits`: of single ids, as i3=2.0."""
    found = np.zeros((count, VOCABULARY))
    found[:, 0] = spread
    for name, value in logits.items():
        found[:, int(name[1:])] = value
    return NumpyScores(found)


def judged(
    pattern: str, options: str = "theta=0,window=2", spread: float = 1.0, **changes
) -> AcceptanceResult:
    """The decision on a draft: "." is the target's own token, "x" is another one."""
    ids = [0 if sign == "." else WRONG for sign in pattern]
    fields = {"params": GREEDY, **changes}
    check = DraftCheck(tuple(map(DraftToken, ids)), 9, fields.pop("params"), KEY, **fields)
    return decide_alone(Fly(options), check, rows(len(ids) + 1, spread))


@pytest.mark.parametrize(
    ("pattern", "accepted", "loose"),
    [
        ("....", 4, ()),
        ("x..", 3, (0,)),
        ("x.", 0, ()),  # its window ends behind the block
        (".x..", 4, (1,)),
        ("x..x..", 6, (0, 3)),
        ("x.x..", 0, ()),  # another mismatch in the window
        ("..x", 2, ()),
        ("x..x.", 3, (0,)),
        ("xx..", 0, ()),
        ("", 0, ()),
    ],
)
def test_a_mismatch_stands_where_the_window_behind_it_agrees(pattern, accepted, loose):
    result = judged(pattern)
    assert (result.num_accepted, result.loose, result.next_token) == (accepted, loose, 0)


@pytest.mark.parametrize("window", [0, 1, 2, 3])
def test_every_pattern_by_the_papers_equations(window):
    """Equations 5 to 11, spelled out anew: the first mismatch that is not deferred and accepted ends the draft."""
    for pattern in map("".join, itertools.product(".x", repeat=6)):
        count = len(pattern)
        mismatches = [place for place in range(count) if pattern[place] == "x"]
        stands = [
            place
            for place in mismatches
            if place + window < count and "x" not in pattern[place + 1 : place + 1 + window]
        ]
        first = min((place for place in mismatches if place not in stands), default=count)
        result = judged(pattern, f"theta=0,window={window}")
        assert result.num_accepted == first, pattern
        assert result.loose == tuple(place for place in stands if place < first)


def test_the_gate_opens_where_the_target_is_unsure():
    flat, sure = 0.01, 9.0
    assert judged("x..", "theta=0.9,window=2", flat).loose == (0,)
    assert judged("x..", "theta=0.9,window=2", sure).loose == ()
    assert judged("x..", "theta=1.5,window=2,entropy=top3", flat).loose == ()  # three of 8 have 0.78 nats
    assert judged("x..", "theta=0.7,window=2,entropy=top3", flat).loose == (0,)


@pytest.mark.parametrize("entropy", ["normalized", "top3"])
def test_the_gates_threshold_is_the_entropy_itself(entropy):
    logits = rows(1, 1.7).logits[0]
    probs = np.exp(logits) / np.exp(logits).sum()
    nats = -probs * np.log(probs)
    value = nats.sum() / log(VOCABULARY) if entropy == "normalized" else np.sort(nats[[0, 1, 2]]).sum()
    for theta, loose in ((value - 1e-9, (0,)), (value + 1e-9, ())):
        assert judged("x..", f"theta={float(theta)!r},window=2,entropy={entropy}", 1.7).loose == loose


@pytest.mark.parametrize("temperature", [0.1, 1.0, 5.0])
def test_entropy_is_that_of_the_raw_distribution(temperature):
    """Otherwise a hot sequence would be unsure everywhere."""
    found = set()
    for seed in range(30):
        params = SamplingParams(temperature=temperature)
        logits = np.zeros((4, VOCABULARY))
        logits[:, 0] = 3.0
        scores = NumpyScores(logits)
        own = _own(scores, params, noise_key(seed))
        draft = ((own[0] + 1) % VOCABULARY, own[1], own[2])
        check = DraftCheck(tuple(map(DraftToken, draft)), 9, params, noise_key(seed))
        found.add(decide_alone(Fly("theta=0.5,window=2"), check, scores).loose)
    probs = np.exp(logits[0]) / np.exp(logits[0]).sum()
    unsure = float(-(probs * np.log(probs)).sum() / log(VOCABULARY)) >= 0.5
    assert found == {(0,) if unsure else ()}


def _own(scores: NumpyScores, params: SamplingParams, key: bytes) -> tuple[int, ...]:
    nothing = DraftCheck(tuple([DraftToken(0)] * 3), 9, params, key)
    drafted = [0, 0, 0]
    for place in range(3):  # the target's own token at each place, whatever was drafted
        check = nothing._replace(draft=(DraftToken(0),), position=9 + place)
        result = decide_alone(Match(), check, NumpyScores(scores.logits[place : place + 2]))
        drafted[place] = decided_ids(check, result)[0]
    return tuple(drafted)


def test_a_token_that_ends_the_answer_is_never_loose():
    assert judged("x..", ends=frozenset({WRONG})).loose == ()
    assert judged("x..", ends=frozenset({0})).loose == ()  # nor in the place of one
    assert judged("x..", ends=frozenset({EOS})).loose == (0,)


def test_a_token_that_may_not_follow_is_never_loose():
    mask = np.packbits(np.arange(VOCABULARY) != WRONG, bitorder="little").tobytes()
    assert judged("x..", masks=[mask] * 4).loose == ()
    assert judged("x..", params=SamplingParams(temperature=0, top_k=1)).loose == ()
    assert judged("x..", params=SamplingParams(temperature=0, top_p=0.2)).loose == ()
    assert judged("x..", params=SamplingParams(temperature=0, min_p=0.9)).loose == ()
    assert judged("x..", params=SamplingParams(temperature=0, top_k=7)).loose == (0,)
    assert judged("x..", params=SamplingParams(temperature=0, logit_bias=((WRONG, -1.0),))).loose == ()
    assert judged("x..", params=SamplingParams(temperature=0, logit_bias=((EOS, -1.0),))).loose == (0,)


def test_with_an_infinite_threshold_it_is_match():
    for seed in range(50):
        draw = np.random.default_rng(seed)
        scores = NumpyScores(draw.normal(size=(7, VOCABULARY)))
        ids = tuple(map(DraftToken, draw.integers(3, size=6).tolist()))
        check = DraftCheck(ids, 9, SamplingParams(temperature=1.0), KEY)
        assert decide_alone(Fly("theta=inf"), check, scores) == decide_alone(Match(), check, scores)


def test_it_accepts_no_less_with_a_lower_threshold_or_a_shorter_window():
    for seed in range(50):
        draw = np.random.default_rng(seed)
        scores = NumpyScores(draw.normal(size=(13, VOCABULARY)))
        greedy = scores.logits.argmax(axis=1)[:12]
        ids = np.where(draw.random(12) < 0.8, greedy, draw.integers(VOCABULARY, size=12))
        check = DraftCheck(tuple(map(DraftToken, ids.tolist())), 9, GREEDY, KEY)
        for rising in (
            [f"theta={theta},window=2" for theta in (inf, 0.9, 0.7, 0.0)],
            [f"theta=0.5,window={window}" for window in (6, 4, 2, 1, 0)],
        ):
            accepted = [decide_alone(Fly(options), check, scores).num_accepted for options in rising]
            assert accepted == sorted(accepted)


def test_its_options():
    rule = Fly()
    assert (rule.theta, rule.window, rule.min_draft) == (0.3, 6, 15)
    assert rule.settings == "theta=0.3,window=6,entropy=normalized"
    assert Fly(rule.settings).settings == rule.settings
    assert not rule.guided and Fly("guided=yes").guided and Fly("guided").settings.endswith("guided=yes")
    for wrong in ("theta=-1", "theta=much", "theta=nan", "window=1.5", "window=-1", "window=9999", "entropy=all",
                  "guided=perhaps", "sigma=1"):  # fmt: skip
        with pytest.raises(InvalidRequest) as caught:
            Fly(wrong)
        assert caught.value.field == "rule"
