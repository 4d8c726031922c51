"""Messages of the wire made of a fuzzer's decisions: mostly what a peer could mean, with anything anywhere."""

from opensled.core.images import digest_of
from opensled.v1 import verify_pb2 as pb
from tests.fuzz.choices import Choices

ROLES = ("user", "system", "assistant", "tool", "")
PENALIZING = ("min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
SCHEMAS = (
    "",
    "{}",
    '{"type": "string"}',
    "{",
    "[]",
    '{"type": "array", "items": {"$ref": "#"}}',
    '{"const": "\\ud800"}',
)


def client_message(choose: Choices) -> bytes:
    """Any client message, as bytes that may be none."""
    kind = choose.byte() % 16
    if kind < 7:
        return draft(choose).SerializeToString()
    if kind < 12:
        return open_(choose).SerializeToString()
    if kind == 12:
        return pb.ClientMessage(cancel=pb.Cancel()).SerializeToString()
    if kind == 13:
        return choose.bytes(choose.byte())
    return damaged(
        draft(choose).SerializeToString() if kind == 14 else open_(choose).SerializeToString(), choose
    )


def damaged(message: bytes, choose: Choices) -> bytes:
    """With one byte changed, or the end cut off."""
    at = choose.below(len(message) + 1)
    return message[:at] if choose.flag() else message[:at] + bytes([choose.byte()]) + message[at + 1 :]


def plain_open(length: int = 3, **fields) -> pb.ClientMessage:
    """One that is served."""
    params = pb.SamplingParams(temperature=0, max_tokens=12)
    return pb.ClientMessage(open=pb.Open(ids=pb.Ids(ids=range(1, 1 + length)), params=params, **fields))


def open_(choose: Choices) -> pb.ClientMessage:
    """An `Open` that is served, but for a few fields."""
    opening = plain_open(1 + choose.byte() % 5).open
    for _ in range(choose.byte() % 4):
        choose.pick(_CHANGES)(choose, opening)
    opening.takes_unverified = choose.flag()
    if choose.flag():
        _images(choose, opening)
    return pb.ClientMessage(open=opening)


def _prompt(choose: Choices, opening: pb.Open) -> None:
    kind = choose.byte() % 4
    if kind == 0:
        opening.ids.CopyFrom(pb.Ids(ids=choose.some(choose.id, 30)))
    elif kind == 1:
        opening.text = choose.text()
    elif kind == 2:
        opening.chat.CopyFrom(pb.Chat(messages=choose.some(lambda: _turn(choose))))
    else:
        opening.ClearField("prompt")


def _turn(choose: Choices) -> pb.ChatMessage:
    calls = choose.some(
        lambda: pb.ToolCall(id=choose.text(), name=choose.text(), arguments=choose.pick(SCHEMAS)), 3
    )
    return pb.ChatMessage(
        role=choose.pick(ROLES),
        content=choose.text(),
        tool_calls=calls,
        tool_call_id=choose.text(),
        name=choose.text(),
    )


def _params(choose: Choices, opening: pb.Open) -> None:
    params = opening.params
    field = choose.byte() % 7
    if field == 0:
        params.temperature = choose.number()
    elif field == 1:
        params.top_p = choose.number()
    elif field == 2:
        params.top_k = choose.id()
    elif field == 3:
        params.seed = choose.below(2**32) - 2**31
    elif field == 4:
        params.max_tokens = choose.id()
    elif field == 5:
        params.stop_ids.extend(choose.some(choose.id))
    elif field == 6:
        params.ignore_eos = True
    elif field == 7:
        setattr(params, choose.pick(PENALIZING), choose.number())
    else:
        params.logit_bias.extend(choose.some(lambda: pb.LogitBias(id=choose.id(), bias=choose.number())))


def _guide(choose: Choices, opening: pb.Open) -> None:
    tools = choose.some(
        lambda: pb.Tool(name=choose.text(), description=choose.text(), parameters=choose.pick(SCHEMAS)), 3
    )
    opening.guide.CopyFrom(
        pb.Guide(
            json_schema=choose.pick(SCHEMAS),
            tools=tools,
            tool_choice=choose.pick(("", "none", "auto", "required", "perhaps")),
            function=choose.text(),
            parallel=choose.flag(),
        )
    )


def _committed(choose: Choices, opening: pb.Open) -> None:
    opening.committed.extend(choose.some(choose.id))


def _other(choose: Choices, opening: pb.Open) -> None:
    field = choose.byte() % 8
    if field == 0:
        opening.rule = choose.pick(("ratio", "match", "", "telepathy"))
    elif field == 1:
        opening.noise_key = choose.bytes(choose.pick((16, 0, 15, 17)))
    elif field == 2:
        opening.resume_token = choose.bytes(choose.byte())
    elif field == 3:
        opening.top_logprobs = choose.id()
    elif field == 4:
        opening.model_id = choose.pick(("fake", "", "other"))
    elif field == 5:
        opening.fingerprint = choose.text()
    elif field == 6:
        opening.prompt_logprobs = choose.pick((0, 1, 20, 21, 2**32 - 1))
        opening.params.max_tokens = choose.pick((0, 1, 5))
    else:
        opening.pace = choose.number()


def _images(choose: Choices, opening: pb.Open) -> None:
    """Pictures, and their places in a chat, which may be right."""
    for _ in range(choose.byte() % 3):
        data = choose.bytes(choose.byte())
        digest = digest_of(data) if choose.flag() else choose.bytes(choose.pick((32, 0, 31)))
        opening.images.add(digest=digest, data=choose.pick((data, b"")))
        if opening.chat.messages:
            choose.pick(opening.chat.messages).images.append(choose.byte() % 4)


_CHANGES = (_prompt, _params, _params, _guide, _committed, _other)


def draft(choose: Choices, counter: int | None = None, base: int | None = None) -> pb.ClientMessage:
    """A draft of mostly known ids; its number and base as given, or at choice."""
    tokens = choose.some(choose.small_id if choose.byte() < 240 else choose.id)
    message = pb.Draft(
        counter=choose.byte() if counter is None else counter,
        base=choose.pick((3, 4, 5, 6, 2, 0, 15, 2**32 - 1)) if base is None else base,
        tokens=tokens,
    )
    kind = choose.byte()
    if kind % 2:
        message.draft_probs.extend(_source(choose, token) for token in tokens)
    if kind > 250:
        message.draft_probs.extend(choose.some(lambda: _source(choose, choose.id())))
    if kind % 8 == 4:
        message.parents.extend(choose.below(index + 1) - 1 for index in range(len(tokens)))
    if kind % 4 >= 2:
        message.confidences = _confidences(choose, len(tokens))
    if kind == 200:
        message.parents.append(choose.byte() - 1)
    return pb.ClientMessage(draft=message, padding=[choose.bytes(3)] if kind == 202 else ())


def _confidences(choose: Choices, count: int) -> bytes:
    """All the same, any, or too many or few of them."""
    kind = choose.byte()
    if kind < 100:
        return bytes([choose.pick((254, 0, 255, 128))]) * count
    return choose.bytes(count if kind < 250 else choose.byte()).ljust(count if kind < 230 else 0, b"\xff")


def _source(choose: Choices, token: int) -> pb.SparseDistribution:
    if choose.byte() < 128:
        return pb.SparseDistribution(ids=[token, 60 if token == 59 else 59 % 50], probs=[0.5, 0.5])
    ids = choose.some(choose.id)
    probs = choose.some(choose.number) if choose.flag() else [1 / max(1, len(ids))] * len(ids)
    return pb.SparseDistribution(ids=ids, probs=probs)


ADDRESSES = ("b:1", "", "[::1]:1", "127.0.0.1:1", "unix:/x:1", "b:0", "b", "[b:1", "1.2.3:4")


def server_message(choose: Choices) -> bytes:
    """Any server message, as bytes that may be none."""
    kind = choose.byte() % 16
    if kind < 10:
        message = pb.ServerMessage(verdict=_verdict(choose))
    elif kind < 12:
        message = pb.ServerMessage(opened=_opened(choose))
    elif kind == 12:
        codes = ("invalid_request", "overloaded", "usage", "internal", "from_the_future", "")
        message = pb.ServerMessage(
            failure=pb.Failure(code=choose.pick(codes), reason=choose.text(), retry_after=choose.number())
        )
    elif kind == 13:
        address = choose.pick(ADDRESSES) if choose.byte() < 200 else choose.text()
        message = pb.ServerMessage(moved=pb.Moved(address=address, resume_token=choose.bytes(4)))
    elif kind == 14:
        message = pb.ServerMessage(prefill=_prefill(choose))
    else:
        return choose.bytes(choose.byte())
    whole = message.SerializeToString()
    return damaged(whole, choose) if kind == 9 else whole


def _prefill(choose: Choices) -> pb.Prefill:
    """With tokens of the prompt where they belong, or anywhere, or without."""
    cached, computed, length = sorted(choose.byte() for _ in range(3))
    length -= choose.byte() > 200
    message = pb.Prefill(computed=computed, length=max(0, length), cached=cached)
    if choose.byte() > 100:
        message.first = choose.pick((0, 0, 1, 2, 3, 255, 2**32 - 1))
        message.tokens.extend(choose.some(lambda: _logprobs(choose), 3))
    return message


def _logprobs(choose: Choices) -> pb.Logprobs:
    rank = choose.pick((0, 1, 2, 2**32 - 1))
    return pb.Logprobs(ids=choose.some(choose.id), logprobs=choose.some(choose.number), rank=rank)


def _opened(choose: Choices) -> pb.Opened:
    limits = pb.Limits(
        max_draft=choose.pick((8, 0, 1, 2**32 - 1)), context_length=choose.pick((200, 0, 3, 2**32 - 1))
    )
    ids = choose.some(choose.id) if choose.byte() > 200 else (1, 2, 3)
    key = bytes(choose.pick((16, 16, 16, 0, 15)))
    return pb.Opened(
        prompt_ids=ids, noise_key=key, resume_token=choose.bytes(4), limits=limits, coarse_tools=["f"]
    )


def _verdict(choose: Choices) -> pb.Verdict:
    tokens = choose.some(choose.small_id if choose.byte() < 240 else choose.id)
    return pb.Verdict(
        base=choose.pick((3, 4, 5, 6, 7, 8, 0, 2**32 - 1)),
        tokens=tokens,
        num_accepted=choose.pick((0, 1, 2, 2**32 - 1)),
        answers=choose.pick((0, 1, 2, 3, 2**32 - 1)),
        finish_reason=choose.pick(("", "", "", "eos", "stop", "length", "whim")),
        hint=choose.pick((None, 0, 1, 2**32 - 1)),
        logprobs=choose.some(lambda: _logprobs(choose), 3),
        vetted=choose.pick((0, 0, 0, 1, 2, len(tokens), 2**32 - 1)),
        unverified=choose.pick((0, 0, 0, 1, len(tokens), 2**32 - 1)),
        revision=choose.pick((0, 1, 2, 2**32 - 1)),
    )
