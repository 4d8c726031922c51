"""Padded streams: the sizes of frames, how both ends agree, and answers from end to end."""

from contextlib import closing
from dataclasses import replace

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.device.served_target import pads
from edge_client.lengths.fixed import FixedLength
from edge_client.link.remote import RemoteSession
from edge_client.round.drafting import DraftThread
from edge_client.round.generate import generate
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import (
    Cancel,
    Draft,
    DraftBlock,
    DraftToken,
    Failure,
    Open,
    Opened,
    SamplingParams,
    Verdict,
)
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec
from opensled.wire.padding import (
    FRAME_BYTES,
    METADATA,
    OPENING_BYTES,
    PADDING,
    PADDING_REQUIRED,
    Padding,
    is_padded,
    padded_size,
    padding,
)
from tests.devices import device_on, read
from tests.fakes import OracleDrafter, continuation
from tests.replicas import cluster
from tests.serving import PROMPT, linked, serving
from verify_server.access import byte_stream
from verify_server.admission.session_manager import SessionLimits

WIDE = 151_935  # an id of a large vocabulary: three bytes on the wire
LONG = SamplingParams(temperature=0, max_tokens=40)


def draft(tokens, parents=()):
    return Draft(900, DraftBlock(30_000, (DraftToken(WIDE),) * tokens, parents), 0.25)


def verdict(tokens, **fields):
    return Verdict(30_000, (WIDE,) * tokens, **fields)


def later(data):
    """The frame of a message that is not the first one."""
    pad = Padding()
    pad(b"")
    return pad(data)


# -- sizes ----------------------------------------------------------------------------------------------


@given(st.integers(2, 40_000))
def test_padding_takes_exactly_the_bytes_that_are_missing(gap):
    assert len(padding(gap)) == gap
    parsed = pb.ClientMessage.FromString(padding(gap))
    assert parsed.padding and not any(map(any, parsed.padding))


@pytest.mark.parametrize("gap", [0, 2, 129, 130, 131, 16_386, 16_387, 16_388, 2_097_157])
def test_padding_is_exact_where_a_length_takes_one_byte_more(gap):
    assert len(padding(gap)) == gap
    assert pb.ServerMessage.FromString(padding(gap)).ByteSize() == gap


