"""What every acceptance rule must keep to, over small targets of random logits; and a rule run without a server.

class TestMine(RuleContract):
    name = "my.module:Rule"
"""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest

from opensled.core.errors import EngineError, InvalidRequest, NonFiniteLogits
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.sampling import SparseSampler
from verify_server.engine.base import EngineInfo, SampleRequest, Scores, Segment, TargetEngine
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.round.step import run_step
from verify_server.round.step_item import StepItem
from verify_server.rules import RULES
from verify_server.rules.base import AcceptanceResult, AcceptanceRule, DraftCheck, SessionScores, decided_ids
from verify_server.rules.served import ServedRules

VOCABULARY = 12
POSITION = 9
KEY = noise_key(3)
WARM = SamplingParams(temperature=0.9)
CHAIN, TREE = (), (-1, 0, 0, -1)


def decide_alone(
    rule: AcceptanceRule, check: DraftCheck, scores: Scores, first_row: int = 0
) -> AcceptanceResult:
    """What `rule` decides, each of its requests answered by itself."""
    decision = rule.decide(check, SessionScores(scores, first_row, check))
    try:
        request = next(decision)
        while True:
            request = decision.send(scores.sample_one(request))
    except StopIteration as done:
        return done.value


class Recording:
    """Scores that remember which of their methods were called."""

    def __init__(self, scores: Scores) -> None:
        self._scores = scores
        self.called: set[str] = set()

    def __getattr__(self, name: str):
        self.called.add(name)
        return getattr(self._scores, name)


class Rows(TargetEngine):
    """An engine that gives the same logits whatever it computes."""

    info = EngineInfo("rows", VOCABULARY, 100, (), "exact", "float64", "cpu", 9, 16, max_tree=64)

    def __init__(self, logits: np.ndarray) -> None:
        self.logits = logits
        self.compacted: list[Sequence[tuple[int, int]]] = []

    def forward(self, segments: Sequence[Segment]) -> Scores:
        return NumpyScores(self.logits)

    def erase(self, blocks, start) -> None: ...

    def compact(self, blocks, moves) -> None:
        self.compacted.append(moves)


def item(rule: AcceptanceRule, check: DraftCheck) -> StepItem:
    """The step's work for one session, its rule and draft."""
    session = SimpleNamespace(terms=SimpleNamespace(rule=rule), riders=())
    count = len(check.draft) + 1
    segment = Segment((1,) * count, POSITION - 1, (0,), rows=count, parents=check.parents)
    return StepItem(session, segment, check)


