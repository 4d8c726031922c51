"""Loose rules against two references that share no product code: replay, and the closed loop.

What is replayed is every decision that the server took, over a lossy link, with other sequences in its batches, and
after a server was lost. `theta` = infinity and `sigma` < 0 are `match`, and mutants of the rules are caught.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RetryPolicy
from lab.testbed.loose_reference import Decided, FlyLaw, LooseReference, PadLaw
from lab.testbed.reference import Reference, Sampling, key_of_seed
from opensled.core.messages import SamplingParams
from opensled.core.noise import noise_key
from opensled.models.store import model_path
from scheduler.fcfs import Fcfs
from scheduler.plan import Snapshot
from tests.fakes import OracleDrafter, Weather
from tests.lossless import reference
from tests.system import FOREVER, ask, running
from verify_server.admission.session_manager import SessionLimits
from verify_server.engine.torch.torch_engine import load
from verify_server.rules.base import decided_ids
from verify_server.rules.fly import Fly
from verify_server.rules.pad import Pad
from verify_server.rules.pivots import PivotClassifier
from verify_server.rules.served import ServedRule, ServedRules

STORM = Weather(loss=0.2, duplicate=0.1, reorder=0.1, seed=5)
IMPATIENT = RetryPolicy(silence=0.4, first_retry=0.001, slowest_retry=0.02, first_open=60.0, give_up=120.0)
QUESTIONS = ("Tell me a short story about a fox.", "How do I make tea?", "Describe a small red house.")
TEMPERATURES = (0.0, 0.8, 1.0)
LAYER = 3
BLOCK = 9


@cache
def draft_model() -> Reference:
    return Reference(model_path("tiny-draft"), "float32")


@pytest.fixture(scope="module")
def engine():
    engine = load(str(model_path("tiny")), device="cpu", dtype="float64", kv_tokens=8192)
    engine.keep(LAYER)
    reference(), draft_model()  # now, for the drafters' threads would load it several times at once
    return engine


@cache
def classifier() -> PivotClassifier:
    """With random weights: it lets about half of all tokens stand."""
    draw = np.random.default_rng(3).normal
    sizes = {"state": (256, 8), "facts": (2, 4), "inner": (12, 16), "inner_bias": (16,), "outer": (16,)}
    weights = {name: draw(scale=0.2, size=size).astype(np.float32) for name, size in sizes.items()}
    return PivotClassifier(LAYER, {**weights, "outer_bias": np.zeros(1, np.float32)})


def next_draft(text: Sequence[int], sampling: Sampling) -> int:
    return sampling.draw(draft_model().logits(text)[0], len(text))


def drafted(sampling: Sampling):
    def draft(text: Sequence[int], count: int) -> list[int]:
        ids = list(text)
        for _ in range(count):
            ids.append(next_draft(ids, sampling))
        return ids[len(text) :]

    return draft


@dataclass
class Recorded:
    """A decision as the server took it."""

    key: bytes
    position: int
    draft: tuple[int, ...]
    news: tuple[int, ...]
    loose: tuple[int, ...]


class Recording(ServedRules):
    """Serves one rule under any name, and writes down what it decides."""

    def __init__(self, make) -> None:
        super().__init__()
        self.sessions: list[list[Recorded]] = []  # of each sequence on the server, in order
        self._make = make

    def create(self, asked: str) -> ServedRule:
        rule = self._make()
        plain, decisions = rule.decide, list[Recorded]()
        self.sessions.append(decisions)

        def decide(check, scores):
            result = yield from plain(check, scores)
            news = decided_ids(check, result)
            decisions.append(Recorded(check.key, check.position, check.ids, news, result.loose))
            return result

        rule.decide = decide
        return ServedRule("loose", rule)


def fly(theta=0.02, window=1, **options):
    words = {"theta": theta, "window": window, **options}
    return lambda: Fly(",".join(f"{name}={value}" for name, value in words.items()))


def pad(sigma=0.5, floor=1e-4):
    return lambda: Pad(f"sigma={sigma},floor={floor}", classifier())


RULES = {
    "fly": (fly(), FlyLaw(0.02, 1)),
    "fly-bare": (fly(0.05, 0), FlyLaw(0.05, 0)),
    "fly-top3": (fly(0.2, 1, entropy="top3"), FlyLaw(0.2, 1, top3=True)),
    "pad": (pad(), PadLaw(0.5, 1e-4, LAYER, classifier().weights)),
}


def prompts() -> list[list[int]]:
    return [reference().render_chat([{"role": "user", "content": text}]) for text in QUESTIONS]


def sampling_of(params: SamplingParams, seed: int) -> Sampling:
    return Sampling(params.temperature, params.top_k, params.top_p, key_of_seed(seed))


class Patient(Fcfs):
    """Decides nothing without a draft but the very last token, which needs none: a lost device comes back."""

    def plan(self, snapshot, profile, now):
        views = [each if each.left <= 1 else replace(each, server_drives=False) for each in snapshot.sessions]
        return super().plan(Snapshot(tuple(views), snapshot.memory), profile, now)


async def answers_of(engine, make, params, *, weather=Weather()):
    """The answers to all questions at once, each with its decisions."""
    rules = Recording(make)
    limits = SessionLimits(linger=5.0, rules=rules)
    async with running(
        engine, policy=Patient(FOREVER), max_step_tokens=256, limits=limits, weather=weather
    ) as network:
        asked = []
        for seed, prompt in enumerate(prompts()):
            own = replace(params, seed=seed)
            sampling = sampling_of(params, seed)
            # That of the closed loop, so that both draft the same.
            drafter = OracleDrafter(1.0, target=lambda text, sampling=sampling: next_draft(text, sampling))
            asked.append(ask(network, prompt, drafter, own, stop=FixedLength(BLOCK), patience=IMPATIENT))
        return await asyncio.gather(*asked), rules.sessions


def replayed(law, params, answers, sessions) -> list[tuple[Recorded, Decided]]:
    """Every decision beside the reference's. A sequence that its device lost went another way than the answer."""
    found = []
    by_key = {noise_key(seed): (seed, answer) for seed, answer in enumerate(answers)}
    for decisions in filter(None, sessions):
        seed, answer = by_key[decisions[0].key]
        text = [*prompts()[seed], *answer.tokens][: decisions[0].position]
        plain = LooseReference(reference(), law, sampling_of(params, seed), reference().eos_ids)
        for one in decisions:
            assert len(text) == one.position
            found.append((one, plain.decided(text, one.draft)))
            text += one.news
    return found


