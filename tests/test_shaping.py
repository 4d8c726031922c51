"""Shaping without I/O: sizes of frames, and what both ends agree on. Run: pytest tests/test_shaping.py"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opensled import codec
from opensled.errors import InvalidRequest, UsageError
from opensled.framed import Framed
from opensled.messages import (
    Cancel,
    Draft,
    DraftBlock,
    DraftToken,
    Dummy,
    Limits,
    Open,
    Opened,
    SamplingParams,
    Verdict,
)
from opensled.shaping import (
    FRAME_BYTES,
    Shaping,
    agreed,
    configured,
    is_whole,
    padded_size,
    padding_parts,
)
from opensled.v1 import verify_pb2 as pb
from verify_server.shaped_wire import MAX_JOINED, joined

WIDE = 151_935  # an id of a large vocabulary: three bytes on the wire


def draft(tokens, parents=()):
    return Draft(900, DraftBlock(30_000, (DraftToken(WIDE),) * tokens, parents), 0.25)


def verdict(tokens, **fields):
    return Verdict(30_000, (WIDE,) * tokens, **fields)


@given(st.integers(2, 40_000))
def test_padding_takes_exactly_the_bytes_that_are_missing(gap):
    assert pb.ClientMessage(padding=padding_parts(gap)).ByteSize() == gap


@pytest.mark.parametrize("gap", [0, 2, 129, 130, 131, 16_386, 16_387, 16_388, 2_097_157])
def test_padding_is_exact_where_a_length_takes_one_byte_more(gap):
    assert pb.ClientMessage(padding=padding_parts(gap)).ByteSize() == gap


@given(st.integers(0, 300_000), st.sampled_from([64, 256, 1024]))
def test_a_padded_size_is_a_power_of_two_times_the_least(size, least):
    padded = padded_size(size, least)
    assert padded % least == 0 and (padded // least).bit_count() == 1
    assert padded == size or padded >= size + 2
    assert padded == least or padded // 2 < size + 2


@pytest.mark.parametrize("tokens", [0, 1, 2, 4, 8, 16, 17, 32])
def test_chains_and_their_verdicts_of_any_length_have_one_size(tokens):
    sent = [codec.encode_client(Framed(draft(tokens), FRAME_BYTES))]
    sent.append(codec.encode_server(Framed(verdict(tokens, num_accepted=tokens, hint=4), FRAME_BYTES)))
    assert [len(message.SerializeToString()) for message in sent] == [FRAME_BYTES] * 2


def test_so_have_dummies_and_farewells_and_a_tree_of_sixty_tokens():
    tree = draft(57, tuple(index - 1 for index in range(57)))
    for message in (Dummy(), Cancel(), tree):
        assert len(codec.encode_client(Framed(message, FRAME_BYTES)).SerializeToString()) == FRAME_BYTES
    assert len(codec.encode_server(Framed(Dummy(), FRAME_BYTES)).SerializeToString()) == FRAME_BYTES


@pytest.mark.parametrize("message", [draft(5), Dummy(), Cancel(), Open("hello")])
def test_padding_changes_no_message_of_a_device(message):
    wire = codec.encode_client(Framed(message, FRAME_BYTES)).SerializeToString()
    assert codec.client_message(wire) == message


def test_shaping_survives_the_wire():
    shaping = Shaping(256, 20, True)
    asked = Open("hello", SamplingParams(), shaping=shaping)
    assert codec.decode_client(codec.encode_client(asked)) == asked
    opened = Opened((1,), b"k" * 16, b"", Limits(4, 9), shaping=shaping)
    assert codec.decode_server(codec.encode_server(opened)) == opened


@pytest.mark.parametrize("fields", [(0,), (63,), (8192,), (256, 9), (256, 201), (256, 0, True)])
def test_shaping_out_of_range_is_refused(fields):
    with pytest.raises(InvalidRequest, match="shaping:"):
        Shaping(*fields)


def test_the_stricter_wish_holds():
    assert agreed(Shaping(256, 50), Shaping(512, 20, True)) == Shaping(512, 50, True)
    assert agreed(Shaping(256), None) == Shaping(256) and agreed(None, None) is None
    with pytest.raises(InvalidRequest, match="requires padded frames"):
        agreed(None, Shaping(256))
    assert Shaping(256, 50, True).meets(Shaping(256, 20)) and not Shaping(256).meets(Shaping(256, 20))


@pytest.mark.parametrize(
    ("flags", "advice"), [((False, 20, False), "--pad-frames"), ((True, 0, True), "--tick")]
)
def test_a_flag_without_the_one_it_needs_is_refused(flags, advice):
    with pytest.raises(UsageError, match=f"needs {advice}"):
        configured(*flags)


def test_an_answer_is_whole_at_powers_of_two():
    assert [count for count in range(600) if is_whole(count)] == [64, 128, 256, 512]


# -- verdicts that leave as one -------------------------------------------------------------------------


def test_what_the_server_decodes_between_two_ticks_leaves_as_one_verdict():
    first, second = Verdict(10, (1, 2), 1, 7, hint=3), Verdict(12, (3,), finish_reason="eos")
    assert joined(first, second) == Verdict(10, (1, 2, 3), 1, 7, "eos", 3)
    assert joined(first, Verdict(12, (3,), hint=0)).hint == 0


@pytest.mark.parametrize(
    "second",
    [
        Verdict(12, (3,), answers=8),  # it belongs to another draft
        Verdict(11, (2, 3)),  # it overlaps
        Verdict(12, (3,), logprobs=(((3, -0.5),),)),
        Verdict(12, (3,) * (MAX_JOINED - 1)),  # it might not fit
        Dummy(),
    ],
)
def test_others_leave_one_by_one(second):
    assert joined(Verdict(10, (1, 2), 1, 7), second) is None
    assert joined(Verdict(10, (1, 2), finish_reason="stop"), Verdict(12, (3,))) is None
