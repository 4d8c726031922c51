"""The tiny family: what its text, tokenizer and files must hold, whatever the training made of them."""

import json
import random

import numpy as np
import pytest

from lab.training.heldout import heldout_path
from opensled.models.store import model_file, model_path
from relay.config import RelayConfig

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from lab.training.corpus import chat_stream  # noqa: E402
from lab.training.decoding import generate, greedy, proposals  # noqa: E402
from lab.training.evaluate import COLUMNS, acceptance, render  # noqa: E402
from lab.training.family import DRAFT, FAMILY, HUB, TARGET  # noqa: E402
from lab.training.heldout import heldout_items, read_heldout  # noqa: E402
from lab.training.item import split_of  # noqa: E402
from lab.training.pipeline import Workshop  # noqa: E402
from lab.training.tasks import TASKS, arithmetic, smart_home  # noqa: E402
from lab.training.train_tokenizer import SPECIAL_TOKENS, VOCAB_SIZE, load_tokenizer, render_prompt  # noqa: E402
from verify_server.text.gguf_text import GgufText  # noqa: E402

CHECKED = [task for task in TASKS if task.check]
PROMPT = "What is 12 + 34?"


def names(tasks):
    return [task.name for task in tasks]


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(model_path(TARGET.name))


@pytest.fixture(scope="module")
def draft():
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(model_path(DRAFT.name), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def prompt_ids(tokenizer):
    return tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, return_dict=False
    )


@pytest.fixture(scope="module")
def draft_logits(draft, prompt_ids):
    with torch.inference_mode():
        return draft(torch.tensor([prompt_ids])).logits[0].numpy()


# The text


@pytest.mark.parametrize("task", TASKS, ids=names(TASKS))
def test_one_seed_gives_one_text(task):
    one, other = random.Random(7), random.Random(7)
    first = [task.draw(one) for _ in range(50)]
    assert first == [task.draw(other) for _ in range(50)]
    assert len({item.reply for item in first}) > 10, "the text must have choices"


@pytest.mark.parametrize("task", TASKS, ids=names(TASKS))
def test_no_heldout_prompt_is_trained_on(task):
    rng = random.Random(8)
    trained = {json.dumps(task.draw_from(rng, "train").messages) for _ in range(3000)}
    assert not trained & {json.dumps(task.draw_from(rng, "heldout").messages) for _ in range(200)}


def test_committed_items_are_held_out():
    """Their keys cannot be read from the file, so the file must be what the generator draws."""
    committed = read_heldout(heldout_path(), per_task=10)
    for task in TASKS:
        if not task.name.startswith("code"):  # the standard library differs between Python versions
            drawn = heldout_items(10)[task.name]
            assert [item.messages for item in committed[task.name]] == [item.messages for item in drawn]
            assert all(item.split == "heldout" for item in drawn)


def test_swapped_operands_share_a_split():
    for seed in range(200):
        item = arithmetic.draw(random.Random(seed))
        larger, smaller = (int(number) for number in item.key.replace("-", "+").split("+"))
        assert larger >= smaller
        assert item.split == split_of(item.key)


@pytest.mark.parametrize("task", CHECKED, ids=names(CHECKED))
def test_every_reply_verifies_and_a_wrong_one_does_not(task):
    rng = random.Random(9)
    items = [task.draw(rng) for _ in range(200)]
    assert all(task.check(item.reply, item.answer) for item in items)
    assert not any(task.check(item.reply, f"9{item.answer}") for item in items)


def test_checks_take_any_reply():
    assert not arithmetic.check("I do not know.", "12")
    assert not smart_home.check("{broken", "{}")
    assert smart_home.check('{"b": 1, "a": 2}', '{"a": 2, "b": 1}')


# The tokenizer


