"""Between our messages and protobuf's: the only module that knows the generated classes.

Decoding is where a peer's bytes become ours: a field that is reserved for later is refused by name when set,
and everything a peer can get wrong raises a typed error.
"""

from __future__ import annotations

from opensled.errors import InvalidRequest, Unsupported
from opensled.messages import (
    MATCH,
    Cancel,
    ChatMessage,
    ClientMessage,
    Draft,
    DraftBlock,
    DraftToken,
    Failure,
    Limits,
    ModelInfo,
    Open,
    Opened,
    Prompt,
    SamplingParams,
    ServerMessage,
    Verdict,
    is_chat,
)
from opensled.noise import KEY_BYTES
from opensled.v1 import verify_pb2 as pb

SERVICE_NAME: str = pb.DESCRIPTOR.services_by_name["Verify"].full_name

_RESERVED = {
    "Open": ("pace", "features", "top_logprobs"),
    "Draft": ("parents", "draft_probs", "padding"),
    "Verdict": ("logprobs", "features", "padding"),
}


def _refuse_reserved(message: pb.Open | pb.Draft | pb.Verdict) -> None:
    for name in _RESERVED[type(message).__name__]:
        if getattr(message, name):
            raise Unsupported(f"{name} is not served by this version; leave it unset", name)


def encode_client(message: ClientMessage) -> pb.ClientMessage:
    if isinstance(message, Draft):
        block = message.block
        return pb.ClientMessage(draft=pb.Draft(counter=message.counter, base=block.base, tokens=block.ids))
    if isinstance(message, Open):
        return pb.ClientMessage(open=_encode_open(message))
    return pb.ClientMessage(cancel=pb.Cancel())


def decode_client(message: pb.ClientMessage) -> ClientMessage:
    kind = message.WhichOneof("kind")
    if kind == "draft":
        return _decode_draft(message.draft)
    if kind == "open":
        return _decode_open(message.open)
    if kind == "cancel":
        return Cancel()
    raise InvalidRequest("the message is empty, or of a kind this version does not know", "kind")


def encode_server(message: ServerMessage) -> pb.ServerMessage:
    if isinstance(message, Verdict):
        return pb.ServerMessage(verdict=_encode_verdict(message))
    if isinstance(message, Opened):
        return pb.ServerMessage(opened=_encode_opened(message))
    return pb.ServerMessage(
        failure=pb.Failure(
            code=message.code, reason=message.reason, field=message.field, retry_after=message.retry_after
        )
    )


def decode_server(message: pb.ServerMessage) -> ServerMessage:
    kind = message.WhichOneof("kind")
    if kind == "verdict":
        return _decode_verdict(message.verdict)
    if kind == "opened":
        opened = message.opened
        return Opened(tuple(opened.prompt_ids), opened.noise_key, opened.resume_token, _limits(opened.limits))
    if kind == "failure":
        failure = message.failure
        return Failure(failure.code, failure.reason, failure.field, failure.retry_after)
    raise InvalidRequest("the message is empty, or of a kind this version does not know", "kind")


def encode_info(info: ModelInfo) -> pb.DescribeReply:
    return pb.DescribeReply(
        model_id=info.model_id,
        vocab_size=info.vocab_size,
        fingerprint=info.fingerprint,
        eos_ids=info.eos_ids,
        limits=pb.Limits(max_draft=info.limits.max_draft, context_length=info.limits.context_length),
        rules=info.rules,
        numerics=info.numerics,
        version=info.version,
        tokenizer_hash=info.tokenizer_hash,
        has_chat_template=info.has_chat_template,
    )


def decode_info(reply: pb.DescribeReply) -> ModelInfo:
    return ModelInfo(
        model_id=reply.model_id,
        vocab_size=reply.vocab_size,
        fingerprint=reply.fingerprint,
        eos_ids=tuple(reply.eos_ids),
        limits=_limits(reply.limits),
        rules=tuple(reply.rules),
        numerics=reply.numerics,
        version=reply.version,
        tokenizer_hash=reply.tokenizer_hash,
        has_chat_template=reply.has_chat_template,
    )


