"""Every registered acceptance rule keeps to the contract; rules of third parties are served by name."""

import numpy as np
import pytest

from opensled.core.errors import InvalidRequest, Unsupported, UsageError
from opensled.core.messages import DraftToken, Open, SamplingParams
from tests.fakes import FakeEngine, OracleDrafter, continuation
from tests.gated_target import SlowEngine
from tests.rule_contract import KEY, POSITION, VOCABULARY, Rows, RuleContract, item
from tests.system import ask, running
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.round.step import run_step
from verify_server.rules import RULES
from verify_server.rules.base import AcceptanceResult, AcceptanceRule, DraftCheck
from verify_server.rules.match import Match
from verify_server.rules.served import ServedRules

for name in RULES.names():
    globals()[f"Test_{name}"] = type(f"Test_{name}", (RuleContract,), {"name": name})


class AtMost(AcceptanceRule):
    """A rule of a third party: `match`, but of no more than so many draft tokens; it counts its drafts."""

    def __init__(self, options: str = "") -> None:
        if not options.isdecimal() and options:
            raise InvalidRequest(f"{options!r} is no number of draft tokens", "rule")
        self._most = int(options or "2")
        self.drafts = 0

    def decide(self, check, scores):
        self.drafts += 1
        result = yield from Match().decide(check, scores)
        if result.num_accepted <= self._most:
            return result
        return AcceptanceResult(self._most, check.ids[self._most])


class Telepath(AtMost):
    """One that believes devices, and is none of the registered."""

    draft_probs = True


OURS = f"{__name__}:AtMost"


class TestThirdParty(RuleContract):
    name = OURS


@pytest.mark.parametrize(("asked", "most"), [(OURS, 2), (f"{OURS}:1", 1)])
async def test_a_rule_of_a_third_party_is_served_end_to_end(asked, most):
    limits = SessionLimits(linger=0.2, rules=ServedRules(f"match, {OURS}"))
    params = SamplingParams(temperature=0, max_tokens=150)
    async with running(SlowEngine(), limits=limits) as network:  # slow enough for drafts to come in time
        answer = await ask(network, [3, 1, 4], OracleDrafter(0.9), params, rule=asked)
        assert list(answer.tokens) == continuation([3, 1, 4], 150)
        # The token after the accepted ones is the draft's next one where the target agrees.
        assert max(round.accepted for round in answer.rounds) == most + 1


def test_each_sequence_has_a_rule_object_of_its_own():
    rules = ServedRules(OURS)
    assert rules.create(OURS).rule is not rules.create(OURS).rule


def test_a_device_cannot_name_a_rule_that_is_not_served():
    for asked in (OURS, "telepathy", "match2", "ratio"):
        with pytest.raises(Unsupported) as caught:
            ServedRules().create(asked)
        assert caught.value.field == "rule"
    with pytest.raises(InvalidRequest):
        ServedRules(OURS).create(f"{OURS}:many")


@pytest.mark.parametrize(
    "names", ["ratio", f"match,{__name__}:Telepath", "telepathy", "builtins:print", "match:1", "os:sep"]
)
def test_an_operator_is_told_which_rule_cannot_be_served(names):
    with pytest.raises(UsageError):
        ServedRules(names)


def test_facts_are_told_of_what_is_served():
    assert [rule.name for rule in ServedRules().facts()] == ["match"]
    facts = {rule.name: rule for rule in ServedRules(trust_devices=True).facts()}
    assert facts["match"].trees and not facts["match"].draft_probs
    assert facts["ratio"].draft_probs and not facts["ratio"].trees


async def test_a_sequence_hears_what_its_rule_takes():
    limits = SessionLimits(linger=0.2, rules=ServedRules(trust_devices=True))
    async with running(FakeEngine(), limits=limits) as network:
        told = [(await network.manager.open(Open((1, 2), rule=rule), "t"))[1] for rule in ("match", "ratio")]
        assert [(opened.limits.max_tree, opened.draft_probs) for opened in told] == [(64, False), (0, True)]


def test_one_sampling_call_serves_all_sessions_of_a_step():
    """Chains take one; the trees among them one more for each run of the longest path."""
    params = SamplingParams(temperature=0.9)
    logits = np.random.default_rng(0).normal(size=(12, VOCABULARY)) * 2
    calls = []

    class Counting(NumpyScores):
        def sample(self, requests):
            calls.append(len(requests))
            return super().sample(requests)

    class Engine(Rows):
        def forward(self, segments):
            return Counting(self.logits)

    [own] = NumpyScores(logits).sample_one(SampleRequest([8], params, KEY, POSITION))
    chain = DraftCheck((DraftToken(1), DraftToken(2), DraftToken(3)), POSITION, params, KEY)
    tree = chain._replace(
        draft=(DraftToken((own + 1) % VOCABULARY), DraftToken(1), DraftToken(own)), parents=(-1, 0, -1)
    )
    work = [item(Match(), check) for check in (chain, chain, tree)]
    outcomes = run_step(Engine(logits), work)
    assert calls == [3, 1] and outcomes[2].path == (2,)