@pytest.mark.parametrize(
    "text", ["12 + 345 = 357", "def f(x):\n\treturn  x\n\n\n", "naïve café ☕", " leading", ""]
)
def test_tokenizer_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_digits_stand_alone(tokenizer):
    pieces = [tokenizer.decode([token]) for token in tokenizer("2468 and 13579")["input_ids"]]
    assert [piece for piece in pieces if piece.strip().isdigit()] == list("246813579")


def test_chat_template_is_what_training_saw(tokenizer):
    for task in TASKS:
        item = task.draw(random.Random(10))
        if item.chat:
            rendered = tokenizer.apply_chat_template(
                item.messages, tokenize=False, add_generation_prompt=True
            )
            assert rendered == render_prompt(item)


def test_training_predicts_replies_only(tokenizer):
    stream = chat_stream(tokenizer, tokens=1000, seed=1)
    first = slice(0, stream.starts[1])
    reply_start = int(np.flatnonzero(stream.wanted[first])[0])
    assert tokenizer.decode(stream.ids[reply_start - 1]) == "<|assistant|>"
    assert stream.wanted[first][reply_start:].all()
    assert stream.ids[first][-1] == tokenizer.eos_token_id


# The files


@pytest.mark.parametrize("name", FAMILY)
def test_family_shares_tokenizer_and_end_token(name, tokenizer):
    folder = model_path(name)
    config = json.loads((folder / "config.json").read_text())
    loaded = AutoTokenizer.from_pretrained(folder)
    assert config["eos_token_id"] == loaded.eos_token_id == loaded.convert_tokens_to_ids("<|end|>")
    assert len(loaded) == config["vocab_size"] == VOCAB_SIZE
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template


@pytest.fixture(scope="module")
def hub():
    return AutoModelForCausalLM.from_pretrained(model_path(HUB.name), dtype=torch.float32).eval()


def test_the_hub_has_the_vocabulary_of_the_target_and_is_the_model_of_a_relay():
    target, middle = (GgufText(model_file(recipe.name, "*.gguf")) for recipe in (TARGET, HUB))
    assert middle.fingerprint == target.fingerprint
    for file in ("tokenizer.json", "tokenizer_config.json"):
        assert (model_path(HUB.name) / file).read_bytes() == (model_path(TARGET.name) / file).read_bytes()
    assert RelayConfig().model == HUB.name


def test_sizes_lie_in_order_and_the_hub_is_about_a_third_of_the_target(draft, hub):
    target = AutoModelForCausalLM.from_pretrained(model_path(TARGET.name))
    sizes = [model.num_parameters() for model in (draft, hub, target)]
    assert sizes == sorted(sizes) and 0.25 < sizes[1] / sizes[2] < 0.4


def test_the_hub_agrees_with_the_target_more_often_than_the_draft_does(tokenizer, draft, hub):
    target = AutoModelForCausalLM.from_pretrained(model_path(TARGET.name), dtype=torch.float32).eval()
    asked = [item for items in read_heldout(heldout_path(), 3).values() for item in items]
    prompts = [tokenizer(render_prompt(item))["input_ids"] for item in asked]
    written = generate(target, prompts, 40, greedy)
    of_draft, of_hub = (
        acceptance(written, proposals(model, prompts, written, greedy)) for model in (draft, hub)
    )
    assert of_draft + 0.05 < of_hub < 1


def test_the_gguf_file_of_the_hub_has_its_logits(prompt_ids, hub):
    plain = pytest.importorskip("tests.plain_llama")
    model = plain.plain_llama(model_file(HUB.name, "*.gguf"), n_ctx=128, n_threads=1)
    model.eval(prompt_ids)
    with torch.inference_mode():
        assert_close(
            np.array(model.scores[: len(prompt_ids)]), hub(torch.tensor([prompt_ids])).logits[0].numpy()
        )


