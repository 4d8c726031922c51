"""Log-probabilities of a prompt: each of its tokens is told once, whatever is computed again, lost or moved.

The rank that the fake target gives to a token is a sum over the text before it, so a wrong row or KV block shows.
"""

import asyncio
import random
from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.offline.modes import STALL
from opensled.core.answer import PromptTokens, Task
from opensled.core.errors import InvalidRequest, ProtocolError
from opensled.core.messages import (
    MAX_PROMPT_LOGPROBS,
    Draft,
    DraftBlock,
    DraftToken,
    Open,
    Prefill,
    PromptToken,
    SamplingParams,
    Verdict,
)
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec
from scheduler.plan import Slice
from tests.fake_target import _Text
from tests.fakes import IMPATIENT, FakeEngine, Weather, continuation
from tests.http_serving import asking, http_serving
from tests.hypothesis_profiles import tried
from tests.loops import in_loop
from tests.outages import Slow, device_that_loses
from tests.replicas import api, until_ready
from tests.sessions import Crank, changed
from tests.system import running, through
from tests.three_tiers import tiers
from verify_server.riders.prompt_logprobs import CHUNK_LOGITS, PromptLogprobs
from verify_server.round.machine import StepMachine
from verify_server.round.outbox import MAX_UNREAD
from verify_server.round.step import run_step
from verify_server.rules.base import Reading

PROMPT = tuple(range(3, 13))
LONG = tuple(3 + place % 40 for place in range(180))  # three steps of 64
FEW = SamplingParams(temperature=0, max_tokens=6)
NONE = SamplingParams(temperature=0, max_tokens=0)


def ranks(prompt):
    """What the fake target says of each token."""
    return [0, *[1 + total for total in accumulate(prompt)][:-1]]


def told(tokens):
    return [token.id for token in tokens], [token.rank for token in tokens]


class Server(Crank):
    """Its sessions tell the log-probabilities of their prompts."""

    def __init__(self, vocab_size=2000):
        super().__init__()
        self.vocab_size = vocab_size

    def session(self, prompt=PROMPT, count=1, max_tokens=20):
        riders = () if count is None else (PromptLogprobs(prompt, count, self.vocab_size),)
        return super().session(prompt, max_tokens, riders)


def heard(messages, length=len(PROMPT)):
    """The tokens of the prompt, as a reader takes them; all must be there before the first verdict."""
    collected, tokens = PromptTokens(), []
    for message in messages:
        if isinstance(message, Prefill):
            tokens += collected.news(message).tokens
        if isinstance(message, Verdict):
            assert collected.known == length
    return told(tokens)


# -- a session ----------------------------------------------------------------------------------------------


@tried(60)
@given(st.lists(st.integers(1, 4), min_size=0, max_size=9), st.integers(0, 20))
def test_every_division_into_chunks_tells_each_token_once(chunks, count):
    server, left = Server(), len(PROMPT)
    session = server.session(count=count)
    for tokens in chunks:
        if tokens < left:
            server.step(session, tokens)
            left -= tokens
    server.step(session, left, decide=True)
    messages = session.outbox.drain()
    assert heard(messages) == (list(PROMPT), ranks(PROMPT))
    entries = [token for message in messages[:-1] for token in message.tokens]
    assert [len(entry.logprobs) for entry in entries] == [1] + [1 + count] * (len(PROMPT) - 1)
    assert messages[-1].tokens == tuple(continuation(PROMPT, 1))


@pytest.mark.parametrize("parents", [(), (-1, -1, 0)])
def test_a_draft_behind_the_last_chunk_has_its_own_rows(parents):
    server = Server()
    session = server.session()
    right = continuation(PROMPT, 3)
    ids = [right[0], 9, right[1]] if parents else right
    draft = Draft(1, DraftBlock(len(PROMPT), tuple(map(DraftToken, ids)), parents))
    changed(session, max_tree=8)
    server.step(session, 4)
    session.submit(draft, 0.0)
    assert server.step(session, 6, decide=True).segment.rows == 6 + 3
    *before, verdict = session.outbox.drain()
    assert heard(before) == (list(PROMPT), ranks(PROMPT))
    accepted = 2 if parents else 3
    assert verdict.num_accepted == accepted and verdict.tokens == tuple(continuation(PROMPT, accepted + 1))


def test_rows_are_computed_once_also_after_a_preemption_and_others_are_found():
    server = Server()
    session = server.session()
    assert server.step(session, 6).segment.rows == 6
    session.forget_kv()
    session.adopt_kv()
    assert session.sequence.computed == 4, "of two blocks the second one holds a position whose row is wanted"
    assert server.step(session, 4).segment.rows == 2
    session.forget_kv()
    assert server.step(session, 10, decide=True).segment.rows == 2, "the draft's, and the last of the prompt"
    assert heard(session.outbox.drain()) == (list(PROMPT), ranks(PROMPT))
    assert server.step(session, 1, decide=True).segment.rows == 1


