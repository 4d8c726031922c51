"""`tiny-vision`: rows, warm start, a few steps of training on a micro model, and the exported folder."""

import random
from dataclasses import replace

import numpy as np
import pytest

from opensled.models.store import model_path

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL")

from PIL import Image  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForImageTextToText,
    AutoTokenizer,
    CLIPImageProcessorPil,
    LlamaForCausalLM,
)

from lab.training.corpus import Stream  # noqa: E402
from lab.training.train_tokenizer import END  # noqa: E402
from lab.training.vision.canvas import PATCHES  # noqa: E402
from lab.training.vision.course import Course  # noqa: E402
from lab.training.vision.evaluate import KindScore, evaluate, heldout_questions, render  # noqa: E402
from lab.training.vision.export import export, image_processor  # noqa: E402
from lab.training.vision.learner import Learner  # noqa: E402
from lab.training.vision.questions import KINDS  # noqa: E402
from lab.training.vision.recipe import VISION, Plan  # noqa: E402
from lab.training.vision.rows import ASSISTANT_ID, OPENING, RowMaker, picture_row, visible  # noqa: E402
from lab.training.vision.scenes import draw, pixels  # noqa: E402
from lab.training.vision.start import fresh, take_over  # noqa: E402
from lab.training.vision.tokens import IMAGE, IMAGE_ID, vision_tokenizer  # noqa: E402

MICRO = replace(
    VISION,
    tower_hidden=32,
    tower_layers=1,
    hidden=32,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=16,
    ffn=64,
    tower=Plan(12, 5e-3, 2),
    tower_pictures=4,
    joint=Plan(12, 5e-3, 2),
    pictures=2,
    texts=1,
    length=192,
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tokenizer():
    return vision_tokenizer(model_path("tiny"))


@pytest.fixture(scope="module")
def maker(tokenizer):
    ids = np.array(tokenizer("The light is on." + END)["input_ids"] * 200, dtype=np.uint16)
    return RowMaker(MICRO, tokenizer, Stream(ids, np.ones(len(ids), dtype=bool), np.array([0])))


@pytest.fixture
def model():
    return fresh(MICRO).train()


# The text


def test_the_template_writes_one_token_for_a_picture_and_puts_it_first(tokenizer):
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|system|>Be brief.<|end|><|user|><image>What is this?<|end|><|assistant|>"
    assert tokenizer(text)["input_ids"].count(IMAGE_ID) == 1


def test_text_without_pictures_has_the_tokens_of_tiny(tokenizer):
    plain = AutoTokenizer.from_pretrained(model_path("tiny"))
    messages = [{"role": "user", "content": "What is 12 + 34?"}]
    ours, theirs = (
        each.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        for each in (tokenizer, plain)
    )
    assert ours == theirs


# Rows


def test_a_question_of_a_row_is_read_as_if_it_were_asked_alone(model):
    asked, said = [[30, 31, 0], [32, 0]], [[40, 41, 0], [42, 43, 44, 0]]
    row = picture_row(asked, said, 100, dialogue=False)
    alone = picture_row(asked[1:], said[1:], 100, dialogue=False)
    picture = torch.from_numpy(pixels(draw(random.Random(1), "train").image))[None]
    logits = [_replies_logits(model.eval(), each, picture, tokens) for each, tokens in ((row, 4), (alone, 4))]
    assert torch.allclose(*logits, atol=1e-5)


def _replies_logits(model, row, picture, tokens):
    """Of the last `tokens` wanted ids of the row."""
    with torch.inference_mode():
        logits = model(
            input_ids=torch.from_numpy(row.ids)[None],
            pixel_values=picture,
            position_ids=torch.from_numpy(row.positions)[None],
            attention_mask=visible(torch.from_numpy(row.parts)[None]),
        ).logits[0]
    return logits[np.flatnonzero(row.wanted)[-tokens:] - 1]


def test_a_row_wants_the_replies_alone():
    row = picture_row([[30, 0]], [[40, 0]], 80, dialogue=False)
    assert row.ids[row.wanted].tolist() == [40, 0]
    assert row.ids.tolist()[: len(OPENING) + 5] == [*OPENING, 30, 0, ASSISTANT_ID, 40, 0]
    assert row.ids.tolist().count(IMAGE_ID) == PATCHES


def test_what_finds_no_room_is_left_out():
    row = picture_row([[30, 0]] * 3, [[40, 0]] * 3, len(OPENING) + 12, dialogue=False)
    assert row.ids[row.wanted].tolist() == [40, 0] * 2


def test_turns_of_a_dialogue_see_what_was_said():
    row = picture_row([[30, 0], [31, 0]], [[40, 0], [41, 0]], 90, dialogue=True)
    used = len(OPENING) + 5 + 6
    assert visible(torch.from_numpy(row.parts)[None])[0, 0][used - 1, :used].all()
    assert row.positions[:used].tolist() == list(range(used))


def test_a_step_reads_the_same_whenever_it_is_run(maker):
    one, other = maker.batch(7), maker.batch(7)
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("ids", "pixels", "mask"))
    assert not torch.equal(one.ids, maker.batch(8).ids)