def test_gguf_has_the_same_ids_and_logits(tokenizer, prompt_ids, draft_logits):
    plain = pytest.importorskip("tests.plain_llama")
    path = model_path(DRAFT.name) / "tiny-draft-q8_0.gguf"
    model = plain.plain_llama(path, n_ctx=128, n_threads=1)
    text = tokenizer.decode(prompt_ids)
    for sample in (text, "x = [1, 22]\n\n\tfor  i in\r\n", " ".join(SPECIAL_TOKENS)):
        ids = model.tokenize(sample.encode(), add_bos=False, special=True)
        assert ids == tokenizer(sample)["input_ids"]
    assert model.token_eos() == tokenizer.eos_token_id
    model.eval(prompt_ids)
    assert_close(np.array(model.scores[: len(prompt_ids)]), draft_logits)


def test_onnx_has_the_same_logits_and_a_cache(draft, prompt_ids, draft_logits):
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(model_path(DRAFT.name) / "tiny-draft-int8.onnx"))
    past = empty_cache(session, draft.config)
    names = [output.name for output in session.get_outputs()]
    head, tail = prompt_ids[:5], prompt_ids[5:]
    first = dict(zip(names, session.run(None, feed(head, len(head), past)), strict=True))
    past = {name: first[name.replace("past_key_values", "present")] for name in past}
    second = session.run(["logits"], feed(tail, len(prompt_ids), past))[0]
    assert_close(np.concatenate([first["logits"][0], second[0]]), draft_logits)


def feed(ids, known, past):
    mask = np.ones((1, known), dtype=np.int64)
    return {"input_ids": np.array([ids], dtype=np.int64), "attention_mask": mask, **past}


def empty_cache(session, config):
    shape = (1, config.num_key_value_heads, 0, config.head_dim)
    inputs = [entry.name for entry in session.get_inputs()]
    return {name: np.zeros(shape, np.float32) for name in inputs if name.startswith("past_key_values.")}


def assert_close(quantized, exact):
    """Eight bits move a logit a little; a wrong layout (head order, rotation, scale) moves it a lot."""
    assert np.abs(quantized - exact).mean() < 0.1 * exact.std()
    sure = np.diff(np.partition(exact, -2)[:, -2:], axis=1)[:, 0] > 0.5 * exact.std()
    assert (quantized.argmax(1) == exact.argmax(1))[sure].all()


def test_a_member_that_joins_takes_the_tokenizer_of_the_others(tmp_path, tokenizer):
    assert Workshop(tmp_path, join=True).tokenizer().get_vocab() == tokenizer.get_vocab()
    made, shipped = (
        folder / "tokenizer.json" for folder in (tmp_path / "tokenizer", model_path(TARGET.name))
    )
    assert made.read_bytes() == shipped.read_bytes()


# The evaluation


def test_acceptance_counts_positions_over_all_texts():
    assert acceptance([[1, 2, 3], [4]], [[1, 0, 3], [0]]) == 0.5
    assert acceptance([[1, 2]], [[1, 2]]) == 1.0


def test_a_model_accepts_itself(draft, prompt_ids):
    """Batched, padded and cached decoding agrees with one pass over the whole text."""
    prompts = [prompt_ids, prompt_ids[-4:]]
    written = generate(draft, prompts, 12, greedy)
    assert acceptance(written, proposals(draft, prompts, written, greedy)) == 1.0


def test_table_has_a_line_per_task_and_the_mean():
    rates = dict.fromkeys(COLUMNS, 0.5) | {"target_accuracy": None, "hub_accuracy": 1.0}
    rates |= {"hub_sampled_acceptance": 0.75, "sampled_acceptance": 0.25}
    lines = render({"tasks": [{"task": "stories", "items": 3, **rates}], "mean": rates}).splitlines()
    assert lines[1].split() == ["stories", "3", "-", "1.00", "0.50", "0.50", "0.75", "0.50", "0.25"]
    assert lines[2].split() == ["mean", "-", "1.00", "0.50", "0.50", "0.75", "0.50", "0.25"]
    assert len({len(line) for line in lines}) == 1
