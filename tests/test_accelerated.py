"""A draft model with tables in front: same drafts, fewer passes."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest

from edge_client.drafters import DRAFTERS
from edge_client.drafters.accelerated import AcceleratedDrafter
from edge_client.drafters.cacheback import CachebackDrafter
from edge_client.drafters.shared_ids import SharedIdsDrafter
from edge_client.drafters.vocabulary import BY_TEXT, SAME, Vocabulary, compare
from opensled.core.errors import EngineError, UsageError, VocabularyMismatch
from opensled.core.messages import DraftToken, SamplingParams
from opensled.core.noise import noise_key
from opensled.core.penalties import Emitted, TokenCounts
from opensled.core.sampling import Sampler, SparseSampler
from opensled.core.vocabulary import fingerprint
from opensled.text.tokenizer import TargetTokenizer
from tests.drafter_contract import BLOCK, DrafterContract, ids, pull
from tests.fakes import Made
from tests.five_tokenizers import family
from tests.tiny_drafts import TEXT, TINY_DRAFT, TOKENIZER_JSON, ToyDrafter, tiny_info, tiny_tokenizer

ACCELERATED = "accelerated:llamacpp"
GREEDY = Sampler(SamplingParams(temperature=0), noise_key(1))


class ToyModel(ToyDrafter):
    """The toy model, which also gives the logits of several positions at once."""

    def __init__(self, rolls_back: bool = True) -> None:
        super().__init__(rolls_back)
        self.passes = 0

    def forward(self, tokens, start):
        self.passes += 1
        return self._read(tokens, start)

    def forward_rows(self, tokens, start, wanted):
        self.passes += 1
        rows = [self._read([token], start + place) for place, token in enumerate(tokens)]
        return rows[len(rows) - wanted :]

    def _read(self, tokens, start):
        return super().forward(tokens, start)


class CopyModel(ToyModel):
    """Continues a repeated pattern of its own: the token after x is x + 1, of a few."""

    def _read(self, tokens, start):
        row = np.zeros(len(super()._read(tokens, start)))
        row[(self.cache[-1] + 1) % 8] = 5.0
        return row


class TestAccelerated(DrafterContract):
    make = staticmethod(lambda: Made(lambda: AcceleratedDrafter(ToyModel(), CachebackDrafter())))

    @pytest.fixture
    def fresh(self):
        """What the model alone drafts: that is what the tables may not change."""

        def proposals(truth, draw, count=BLOCK):
            alone = ToyDrafter(rolls_back=True)
            alone.begin(truth, draw)
            return ids(pull(alone, count))

        return proposals


class TestAcceleration:
    def test_a_model_that_gives_one_row_cannot_be_accelerated(self):
        with pytest.raises(UsageError, match="accelerated:llamacpp"):
            DRAFTERS.get("accelerated:lookup")("").create()

    @pytest.mark.parametrize("rolls_back", [True, False])
    @pytest.mark.parametrize("temperature", [0, 0.8])
    def test_drafts_are_the_models_own_under_any_history(self, rolls_back, temperature):
        sampler = Sampler(SamplingParams(temperature=temperature, seed=1), noise_key(1))
        for seed in range(25):
            draw = random.Random(seed)
            fast = AcceleratedDrafter(ToyModel(rolls_back), CachebackDrafter())
            alone = ToyDrafter(rolls_back)
            truth = [draw.randrange(5) for _ in range(draw.randrange(1, 60))]
            for drafter in (fast, alone):
                drafter.begin(truth, sampler)
            for _ in range(8):
                block = ids(pull(fast, draw.randrange(8)))
                assert block == ids(pull(alone, len(block)))
                if draw.random() < 0.5:
                    assert [next(pair, None) for pair in (iter(fast.look_ahead((), 3)),)] == [None]
                kept = block[: draw.randrange(len(block) + 1)]
                news = [*kept, *(draw.randrange(5) for _ in range(draw.randrange(4)))]
                for drafter in (fast, alone):
                    drafter.commit(news)

    def test_text_that_repeats_itself_takes_a_fraction_of_the_passes(self):
        text = [*range(8)] * 6
        fast, alone = AcceleratedDrafter(CopyModel(), CachebackDrafter()), CopyModel()
        for drafter in (fast, alone):
            drafter.begin(text, GREEDY)
            for _ in range(10):
                block = ids(pull(drafter, 8))
                assert block == [*range(8)]
                drafter.commit(block)
        assert alone.passes == 80 and fast._model.passes < 30

    def test_guesses_stay_within_the_context(self):
        fast = AcceleratedDrafter(CopyModel(), CachebackDrafter())
        fast.begin(([*range(8)] * 40)[: fast.context_length - 3], GREEDY)
        assert len(pull(fast, 10)) == 3 and len(fast._model.cache) < fast.context_length

    def test_a_model_that_cannot_go_back_is_not_made_to(self):
        fast = AcceleratedDrafter(ToyModel(rolls_back=False), CachebackDrafter())
        fast.begin([1, 2, 3, 4] * 30, GREEDY)
        pull(fast, 6)
        assert fast._model.forwarded < 2 * 120 + 10 + 6 * 2  # read twice at most, after the first wrong guess

    def test_a_failed_pass_leaves_no_half_filled_cache(self):
        fast = AcceleratedDrafter(ToyModel(), CachebackDrafter())
        fast.begin([1, 2, 3] * 5, GREEDY)
        expected = ids(pull(fast, 6))
        fast.begin([1, 2, 3] * 5, GREEDY)
        rows, fast._model.forward_rows = (
            fast._model.forward_rows,
            lambda *_: fast._model.cache.append(0) or 1 / 0,
        )
        with pytest.raises(ZeroDivisionError):
            pull(fast)
        fast._model.forward_rows = rows
        assert ids(pull(fast, 6)) == expected


class TestLlamaCpp:
    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def installed(cls):
        pytest.importorskip("llama_cpp")

    def test_rows_of_a_batch_are_those_of_single_passes(self):
        """As nearly as llama.cpp's kernels for one and for many rows round alike (see test_model_drafters.py)."""
        text = (tiny_tokenizer().encode(TEXT) * 20)[:900]
        drafter = DRAFTERS.get("llamacpp")("tiny-draft", 1).create()
        for length in (5, 512, 515, 900):
            drafter.truncate(0)
            rows = [row.copy() for row in drafter.forward_rows(text[:length], 0, 4)]
            drafter.truncate(length - 4)
            for place, row in enumerate(rows, length - 4):
                alone = drafter.forward(text[place : place + 1], place)
                assert np.abs(row - alone).max() <= 0.1 * alone.std()
        drafter.close()

    def test_drafts_are_the_models_own_but_for_ties(self):
        text = tiny_tokenizer().encode(TEXT)
        fast, alone = (DRAFTERS.get(name)("tiny-draft", 1).create() for name in (ACCELERATED, "llamacpp"))
        same = every = 0
        for cut in range(8, len(text), 4):
            drafts = []
            for drafter in (fast, alone):
                drafter.begin(text[:cut], GREEDY)
                drafts.append(ids(pull(drafter, 8)))
            same, every = same + (drafts[0] == drafts[1]), every + 1
        assert same >= 0.9 * every
        fast.close(), alone.close()

    def test_a_closed_one_says_so(self):
        drafter = DRAFTERS.get(ACCELERATED)(str(TINY_DRAFT), 1).create()
        drafter.close()
        drafter.close()
        drafter.begin([1, 2, 3], GREEDY)
        with pytest.raises(EngineError, match="closed"):
            pull(drafter)


