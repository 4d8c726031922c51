"""The body of an error in the form of the API that its path belongs to: OpenAI's, Ollama's or Anthropic's."""

from __future__ import annotations

from typing import Any

from http_api.exchange import current

OLLAMA, MESSAGES = "/api/", "/messages"  # in paths of the other two

# Anthropic's types of errors, by the code of OpenAI's form, and by its type for all other codes
BY_CODE = {
    "not_found": "not_found_error",
    "request_too_large": "request_too_large",
    "forbidden_host": "permission_error",
    "forbidden_origin": "permission_error",
    "unreachable": "overloaded_error",
    "loading": "overloaded_error",
}
BY_TYPE = {"server_error": "api_error"}
# By the field at fault; Anthropic's clients read it, and go on with all messages in each request.
DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}


def in_form_of(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """`body`, an error in OpenAI's form, as the API of `path` tells it."""
    if path.startswith(OLLAMA):
        return as_ollama(body)
    return as_anthropic(body) if MESSAGES in path else body


def as_ollama(body: dict[str, Any]) -> dict[str, Any]:
    """{"error": "what is wrong"}"""
    return {"error": body["error"]["message"]}


def as_anthropic(body: dict[str, Any]) -> dict[str, Any]:
    """{"type": "error", "error": {"type", "message"}, "request_id"}; the message names the field."""
    error = body["error"]
    kind = BY_CODE.get(error["code"]) or BY_TYPE.get(error["type"], error["type"])
    message, field = error["message"], error["param"]
    if field and field not in message:
        message = f"{field}: {message}"
    told = {"type": kind, "message": message}
    if field in DETAILS:
        told["details"] = DETAILS[field]
    return {"type": "error", "error": told, "request_id": current().id}
