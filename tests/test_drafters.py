"""Drafters without a model, and the cache discipline of those with one, under the one contract."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.device.device import connect
from edge_client.device.prompt_config import GenerateConfig
from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import Drafter, DrafterFactory, DrafterOptions
from edge_client.drafters.lookup import LookupFactory
from edge_client.drafters.none import NoneFactory
from edge_client.drafters.threads import draft_threads
from edge_client.lengths.fixed import FixedLength
from edge_client.lengths.hint import HintLength
from edge_client.round.draft_job import BlockBudget
from edge_client.round.drafting import DraftThread
from hw_profiles.detect import usable_cores
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.protocol import Truth
from opensled.core.sampling import DRAFT_CANDIDATES, Sampler
from opensled.drafting.ngrams import MISSES, PRIOR
from tests.devices import read
from tests.drafter_contract import DrafterContract, ids, pull
from tests.fake_target import _Text as TinyText
from tests.fakes import Made, continuation, next_token
from tests.gated_target import SlowEngine
from tests.serving import GREEDY, PROMPT, serving
from tests.tiny_drafts import ToyDrafter, tiny_info
from verify_server.engine.base import SampleRequest
from verify_server.engine.numpy_scores import NumpyScores


def a_sampler() -> Sampler:
    return Sampler(SamplingParams(temperature=0.8), noise_key(1))


class MinimalDrafter(Drafter):
    """No more than a drafter has to be; knows the fake target's text."""

    def begin(self, prompt, sampler):
        self.truth = [id % 256 for id in prompt]

    def propose(self):
        context = list(self.truth)
        while context:
            context.append(next_token(context))
            yield DraftToken(context[-1])

    def commit(self, tokens):
        self.truth += [id % 256 for id in tokens]


class MinimalFactory(DrafterFactory):
    name = "minimal"

    def create(self):
        return MinimalDrafter()


class Unasked(FixedLength):
    """A policy that must not be asked about trees."""

    def nodes(self, limit, hint=None):
        raise AssertionError("a drafter without trees")


class TestMinimal(DrafterContract):
    make = staticmethod(lambda: MinimalFactory("ignored", 3, DrafterOptions(window=2)))

    def test_the_defaults_do_nothing(self, factory, drafter):
        factory.fit(tiny_info(fingerprint="another"))
        assert not factory.uses_tables
        drafter.begin(self.prompt, self.sampler())
        block = pull(drafter)
        assert drafter.ready == 0 and list(drafter.propose_tree()) == []
        assert list(drafter.look_ahead(block, 4)) == [] and drafter.ready == 0

    async def test_the_policy_is_not_asked_what_the_drafter_cannot_do(self, drafter, caplog):
        thread, truth = DraftThread(drafter, Unasked(3, tree=8)), Truth((1, 2, 3))
        thread.begin(truth, a_sampler())
        block = (await thread.draft(truth, BlockBudget(3, tree=8))).block
        thread.look_ahead(block, BlockBudget(3, tree=8))
        await thread.draft(truth, BlockBudget(3))
        thread.close()
        assert list(block.ids) == continuation((1, 2, 3), 3) and not caplog.records

    @pytest.mark.parametrize(("policy", "told"), [(HintLength, True), (lambda: FixedLength(3), False)])
    async def test_the_default_policy_has_drafts_say_how_sure_they_are(
        self, drafter, policy, told, monkeypatch
    ):
        """A busy server verifies the likeliest tokens of all devices."""
        samplers = []
        monkeypatch.setattr(drafter, "begin", lambda prompt, sampler: samplers.append(sampler))
        thread, truth = DraftThread(drafter, policy()), Truth((1, 2, 3))
        thread.begin(truth, a_sampler())
        await thread.draft(truth, BlockBudget(1))
        thread.close()
        assert [sampler.with_confidence for sampler in samplers] == [told]

    async def test_it_drafts_for_a_device_by_its_path(self):
        # Steps that take a while: a fake server may have written everything before a device has drafted.
        engine = SlowEngine(num_blocks=100)
        async with serving(engine=engine, text=TinyText()) as (_, address):
            name = "tests.test_drafters:MinimalFactory"
            config = GenerateConfig(server=address, drafter=name, draft_length=4, stop="fixed")
            device = await connect(config)
            chunks = await read(device)
            await device.close()
        tokens = [id for chunk in chunks for id in chunk.token_ids]
        assert tokens == continuation(PROMPT, len(tokens)) and len(tokens) == GREEDY.max_tokens
        assert chunks[-1].stats.accepted > 0