class RuleContract:
    name: str  # as `--rule` takes it

    def served(self) -> ServedRules:
        loose = "" if RULES.get(self.name).lossless else self.name
        return ServedRules(self.name, trust_devices=True, loose=loose)

    def rule(self) -> AcceptanceRule:
        return self.served().create(self.name).rule

    def draft(self, seed: int, count: int, params: SamplingParams = WARM) -> tuple[DraftToken, ...]:
        """Random draft tokens, each with its distribution where the rule needs it."""
        chance = np.random.default_rng(seed)
        if self.rule().draft_probs:
            draw = SparseSampler(params, KEY)
            return tuple(draw.draw(chance.normal(size=VOCABULARY), POSITION + i) for i in range(count))
        return tuple(DraftToken(int(id)) for id in chance.integers(VOCABULARY, size=count))

    def check(self, seed: int, count: int, **changes) -> DraftCheck:
        params = changes.pop("params", WARM)
        return DraftCheck(self.draft(seed, count, params), POSITION, params, KEY, **changes)

    def test_the_facts_have_their_types_and_name_what_the_rule_calls(self):
        rule = self.rule()
        assert all(isinstance(fact, bool) for fact in (rule.lossless, rule.trees, rule.draft_probs))
        assert rule.min_draft >= 0
        assert not (rule.trees and rule.draft_probs), "the device's distributions are those of a chain"
        for seed in range(40):
            recording = Recording(NumpyScores(np.random.default_rng(seed).normal(size=(4, VOCABULARY))))
            decide_alone(self.rule(), self.check(seed, 3), recording)
            assert recording.called <= rule.needs | {"sample_one"}

    def test_unknown_options_are_refused_by_name(self):
        with pytest.raises(InvalidRequest) as caught:
            self.served().create(f"{self.name}:?")
        assert caught.value.field == "rule"

    @pytest.mark.parametrize(
        "params", [SamplingParams(temperature=0), WARM, SamplingParams(top_p=0.7)], ids=str
    )
    def test_a_lossless_rule_continues_the_targets_own_text(self, params):
        """What is decided is what the target draws, wherever the shared noise alone draws; at T = 0 everywhere."""
        rule = self.rule()
        if not rule.lossless or (rule.draft_probs and params.temperature):
            pytest.skip("not held by equality: tests/test_ratio.py counts what it draws")
        for seed in range(60):
            logits = np.random.default_rng(seed).normal(size=(5, VOCABULARY)) * 2
            check, scores = self.check(seed, 4, params=params), NumpyScores(logits)
            own = scores.sample_one(SampleRequest(range(5), params, KEY, POSITION))
            if seed % 2 and not rule.draft_probs:  # a draft that stands for a while
                check = check._replace(draft=(*map(DraftToken, own[:2]), *check.draft[2:]))
            news = decided_ids(check, decide_alone(self.rule(), check, scores))
            assert list(news) == own[: len(news)]

    def test_masks_bind_every_token(self):
        only = [np.packbits(np.arange(VOCABULARY) == id, bitorder="little").tobytes() for id in (3, 5, 7)]
        for seed in range(20):
            logits = np.random.default_rng(seed).normal(size=(3, VOCABULARY))
            check = self.check(seed, 2, masks=only)
            result = decide_alone(self.rule(), check, NumpyScores(logits))
            if self.rule().lossless:
                assert list(decided_ids(check, result)) == [3, 5, 7][: result.num_accepted + 1]

    def test_a_bad_row_fails_its_own_session_only(self):
        """With a draft nothing is decided, for the draft may be at fault; without one it is an error."""
        logits = np.random.default_rng(1).normal(size=(6, VOCABULARY))
        logits[:3] = np.nan
        check = self.check(4, 2)
        bad, good = run_step(Rows(logits), [item(self.rule(), check), item(self.rule(), check)])
        assert bad is None and isinstance(good, AcceptanceResult)
        plain = check._replace(draft=())
        bad, good = run_step(Rows(logits[2:4]), [item(self.rule(), plain), item(self.rule(), plain)])
        assert isinstance(bad, NonFiniteLogits) and isinstance(good, AcceptanceResult)

    def test_a_request_that_cannot_be_answered_fails_its_own_session_only(self):
        logits = np.random.default_rng(1).normal(size=(6, VOCABULARY))
        check = self.check(4, 2)
        sick = check._replace(params=SamplingParams(logit_bias=((VOCABULARY + 1, 1.0),)))
        failed, good = run_step(Rows(logits), [item(self.rule(), sick), item(self.rule(), check)])
        assert failed is None and isinstance(good, AcceptanceResult)
        work = [item(self.rule(), each._replace(draft=())) for each in (sick, check)]
        failed, good = run_step(Rows(logits[:2]), work)
        assert isinstance(failed, EngineError) and isinstance(good, AcceptanceResult)

    def test_a_tree_is_decided_where_the_rule_says_so(self):
        """The accepted path is a path, and its tokens are the target's own."""
        if not self.rule().trees:
            pytest.skip("a sequence of this rule takes no trees (tests/test_trees.py)")
        for seed in range(60):
            logits = np.random.default_rng(seed).normal(size=(5, VOCABULARY)) * 3
            scores = NumpyScores(logits)
            tokens = list(self.draft(seed, 4))
            [top] = scores.sample_one(SampleRequest([0], WARM, KEY, POSITION))
            tokens[3 * (seed % 2)] = DraftToken(top)  # the first branch or the last one stands for a while
            check = DraftCheck(tuple(tokens), POSITION, WARM, KEY, parents=TREE)
            engine = Rows(logits)
            [result] = run_step(engine, [item(self.rule(), check)])
            parents = [-1, *result.path]
            assert all(TREE[child] == parent for parent, child in zip(parents, result.path))
            assert result.num_accepted == len(result.path)
            assert bool(engine.compacted) == (result.path != tuple(range(len(result.path))))
            for depth, row in enumerate([0, *[index + 1 for index in result.path]]):
                request = SampleRequest([row], WARM, KEY, POSITION + depth)
                assert not self.rule().lossless or [decided_ids(check, result)[depth]] == scores.sample_one(
                    request
                )
