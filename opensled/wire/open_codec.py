"""Converts the largest message, `Open`: prompt, sampling parameters, guide. A part of codec.py."""

from collections.abc import Iterator

from opensled.core import bounds
from opensled.core.errors import InvalidRequest
from opensled.core.images import DIGEST_BYTES, Image, TurnImage
from opensled.core.messages import (
    MATCH,
    ChatMessage,
    Guide,
    Open,
    Prompt,
    SamplingParams,
    Tool,
    ToolCall,
    is_chat,
)
from opensled.core.noise import KEY_BYTES
from opensled.core.template_variables import read_variables
from opensled.v1 import verify_pb2 as pb


def encode_open(message: Open) -> pb.Open:
    params, guide = message.params, message.guide
    biases = [pb.LogitBias(id=id, bias=bias) for id, bias in params.logit_bias]
    tools = [pb.Tool(**vars(tool)) for tool in guide.tools] if guide else []
    fields = vars(message) | {
        "params": pb.SamplingParams(**vars(params) | {"logit_bias": biases}),
        "guide": pb.Guide(**vars(guide) | {"tools": tools}) if guide else None,
        "images": [pb.Image(**vars(image)) for image in message.images],
    }
    del fields["prompt"], fields["template_variables"]
    encoded = pb.Open(**fields)
    _encode_prompt(message.prompt, message.template_variables, encoded)
    return encoded


def _encode_prompt(prompt: Prompt, variables: str, into: pb.Open) -> None:
    if isinstance(prompt, str):
        into.text = prompt
    elif is_chat(prompt):
        into.chat.CopyFrom(pb.Chat(messages=map(_encode_turn, prompt), variables=variables))
    else:
        into.ids.CopyFrom(pb.Ids(ids=prompt))  # type: ignore[arg-type]


def _encode_turn(turn: ChatMessage) -> pb.ChatMessage:
    calls = [pb.ToolCall(**vars(call)) for call in turn.tool_calls]
    return pb.ChatMessage(
        **vars(turn) | {"tool_calls": calls, "images": [each.offset for each in turn.images]}
    )


def decode_open(message: pb.Open, positions: int = bounds.MAX_POSITIONS) -> Open:
    """Our message; `positions`: see `bounds.check_open`."""
    bounds.check_open(message, positions)
    read_variables(message.chat.variables)
    if message.noise_key:
        require_key(message.noise_key)
    return Open(
        prompt=_decode_prompt(message),
        params=_decode_params(message.params),
        committed=tuple(message.committed),
        rule=message.rule or MATCH,
        noise_key=message.noise_key,
        resume_token=message.resume_token,
        model_id=message.model_id,
        fingerprint=message.fingerprint,
        top_logprobs=message.top_logprobs if message.HasField("top_logprobs") else None,
        prompt_logprobs=message.prompt_logprobs if message.HasField("prompt_logprobs") else None,
        guide=_decode_guide(message.guide) if message.HasField("guide") else None,
        pace=message.pace,
        background=message.background,
        device=message.device,
        takes_unverified=message.takes_unverified,
        images=tuple([_decode_image(image) for image in message.images]),
        template_variables=message.chat.variables,
    )


def _decode_image(image: pb.Image) -> Image:
    if len(image.digest) != DIGEST_BYTES:
        raise InvalidRequest(f"the digest of an image has {DIGEST_BYTES} bytes", "images")
    return Image(image.digest, image.data)


def require_key(noise_key: bytes) -> None:
    if len(noise_key) != KEY_BYTES:
        raise InvalidRequest(f"noise_key must be {KEY_BYTES} bytes", "noise_key")


def _decode_guide(guide: pb.Guide) -> Guide:
    return Guide(
        json_schema=guide.json_schema,
        tools=tuple(Tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in guide.tools),
        tool_choice=guide.tool_choice,
        function=guide.function,
        parallel=guide.parallel,
        strict=guide.strict,
    )


def _decode_prompt(message: pb.Open) -> Prompt:
    kind = message.WhichOneof("prompt")
    if kind == "ids":
        return tuple(message.ids.ids)
    if kind == "text":
        return message.text
    if kind == "chat":
        images = iter([_decode_image(image) for image in message.images])
        return tuple([_decode_turn(turn, images) for turn in message.chat.messages])
    raise InvalidRequest("the prompt is missing: set ids, text or chat", "prompt")


def _decode_turn(turn: pb.ChatMessage, images: Iterator[Image]) -> ChatMessage:
    """`images`: of this turn and the later ones; `bounds.check_open` has counted them."""
    calls = tuple(ToolCall(call.id, call.name, call.arguments) for call in turn.tool_calls)
    placed = tuple([TurnImage(offset, next(images)) for offset in turn.images])
    return ChatMessage(turn.role, turn.content, calls, turn.tool_call_id, turn.name, placed, turn.reasoning)


def _decode_params(params: pb.SamplingParams) -> SamplingParams:
    return SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p or 1.0,
        seed=params.seed if params.HasField("seed") else None,
        max_tokens=params.max_tokens,
        stop_ids=tuple(params.stop_ids),
        ignore_eos=params.ignore_eos,
        logit_bias=tuple((entry.id, entry.bias) for entry in params.logit_bias),
        min_p=params.min_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        repetition_penalty=params.repetition_penalty or 1.0,
    )