def loose_of(answer) -> list[int]:
    """Places in the answer of its loose tokens, as its device heard of them."""
    places, length = [], 0
    for commit in answer.commits:
        places += [length + index for index in commit.loose]
        length += len(commit.tokens)
    return places


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        ("fly", 0.8),
        ("fly-top3", 0.0),
        ("pad", 0.8),
        *(pytest.param(*each, marks=pytest.mark.long) for each in (("fly", 0.0), ("fly-bare", 1.0))),
        *(pytest.param("pad", each, marks=pytest.mark.long) for each in TEMPERATURES if each != 0.8),
    ],
)
def test_every_decision_over_a_lossy_link_is_the_references(engine, name, temperature):
    make, law = RULES[name]
    params = SamplingParams(temperature=temperature, top_p=0.95, max_tokens=32)
    answers, sessions = asyncio.run(answers_of(engine, make, params, weather=STORM))
    assert sum(answer.reopened for answer in answers)
    for one, plain in replayed(law, params, answers, sessions):
        assert (one.news, one.loose) == plain
    counted = sum(len(one.loose) for session in sessions for one in session)
    assert counted, "a run without loose tokens shows nothing"


@pytest.mark.parametrize(
    "temperature", [pytest.param(each, marks=[pytest.mark.long] * (each != 0.8)) for each in TEMPERATURES]
)
@pytest.mark.parametrize("name", ["fly", "pad"])
def test_the_whole_text_is_that_of_the_closed_loop(engine, name, temperature):
    make, law = RULES[name]
    params = SamplingParams(temperature=temperature, max_tokens=32)
    answers, _ = asyncio.run(answers_of(engine, make, params))
    some = 0
    for seed, (prompt, answer) in enumerate(zip(prompts(), answers)):
        sampling = sampling_of(params, seed)
        plain = LooseReference(reference(), law, sampling, reference().eos_ids).closed_loop(
            prompt, drafted(sampling), BLOCK, params.max_tokens
        )
        assert (plain.tokens, list(plain.loose)) == (answer.tokens, loose_of(answer))
        some += len(plain.loose)
    assert some, "a run without loose tokens shows nothing"


@pytest.mark.parametrize("temperature", [0.8])
@pytest.mark.parametrize("make", [fly(theta="inf"), pad(sigma=-1)])
def test_a_rule_that_lets_nothing_stand_is_match(engine, make, temperature):
    params = SamplingParams(temperature=temperature, max_tokens=24)
    answers, _ = asyncio.run(answers_of(engine, make, params, weather=STORM))
    for seed, (prompt, answer) in enumerate(zip(prompts(), answers)):
        expected = reference().generate(prompt, temperature=temperature, seed=seed, max_tokens=24)
        assert (list(answer.tokens), answer.finish_reason) == expected
        assert not loose_of(answer)


class ShortWindow(Fly):
    """A window that is one token too short."""

    def __init__(self, options: str = "") -> None:
        super().__init__(options)
        self.window -= 1


class ShapedEntropy(Fly):
    """Entropy after temperature."""

    def _is_unsure(self, row, scores) -> bool:
        [entropy] = scores.entropy([row])
        return entropy / np.log(scores.vocab_size) / 3 >= self.theta


class LateEntropy(Fly):
    """Entropy of the next row."""

    def _is_unsure(self, row, scores) -> bool:
        return super()._is_unsure(row + 1, scores)


class EarlyState(Pad):
    """The state before the token, not after it."""

    def _stands(self, index, ids, own, scores) -> bool:
        shifted = _Shifted(scores)
        return super()._stands(index, ids, own, shifted)


class _Shifted:
    def __init__(self, scores) -> None:
        self._scores = scores

    def __getattr__(self, name):
        return getattr(self._scores, name)

    def hidden_states(self, rows):
        return self._scores.hidden_states([row - 1 for row in rows])


MUTANTS = {
    "window": (lambda: ShortWindow("theta=0,window=1"), FlyLaw(0.0, 1)),
    "shaped entropy": (lambda: ShapedEntropy("theta=0.05,window=1"), FlyLaw(0.05, 1)),
    "late entropy": (lambda: LateEntropy("theta=0.05,window=1"), FlyLaw(0.05, 1)),
    "early state": (
        lambda: EarlyState("sigma=0.5", classifier()),
        PadLaw(0.5, 1e-4, LAYER, classifier().weights),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name == "shaped entropy")) for name in MUTANTS]
)
def test_the_replay_catches_a_planted_fault(engine, name):
    make, law = MUTANTS[name]
    for temperature in (0.8, 0.0):
        params = SamplingParams(temperature=temperature, max_tokens=32)
        answers, sessions = asyncio.run(answers_of(engine, make, params))
        if any((one.news, one.loose) != plain for one, plain in replayed(law, params, answers, sessions)):
            return
    raise AssertionError(f"nothing tells the fault {name!r} from the rule")
