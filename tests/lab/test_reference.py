"""The reference is right by itself, and says the same as the product's own noise and sampling."""

import json
from collections import Counter
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lab.testbed.forcing import follow
from lab.testbed.gguf_reference import GgufReference
from lab.testbed.reference import Lead, Reference, Sampling, key_of_seed, lead, masked
from lab.testbed.reference import noise as reference_noise
from opensled.core import noise
from opensled.core.messages import SamplingParams
from opensled.core.sampling import Sampler
from opensled.models.store import model_file, model_path
from tests.tiny_models import random_model

WORDS = ["<eos>", "<user>", "<assistant>", *(f"w{number}" for number in range(29))]
EOS = 0
CONTEXT = 48
TEMPLATE = "{% for m in messages %}<user> {{ m.content }} {% endfor %}<assistant>"

seeds = st.integers(-(2**63), 2**63 - 1)
keys = st.binary(min_size=16, max_size=16)
positions = st.integers(0, 2**31)
# Coarse values, so that ties are common; top_p away from sums that rounding could tip.
few_logits = st.lists(st.integers(-8, 8), min_size=2, max_size=7).map(lambda values: np.array(values) / 4)
temperatures = st.sampled_from([0.3, 1.0, 1.7])
top_ks = st.integers(0, 8)
top_ps = st.sampled_from([0.0137, 0.3137, 0.7071, 0.9183, 1.0])


@given(seeds)
def test_key_of_a_seed_is_the_products(seed):
    assert key_of_seed(seed) == noise.noise_key(seed)


@given(keys, positions)
def test_noise_is_bit_equal_to_the_products(key, position):
    assert np.array_equal(reference_noise(key, position, 97), noise.gumbel(key, position, np.arange(97)))


@given(few_logits, temperatures, top_ks, top_ps)
def test_masks_keep_what_enumeration_keeps(logits, temperature, top_k, top_p):
    kept = set(np.flatnonzero(np.isfinite(masked(logits, temperature, top_k, top_p))).tolist())
    assert kept == _enumerated(logits / temperature, top_k, top_p)


def _enumerated(scaled: np.ndarray, top_k: int, top_p: float) -> set[int]:
    """Of all subsets: the heaviest of size top_k, then the smallest one in it that reaches top_p, again the heaviest;
    the lowest ids where several weigh the same."""
    everything = range(len(scaled))
    kept = _heaviest(scaled, everything, min(top_k or len(scaled), len(scaled)))
    total = np.exp(scaled[list(kept)]).sum()
    for size in range(1, len(kept) + 1):
        best = _heaviest(scaled, kept, size)
        if np.exp(scaled[list(best)]).sum() / total >= top_p:
            return set(best)
    return set(kept)


def _heaviest(scaled: np.ndarray, tokens: range | tuple[int, ...], size: int) -> tuple[int, ...]:
    subsets = combinations(sorted(tokens), size)
    return max(subsets, key=lambda subset: (sorted(scaled[list(subset)], reverse=True), [-t for t in subset]))


@given(few_logits, temperatures, top_ks, top_ps, keys, positions)
def test_draws_are_the_drafters_draws(logits, temperature, top_k, top_p, key, position):
    sampler = Sampler(SamplingParams(temperature, top_k, top_p), key)
    sampling = Sampling(temperature, top_k, top_p, key)
    assert sampling.draw(logits, position) == sampler.draw(logits, position).id


@given(few_logits, positions)
def test_greedy_is_the_lowest_of_the_likeliest(logits, position):
    assert Sampling().draw(logits, position) == logits.tolist().index(logits.max())


# Upper 1e-4 quantile of chi-square with 4 degrees of freedom.
CHI_SQUARE_BOUND = 23.5


@pytest.mark.parametrize("fixed", ["key", "position"])
def test_draws_follow_the_distribution(fixed):
    logits = np.log([0.5, 0.2, 0.15, 0.1, 0.05])
    draws = 4000
    counts: Counter[int] = Counter()
    for number in range(draws):
        key, position = (key_of_seed(1), number) if fixed == "key" else (key_of_seed(number), 7)
        counts[Sampling(1.0, key=key).draw(logits, position)] += 1
    expected = draws * np.exp(logits)
    observed = np.array([counts[token] for token in range(5)])
    assert float(((observed - expected) ** 2 / expected).sum()) < CHI_SQUARE_BOUND


def test_a_temperature_needs_a_key():
    with pytest.raises(ValueError, match="seed"):
        Sampling(0.5)


