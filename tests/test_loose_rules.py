"""Acceptance rules keep to the contract; loose ones run by consent of operator, tenant and sequence only."""

import logging

import numpy as np
import pytest

from edge_client.device.telemetry import Telemetry
from edge_client.drafters.none import NoneDrafter
from edge_client.link.remote import RetryPolicy
from edge_client.round.commits import Commit
from http_api.responses import total, usage
from opensled.core.answer import Stats
from opensled.core.errors import InvalidRequest, ProtocolError, Unsupported, UsageError
from opensled.core.messages import DraftToken, Guide, Open, SamplingParams, Verdict
from opensled.text.origins import colour_of
from opensled.wire.codec import decode_server, encode_server
from scheduler.fcfs import Fcfs
from tests.fakes import FakeEngine, OracleDrafter, Weather, continuation
from tests.gated_target import SlowEngine
from tests.rule_contract import KEY, POSITION, VOCABULARY, Rows, RuleContract, item
from tests.system import FOREVER, ask, running
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.session_manager import SessionLimits
from verify_server.drafting.model import ServerModel
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores
from verify_server.round.step import run_step
from verify_server.rules import RULES
from verify_server.rules.base import AcceptanceResult, AcceptanceRule, DraftCheck
from verify_server.rules.consent import require_rule
from verify_server.rules.loose import LooseRule
from verify_server.rules.match import Match
from verify_server.rules.served import ServedRule, ServedRules

STORM = Weather(loss=0.3, duplicate=0.1, reorder=0.2, seed=4)
IMPATIENT = RetryPolicy(silence=0.05, first_retry=0.001, slowest_retry=0.01, first_open=60.0, give_up=60.0)
PROMPT = [3, 1, 4]


class Lenient(LooseRule):
    """Lets every second mismatch of a sequence stand."""

    guided = False
    settings = "every=2"

    def __init__(self, options: str = "") -> None:
        super().__init__(options)
        self._met = 0

    def _stands(self, index, ids, own, scores):
        self._met += 1
        return self._met % 2 == 0


LENIENT = f"{__name__}:Lenient"


def serving_loose(tenant: TenantLimits = TenantLimits()) -> SessionLimits:
    return SessionLimits(linger=1.0, rules=ServedRules(loose=LENIENT), tenants=Tenants(default=tenant))


# -- consent ----------------------------------------------------------------------------------------------------


def test_no_loose_rule_is_served_unless_the_operator_names_it():
    assert [rule.name for rule in ServedRules().facts()] == ["match"]
    with pytest.raises(Unsupported, match="--loose-rules fly"):
        ServedRules().create("fly:theta=0.5")
    served = ServedRules(loose="fly")
    assert [(rule.name, rule.lossless, rule.trees) for rule in served.facts()] == [
        ("match", True, True),
        ("fly", False, False),
    ]
    assert served.create("fly:theta=0.5").label == "fly:theta=0.5,window=6,entropy=normalized"
    assert served.create("match").label == "match"


@pytest.mark.parametrize(("names", "loose"), [("fly", ""), ("", "match"), ("", "ratio"), ("", "telepathy")])
def test_an_operator_is_told_what_is_wrong_with_the_names(names, loose):
    with pytest.raises(UsageError):
        ServedRules(names, loose=loose)


def _served(rule: str = "fly") -> ServedRule:
    return ServedRules(loose="fly").create(rule)


def test_structured_output_needs_a_word_more():
    guide = Guide(json_schema="{}")
    require_rule(_served("match"), guide, TenantLimits(), 16)
    require_rule(_served("fly:guided"), guide, TenantLimits(), 16)
    require_rule(_served(), Guide(tool_choice="none"), TenantLimits(), 16)  # masks nothing
    with pytest.raises(Unsupported, match="guided=yes"):
        require_rule(_served(), guide, TenantLimits(), 16)


def test_a_server_whose_drafts_are_too_short_says_so():
    with pytest.raises(Unsupported, match=r"max-draft of the server to 15 in \[limits\]"):
        require_rule(_served(), None, TenantLimits(), 14)


def test_a_sequence_under_a_loose_rule_leaves_a_line_in_the_log(caplog):
    with caplog.at_level(logging.INFO):
        require_rule(_served("match"), None, TenantLimits(), 16)
        assert not caplog.records
        require_rule(_served(), None, TenantLimits(), 16)
    assert [record.rule for record in caplog.records] == ["fly:theta=0.3,window=6,entropy=normalized"]


