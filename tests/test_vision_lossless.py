"""Drafts of the server, bits and another server behind pictures: the text is what transformers alone would write."""

import asyncio
from dataclasses import replace

import pytest
import torch

from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from opensled.core.errors import Unsupported
from opensled.core.messages import Open, SamplingParams
from scheduler.fcfs import Fcfs
from tests.fakes import IMPATIENT, FakeEngine
from tests.system import running
from tests.three_tiers import tiers
from tests.vision_models import PLACEHOLDER, ROWS, picture
from tests.vision_world import WORDS, answered, expected, fixtures, image, question
from verify_server.drafting.cacheback import ServerTables
from verify_server.drafting.lookup import ServerLookup
from verify_server.drafting.model import ServerModel
from verify_server.engine.base import ImageRows, Segment
from verify_server.engine.torch import torch_engine
from verify_server.round.loaded_model import ServedModel
from verify_server.vision.decoding import pixels_of

folder, engine, text, reference = fixtures()

FOUR = Fcfs(float("inf"), 4)  # the server drafts four tokens
LONG = "a long question, of more than a block: what do you see in this picture?"


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
