"""How far a prompt is read, and how much of it was found: what sessions tell, and what readers hear of it."""

import asyncio
import threading
from contextlib import closing

import pytest

from edge_client.drafters.none import NoneDrafter
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession
from edge_client.offline.modes import STALL
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from opensled.core.answer import Chunk, Task
from opensled.core.errors import ProtocolError
from opensled.core.messages import Open, Prefill, SamplingParams, Verdict
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec
from scheduler.plan import Slice
from tests.devices import TOKENIZER
from tests.fake_backend import AwayBackend, ask, comments_of
from tests.fakes import FakeEngine, continuation
from tests.http_serving import HI, asking, http_serving
from tests.outages import Slow, device_that_loses
from tests.sessions import Crank
from tests.three_tiers import tiers
from verify_server.options.serve_config import ServeConfig
from verify_server.round.step import run_step
from verify_server.start.load_target import load_llamacpp, load_torch

PROMPT = tuple(range(3, 13))  # ten tokens, two whole blocks of four
FEW = SamplingParams(temperature=0, max_tokens=6)
LONG = tuple(3 + place % 40 for place in range(180))  # three steps of 64


ANSWER = [Verdict(len(PROMPT), tuple(continuation(PROMPT, 1)))]


# -- what a session tells -----------------------------------------------------------------------------------


class Server(Crank):
    """Its steps return what the reader hears of them."""

    def session(self, prompt=PROMPT):
        return super().session(prompt)

    def step(self, session, tokens, decide=False):
        super().step(session, tokens, decide)
        return session.outbox.drain()


def test_a_prompt_of_one_step_costs_no_message_and_no_token_does():
    server = Server()
    session = server.session()
    assert server.step(session, len(PROMPT), decide=True) == ANSWER
    assert all(isinstance(message, Verdict) for message in server.step(session, 1, decide=True))


def test_each_step_that_ends_in_the_prompt_is_told_and_so_is_the_begin_of_the_first():
    server = Server()
    session = server.session()
    item = session.plan(Slice(session.id, 4, False), 0.0)
    assert session.outbox.drain() == [Prefill(0, 10)]
    session.commit(item, run_step(server.engine, [item])[0], 1.0)
    assert session.outbox.drain() == [Prefill(4, 10)]
    assert server.step(session, 3) == [Prefill(7, 10)]
    assert server.step(session, 3, decide=True) == ANSWER


def test_what_is_found_is_told_before_anything_is_computed():
    server = Server()
    server.step(server.session(), len(PROMPT), decide=True)
    second = server.session()
    second.adopt_kv()
    assert second.outbox.drain() == [Prefill(8, 10, 8)]
    second.adopt_kv()
    assert second.outbox.drain() == [], "nothing more is found"
    assert server.step(second, 2, decide=True) == ANSWER


def test_what_a_session_found_between_its_own_steps_is_counted_apart():
    server = Server()
    first, second = server.session((*PROMPT, *PROMPT)), server.session((*PROMPT, *PROMPT))
    assert server.step(second, 4) == [Prefill(4, 20)]
    server.step(first, 20, decide=True)
    second.adopt_kv()
    assert second.outbox.drain() == [Prefill(16, 20, 12)]


def test_its_own_work_that_is_found_again_after_a_preemption_was_computed_all_the_same():
    server = Server()
    session = server.session()
    server.step(session, 9)
    session.forget_kv()
    session.adopt_kv()
    assert session.outbox.drain() == [Prefill(8, 10, 0)]
    assert server.step(session, 1) == [Prefill(9, 10, 0)]


def test_a_reader_that_is_slow_gets_the_latest_alone():
    server = Server()
    session = server.session()
    for tokens in (2, 3, 4):
        item = session.plan(Slice(session.id, tokens, False), 0.0)
        session.commit(item, run_step(server.engine, [item])[0], 1.0)
    assert session.outbox.drain() == [Prefill(9, 10)]


@pytest.mark.parametrize("wrong", [Prefill(5, 4), Prefill(3, 4, 4)])
def test_what_cannot_be_is_an_error_of_the_server(wrong):
    with pytest.raises(ProtocolError, match="cached <= computed <= length"):
        codec.decode_server(pb.ServerMessage(prefill=pb.Prefill(**wrong._asdict())))


