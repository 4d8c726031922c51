"""What attackers say: messages that cost the server more than their sender, ready to be sent again and again."""

import json
from functools import cache
from typing import Any

from opensled.v1 import verify_pb2 as pb

PROMPT = tuple(range(400, 424))
LONG = 900  # tokens of an answer that outlasts an attack; the context of `tiny` is 1,024
MEGABYTES_4 = 4_000_000  # under gRPC's usual limit of a message
WRONG = 2  # a draft token that no text has there


def opening(*, ids: tuple[int, ...] = PROMPT, max_tokens: int = LONG, **fields: Any) -> bytes:
    """An `Open` that is served, but for `fields`."""
    params = pb.SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return pb.ClientMessage(open=pb.Open(ids=pb.Ids(ids=ids), params=params, **fields)).SerializeToString()


@cache
def bad_open() -> bytes:
    return opening(max_tokens=0)


@cache
def empty_turns() -> bytes:
    """2,000,000 turns without a role or a word: two bytes each, hundreds once they are objects."""
    chat = b"\x0a\x00" * (MEGABYTES_4 // 2)  # field 1 of Chat, length 0
    return _field(1, _field(3, chat))  # ClientMessage.open, Open.chat


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes as protobuf writes it."""
    length, size = len(content), bytearray()
    while length > 127:
        size.append(length & 127 | 128)
        length >>= 7
    return bytes([number << 3 | 2]) + bytes([*size, length]) + content


@cache
def million_ids() -> bytes:
    return opening(ids=(5,) * 1_000_000)


@cache
def equal_stop_ids() -> bytes:
    params = pb.SamplingParams(temperature=0, max_tokens=LONG, ignore_eos=True, stop_ids=[5] * (1 << 20))
    return pb.ClientMessage(open=pb.Open(ids=pb.Ids(ids=PROMPT), params=params)).SerializeToString()


@cache
def long_resume_token() -> bytes:
    return opening(resume_token=bytes(MEGABYTES_4))


@cache
def long_description() -> bytes:
    tool = pb.Tool(name="f", description="a" * MEGABYTES_4)
    return opening(guide=pb.Guide(tools=[tool], tool_choice="none"))


def multiple_of(divisor: int) -> bytes:
    """41 bytes of schema whose automaton has as many states as its divisor says."""
    guide = pb.Guide(json_schema=f'{{"type":"integer","multipleOf":{divisor}}}')
    params = pb.SamplingParams(temperature=0, max_tokens=LONG)  # a guided answer ends where its guide says
    return pb.ClientMessage(
        open=pb.Open(ids=pb.Ids(ids=PROMPT), params=params, guide=guide)
    ).SerializeToString()


@cache
def guided() -> bytes:
    """A schema whose grammar takes megabytes."""
    schema = json.dumps({"properties": {f"property {number}": {"type": "string"} for number in range(2_000)}})
    params = pb.SamplingParams(temperature=0, max_tokens=LONG)
    guide = pb.Guide(json_schema=schema)
    return pb.ClientMessage(
        open=pb.Open(ids=pb.Ids(ids=PROMPT), params=params, guide=guide)
    ).SerializeToString()


def text(words: int, resume_token: bytes) -> bytes:
    """As much text as the server reads before it counts tokens, under the token of a session that is there."""
    params = pb.SamplingParams(temperature=0, max_tokens=LONG)
    return pb.ClientMessage(
        open=pb.Open(text="a quiet lamp " * words, params=params, resume_token=resume_token)
    ).SerializeToString()


@cache
def short(max_tokens: int = 1) -> bytes:
    """A question of a few tokens, again and again."""
    return opening(max_tokens=max_tokens)


def draft(counter: int, base: int) -> bytes:
    return pb.ClientMessage(draft=pb.Draft(counter=counter, base=base, tokens=[WRONG])).SerializeToString()