def test_the_lead_beside_a_masked_token():
    assert lead(np.array([1.0, -np.inf, 0.25])) == Lead(0, 0.75)
    assert lead(np.array([-np.inf, 1.0])) == Lead(1, np.inf)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with 32 tokens, and a word tokenizer."""
    ids = {"vocab_size": len(WORDS), "bos_token_id": None, "eos_token_id": EOS}
    folder = random_model("llama", tmp_path_factory.mktemp("model"), max_position_embeddings=CONTEXT, **ids)
    words = Tokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, "<eos>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


def test_reads_the_folder(reference, folder):
    assert reference.eos_ids == {EOS}
    assert (
        reference.context_length
        == json.loads((folder / "config.json").read_text())["max_position_embeddings"]
    )
    assert reference.logits([1, 2, 3]).dtype == np.float64


def test_renders_chats(reference):
    assert reference.render_chat([{"role": "user", "content": "w3 w1"}]) == reference.encode(
        "<user> w3 w1 <assistant>"
    )
    assert reference.decode(reference.encode("w3 w1")) == "w3 w1"


@pytest.mark.parametrize("prompt", [[4], [1, 5, 9, 2], [7] * 20])
def test_greedy_is_transformers_own(reference, prompt):
    tokens, reason = reference.generate(prompt, max_tokens=24)
    theirs = reference.model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), do_sample=False, max_new_tokens=24
    )
    assert tokens == theirs[0, len(prompt) :].tolist()
    assert reason == ("eos" if tokens[-1] == EOS else "length")


def test_ends(reference):
    def generate(**rules: object) -> tuple[list[int], str]:
        return reference.generate([3, 4], temperature=1.0, seed=11, **{"max_tokens": 40, **rules})  # type: ignore[arg-type]

    free, reason = generate(ignore_eos=True)
    assert (len(free), reason) == (40, "length")
    assert EOS in free, "the seed must lead through eos, or the next line tests nothing"
    assert generate() == (free[: free.index(EOS) + 1], "eos")
    assert generate(stop_ids=(free[2],), ignore_eos=True) == (free[: free.index(free[2]) + 1], "stop")
    assert generate(max_tokens=3, ignore_eos=True) == (free[:3], "length")
    assert len(generate(max_tokens=1000, ignore_eos=True)[0]) == CONTEXT - 2


def test_seed_and_key_are_the_same_thing(reference):
    by_seed = reference.generate([3, 4], temperature=0.8, top_k=9, top_p=0.9, seed=-2, max_tokens=12)
    by_key = reference.generate(
        [3, 4], temperature=0.8, top_k=9, top_p=0.9, noise_key=key_of_seed(-2), max_tokens=12
    )
    assert by_seed == by_key


def test_teacher_forcing_finds_every_token_winning(reference):
    sampling = Sampling(1.0, 0, 0.95, key_of_seed(3))
    tokens, _ = reference.generate(
        [3, 4], temperature=1.0, top_p=0.95, seed=3, max_tokens=10, ignore_eos=True
    )
    leads = reference.leads([3, 4], tokens, sampling)
    assert [item.winner for item in leads] == tokens
    assert all(item.margin > 0 for item in leads)
    other = [(token + 1) % len(WORDS) for token in tokens]
    assert reference.leads([3, 4], other, sampling)[0].winner == tokens[0]


# -- GGUF files ---------------------------------------------------------------------------------------------------


CHAT = [{"role": "user", "content": "Turn on the kitchen light, and say naïve 12 times."}]


@pytest.fixture(scope="module")
def plain() -> Reference:
    return Reference(model_path("tiny"), dtype="float32")


@pytest.fixture(scope="module")
def file() -> GgufReference:
    return GgufReference(model_file("tiny", "*.gguf"))


def test_they_cut_and_spell_texts_alike(plain, file):
    ids = plain.render_chat(CHAT)
    assert file.render_chat(CHAT) == ids and file.decode(ids) == plain.decode(ids)
    assert (file.eos_ids, file.context_length) == (plain.eos_ids, plain.context_length)


def test_they_compute_the_same_logits(plain, file):
    ids = plain.render_chat(CHAT)
    np.testing.assert_allclose(file.logits(ids, 5), plain.logits(ids, 5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_one_pass_follows_as_many_do(sampling, plain, monkeypatch):
    body = {"messages": CHAT, "max_tokens": 12, **sampling}
    ids, _ = plain.generate(plain.render_chat(CHAT), **sampling, max_tokens=12)
    text = plain.decode(ids)
    expected = follow(plain, body, text, 1e-4)
    passes, logits = [], plain.logits
    monkeypatch.setattr(plain, "logits", lambda *given, **more: passes.append(1) or logits(*given, **more))
    assert expected is not None and follow(plain, body, text, 1e-4, one_pass=True) == expected
    assert len(passes) < expected.tokens
    assert follow(plain, body, text[:-2] + "zz", 1e-4, one_pass=True) is None
