"""Every drafter under the one contract, and what is particular to each."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.drafters import DRAFTERS
from edge_client.drafters.base import ModelDrafter
from edge_client.drafters.lookup import LookupFactory
from edge_client.drafters.none import NoneFactory
from edge_client.drafters.threads import draft_threads, usable_cores
from opensled.errors import EngineError, NotFound, UnsupportedModel, UsageError, VocabularyMismatch
from opensled.messages import DraftToken, SamplingParams
from opensled.noise import gumbel, noise_key
from opensled.sampling import Sampler
from tests.drafter_contract import BLOCK, DrafterContract, ids, pull
from tests.tiny_drafts import TINY_DRAFT, tiny_info

GGUF = TINY_DRAFT / "tiny-draft-q8_0.gguf"
ONNX = TINY_DRAFT / "tiny-draft-int8.onnx"


def a_sampler() -> Sampler:
    return Sampler(SamplingParams(temperature=0.8), noise_key(1))


class ToyDrafter(ModelDrafter):
    """A model whose logits depend on every cached token, and which notices a wrong cache."""

    def __init__(self, rolls_back: bool) -> None:
        super().__init__(context_length=300)
        self.cache: list[int] = []
        self.rolls_back = rolls_back
        self.forwarded = 0

    def forward(self, tokens, start):
        assert len(self.cache) == start and tokens
        self.cache.extend(tokens)
        self.forwarded += len(tokens)
        seed = hashlib.blake2b(json.dumps(self.cache).encode(), digest_size=8).digest()
        return np.random.default_rng(int.from_bytes(seed, "little")).normal(size=40)

    def truncate(self, length):
        kept = length if self.rolls_back else 0
        del self.cache[kept:]
        return kept


class ToyFactory:
    name = "toy"

    def __init__(self, rolls_back: bool) -> None:
        self.rolls_back = rolls_back

    def create(self) -> ToyDrafter:
        return ToyDrafter(self.rolls_back)


class TestNone(DrafterContract):
    @pytest.fixture(scope="class")
    @classmethod
    def factory(cls):
        return NoneFactory("ignored", threads=3)

    def test_never_drafts_and_fits_every_target(self, factory, drafter):
        factory.check_vocabulary(tiny_info(fingerprint="another"))
        drafter.begin(self.prompt, self.sampler())
        assert pull(drafter) == []


class TestLookup(DrafterContract):
    @pytest.fixture(scope="class")
    @classmethod
    def factory(cls):
        return LookupFactory("ignored", threads=3)

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

    def test_confidence_is_the_share_of_right_predictions(self, drafter):
        drafter.begin([1, 2, 3, 1, 2], self.sampler())
        assert pull(drafter, 1)[0].confidence == 1 / 2  # nothing seen yet
        drafter.commit([3, 1, 2])
        drafter.begin([1, 2, 3, 9, 8, 1, 2], self.sampler())
        drafter.commit([4, 1, 2])  # the 2-gram was wrong once
        assert pull(drafter, 1)[0].confidence == 1 / 3

    def test_fits_every_target(self, factory):
        factory.check_vocabulary(tiny_info(fingerprint="another"))


@pytest.mark.parametrize("rolls_back", [True, False])
class TestToy(DrafterContract):
    """The shared cache discipline, with caches that roll back and with those that only forget everything."""

    @pytest.fixture
    def factory(self, rolls_back):
        return ToyFactory(rolls_back)


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


@dataclass(frozen=True)
class RecordingSampler(Sampler):
    """Keeps the logits behind every draw, by position."""

    rows: dict[int, np.ndarray] = field(default_factory=dict)

    def draw(self, logits: np.ndarray, position: int) -> DraftToken:
        self.rows[position] = logits.copy()
        return super().draw(logits, position)


def reference_draw(logits: np.ndarray, draw: Sampler, position: int) -> int:
    """The draft token in plain Python: the noisy best of the 64 likeliest."""
    likely = sorted(range(len(logits)), key=lambda token: (-logits[token], token))[:64]
    temperature = draw.params.temperature
    if not temperature:
        return likely[0]
    noise = gumbel(draw.key, position, np.array(likely))
    return likely[int(np.argmax(logits[likely].astype(np.float64) / temperature + noise))]


class ModelContract(DrafterContract):
    """What drafters with the committed tiny draft model keep to, besides the contract."""

    kind: str
    pattern: str
    path = TINY_DRAFT
    rounding: float  # largest difference of a logit, in standard deviations of its row

    @pytest.fixture(scope="class")
    @classmethod
    def factory(cls):
        return DRAFTERS.get(cls.kind)(str(cls.path), threads=1)

    @pytest.fixture(scope="class")
    @classmethod
    def logits_of(cls):
        raise NotImplementedError

    def sampler(self, temperature: float = 0.8, seed: int = 1) -> Sampler:
        return RecordingSampler(SamplingParams(temperature=temperature), noise_key(seed))

    @pytest.fixture
    def assert_on_path(self, logits_of):
        """Every draw must come from logits that are, but for rounding, those of a recomputed sequence."""

        def check(drafter, truth, draw, count=BLOCK):
            sequence = list(truth)
            for token in pull(drafter, count):
                row, expected = drafter.sampler.rows[len(sequence)], logits_of(sequence)
                assert np.abs(row - expected).max() <= self.rounding * expected.std()
                assert token.id == reference_draw(row, draw, len(sequence))
                sequence.append(token.id)
            assert len(sequence) == len(truth) + count

        return check

    @pytest.mark.parametrize("temperature", [0, 0.8])
    def test_drafts_the_models_own_continuation(self, drafter, assert_on_path, temperature):
        draw = self.sampler(temperature)
        drafter.begin(self.prompt, draw)
        assert_on_path(drafter, self.prompt, draw, 12)

    def test_a_long_prompt_goes_in_chunks(self, drafter, assert_on_path):
        prompt = (self.prompt * 20)[:900]
        drafter.begin(prompt, self.sampler())
        assert_on_path(drafter, prompt, self.sampler(), 3)

    def test_ends_with_the_context(self, drafter):
        prompt = (self.prompt * 30)[: drafter.context_length - 3]
        drafter.begin(prompt, self.sampler())
        assert len(pull(drafter, 10)) == 3

    def test_accepts_its_targets_vocabulary(self, factory):
        factory.check_vocabulary(tiny_info())

    def test_refuses_another_vocabulary(self, factory):
        with pytest.raises(VocabularyMismatch, match=r"tiny-draft.*2048 tokens.*'big' \(2047 tokens\)"):
            factory.check_vocabulary(tiny_info(model_id="big", vocab_size=2047))

    def test_a_closed_drafter_says_so(self, factory):
        drafter = factory.create()
        drafter.close()
        drafter.begin(self.prompt, self.sampler())
        with pytest.raises(EngineError, match="closed"):
            pull(drafter)

    def test_takes_the_file_itself(self):
        assert DRAFTERS.get(self.kind)(str(next(self.path.glob(self.pattern))), threads=1).name

    @pytest.mark.parametrize("files", [0, 2])
    def test_a_folder_must_hold_one_model(self, tmp_path, files):
        for number in range(files):
            (tmp_path / self.pattern.replace("*", str(number))).touch()
        with pytest.raises(NotFound, match="several" if files else "holds no"):
            DRAFTERS.get(self.kind)(str(tmp_path))

    def test_names_what_is_missing(self, tmp_path):
        with pytest.raises(UsageError, match="--draft-model"):
            DRAFTERS.get(self.kind)(None)
        with pytest.raises(NotFound, match="does not exist"):
            DRAFTERS.get(self.kind)(str(tmp_path / "nothing"))
        with pytest.raises(NotFound, match="reads"):
            DRAFTERS.get(self.kind)(str(TINY_DRAFT / "config.json"))

    @pytest.mark.parametrize("content", [b"", b"no model at all"])
    def test_refuses_a_damaged_file(self, tmp_path, content):
        path = tmp_path / self.pattern.replace("*", "broken")
        path.write_bytes(content)
        with pytest.raises(UnsupportedModel, match="broken"):
            DRAFTERS.get(self.kind)(str(path))

    def test_an_interpreter_that_exits_without_closing_exits_cleanly(self):
        script = (
            "import sys; from edge_client.drafters import DRAFTERS; from tests.test_drafters import *\n"
            "first = DRAFTERS.get(sys.argv[1])(sys.argv[2], 1); drafter = first.create(); del first\n"
            "drafter.begin([1, 2, 3], a_sampler()); print(len(pull(drafter)))"
        )
        command = [sys.executable, "-c", script, self.kind, str(self.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "6\n", "")


class TestLlamaCpp(ModelContract):
    kind, pattern = "llamacpp", "*.gguf"
    rounding = 0.1  # its kernels for one and for many rows round Q8_0 differently: 0.036 seen

    @pytest.fixture(scope="class")
    @classmethod
    def logits_of(cls):
        llama_cpp = pytest.importorskip("llama_cpp")
        model = llama_cpp.Llama(str(GGUF), n_ctx=1024, n_threads=1, logits_all=True, verbose=False)

        def logits(sequence):
            model.reset()
            model.eval(sequence)
            return model.scores[len(sequence) - 1]

        yield logits
        model.close()

    def test_recomputes_all_when_the_cache_cannot_go_back(self, drafter, assert_on_path, monkeypatch):
        llama_cpp = pytest.importorskip("llama_cpp")
        drafter.begin(self.prompt, self.sampler())
        pull(drafter)
        monkeypatch.setattr(llama_cpp, "llama_memory_seq_rm", lambda *_: False)
        drafter.commit([5])
        assert drafter.computed == 0
        assert_on_path(drafter, [*self.prompt, 5], self.sampler())


class TestOnnx(ModelContract):
    kind, pattern = "onnx", "*.onnx"
    rounding = 1e-4

    @pytest.fixture(scope="class")
    @classmethod
    def logits_of(cls):
        ort = pytest.importorskip("onnxruntime")
        session = ort.InferenceSession(str(ONNX))
        config = json.loads((TINY_DRAFT / "config.json").read_text())
        empty = np.zeros((1, config["num_key_value_heads"], 0, config["head_dim"]), np.float32)
        caches = {node.name: empty for node in session.get_inputs() if node.name.startswith("past")}

        def logits(sequence):
            prompt = np.array([sequence], np.int64)
            feeds = {"input_ids": prompt, "attention_mask": np.ones_like(prompt), **caches}
            return session.run(["logits"], feeds)[0][0, -1]

        return logits

    def test_refuses_a_graph_that_concatenates_its_cache(self, tmp_path):
        path = tmp_path / "model.onnx"
        path.write_bytes(ONNX.read_bytes().replace(b"GroupQueryAttention", b"SomeOtherAttention!"))
        with pytest.raises(UnsupportedModel, match="GroupQueryAttention"):
            DRAFTERS.get("onnx")(str(path))

    def test_says_which_files_belong_beside_the_graph(self, tmp_path):
        shutil.copy(ONNX, tmp_path)
        with pytest.raises(UnsupportedModel, match=r"config\.json"):
            DRAFTERS.get("onnx")(str(tmp_path))
        shutil.copy(TINY_DRAFT / "config.json", tmp_path)
        with pytest.raises(NotFound, match=r"tokenizer\.json"):
            DRAFTERS.get("onnx")(str(tmp_path), threads=1).check_vocabulary(tiny_info())


def test_threads_leave_a_core_for_the_rest():
    assert draft_threads(3) == 3
    assert draft_threads(0) == max(1, usable_cores() - 1)


def test_an_edge_without_drafter_libraries_loads_none():
    script = "import sys; from edge_client.drafters import DRAFTERS; DRAFTERS.get('lookup')('x'); " + (
        "assert not {'llama_cpp', 'onnxruntime', 'torch', 'transformers', 'ray'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