def test_what_others_computed_is_skipped_only_by_those_who_want_no_rows():
    server = Server()
    server.step(server.session(), 10, decide=True)
    plain, scored = server.session(count=None), server.session()
    plain.adopt_kv(), scored.adopt_kv()
    assert (plain.sequence.computed, scored.sequence.computed) == (8, 0)
    server.step(scored, 10, decide=True)
    assert heard(scored.outbox.drain()) == (list(PROMPT), ranks(PROMPT))


def test_a_chunk_holds_no_more_logits_than_it_may():
    server = Server(vocab_size=CHUNK_LOGITS // 3)
    session, plain = server.session(), server.session(count=None)
    rows = []
    while session.sequence.computed < len(PROMPT) - 1:
        missing = len(PROMPT) - session.sequence.computed
        rows.append(server.step(session, missing, decide=True).segment.rows)
    assert max(rows) == 3 and heard(session.outbox.drain()) == (list(PROMPT), ranks(PROMPT))
    assert server.step(plain, 10, decide=True).segment.rows == 1, "others are not cut"


@pytest.mark.parametrize("prompt", [PROMPT, (7,)])
def test_no_answer_ends_by_length_when_the_prompt_is_computed(prompt):
    server = Server()
    session = server.session(prompt, max_tokens=0)
    server.step(session, len(prompt), decide=True)
    prefill, verdict = session.outbox.drain()
    assert told(prefill.tokens) == (list(prompt), ranks(prompt))
    assert verdict == Verdict(len(prompt), (), finish_reason="length")


def test_an_error_in_a_row_of_the_prompt_ends_its_own_sequence_alone():
    class BrokenReading(Reading):
        def read(self, rows):
            raise ZeroDivisionError

    class Broken(PromptLogprobs):
        def reads(self, start, stop, decides):
            return (BrokenReading(),)

    server = Server()
    broken, fine = server.session(), server.session()
    broken.riders = (Broken(PROMPT, 1, 2000),)
    items = [session.plan(Slice(session.id, 10, True), 0.0) for session in (broken, fine)]
    error, result = run_step(server.engine, items)
    assert error.code == "engine" and result.next_token == continuation(PROMPT, 1)[0]


def test_a_slow_reader_misses_none():
    server = Server()
    session = server.session(LONG[:90])
    for _ in range(MAX_UNREAD + 10):
        server.step(session, 1)
    server.step(session, 16, decide=True)
    assert heard(session.outbox.drain(), 90) == (list(LONG[:90]), ranks(LONG[:90]))


# -- readers ------------------------------------------------------------------------------------------------


def entry(id, rank=1):
    return PromptToken(rank, ((id, -1.0),))


def test_a_reader_takes_each_token_once_and_misses_none():
    collected = PromptTokens()
    said = [
        Prefill(2, 9, 0, 0, (entry(1), entry(2))),
        Prefill(1, 9, 0, 0, (entry(1),)),  # another server begins anew
        Prefill(3, 9),
        Prefill(4, 9, 0, 1, (entry(2), entry(3))),
    ]
    assert [[token.id for token in collected.news(one).tokens] for one in said] == [[1, 2], [], [], [3]]
    assert collected.news(Prefill(5, 9, 0, 4, (entry(5),))) is None, "the one before is missing"
    assert collected.known == 3


@pytest.mark.parametrize(
    "wrong",
    [
        pb.Prefill(computed=1, length=1, tokens=[pb.Logprobs(ids=[1], logprobs=[0])] * 2),
        pb.Prefill(computed=1, length=9, first=2**32 - 1, tokens=[pb.Logprobs(ids=[1], logprobs=[0])]),
        pb.Prefill(length=9, tokens=[pb.Logprobs()]),
        pb.Prefill(length=9, tokens=[pb.Logprobs(ids=[1, 2], logprobs=[0])]),
        pb.Prefill(length=9, tokens=[pb.Logprobs(ids=[1] * 22, logprobs=[0] * 22)]),
        pb.Prefill(length=9, tokens=[pb.Logprobs(ids=[1], logprobs=[float("nan")])]),
    ],
)
def test_tokens_that_cannot_be_are_an_error_of_the_server(wrong):
    with pytest.raises(ProtocolError):
        codec.decode_server(pb.ServerMessage(prefill=wrong))


async def prompt_of(device, params=FEW, at=(), network=None):
    """([tokens of the prompt], ids of the answer, how it ends); the server is lost where so many are known."""
    tokens, ids, losses = [], [], list(at)
    async for chunk in device.answer(Task(LONG, params, top_logprobs=0, prompt_logprobs=2)):
        tokens += chunk.prompt
        ids += chunk.token_ids
        computed = chunk.prefill.computed if chunk.prefill else 0
        if losses and max(computed, len(ids)) >= losses[0]:
            losses.pop(0)
            await network.lose()
            network.find()
    return tokens, ids, chunk.finish_reason


@pytest.mark.parametrize("at", [(), (64,), (64, 128), (128, 128, 128), (64, 2)])
@pytest.mark.parametrize("params", [FEW, NONE])
async def test_a_server_lost_in_the_middle_tells_each_token_once(at, params):
    async with device_that_loses(STALL, engine=Slow(num_blocks=200), quiet=0.0) as (device, network):
        answer = await prompt_of(device, params, at, network)
        (tokens, ids, reason), lost = answer, network.lost
    assert told(tokens) == (list(LONG), ranks(LONG))
    assert ids == continuation(LONG, params.max_tokens) and reason == "length"
    assert lost >= min(1, len(at))


@tried(25)
@given(st.integers(0, 2**32))
@in_loop
async def test_links_of_any_weather_tell_each_token_once(seed):
    weather = Weather(seed=seed, loss=0.03, duplicate=0.1, reorder=0.05)
    async with device_that_loses(STALL, weather=weather, patience=IMPATIENT, quiet=0.0) as (device, _):
        tokens, ids, _ = await prompt_of(device)
    assert told(tokens) == (list(LONG), ranks(LONG)) and ids == continuation(LONG, 6)


# -- other ways ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [FEW, NONE])
@pytest.mark.parametrize("above", [Weather(), Weather(loss=0.05, reorder=0.05, duplicate=0.05, seed=3)])
async def test_a_relay_passes_on_what_the_target_says(above, params):
    async with tiers(FakeEngine(), FakeEngine(), above=above, step_tokens=64) as (network, _, _):
        tokens, ids = await through(network, Open(LONG, params, prompt_logprobs=1))
    assert told(tokens) == (list(LONG), ranks(LONG)) and ids == tuple(continuation(LONG, params.max_tokens))


class Forgetful(StepMachine):
    """Preempts a session before every fourth step or so."""

    chance = random.Random(4)

    def plan(self, now):
        for session in self.sessions.values():
            if session.sequence.computed and self.chance.random() < 0.25:
                session.forget_kv()
                self.stats.preempted += 1
        return super().plan(now)


async def test_preempted_sessions_tell_each_token_once():
    async with running(FakeEngine(num_blocks=200), machine=Forgetful, max_step_tokens=16) as network:
        prompts = [(40 + number, *LONG[1:]) for number in range(3)]
        opens = [Open(prompt, FEW, prompt_logprobs=0) for prompt in prompts]
        answers = await asyncio.gather(*[through(network, open) for open in opens])
        preempted = network.manager.loop.machine.stats.preempted
    for prompt, (tokens, ids) in zip(prompts, answers):
        assert told(tokens) == (list(prompt), ranks(prompt)) and ids == tuple(continuation(prompt, 6))
    assert preempted > 3


async def test_a_reader_that_comes_back_for_them_gets_a_session_of_its_own():
    async with running(FakeEngine(), max_step_tokens=16) as network:
        manager = network.manager
        asked = Open(LONG, FEW, prompt_logprobs=1)
        first, opened = await manager.open(asked, "local")
        again, _ = await manager.open(replace(asked, resume_token=opened.resume_token), "local")
        later = Open(LONG, FEW, resume_token=opened.resume_token)
        third, _ = await manager.open(later, "local")
        assert len({first.id, again.id, third.id}) == 3 and len(manager.remembered) == 2 and first.closed


@pytest.mark.parametrize(
    ("asked", "field"),
    [({"prompt_logprobs": 21}, "prompt_logprobs"), ({"prompt_logprobs": -1}, "prompt_logprobs")],
)
def test_what_makes_no_sense_is_refused_by_its_name(asked, field):
    with pytest.raises(InvalidRequest) as refused:
        Open(**{"prompt": PROMPT, "params": FEW, **asked})
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("open", "field"),
    [
        (Open(LONG * 150, NONE, prompt_logprobs=20), "prompt_logprobs"),
        (Open(PROMPT, NONE, committed=(5,), prompt_logprobs=0), "max_tokens"),
        (Open((3,) * 30_001, NONE, prompt_logprobs=0), "prompt"),
    ],
)
async def test_more_than_a_server_tells_is_refused(open, field):
    async with running(FakeEngine(num_blocks=8000, context_length=30_000)) as network:
        with pytest.raises(InvalidRequest) as refused:
            await network.manager.open(open, "local")
        full = replace(open, prompt=(3,) * 30_000, committed=(), prompt_logprobs=0)
        await network.manager.open(full, "local")
        assert refused.value.field == field
    assert 21 * len(LONG) * 150 > MAX_PROMPT_LOGPROBS


@pytest.mark.parametrize("path", ["server", "gateway"])
async def test_the_api_of_a_server_tells_them(path):
    text = _Text()
    ids = text.encode("Hi there, this is a prompt")
    body = {"prompt": list(ids), "max_tokens": 0, "prompt_logprobs": 0}
    async with (
        api("a", "b") if path == "gateway" else http_serving() as (*_, address),
        asking(address) as client,
    ):
        if path == "gateway":
            await until_ready(client)
        [choice] = (await client.post("/v1/completions", json=body)).json()["choices"]
    places = choice["prompt_logprobs"]
    assert places[0] is None and choice["text"] == ""
    found = [next(iter(place.items())) for place in places[1:]]
    assert [int(id) for id, _ in found] == list(ids[1:])
    assert [each["rank"] for _, each in found] == ranks(ids)[1:]
