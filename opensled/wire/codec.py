"""Converts between our messages and protobuf's: the only module that uses the generated classes.

The fields of both have the same names, so encoding passes them by name. Every mistake of a peer raises a typed error.
"""

import math
from collections.abc import Sequence
from typing import Any

from google.protobuf.message import DecodeError

from opensled.core import bounds
from opensled.core.errors import InvalidRequest, ProtocolError, RequestError
from opensled.core.images import ImageFacts
from opensled.core.messages import (
    MATCH,
    STYLES,
    CallForm,
    Cancel,
    ClientMessage,
    Draft,
    DraftBlock,
    DraftToken,
    Failure,
    HintReason,
    Limits,
    ModelInfo,
    Moved,
    Open,
    Opened,
    Prefill,
    PromptToken,
    RuleFacts,
    ServerMessage,
    SparseDistribution,
    ThoughtTags,
    TokenLogprobs,
    Verdict,
)
from opensled.v1 import verify_pb2 as pb
from opensled.wire.open_codec import (
    decode_open,
    encode_open,
    require_key,
)

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Verify"].full_name

Malformed = DecodeError  # gRPC raises this for bytes that are no message of the schema

CAUSES = {number: name.removeprefix("HINT_").lower() for name, number in pb.HintCause.items() if number}

# Confidences on the wire, one byte each: that of 1, and of a drafter that does not say
SURE, UNTOLD = 254, 255


def encode_client(message: ClientMessage) -> pb.ClientMessage:
    if isinstance(message, Draft):
        return pb.ClientMessage(draft=_encode_draft(message))
    if isinstance(message, Open):
        return pb.ClientMessage(open=encode_open(message))
    return pb.ClientMessage(cancel=pb.Cancel())


def decode_client(message: pb.ClientMessage, positions: int = bounds.MAX_POSITIONS) -> ClientMessage:
    """Our message; `positions`: see `bounds.check_open`."""
    kind = message.WhichOneof("kind")
    if kind == "draft":
        return _decode_draft(message.draft)
    if kind == "open":
        return decode_open(message.open, positions)
    if kind == "cancel":
        return Cancel()
    raise InvalidRequest("the message is empty, or of a kind this version does not know", "kind")


def client_message(data: bytes, positions: int = bounds.MAX_POSITIONS) -> ClientMessage:
    """The message that these bytes encode; raises `Malformed` and what `decode_client` raises."""
    return decode_client(pb.ClientMessage.FromString(data), positions)


def client_bytes(message: ClientMessage) -> bytes:
    """The bytes of a message of a client."""
    return encode_client(message).SerializeToString()


def server_message(data: bytes) -> ServerMessage:
    """The message of a server that these bytes encode; raises `Malformed` and ProtocolError."""
    return decode_server(pb.ServerMessage.FromString(data))


def server_bytes(message: ServerMessage) -> bytes:
    """The bytes of a message."""
    return encode_server(message).SerializeToString()


def encode_server(message: ServerMessage) -> pb.ServerMessage:
    if isinstance(message, Verdict):
        return _encode_verdict(message)
    if isinstance(message, Opened):
        return pb.ServerMessage(opened=_encode_opened(message))
    if isinstance(message, Moved):
        return pb.ServerMessage(moved=pb.Moved(**vars(message)))
    if isinstance(message, Prefill):
        return pb.ServerMessage(prefill=_encode_prefill(message))
    return pb.ServerMessage(failure=pb.Failure(**vars(message)))


def decode_server(message: pb.ServerMessage) -> ServerMessage:
    try:
        return _decode_server(message)
    except RequestError as error:
        raise ProtocolError(f"the server sent what this version cannot read: {error}") from error


def _decode_server(message: pb.ServerMessage) -> ServerMessage:
    kind = message.WhichOneof("kind")
    if kind == "verdict":
        return _decode_verdict(message.verdict)
    if kind == "opened":
        return _decode_opened(message.opened)
    if kind == "prefill":
        return _decode_prefill(message.prefill)
    if kind == "moved":
        _require_small(message.moved)
        return Moved(message.moved.address, message.moved.resume_token)
    if kind == "failure":
        failure = message.failure
        retry_after = failure.retry_after if 0 <= failure.retry_after < math.inf else 0.0  # NaN is neither
        return Failure(failure.code, failure.reason[: 1 << 12], failure.field[: 1 << 10], retry_after)
    raise InvalidRequest("the message is empty, or of a kind this version does not know", "kind")


def encode_info(info: ModelInfo) -> pb.DescribeReply:
    rules = [pb.RuleFacts(**vars(rule)) for rule in info.rules]
    parts = {
        "limits": _encode_limits(info.limits),
        "rules": rules,
        "images": None if info.images is None else pb.ImageFacts(**vars(info.images)),
        "thoughts": None if info.thoughts is None else pb.ThoughtTags(**info.thoughts._asdict()),
        "calls": "¦".join(info.calls or ()),
    }
    return pb.DescribeReply(**vars(info) | parts)