# -- vocabularies that share ids ----------------------------------------------------------------------------------


FOREIGN = frozenset({3, 9, 17})
SHARED = Vocabulary("shared", 38, FOREIGN, stand_in=5)


class TestShared(DrafterContract):
    make = staticmethod(lambda: Made(lambda: SharedIdsDrafter(ToyDrafter(rolls_back=True), SHARED)))


def edited(**names: str) -> TargetTokenizer:
    """The tokenizer of the tiny family with other names of special tokens, or with more of them."""
    document = json.loads(TOKENIZER_JSON)
    for old, new in names.items():
        known = next((token for token in document["added_tokens"] if token["content"] == f"<|{old}|>"), None)
        if known:
            document["model"]["vocab"][f"<|{new}|>"] = document["model"]["vocab"].pop(f"<|{old}|>")
            known["content"] = f"<|{new}|>"
        else:
            number = len(document["model"]["vocab"]) + len(names) - 1
            document["added_tokens"].append(
                {**document["added_tokens"][0], "id": number, "content": f"<|{new}|>"}
            )
    return TargetTokenizer(json.dumps(document).encode())


def info_of(tokenizer: TargetTokenizer):
    pieces = tokenizer.pieces
    return tiny_info(model_id="other", vocab_size=len(pieces), fingerprint=fingerprint(pieces))


def test_how_vocabularies_relate():
    mine = tiny_tokenizer().pieces
    assert compare("d", mine, tiny_info(), tiny_tokenizer()) is SAME
    assert compare("d", [*mine, "<pad>"], tiny_info(), tiny_tokenizer()) is SAME
    more = edited(image="image")
    found = compare("d", mine, info_of(more), more)
    assert (found.kind, found.size, found.foreign) == ("shared", len(mine), frozenset())
    assert mine[found.stand_in] == "Ċ"
    renamed = edited(user="User", end="stop")
    found = compare("d", mine, info_of(renamed), renamed)
    assert (found.kind, found.foreign) == ("shared", frozenset({0, 2}))
    for name in ("gpt2", "llama2", "gemma"):
        assert compare("d", mine, info_of(family(name)), family(name)) is BY_TEXT