@given(st.integers(0, 300_000), st.sampled_from([64, 256, 1024]))
def test_a_padded_size_is_a_power_of_two_times_the_least(size, least):
    padded = padded_size(size, least)
    assert padded % least == 0 and (padded // least).bit_count() == 1
    assert padded == size or padded >= size + 2
    assert padded == least or padded // 2 < size + 2


@pytest.mark.parametrize("tokens", [0, 1, 2, 4, 8, 16, 17, 32])
def test_chains_and_their_verdicts_of_any_length_have_one_size(tokens):
    sent = [later(codec.client_bytes(draft(tokens)))]
    sent.append(later(codec.server_bytes(verdict(tokens, num_accepted=tokens, hint=4))))
    assert [len(message) for message in sent] == [FRAME_BYTES] * 2


def test_so_have_farewells_and_a_tree_of_sixty_tokens():
    tree = draft(57, tuple(index - 1 for index in range(57)))
    for message in (Cancel(), tree):
        assert len(later(codec.client_bytes(message))) == FRAME_BYTES


def test_a_first_frame_has_a_size_of_its_own():
    pad = Padding()
    assert [len(pad(codec.client_bytes(Open(PROMPT)))) for _ in range(2)] == [OPENING_BYTES, FRAME_BYTES]


@pytest.mark.parametrize("message", [draft(5), Cancel(), Open("hello")])
def test_padding_changes_no_message_of_a_device(message):
    assert codec.client_message(later(codec.client_bytes(message))) == message


def test_padding_changes_no_message_of_a_server():
    for message in (verdict(5), Failure("overloaded", "full")):
        assert codec.server_message(later(codec.server_bytes(message))) == message


# -- answers --------------------------------------------------------------------------------------------


class RecordedCall:
    """A gRPC call and what it carries: (upward, size) of every message."""

    def __init__(self, call):
        self._call, self.frames = call, []

    async def write(self, data):
        self.frames.append((True, len(data)))
        await self._call.write(data)

    async def read(self):
        data = await self._call.read()
        if data is not grpc.aio.EOF:
            self.frames.append((False, len(data)))
        return data

    def __getattr__(self, name):
        return getattr(self._call, name)


async def recorded(address, acceptance, padded=True):
    """One answer over gRPC; its tokens, and its frames."""
    async with linked(address) as link:
        calls = []

        def connect(address=""):
            stream = (link.connect_padded if padded else link.connect)(address)
            stream._call = RecordedCall(stream._call)
            calls.append(stream._call)
            return stream

        session = RemoteSession(connect, Open(PROMPT, LONG))
        with closing(DraftThread(OracleDrafter(acceptance), FixedLength(4))) as thread:
            await session.open()
            async for _ in generate(session, thread, LONG):
                pass
            return session.truth.generated, [frame for call in calls for frame in call.frames]


def sizes(frames, up):
    return [size for upward, size in frames if upward is up]


@pytest.mark.parametrize("acceptance", [1.0, 0.5, 0.0])
async def test_every_frame_has_one_size_whatever_it_carries(acceptance):
    async with serving() as (manager, address):
        tokens, frames = await recorded(address, acceptance)
        assert list(tokens) == continuation(PROMPT, LONG.max_tokens)
        assert not manager.loop.machine.stats.failures
        for up in (True, False):
            assert sizes(frames, up) == [OPENING_BYTES] + [FRAME_BYTES] * (len(sizes(frames, up)) - 1)


async def test_without_padding_frames_tell_how_many_tokens_they_hold():
    """What the test above would miss if the sizes were the same anyway."""
    assert len({len(codec.server_bytes(Verdict(10, (7,) * count))) for count in range(1, 6)}) == 5
    async with serving() as (_, address):
        _, frames = await recorded(address, 0.5, padded=False)
        assert len(set(sizes(frames, up=False))) > 2


@pytest.mark.parametrize("proxy", [True, False], ids=["proxy", "redirect"])
async def test_a_gateway_pads_as_well(proxy):
    """Where it sends a device elsewhere, that frame too."""
    async with cluster("a", proxy=proxy) as one:
        tokens, frames = await recorded(one.address, 0.5)
        assert list(tokens) == continuation(PROMPT, LONG.max_tokens)
        assert {size for _, size in frames} == {OPENING_BYTES, FRAME_BYTES}


# -- how both ends agree --------------------------------------------------------------------------------


def requiring():
    """A server that requires padding."""
    return serving(limits=SessionLimits(max_sessions=3, max_draft=8), pads=True)


async def first_answer(stream):
    await stream.send(Open(PROMPT, LONG))
    reply = await stream.receive()
    await stream.close()
    return reply


def test_metadata_ask_for_padding():
    assert is_padded(METADATA) and is_padded([*METADATA, ("authorization", "Bearer x")])
    assert not is_padded(None) and not is_padded([("opensled-padding", "0")])


async def test_a_server_that_requires_padding_says_so_and_refuses_others():
    async with requiring() as (manager, address), linked(address) as link:
        info = await link.describe()
        assert {PADDING, PADDING_REQUIRED} <= {*info.capabilities}
        assert pads(False, info)
        refused = await first_answer(link.connect())
        assert isinstance(refused, Failure)
        assert (refused.code, refused.field) == ("invalid_request", "padding")
        assert isinstance(refused.error(), InvalidRequest) and manager.stats.refused
        assert isinstance(await first_answer(link.connect_padded()), Opened)


async def test_a_device_without_flags_does_what_its_server_requires():
    async with requiring() as (manager, address), device_on(address) as device:
        chunks = await read(device)
        assert [id for chunk in chunks for id in chunk.token_ids] == continuation(PROMPT, 20)
        assert not manager.stats.refused


async def test_a_device_is_told_of_a_server_that_cannot_pad():
    async with serving() as (_, address), linked(address) as link:
        info = await link.describe()
        assert not pads(False, info) and pads(True, info)
        with pytest.raises(Unsupported, match="cannot pad frames"):
            pads(True, replace(info, capabilities=()))


async def test_a_server_that_ignores_the_wish_is_found_out(monkeypatch):
    """A server of an older version answers without it."""
    monkeypatch.setattr(byte_stream, "is_padded", lambda metadata: False)
    async with serving() as (_, address), linked(address) as link:
        with pytest.raises(Unsupported, match="does not pad"):
            await first_answer(link.connect_padded())