# Training


def test_the_decoder_starts_with_what_the_text_model_says(tokenizer):
    hub = LlamaForCausalLM.from_pretrained(model_path("tiny-hub"), dtype=torch.float32).eval()
    whole = fresh(VISION).eval()
    take_over(whole, hub)
    ids = torch.tensor([tokenizer("<|user|>Turn on the light." + END)["input_ids"]])
    with torch.inference_mode():
        ours, theirs = whole(input_ids=ids).logits, hub(ids).logits
    assert torch.allclose(ours[..., : theirs.shape[-1]], theirs, atol=1e-3)


def test_only_half_the_layers_can_be_taken_over(model):
    hub = LlamaForCausalLM.from_pretrained(model_path("tiny-hub"))
    with pytest.raises(ValueError, match="2 layers are not twice 3"):
        take_over(model, hub)


def test_a_few_steps_lower_the_loss(model, maker, tmp_path):
    learner = Learner(model, MICRO)
    course = Course(
        learner, MICRO.joint, lambda step: learner.answering_loss(maker.batch(step)), tmp_path / "a.pt"
    )
    losses = course.run()
    assert len(losses) == MICRO.joint.steps
    assert losses[-1] < losses[0] - 0.5


def test_the_tower_learns_what_is_drawn(model, tmp_path):
    learner = Learner(model, MICRO)
    losses = Course(learner, MICRO.tower, learner.seeing_loss, tmp_path / "a.pt").run()
    assert losses[-1] < 0.95 * losses[0]


def test_a_stopped_run_goes_on_where_it_was(tmp_path, monkeypatch):
    """Six steps, stopped at the fourth, leave the weights of six in one go."""
    monkeypatch.setattr("lab.training.vision.course.CHECKPOINT_SECONDS", 0)

    def weights(checkpoint, stop_at=None):
        learner = Learner(fresh(MICRO), MICRO)

        def loss(step):
            if step == stop_at:
                raise KeyboardInterrupt
            return learner.seeing_loss(step)

        Course(learner, Plan(6, 1e-3, 2), loss, checkpoint).run()
        return learner.reader.weight

    whole = weights(tmp_path / "whole.pt")
    with pytest.raises(KeyboardInterrupt):
        weights(tmp_path / "stopped.pt", stop_at=3)
    assert torch.equal(weights(tmp_path / "stopped.pt"), whole)


# What comes out


def test_the_exported_folder_loads_and_answers(model, tokenizer, tmp_path):
    export(model.eval(), tokenizer, tmp_path / "out")
    loaded = AutoModelForImageTextToText.from_pretrained(tmp_path / "out").eval()
    read = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert read.chat_template == tokenizer.chat_template
    assert read.convert_tokens_to_ids(IMAGE) == IMAGE_ID
    assert loaded.config.model_type == "llava"
    assert loaded.config.image_seq_length == PATCHES
    picture = Image.new("RGB", (200, 100), (215, 35, 40))
    values = CLIPImageProcessorPil.from_pretrained(tmp_path / "out")(picture, return_tensors="pt")
    ids = torch.tensor([[*OPENING, ASSISTANT_ID]])
    with torch.inference_mode():
        ours, theirs = (each(input_ids=ids, **values).logits for each in (model.half().float(), loaded))
    # The folder has 8 bits a weight.
    assert torch.allclose(ours, theirs, atol=0.03 * float(ours.abs().max()))
    matrix = loaded.state_dict()["model.language_model.layers.0.mlp.up_proj.weight"]
    assert not torch.equal(
        matrix, model.float().state_dict()["model.language_model.layers.0.mlp.up_proj.weight"]
    )


def test_the_image_processor_makes_the_pixels_of_training():
    image = draw(random.Random(2), "train").image
    made = image_processor()(image, return_tensors="np")["pixel_values"][0]
    assert np.allclose(made, pixels(image), atol=1e-6)


def test_evaluation_asks_as_many_of_each_kind(model, tokenizer, monkeypatch):
    for limit in ("MAX_NEW_TOKENS", "MAX_TEXT_TOKENS"):
        monkeypatch.setattr(f"lab.training.vision.evaluate.{limit}", 3)
    scores = evaluate(model.eval(), tokenizer, 1)
    assert [score.kind for score in scores[: len(KINDS)]] == list(KINDS)
    assert all(score.items == 1 for score in scores)
    assert "0.500" in render([KindScore("color", 2, 0.5)])


def test_held_out_questions_are_the_same_each_time():
    one, other = heldout_questions(2), heldout_questions(2)
    assert [[q for _, q in pairs] for pairs in one.values()] == [
        [q for _, q in pairs] for pairs in other.values()
    ]