@pytest.mark.parametrize("name", DRAFTERS.names())
def test_every_registered_name_is_a_factory_of_drafters(name):
    pytest.importorskip({"llamacpp": "llama_cpp", "onnx": "onnxruntime"}.get(name, "numpy"))
    parts = {"chain": "chain:lookup,none", "accelerated": "accelerated:llamacpp"}
    options = DrafterOptions(draft_url="http://127.0.0.1:1" if name == "server" else "")
    factory = DRAFTERS.get(parts.get(name, name))("tiny-draft", 1, options)
    drafter = factory.create()
    drafter.begin((1, 2, 3), a_sampler())
    assert isinstance(factory, DrafterFactory) and isinstance(drafter, Drafter) and drafter.ready == 0
    drafter.close()


class TestNone(DrafterContract):
    make = staticmethod(lambda: NoneFactory("ignored", threads=3))

    def test_never_drafts_and_fits_every_target(self, factory, drafter):
        factory.fit(tiny_info(fingerprint="another"))
        drafter.begin(self.prompt, self.sampler())
        assert pull(drafter) == []


class TestLookup(DrafterContract):
    make = staticmethod(lambda: LookupFactory("ignored", threads=3))

    @pytest.mark.parametrize(
        ("truth", "expected"),
        [
            ([1, 2, 3, 4, 5, 1, 2], [3, 4, 5, 1]),
            ([1, 2, 3, 9, 1, 2, 4, 8, 1, 2], [4, 8, 1, 2]),  # the latest match wins
            ([7, 1, 2, 3, 5, 9, 1, 2, 6, 7, 1, 2], [3, 5, 9, 1]),  # but a longer one first
            ([1, 2, 1, 2], [1, 2, 1, 2]),  # a copy of a pattern goes on with itself
            ([6, 6, 6], [6, 6, 6, 6]),
            ([1, 2, 3, 4, 2], []),  # one token is no match
            ([1], []),
        ],
    )
    def test_proposes_what_followed(self, drafter, truth, expected):
        drafter.begin(truth, self.sampler())
        assert ids(pull(drafter, 4)) == expected

    def test_confidence_grows_with_what_was_copied_rightly(self, drafter):
        drafter.begin([5, 1, 2, 3, 4, 9, 8, 1, 2], self.sampler())
        confidences = [token.confidence for token in pull(drafter, 3)]
        assert confidences == pytest.approx([1 - MISSES / length for length in (2, 3, 4)])
        drafter.commit([3, 4])  # two right ones
        share = (MISSES * PRIOR) / (PRIOR + 1 / 2 + 1 / 3)
        assert pull(drafter, 1)[0].confidence == pytest.approx(1 - share / 4)

    def test_confidence_falls_with_each_wrong_token_until_the_next_sequence(self, drafter):
        for _ in range(2):
            drafter.begin([1, 2, 3, 9, 8, 1, 2], self.sampler())
            assert pull(drafter, 1)[0].confidence == pytest.approx(1 - MISSES / 2)
            drafter.commit([4, 1, 2])
            share = (MISSES * PRIOR + 1) / (PRIOR + 1 / 2)
            assert pull(drafter, 1)[0].confidence == pytest.approx(1 - share / 2)

    def test_fits_every_target(self, factory):
        factory.fit(tiny_info(fingerprint="another"))


@pytest.mark.parametrize("rolls_back", [True, False])
class TestToy(DrafterContract):
    """The shared cache discipline, with caches that roll back and with those that only forget everything."""

    @pytest.fixture
    def factory(self, rolls_back):
        return Made(lambda: ToyDrafter(rolls_back), "toy")


