"""Messages of a client as bytes, valid or not."""

from collections.abc import Iterable

from opensled.v1 import verify_pb2 as pb

MAX_TOKENS = 60  # of the sequences opened here
PROMPT = (5, 6, 7)

Frames = tuple[bytes, ...]  # messages in order


def opening(prompt: Iterable[int] | None = PROMPT, **fields) -> bytes:
    """An `Open`; fields of SamplingParams go there."""
    named = {
        name: fields.pop(name) for name in list(fields) if name in pb.SamplingParams.DESCRIPTOR.fields_by_name
    }
    params = pb.SamplingParams(**{"temperature": 0, "max_tokens": MAX_TOKENS, **named})
    message = pb.Open(params=params, **fields)
    if prompt is not None:
        message.ids.CopyFrom(pb.Ids(ids=prompt))
    return pb.ClientMessage(open=message).SerializeToString()


def drafting(*ids: int, counter: int = 1, base: int = len(PROMPT), **fields) -> bytes:
    return pb.ClientMessage(
        draft=pb.Draft(counter=counter, base=base, tokens=ids, **fields)
    ).SerializeToString()


def sourced(ids: Iterable[int], probs: Iterable[float], token: int = 1) -> bytes:
    """A draft of one token with the distribution it is said to come from."""
    return drafting(token, draft_probs=[pb.SparseDistribution(ids=ids, probs=probs)])


def bias(*entries: tuple[int, float]) -> bytes:
    return opening(logit_bias=[pb.LogitBias(id=id, bias=bias) for id, bias in entries])


def chat(*turns: pb.ChatMessage, variables: str = "") -> bytes:
    return opening(None, chat=pb.Chat(messages=turns, variables=variables))


def guided(**fields) -> bytes:
    return opening(guide=pb.Guide(**fields))


def text(value: str) -> bytes:
    return opening(None, text=value)


def each(*frames: bytes) -> tuple[Frames, ...]:
    """Cases of one message each."""
    return tuple((frame,) for frame in frames)


def after_open(*frames: bytes, **fields) -> tuple[Frames, ...]:
    """Cases of an open sequence and one message more."""
    return tuple((opening(**fields), frame) for frame in frames)