def decode_info(reply: pb.DescribeReply) -> ModelInfo:
    try:
        return _decode_info(reply)
    except RequestError as error:
        raise ProtocolError(f"the server describes what this version cannot read: {error}") from error


def _require_small(message: Any, more: int = 0) -> None:
    """Raises InvalidRequest for names and lists of a server without end."""
    if message.ByteSize() > (1 << 16) + more:
        raise InvalidRequest(f"{message.ByteSize()} bytes, more than a server has to say")


def _decode_info(reply: pb.DescribeReply) -> ModelInfo:
    _require_small(reply)
    return ModelInfo(
        model_id=reply.model_id,
        vocab_size=reply.vocab_size,
        fingerprint=reply.fingerprint,
        eos_ids=tuple(reply.eos_ids),
        limits=_limits(reply.limits),
        rules=tuple(RuleFacts(one.name, one.lossless, one.trees, one.draft_probs) for one in reply.rules),
        numerics=reply.numerics,
        version=reply.version,
        tokenizer_hash=reply.tokenizer_hash,
        has_chat_template=reply.has_chat_template,
        capabilities=tuple(reply.capabilities),
        images=_decode_images(reply.images) if reply.HasField("images") else None,
        engine=reply.engine,
        aliases=tuple(reply.aliases),
        template_variables=tuple(reply.template_variables),
        thoughts=_decode_thoughts(reply.thoughts) if reply.HasField("thoughts") else None,
        calls=_decode_calls(reply.calls.split("¦")),
    )


def _decode_images(facts: pb.ImageFacts) -> ImageFacts:
    if not facts.rows:
        raise InvalidRequest("an image needs at least one position", "images")
    return ImageFacts(facts.token_id, facts.rows, facts.most, facts.max_bytes)


def _decode_thoughts(tags: pb.ThoughtTags) -> ThoughtTags:
    if not tags.start or not tags.end:
        raise InvalidRequest("thoughts need a tag before and after them", "thoughts")
    return ThoughtTags(*[getattr(tags, name) for name in ThoughtTags._fields])


def _decode_calls(texts: list[str]) -> CallForm | None:
    """None for a form that only a later version can read."""
    return CallForm(*texts) if len(texts) == len(CallForm._fields) and texts[6] in STYLES else None


def decode_description(data: bytes) -> ModelInfo:
    """What the bytes of a server's answer to `Describe` say; raises as `decode_info`."""
    return decode_info(pb.DescribeReply.FromString(data))


def tokenizer_json(data: bytes) -> bytes:
    """The tokenizer in the bytes of a server's answer to `GetTokenizer`."""
    return bytes(pb.GetTokenizerReply.FromString(data).tokenizer_json)


def describe_request() -> pb.DescribeRequest:
    return pb.DescribeRequest()


def tokenizer_request() -> pb.GetTokenizerRequest:
    return pb.GetTokenizerRequest()


def tokenizer_reply(tokenizer_json: bytes, chat_template: str) -> pb.GetTokenizerReply:
    return pb.GetTokenizerReply(tokenizer_json=tokenizer_json, chat_template=chat_template)


def _limits(limits: pb.Limits) -> Limits:
    return Limits(limits.max_draft, limits.context_length, limits.max_tree, limits.min_draft)


def _encode_limits(limits: Limits) -> pb.Limits:
    return pb.Limits(**vars(limits))


def _encode_draft(message: Draft) -> pb.Draft:
    block = message.block
    encoded = pb.Draft(
        counter=message.counter,
        base=block.base,
        tokens=block.ids,
        parents=block.parents,
        seconds=message.seconds,
    )
    if any(token.confidence < 1 for token in block.tokens):
        encoded.confidences = bytes([_byte(token.confidence) for token in block.tokens])
    for token in block.tokens:
        if token.drawn_from is not None:
            encoded.draft_probs.add(ids=token.drawn_from.ids, probs=token.drawn_from.probs)
    return encoded


def _byte(confidence: float) -> int:
    """A confidence on the wire; 1 stands for a drafter that does not say."""
    return UNTOLD if confidence >= 1 else min(UNTOLD - 1, round(UNTOLD * max(0.0, confidence)))


def _decode_draft(message: pb.Draft) -> Draft:
    # Each field is read once, and a list at one go: reading them takes most of the time, in every round.
    ids, parents = message.tokens, message.parents
    confidences, sources = message.confidences, message.draft_probs
    bounds.check_draft(len(ids), parents, confidences, sources)
    counter, seconds = message.counter, message.seconds
    if counter == 0:
        raise InvalidRequest("drafts are numbered from 1", "counter")
    if not 0 <= seconds < math.inf:  # also NaN
        seconds = 0.0
    block = DraftBlock(message.base, _tokens(ids[:], confidences, sources), tuple(parents[:]))
    return Draft(counter, block, seconds)