@given(st.data())
def test_cache_discipline_under_any_history(data):
    rolls_back = data.draw(st.booleans())
    drafter, draw = ToyDrafter(rolls_back), a_sampler()
    truth = data.draw(st.lists(st.integers(0, 39), max_size=5))
    drafter.begin(truth, draw)
    for _ in range(data.draw(st.integers(1, 6))):
        proposed = ids(pull(drafter, data.draw(st.integers(0, 4))))
        agreed = proposed[: data.draw(st.integers(0, 4))]
        verdict = agreed + data.draw(st.lists(st.integers(0, 39), max_size=3))
        if data.draw(st.booleans()):
            drafter.commit(verdict)
            truth = truth + verdict
        else:
            truth = truth[: data.draw(st.integers(0, 5))] + verdict
            drafter.begin(truth, draw)
    fresh = ToyDrafter(rolls_back=True)
    fresh.begin(truth, draw)
    assert ids(pull(drafter, 3)) == ids(pull(fresh, 3))


def test_look_ahead_costs_nothing_twice():
    drafter = ToyDrafter(rolls_back=True)
    drafter.begin([1, 2, 3], a_sampler())
    ahead = ids(pull(drafter, 8))
    drafter.commit(ahead[:5])
    assert ids(pull(drafter, 3)) == ahead[5:]
    assert drafter.forwarded == 3 + 7


def test_a_generator_of_an_older_truth_ends():
    drafter = ToyDrafter(rolls_back=True)
    drafter.begin([1, 2, 3], a_sampler())
    generator = drafter.propose()
    drafter.commit([next(generator).id])
    assert next(generator, None) is None


def test_a_failed_computation_leaves_no_half_filled_cache():
    drafter = ToyDrafter(rolls_back=True)
    drafter.begin([1, 2, 3], a_sampler())
    expected = ids(pull(drafter, 3))
    drafter.begin([1, 2, 3], a_sampler())
    forward, drafter.forward = drafter.forward, lambda tokens, start: drafter.cache.append(0) or 1 / 0
    with pytest.raises(ZeroDivisionError):
        pull(drafter)
    drafter.forward = forward
    assert ids(pull(drafter, 3)) == expected


def test_threads_leave_a_core_for_the_rest():
    assert draft_threads(3) == 3
    assert draft_threads(0) == max(1, usable_cores() - 1)


def test_an_edge_without_drafter_libraries_loads_none():
    script = "import sys; from edge_client.drafters import DRAFTERS; DRAFTERS.get('lookup')('x'); " + (
        "assert not {'llama_cpp', 'onnxruntime', 'torch', 'transformers', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# -- within the limits of the request -----------------------------------------------------------------------------


VOCABULARY, POSITIONS = 300, 200
KEY = noise_key(11)

LIMITED = [
    SamplingParams(temperature=0),
    SamplingParams(temperature=0, logit_bias=((7, 30.0), (9, -30.0))),
    SamplingParams(temperature=1.5, top_k=1),
    SamplingParams(temperature=1.5, top_k=5),
    SamplingParams(temperature=2.0, top_k=DRAFT_CANDIDATES),
    SamplingParams(temperature=0.9, top_p=0.3),
    SamplingParams(temperature=0.7, top_k=20, top_p=0.8),
    SamplingParams(temperature=1.0, top_k=10, logit_bias=((7, 5.0), (8, -100.0))),
]


def rows() -> np.ndarray:
    return np.random.default_rng(3).normal(scale=3.0, size=(POSITIONS, VOCABULARY)).astype(np.float32)


@pytest.mark.parametrize("params", LIMITED, ids=str)
def test_a_draft_with_the_targets_logits_is_always_right(params):
    logits = rows()
    request = SampleRequest(range(POSITIONS), params, KEY, 40)
    target = NumpyScores(logits).sample_one(request)
    sampler = Sampler(params, KEY)
    assert [sampler.draw(row, 40 + number).id for number, row in enumerate(logits)] == target


def test_a_draft_without_the_limits_would_be_wrong():
    """So the test above says something: the same draws without top-k miss most of the tokens."""
    logits, params = rows(), SamplingParams(temperature=1.5, top_k=1)
    target = NumpyScores(logits).sample_one(SampleRequest(range(POSITIONS), params, KEY, 40))
    free = Sampler(SamplingParams(temperature=1.5), KEY)
    right = sum(free.draw(row, 40 + number).id == id for number, (row, id) in enumerate(zip(logits, target)))
    assert right < POSITIONS / 2
