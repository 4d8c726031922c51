"""Pictures through the whole system: a target writes what transformers alone would, whatever drafts. float64."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession
from edge_client.link.sent_images import SentImages
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from opensled.core.errors import (
    EngineError,
    InvalidRequest,
    MissingImage,
    SelfTestFailed,
    TruthConflict,
    Unsupported,
    UnsupportedModel,
)
from opensled.core.images import Image
from opensled.core.messages import Open, SamplingParams
from scheduler.fcfs import Fcfs
from tests.fakes import IMPATIENT, FakeEngine, Weather
from tests.system import running
from tests.three_tiers import tiers
from tests.vision_models import PLACEHOLDER, ROWS, picture, vision_model
from tests.vision_world import WORDS, answered, expected, fixtures, image, knowing, question
from verify_server.drafting.cacheback import ServerTables
from verify_server.drafting.lookup import ServerLookup
from verify_server.drafting.model import ServerModel
from verify_server.engine.base import ImageRows, Segment
from verify_server.engine.torch import torch_engine
from verify_server.engine.torch.image_encoder import FAMILIES, ImageEncoder, require_family
from verify_server.kv.blocks import BlockTable
from verify_server.round.loaded_model import ServedModel
from verify_server.vision.decoding import pixels_of

folder, engine, text, reference = fixtures()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_texts_are_the_references_with_and_without_pictures_in_one_batch(
    engine, text, reference, temperature
):
    params = SamplingParams(temperature=temperature, seed=5, max_tokens=WORDS)
    asked = [("what is it?", [1]), ("hello", []), ("and these", [1, 2]), ("what is it?", [2]), ("x", [3])]
    async with running(engine, text=text) as network:
        drafters = [knowing(reference, words, seeds, params) for words, seeds in asked]
        answers = await asyncio.gather(
            *(
                answered(network, words, seeds, params, drafter)
                for (words, seeds), drafter in zip(asked, drafters, strict=True)
            )
        )
    for (words, seeds), answer in zip(asked, answers, strict=True):
        assert list(answer.tokens) == expected(reference, words, seeds, params)
    assert answers[0].tokens != answers[3].tokens, "the model looks at its picture"
    drafted = sum(len(commit.tokens) for answer in answers for commit in answer.rounds)
    assert drafted > 1.5 * sum(len(answer.rounds) for answer in answers), (
        "drafts are accepted behind pictures"
    )


async def test_a_storm_on_the_link_changes_nothing(engine, text, reference):
    params = SamplingParams(temperature=0.8, seed=9, max_tokens=WORDS)
    asked = [("what is it?", [1]), ("and these", [1, 2]), ("hello", [])]
    weather = Weather(loss=0.1, duplicate=0.1, reorder=0.1, seed=3)
    async with running(engine, text=text, weather=weather, draft_wait=0.01) as network:
        answers = [
            await answered(
                network,
                words,
                seeds,
                params,
                knowing(reference, words, seeds, params),
                patience=replace(IMPATIENT, silence=0.3),
            )
            for words, seeds in asked
        ]
    assert [list(answer.tokens) for answer in answers] == [
        expected(reference, words, seeds, params) for words, seeds in asked
    ]
    assert sum(answer.reopened for answer in answers), "the weather was too fair to show anything"


async def test_sessions_with_pictures_give_way_and_come_back(engine, text, reference, monkeypatch):
    """KV for one answer alone: the others are preempted, and their pictures computed again."""
    params = SamplingParams(temperature=0, max_tokens=WORDS)
    monkeypatch.setattr(engine, "info", replace(engine.info, num_blocks=6))

    async with running(engine, text=text) as network:
        answers = await asyncio.gather(*(answered(network, "what?", [seed], params) for seed in range(4)))
    for seed, answer in enumerate(answers):
        assert list(answer.tokens) == expected(reference, "what?", [seed], params)


async def one_after_another(engine, text, params, *asked):
    async with running(engine, text=text) as network:
        answers, hits = [], []
        for words, seeds in asked:
            before = network.manager.loop.machine.target.pool.hits
            answers.append(list((await answered(network, words, seeds, params)).tokens))
            hits.append(network.manager.loop.machine.target.pool.hits - before)
        return answers, hits


LONG = "a long question, of more than a block: what do you see in this picture?"


def test_prefixes_are_shared_by_the_same_picture_alone(engine, text, reference):
    params = SamplingParams(temperature=0, max_tokens=8)
    asked = [(LONG, [1]), (LONG, [1]), (LONG, [2]), (LONG, [])]
    answers, hits = asyncio.run(one_after_another(engine, text, params, *asked))
    assert answers == [expected(reference, words, seeds, params) for words, seeds in asked]
    assert hits[1] > ROWS, "the same picture again is found"
    assert hits[0] == hits[2] == hits[3] == 0, (
        "another picture shares nothing, though its placeholders are equal"
    )


def test_a_planted_fault_in_the_keys_is_caught(engine, text, reference, monkeypatch):
    """Without the pictures in the keys the second answer is about the first picture: what the test above is for."""
    monkeypatch.setattr(BlockTable, "_content_of", lambda table, start, tokens: tokens)
    params = SamplingParams(temperature=0, max_tokens=8)
    answers, hits = asyncio.run(one_after_another(engine, text, params, (LONG, [1]), (LONG, [2])))
    assert hits[1] > ROWS
    assert answers[1] != expected(reference, LONG, [2], params)


async def test_a_picture_is_sent_once_and_again_to_a_server_that_has_it_no_more(engine, text, reference):
    params = SamplingParams(temperature=0, max_tokens=8)
    sent = SentImages()

    whole = len(picture(4))
    async with running(engine, text=text) as first, running(engine, text=text) as second:
        sizes = []
        for network in (first, first, second, second):
            counting = Counting(network)
            asked = question(LONG, 4)
            images = tuple(placed.image for placed in asked[0].images)
            session = RemoteSession(counting.connect, Open(asked, params, images=images), sent_images=sent)
            await session.open()
            await session.close()
            sizes.append([len(each.data) for opening in counting.opened for each in opening.images])
    assert sizes == [[whole], [0], [0, whole], [0]]


class Counting:
    """A network that keeps what is opened."""

    def __init__(self, network) -> None:
        self._network, self.opened = network, []

    def connect(self, *address):
        stream = self._network.connect(*address)
        send = stream.send

        async def kept(message):
            if isinstance(message, Open):
                self.opened.append(message)
            await send(message)

        stream.send = kept
        return stream


async def test_a_reopened_session_keeps_its_pictures(engine, text):
    """Resumed by its token the session is the same one, so other pictures contradict it."""
    params = SamplingParams(temperature=0, max_tokens=8)
    async with running(engine, text=text) as network:
        manager = network.manager
        asked, other = question(LONG, 4), question(LONG, 5)
        first = Open(asked, params, images=(image(4),))
        session, opened = await manager.open(first, "local")
        again = Open(opened.prompt_ids, params, resume_token=opened.resume_token, images=(image(4).named,))
        assert (await manager.open(again, "local"))[0] is session
        with pytest.raises(TruthConflict):
            await manager.open(replace(again, images=(other[0].images[0].image,)), "local")


def test_a_placeholder_in_the_words_of_people_is_text(text):
    """A picture is where it was put, and nowhere else."""
    turns = question("an <image> of words <IMAGE>", 1)
    ids = text.render(turns)
    assert ids.count(PLACEHOLDER) == 1
    assert text._tokenizer.decode(ids) == "<user><image>an<image>ofwords<IMAGE><assistant>", (
        "it has no blanks"
    )
    assert PLACEHOLDER not in text.render(question("<image>"))


@pytest.mark.parametrize(
    ("opening", "error", "words"),
    [
        (Open("text", images=(image(1),)), Unsupported, "send chat messages"),
        (Open((1, PLACEHOLDER, 1), images=(image(1),)), InvalidRequest, "1 placeholders"),
        (Open((1, *[PLACEHOLDER] * ROWS), images=(image(1).named,)), MissingImage, "send its file"),
        (Open((1, *[PLACEHOLDER] * ROWS)), InvalidRequest, "for 0 images"),
        (Open((1, *[PLACEHOLDER] * ROWS), images=(Image(bytes(32), b"x"),)), InvalidRequest, "digest"),
        (Open((1, PLACEHOLDER, 1)), InvalidRequest, "for 0 images"),
    ],
)
async def test_pictures_that_are_not_there_or_not_theirs_are_refused(engine, text, opening, error, words):
    async with running(engine, text=text) as network:
        with pytest.raises(error, match=words):
            await network.manager.open(opening, "local")
        answer = await answered(network, "still here", [1], SamplingParams(temperature=0, max_tokens=4))
        assert answer.tokens


async def test_a_target_of_text_refuses_by_name():
    async with running(FakeEngine(num_blocks=40)) as network:
        with pytest.raises(Unsupported, match="text only") as caught:
            await network.manager.open(Open((1, 2), images=(image(1),)), "local")
        assert caught.value.field == "images"


async def test_a_picture_counts_its_positions_before_a_place_is_given(engine, text):
    async with running(engine, text=text) as network:
        inputs, asked = network.manager.inputs, question("what?", 1, 2)
        images = tuple(placed.image for placed in asked[0].images)
        plain = inputs.length_of(Open(question("what?")))
        assert inputs.length_of(Open(asked, images=images)) == plain + 2 * ROWS


# -- families, and how the others are refused ---------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llava_next", "qwen2_vl", "paligemma", "idefics3", "gemma3"])
def test_families_whose_pictures_cannot_be_placed_are_refused_by_name(family):
    with pytest.raises(
        UnsupportedModel, match=f"{family} is a vision-language family.*{', '.join(FAMILIES)}"
    ):
        require_family(SimpleNamespace(model_type=family))


def test_a_config_of_such_a_family_is_refused_before_its_weights_are_read(tmp_path):
    folder = vision_model(tmp_path / "seer")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llava_next"}))
    with pytest.raises(UnsupportedModel, match="llava_next"):
        torch_engine.load(str(folder), dtype="float64", kv_tokens=512)


def test_a_family_with_several_layers_of_features_is_served(tmp_path):
    folder = vision_model(tmp_path / "seer", kind="vipllava")
    engine = torch_engine.load(str(folder), dtype="float64", kv_tokens=512)
    rows = engine.see(pixels_of(picture(1)))
    assert len(rows) == engine.info.images.rows and bool(rows.isfinite().all())


def test_a_folder_that_does_not_say_how_pictures_are_prepared_is_refused(tmp_path):
    folder = vision_model(tmp_path / "seer")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"preprocessor_config\.json"):
        torch_engine.load(str(folder), dtype="float64", kv_tokens=512)


def test_an_encoder_that_the_whole_model_does_not_agree_with_is_caught(tmp_path, monkeypatch):
    """A planted fault: rows of the picture in the opposite order."""
    folder, encode = vision_model(tmp_path / "seer"), ImageEncoder.encode
    monkeypatch.setattr(ImageEncoder, "encode", lambda eyes, pixels: encode(eyes, pixels).flip(0))
    with pytest.raises(SelfTestFailed, match="with a picture"):
        torch_engine.load(str(folder), dtype="float64", kv_tokens=512)


def test_nan_of_the_tower_fails_one_picture(tmp_path):
    folder = vision_model(tmp_path / "seer")
    engine = torch_engine.load(str(folder), dtype="float64", kv_tokens=512)
    tower = engine._eyes.whole.model.multi_modal_projector
    with torch.no_grad():
        tower.linear_2.bias[0] = float("nan")
    with pytest.raises(EngineError, match="NaN or infinity"):
        engine.see(np.zeros((8, 8, 3), np.uint8))


# -- drafts, bits and another server behind pictures ------------------------------------------------------------


FOUR = Fcfs(float("inf"), 4)  # the server drafts four tokens


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", ["lookup", "cacheback", "model"])
async def test_the_servers_own_drafts_change_nothing(engine, text, reference, name, temperature):
    """`model`: the decoder of the target itself, which sees placeholders where the target sees pictures."""
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=WORDS)
    asked = [("what is it?", [1]), ("hello", []), ("and these", [1, 2])]
    drafters = {
        "lookup": ServerLookup,
        "cacheback": lambda: ServerTables(None, ServedModel("seer", engine, text)),
        "model": lambda: ServerModel(
            torch_engine.load(engine.info.model_id, dtype="float64", kv_tokens=2048)
        ),
    }
    async with running(engine, text=text, drafter=drafters[name](), policy=FOUR) as network:
        answers = await asyncio.gather(*(answered(network, words, seeds, params) for words, seeds in asked))
        answers, drafted = answers, network.manager.loop.machine.stats.own.tokens
    assert drafted or (name, temperature) == ("lookup", 0.8), "the server drafted"
    for (words, seeds), answer in zip(asked, answers, strict=True):
        assert list(answer.tokens) == expected(reference, words, seeds, params)


def test_bits_behind_a_picture_do_not_depend_on_the_batch(folder):
    """Level exact in float32: alone or beside others, in one chunk or in two that cut the picture."""
    exact = torch_engine.load(str(folder), dtype="float32", numerics="exact", kv_tokens=1024)
    rows = exact.see(pixels_of(picture(1)))
    tokens = (5, *[PLACEHOLDER] * ROWS, 6, 7, 8)
    shown = (ImageRows(1, rows),)
    last = len(tokens)

    def logits(*segments):
        return exact._model.run(segments)[0]

    alone = logits(Segment(tokens, 0, (0, 1), 3, images=shown))
    other = Segment(tuple(range(4, 34)), 0, (2, 3), 1)
    beside = logits(other, Segment(tokens, 0, (4, 5), 3, images=shown))[1:]
    logits(Segment(tokens[:4], 0, (6, 7), 0, images=shown), other)
    cut = logits(Segment(tokens[4:last], 4, (6, 7), 3, images=shown))
    assert torch.equal(alone, beside) and torch.equal(alone, cut)


async def test_a_relay_passes_no_pictures_on():
    async with tiers(FakeEngine(), FakeEngine()) as (_, relay, _):
        with pytest.raises(Unsupported, match="no images"):
            await relay.manager.open(Open((1, 2), images=(image(1),)), "local")


async def test_another_server_goes_on_with_the_picture_in_mid_answer(engine, text, reference, folder):
    """It has neither the session nor the picture, and is sent both."""
    params = SamplingParams(temperature=0.8, seed=4, max_tokens=WORDS)
    asked, other = question(LONG, 6), torch_engine.load(str(folder), dtype="float64", kv_tokens=1024)
    async with running(engine, text=text) as first, running(other, text=text) as second:
        ways = [first]
        opening = Open(asked, params, images=(asked[0].images[0].image,))
        session = RemoteSession(lambda *_: ways[-1].connect(), opening, replace(IMPATIENT, silence=0.5))
        thread = DraftThread(NoneDrafter(), FixedLength(4))
        await session.open()
        async for _ in generate(session, thread, params):
            if len(session.truth.generated) > 5 and ways[-1] is first:
                ways.append(second)
                await first.streams[-1].close()
        thread.close()
    assert session.reopened and list(session.truth.generated) == expected(reference, LONG, [6], params)