def _tokens(ids: Sequence[int], confidences: bytes, sources: Sequence[Any]) -> tuple[DraftToken, ...]:
    """Draft tokens with what their drafter says of them."""
    if not (confidences or sources):
        return tuple(map(DraftToken, ids))
    told = [1.0 if each == UNTOLD else each / UNTOLD for each in confidences] or [1.0] * len(ids)
    if not sources:
        return tuple(map(DraftToken, ids, told))
    return tuple(
        DraftToken(id, confidence, SparseDistribution(tuple(source.ids), tuple(source.probs)))
        for id, confidence, source in zip(ids, told, sources)
    )


def _encode_opened(message: Opened) -> pb.Opened:
    why = _encode_reason(message.why) if message.why else None
    return pb.Opened(**vars(message) | {"limits": _encode_limits(message.limits), "why": why})


def _decode_opened(message: pb.Opened) -> Opened:
    _require_small(message, 5 * len(message.prompt_ids))
    require_key(message.noise_key)
    return Opened(
        prompt_ids=tuple(message.prompt_ids),
        noise_key=message.noise_key,
        resume_token=message.resume_token,
        limits=_limits(message.limits),
        hint=message.hint if message.HasField("hint") else None,
        draft_probs=message.draft_probs,
        rule=message.rule or MATCH,
        coarse_tools=tuple(message.coarse_tools),
        why=_reason(message.why) if message.HasField("why") else None,
    )


def _encode_reason(why: HintReason) -> pb.HintReason:
    return pb.HintReason(**why._asdict() | {"cause": f"HINT_{why.cause or 'untold'}".upper()})


def _reason(why: pb.HintReason) -> HintReason:
    """It is for people: a cause that is unknown here, or numbers that are none, say nothing."""
    told = HintReason(CAUSES.get(why.cause, ""), *(getattr(why, name) for name in HintReason._fields[1:]))
    return told if all(0 <= number < math.inf for number in told[1:]) else HintReason()


def _encode_verdict(message: Verdict) -> pb.ServerMessage:
    # In place and by name, for it is sent in every round: a verdict of its own would be copied.
    encoded = pb.ServerMessage()
    verdict = encoded.verdict
    verdict.SetInParent()  # also if all its fields are empty
    verdict.base, verdict.num_accepted = message.base, message.num_accepted
    verdict.answers, verdict.finish_reason = message.answers, message.finish_reason
    verdict.tokens.extend(message.tokens)
    if message.hint is not None:
        verdict.hint = message.hint
    for entry in message.logprobs:
        verdict.logprobs.append(_encode_logprobs(entry))
    if message.loose:
        verdict.loose.extend(message.loose)
    if message.vetted:
        verdict.vetted = message.vetted
    if message.unverified:
        verdict.unverified = message.unverified
    if message.revision:
        verdict.revision = message.revision
    if message.why:
        verdict.why.CopyFrom(_encode_reason(message.why))
    return encoded


def _encode_logprobs(entry: TokenLogprobs) -> pb.Logprobs:
    return pb.Logprobs(ids=[id for id, _ in entry], logprobs=[value for _, value in entry])


def _pairs(entry: pb.Logprobs) -> TokenLogprobs:
    return tuple(zip(entry.ids, entry.logprobs))


def _encode_prefill(message: Prefill) -> pb.Prefill:
    encoded = pb.Prefill(
        computed=message.computed, length=message.length, cached=message.cached, first=message.first
    )
    for token in message.tokens:
        entry = _encode_logprobs(token.logprobs)
        entry.rank = token.rank
        encoded.tokens.append(entry)
    return encoded


def _decode_prefill(message: pb.Prefill) -> Prefill:
    bounds.check_prefill(message)
    tokens = tuple([PromptToken(entry.rank, _pairs(entry)) for entry in message.tokens])
    return Prefill(message.computed, message.length, message.cached, message.first, tokens)


def _decode_verdict(message: pb.Verdict) -> Verdict:
    bounds.check_verdict(message)
    return Verdict(
        base=message.base,
        tokens=tuple(message.tokens),
        num_accepted=message.num_accepted,
        answers=message.answers,
        finish_reason=message.finish_reason,
        hint=message.hint if message.HasField("hint") else None,
        logprobs=tuple(_pairs(entry) for entry in message.logprobs),
        loose=tuple(message.loose),
        vetted=message.vetted,
        unverified=message.unverified,
        revision=message.revision,
        why=_reason(message.why) if message.HasField("why") else None,
    )