async def test_a_barred_tenant_is_refused_end_to_end():
    async with running(FakeEngine(), limits=serving_loose(TenantLimits(strict=1))) as network:
        with pytest.raises(Unsupported, match="does not allow loose rules") as caught:
            await ask(network, PROMPT, OracleDrafter(0.5), rule=LENIENT)
        assert caught.value.field == "rule"
        assert list((await ask(network, PROMPT, OracleDrafter(0.5))).tokens) == continuation(PROMPT, 40)


async def test_opened_says_what_the_rule_takes():
    rules = ServedRules(loose="fly", trust_devices=True)
    async with running(FakeEngine(), limits=SessionLimits(linger=0.2, rules=rules)) as network:
        takes = {"match": (0, 64, False), "fly": (15, 0, False), "ratio": (0, 0, True)}
        for asked, told in takes.items():
            _, opened = await network.manager.open(Open((1, 2), rule=asked), "t")
            assert opened.rule.startswith(asked)
            assert (opened.limits.min_draft, opened.limits.max_tree, opened.draft_probs) == told


@pytest.mark.parametrize("rule", ["match", LENIENT])
async def test_under_a_loose_rule_the_server_drafts_nothing(rule):
    """What its draft model errs in would stand though no device has drafted it."""
    model = FakeEngine(num_blocks=200, target=lambda text: 1 + len(text) % 3)
    options = {"drafter": ServerModel(model), "policy": Fcfs(FOREVER, 4), "limits": serving_loose()}
    async with running(FakeEngine(num_blocks=200), **options) as network:
        answer = await ask(network, PROMPT, NoneDrafter(), rule=rule)
        text, drafted = list(answer.tokens), network.manager.loop.machine.stats.own.tokens
    assert text == continuation(PROMPT, 40)
    assert (drafted > 0) == (rule == "match")


# -- what is told of loose tokens -------------------------------------------------------------------------------


@pytest.mark.parametrize("weather", [Weather(), STORM], ids=["calm", "storm"])
async def test_every_loose_token_is_told_and_nothing_else_is_called_loose(weather):
    params = SamplingParams(temperature=0, max_tokens=60)
    # Steps that take a while: a fake target may have written everything before the first draft comes through.
    async with running(SlowEngine(), draft_wait=0.05, limits=serving_loose(), weather=weather) as network:
        answer = await ask(
            network, PROMPT, OracleDrafter(0.6, seed=2), params, patience=IMPATIENT, rule=LENIENT
        )
        text, loose = list(PROMPT), 0
        for commit in answer.commits:
            for index, (token, origin) in enumerate(zip(commit.tokens, commit.origins)):
                [own] = continuation(text, 1)
                assert (token != own) == (index in commit.loose) == (origin == "loose")
                loose += origin == "loose"
                text.append(token)
        assert loose
        if weather is STORM:
            assert answer.reopened
        else:
            assert network.manager.loop.machine.stats.loose == loose


def test_origins_and_statistics():
    commit = Commit((7, 8, 9), 4, 2, loose=(1,))
    assert commit.origins == ("accepted", "loose", "recovered")
    counts, stats = Telemetry(), Stats(3, 0, rule="fly:theta=0.1")
    counts.commit(stats, commit, 3, seconds=0.5)
    # A stop string after its first token
    counts.commit(stats, Commit((1, 2, 3), 4, 2, loose=(0, 1)), 1, seconds=0.6)
    assert (stats.loose, counts.loose, stats.accepted) == (2, 2, 3)
    told = usage(total([stats, stats], 2), "fly")["opensled"]
    assert (told["rule"], told["loose"]) == ("fly:theta=0.1", 4)
    assert usage(Stats(1, 1), "match")["opensled"]["rule"] == "match"
    assert colour_of("loose") == "red"


def test_a_verdict_keeps_its_loose_tokens_on_the_wire():
    verdict = Verdict(5, (1, 2, 3), 2, 1, loose=(0, 2))
    assert decode_server(encode_server(verdict)) == verdict
    for wrong in ((3,), (1, 1), (2, 0)):
        with pytest.raises((InvalidRequest, ProtocolError)):
            decode_server(encode_server(verdict._replace(loose=wrong)))


# -- every registered rule --------------------------------------------------------------------------------------


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
