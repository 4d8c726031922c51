"""The Python half: asks each case through the official `openai` or `anthropic` package, and writes down the outcome."""

import inspect
from typing import Any

import anthropic
import openai


def observe(url: str, key: str, cases: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """name -> {"reply": ...}, {"chunks": [...]} or {"error": ...}"""
    return {case["name"]: _observe(url, case.get("key", key), case) for case in cases}


def _observe(url: str, key: str, case: dict[str, Any]) -> dict[str, Any]:
    if case["call"] in MESSAGE_CALLS:
        return _observe_message(url, key, case)
    with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60) as client:
        try:
            return CALLS[case["call"]](client, case["request"])
        except openai.APIStatusError as error:
            told = {"param": error.param, "code": error.code, "type": error.type}
            return {"error": {"class": type(error).__name__, "status": error.status_code, **told}}


def _observe_message(url: str, key: str, case: dict[str, Any]) -> dict[str, Any]:
    with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=60) as client:
        try:
            return {"reply": MESSAGE_CALLS[case["call"]](client, case["request"]).model_dump(mode="json")}
        except anthropic.APIStatusError as error:
            told = {"type": error.type, "request_id": error.request_id}
            return {"error": {"class": type(error).__name__, "status": error.status_code, **told}}


def _create(create: Any, request: dict[str, Any]) -> dict[str, Any]:
    reply = create(**_arguments(create, request))
    if request.get("stream"):
        return {"chunks": [chunk.model_dump(mode="json") for chunk in reply]}
    return {"reply": reply.model_dump(mode="json")}


def _arguments(method: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Fields the package has no word for go into `extra_body`."""
    known = {name: value for name, value in request.items() if name in inspect.signature(method).parameters}
    return {**known, "extra_body": {name: value for name, value in request.items() if name not in known}}


def _stream_helper(client: openai.OpenAI, request: dict[str, Any]) -> dict[str, Any]:
    with client.chat.completions.stream(**request) as stream:
        return {"reply": stream.get_final_completion().model_dump(mode="json")}


def _response_stream_helper(client: openai.OpenAI, request: dict[str, Any]) -> dict[str, Any]:
    with client.responses.stream(**request) as stream:
        return {"reply": stream.get_final_response().model_dump(mode="json")}


def _message(client: anthropic.Anthropic, request: dict[str, Any]) -> Any:
    return client.messages.create(**_arguments(client.messages.create, request))


def _message_stream_helper(client: anthropic.Anthropic, request: dict[str, Any]) -> Any:
    with client.messages.stream(**_arguments(client.messages.stream, request)) as stream:
        return stream.get_final_message()


MESSAGE_CALLS = {
    "message": _message,
    "message_stream_helper": _message_stream_helper,
    "message_tokens": lambda client, request: client.messages.count_tokens(**request),
    "message_models": lambda client, request: client.models.list(),
}
CALLS = {
    "chat": lambda client, request: _create(client.chat.completions.create, request),
    "completion": lambda client, request: _create(client.completions.create, request),
    "chat_stream_helper": _stream_helper,
    "response": lambda client, request: _create(client.responses.create, request),
    "response_stream_helper": _response_stream_helper,
    "models": lambda client, request: {"reply": client.models.list().model_dump(mode="json")},
    "model": lambda client, request: {"reply": client.models.retrieve(**request).model_dump(mode="json")},
}