def describe_request() -> pb.DescribeRequest:
    return pb.DescribeRequest()


def tokenizer_request() -> pb.GetTokenizerRequest:
    return pb.GetTokenizerRequest()


def tokenizer_reply(tokenizer_json: bytes, chat_template: str) -> pb.GetTokenizerReply:
    return pb.GetTokenizerReply(tokenizer_json=tokenizer_json, chat_template=chat_template)


def _limits(limits: pb.Limits) -> Limits:
    return Limits(limits.max_draft, limits.context_length)


def _encode_open(message: Open) -> pb.Open:
    params = message.params
    encoded = pb.Open(
        committed=message.committed,
        rule=message.rule,
        noise_key=message.noise_key,
        resume_token=message.resume_token,
        model_id=message.model_id,
        fingerprint=message.fingerprint,
        params=pb.SamplingParams(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            seed=params.seed,
            max_tokens=params.max_tokens,
            stop_ids=params.stop_ids,
            ignore_eos=params.ignore_eos,
        ),
    )
    _encode_prompt(message.prompt, encoded)
    return encoded


def _encode_prompt(prompt: Prompt, into: pb.Open) -> None:
    if isinstance(prompt, str):
        into.text = prompt
    elif is_chat(prompt):
        turns = [pb.ChatMessage(role=turn.role, content=turn.content) for turn in prompt]
        into.chat.CopyFrom(pb.Chat(messages=turns))
    else:
        into.ids.CopyFrom(pb.Ids(ids=prompt))  # type: ignore[arg-type]


def _decode_open(message: pb.Open) -> Open:
    _refuse_reserved(message)
    if message.noise_key and len(message.noise_key) != KEY_BYTES:
        raise InvalidRequest(f"noise_key must be {KEY_BYTES} bytes", "noise_key")
    return Open(
        prompt=_decode_prompt(message),
        params=_decode_params(message.params),
        committed=tuple(message.committed),
        rule=message.rule or MATCH,
        noise_key=message.noise_key,
        resume_token=message.resume_token,
        model_id=message.model_id,
        fingerprint=message.fingerprint,
    )


def _decode_prompt(message: pb.Open) -> Prompt:
    kind = message.WhichOneof("prompt")
    if kind == "ids":
        return tuple(message.ids.ids)
    if kind == "text":
        return message.text
    if kind == "chat":
        return tuple(ChatMessage(turn.role, turn.content) for turn in message.chat.messages)
    raise InvalidRequest("the prompt is missing: set ids, text or chat", "prompt")


def _decode_params(params: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p or 1.0,
        seed=params.seed if params.HasField("seed") else None,
        max_tokens=params.max_tokens,
        stop_ids=tuple(params.stop_ids),
        ignore_eos=params.ignore_eos,
    )


def _decode_draft(message: pb.Draft) -> Draft:
    _refuse_reserved(message)
    if message.counter == 0:
        raise InvalidRequest("drafts are numbered from 1", "counter")
    tokens = tuple(DraftToken(id) for id in message.tokens)
    return Draft(message.counter, DraftBlock(message.base, tokens))


def _encode_opened(message: Opened) -> pb.Opened:
    limits = pb.Limits(max_draft=message.limits.max_draft, context_length=message.limits.context_length)
    return pb.Opened(
        prompt_ids=message.prompt_ids,
        noise_key=message.noise_key,
        resume_token=message.resume_token,
        limits=limits,
    )


def _encode_verdict(message: Verdict) -> pb.Verdict:
    return pb.Verdict(
        base=message.base,
        tokens=message.tokens,
        num_accepted=message.num_accepted,
        answers=message.answers,
        finish_reason=message.finish_reason,
        hint=message.hint,
    )


def _decode_verdict(message: pb.Verdict) -> Verdict:
    _refuse_reserved(message)
    return Verdict(
        base=message.base,
        tokens=tuple(message.tokens),
        num_accepted=message.num_accepted,
        answers=message.answers,
        finish_reason=message.finish_reason,
        hint=message.hint if message.HasField("hint") else None,
    )