def test_without_the_targets_tokenizer_only_the_same_vocabulary_fits():
    assert compare("d", tiny_tokenizer().pieces, tiny_info(), None) is SAME
    with pytest.raises(VocabularyMismatch, match="do not share a vocabulary"):
        compare("d", tiny_tokenizer().pieces, info_of(edited(image="image")), None)


@pytest.mark.parametrize("kind", [Sampler, SparseSampler])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_a_masked_draw_is_that_of_the_shared_ids_alone(kind, temperature):
    """With the same noise: each id keeps its own."""
    rows = np.random.default_rng(2).normal(scale=2, size=(60, 200)).astype(np.float32)
    barred = np.array([0, 7, 150])
    params = SamplingParams(
        temperature=temperature, top_p=0.9, frequency_penalty=0.4, logit_bias=((7, 99.0),)
    )
    draw = kind(params, noise_key(3), vocab_size=180, barred=barred)
    alone = kind(params, noise_key(3), vocab_size=180)
    for place, row in enumerate(rows):
        emitted = Emitted(TokenCounts([1, 7, 7]), (150, 2))
        before = row.copy()
        masked = row.copy()
        masked[barred] = -np.inf
        token = draw.draw(row, place, emitted)
        assert token == alone.draw(masked, place, emitted)
        assert token.id not in barred and token.id < 180
        assert (row == before).all()


def test_the_model_reads_a_stand_in_for_what_it_lacks():
    model = ToyDrafter(rolls_back=True)
    drafter = SharedIdsDrafter(model, SHARED)
    drafter.begin([1, 3, 38, 900, 2], Sampler(SamplingParams(temperature=0.8), noise_key(1), vocab_size=1000))
    assert model.sequence == [1, 5, 5, 5, 2]
    assert not FOREIGN & set(ids(pull(drafter, 90))) and max(ids(pull(drafter, 90))) < 38
    drafter.commit([9, 4])
    assert model.sequence == [1, 5, 5, 5, 2, 5, 4]
    for _ in drafter.look_ahead([DraftToken(700), DraftToken(6)], 2):
        pass
    drafter.commit([700, 6])
    assert model.sequence[:9] == [1, 5, 5, 5, 2, 5, 4, 5, 6] and drafter.ready == len(model.drafted) > 0


@pytest.mark.parametrize("kind", ["llamacpp", "onnx", "accelerated:llamacpp", "chain:lookup,llamacpp"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_target_with_more_ids_gets_the_same_drafts(kind, temperature):
    pytest.importorskip({"onnx": "onnxruntime"}.get(kind, "llama_cpp"))
    more = edited(image="image")
    draw = Sampler(SamplingParams(temperature=temperature), noise_key(1))
    proposed = []
    for info, tokenizer in ((tiny_info(), tiny_tokenizer()), (info_of(more), more)):
        factory = DRAFTERS.get(kind)(str(TINY_DRAFT), 1)
        factory.fit(info, tokenizer)
        drafter = factory.create()
        drafter.begin(tiny_tokenizer().encode(TEXT), replace(draw, vocab_size=info.vocab_size))
        proposed.append(ids(pull(drafter, 8)))
        drafter.close()
    assert factory.vocabulary.kind == "shared"
    assert proposed[0] == proposed[1]


@pytest.mark.parametrize("kind", ["llamacpp", "onnx", "chain:lookup,llamacpp"])
def test_a_real_draft_model_of_another_vocabulary_drafts_by_text(kind):
    pytest.importorskip({"onnx": "onnxruntime"}.get(kind, "llama_cpp"))
    target = family("gpt2")
    factory = DRAFTERS.get(kind)(str(TINY_DRAFT), 1)
    factory.fit(info_of(target), target)
    assert factory.vocabulary is BY_TEXT
    drafter = factory.create()
    drafter.begin(target.encode(TEXT), Sampler(SamplingParams(temperature=0.0), noise_key(1)))
    text = target.decode(ids(pull(drafter, 12)))
    drafter.close()
    same = DRAFTERS.get("llamacpp" if "chain" in kind else kind)(str(TINY_DRAFT), 1).create()
    same.begin(tiny_tokenizer().encode(TEXT), Sampler(SamplingParams(temperature=0.0), noise_key(1)))
    expected = tiny_tokenizer().decode(ids(pull(same, 16)))
    same.close()
    assert text.strip() and expected.startswith(text)