# -- the server's own API -----------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [load_torch, load_llamacpp])
async def test_the_second_of_two_equal_questions_is_found_but_for_its_last_block(load):
    target = load(ServeConfig(model="tiny", kv_tokens=4096, threads=1))
    words = " ".join(f"The rabbit saw {number} carrots." for number in range(12))
    body = {"messages": [{"role": "user", "content": words}], "temperature": 0, "max_tokens": 8}
    async with (
        http_serving(engine=target.engine, text=target.text) as (_, _, address),
        asking(address) as client,
    ):
        chats = [(await client.post("/v1/chat/completions", json=body)).json() for _ in range(2)]
        response = {"input": words, "temperature": 0, "max_output_tokens": 8}
        (first, second), response = chats, (await client.post("/v1/responses", json=response)).json()
    assert first["choices"] == second["choices"]
    length, block = first["usage"]["prompt_tokens"], target.engine.info.block_size
    assert length > 64, "more than a step"
    whole = (length - 1) // block * block
    assert first["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["usage"]["prompt_tokens_details"] == {"cached_tokens": whole}
    assert response["usage"]["input_tokens_details"] == {"cached_tokens": whole, "cache_write_tokens": 0}


async def test_of_several_answers_to_a_prompt_one_computes_it():
    async with http_serving() as (_, _, address), asking(address) as client:
        body = {**HI, "prompt": [list(range(5, 17)), list(range(20, 32))], "n": 3, "max_tokens": 2}
        replies = [(await client.post("/v1/completions", json=body)).json() for _ in range(2)]
        assert [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in replies] == [0, 2 * 8]


async def test_a_stream_begins_while_the_prompt_is_being_read():
    body = {**HI, "prompt": list(LONG), "stream": True}
    gate, engine = threading.Event(), FakeEngine(num_blocks=300)
    engine.before = lambda segments: engine.batches and gate.wait(60)
    async with (
        http_serving(engine=engine) as (_, _, address),
        asking(address) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert response.status_code == 200
        gate.set()
        assert b'"finish_reason":"length"' in (await response.aread())


# -- comments and words -------------------------------------------------------------------------------------


class ReadingBackend(AwayBackend):
    """Reads the prompt, in steps, before it says anything."""

    async def _chunks(self, number, top):
        for computed in (0, 1024, 2048):
            await asyncio.sleep(0.02)
            yield Chunk("", (), prefill=Prefill(computed, 6596))
        async for chunk in super()._chunks(number, top):
            yield chunk


def test_comments_say_whether_a_server_reads_or_is_away():
    response = ask(ReadingBackend(looks=2), heartbeat=0.001, stream=True)
    comments = comments_of(response)
    assert comments[-3:] == [
        ": reading the prompt, 2,048 of 6,596", ": waiting for the server, 10 s", ": waiting for the server, 20 s",
    ]  # fmt: skip
    assert ": reading" not in ask(ReadingBackend(), heartbeat=0, stream=True).text


def test_a_moment_without_the_server_is_not_worth_a_word():
    assert Chunk("", (), waiting=0.9).status == Chunk("a", (1,)).status == ""
    assert Chunk("", (), waiting=1.2).status == "waiting for the server, 1 s"


# -- devices ------------------------------------------------------------------------------------------------


async def chunks_of(device, network=None, loses_at=0):
    """All chunks of an answer; the server is lost, and found again, behind so many tokens."""
    chunks = []
    async for chunk in device.answer(Task(LONG, FEW)):
        chunks.append(chunk)
        if loses_at and chunk.token_ids and not network.lost:
            await network.lose()
            network.find()
    return chunks


async def test_a_device_hears_how_far_its_prompt_is_read_and_what_was_found():
    async with device_that_loses(STALL, engine=Slow(num_blocks=200), quiet=0.0) as (device, _):
        twice = [await chunks_of(device), await chunks_of(device)]
    for chunks, cached in zip(twice, (0, 176)):
        silent = [chunk for chunk in chunks if not chunk.token_ids]
        told = [chunk.prefill for chunk in silent if chunk.prefill]
        assert list(dict.fromkeys(told)) == (
            [Prefill(176, 180, 176)] if cached else [Prefill(done, 180) for done in (0, 64, 128)]
        )
        first = next(place for place, chunk in enumerate(chunks) if chunk.token_ids)
        begun = next(place for place, chunk in enumerate(chunks) if chunk.prefill)
        assert not any(chunk.waiting for chunk in chunks[begun:first]), "it is not away"
        assert not any(chunk.prefill for chunk in chunks[first:]), "it has been read"
        assert chunks[-1].stats.cached_tokens == cached
        assert "".join(chunk.text for chunk in chunks) == TOKENIZER.decode(continuation(LONG, 6))


async def test_what_a_server_finds_of_an_answer_under_way_is_no_prompt_that_was_found():
    async with device_that_loses(STALL, quiet=0.0) as (device, network):
        chunks = await chunks_of(device, network, loses_at=1)
        lost, hits = network.lost, network.manager.loop.machine.target.pool.hits
    assert lost == 1 and hits >= 176 and chunks[-1].stats.cached_tokens == 0
    assert "".join(chunk.text for chunk in chunks) == TOKENIZER.decode(continuation(LONG, 6))


async def test_through_a_relay_it_is_the_target_that_reads_and_finds():
    top, middle = FakeEngine(block_size=4), FakeEngine(block_size=8)
    async with tiers(top, middle, step_tokens=64) as (network, _, _):
        (first, tokens), (second, again) = [await heard_through(network) for _ in range(2)]
    assert tokens == again == tuple(continuation(LONG, 6))
    assert first[1] == 0 and first[0][-1] == Prefill(128, 180)
    assert second == ([Prefill(176, 180, 176)], 176), "the relay itself finds blocks of eight"


async def heard_through(network):
    """([what is told of the prompt], what was found of it), and the answer, of a device that drafts nothing."""
    session, told = RemoteSession(network.connect, Open(LONG, FEW)), []
    session.hear_prefill = told.append
    with closing(DraftThread(NoneDrafter(), FixedLength(4))) as thread:
        await session.open()
        async for _ in generate(session, thread, FEW):
            pass
        return (told, session.cached), session.truth.generated
