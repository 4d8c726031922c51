"""GET /openapi.json: an OpenAPI 3.1 description of exactly what is served here.

tests/test_openapi.py keeps it true: what it allows is accepted, what it forbids is refused, and answers look like it.
"""

from http_api import replies, schemas
from http_api.messages_api import message_schemas
from http_api.model_names import names_of
from http_api.replies import Schema, ref
from http_api.response_api import output_schemas, response_schemas
from opensled.core.messages import ModelInfo
from opensled.net.probes import LIVE, READY

ERRORS = {
    "400": "A field has a bad value, or is not served here; `param` names it.",
    "401": "An API key is needed, and this is none.",
    "403": "A web page that was not invited, or a foreign name in `Host`.",
    "404": "No such model.",
    "413": "The body is larger than 3 MiB.",
    "415": "The body is not application/json.",
    "429": "The server has no capacity left; `Retry-After` gives the seconds to wait.",
    "500": "A step failed on the server, or a bug; the log has the cause.",
    "503": "No server answers, or it serves another model now; `Retry-After` tells when to try again.",
}
ALWAYS = ("401", "403", "500")  # may befall every request
WAITING = ("429", "503")


def description(info: ModelInfo) -> Schema:
    """The document for a server that says `info`: model, vocabulary and context are those served."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OpenSLED",
            "version": info.version,
            "description": "The APIs of OpenAI and Anthropic as OpenSLED serves them. Fields that are not listed are "
            "refused by name, or with --lenient left out and named in the header OpenSLED-Ignored. What is "
            'empty (null, "", [] or {}) counts as absent. Messages, input, tools and tool_choice are read in more '
            "forms than stand here: those of the other APIs, and of histories.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "./", "description": "this address"}],
        "security": [{"key": []}, {}],
        "paths": _paths(info),
        "components": {
            "schemas": {
                **schemas.components(info),
                **replies.components(),
                **response_schemas.components(info),
                **output_schemas.components(),
                **message_schemas.components(info),
            },
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "Where --http-keys or --tokens is given.",
                }
            },
        },
    }


def _paths(info: ModelInfo) -> Schema:
    model_id = {"type": "string", "enum": [*names_of(info)]}
    return {
        "/v1/chat/completions": {
            "post": _post(
                "createChatCompletion",
                "Answer a chat",
                ("ChatRequest", "ChatCompletion"),
                _events("ChatCompletionChunk"),
            )
        },
        "/v1/completions": {
            "post": _post(
                "createCompletion",
                "Continue a text",
                ("CompletionRequest", "Completion"),
                _events("CompletionChunk"),
            )
        },
        "/v1/responses": {
            "post": _post(
                "createResponse",
                "Answer a chat, in the form of the Responses API",
                ("ResponseRequest", "Response"),
                _named_events("ResponseEvent"),
            )
        },
        **_message_paths(),
        "/v1/models": {"get": _get("listModels", "The model served here, in a list", "ModelList")},
        "/v1/models/{model}": {
            "get": {
                **_get("retrieveModel", "The model served here", "Model", "404"),
                "parameters": [{"name": "model", "in": "path", "required": True, "schema": model_id}],
            }
        },
        "/tokenize": {"post": _post("tokenize", "The tokens of a text", ("TokenizeRequest", "Tokens"), None)},
        "/detokenize": {
            "post": _post("detokenize", "The text of tokens", ("DetokenizeRequest", "TokenText"), None)
        },
        "/openapi.json": {"get": _get("describe", "This description", "Description")},
        "/status": {"get": _get("draftStatus", "How answers are drafted just now, and why", "Status")},
        **{path: _probe(path, "Whether the process works", "Health") for path in (LIVE, "/health")},
        **{path: _probe(path, "Whether a request would be answered now", "Ready", "503") for path in READY},
    }


def _probe(path: str, summary: str, schema: str, *errors: str) -> Schema:
    return {"get": {**_get(path.removeprefix("/"), summary, schema, *errors), "security": []}}


def _message_paths() -> Schema:
    """Those of Anthropic's API."""
    return {
        "/v1/messages": {
            "post": _post(
                "createMessage",
                "Answer a chat, in the form of Anthropic's API",
                ("MessageRequest", "AnthropicMessage"),
                _named_events("MessageEvent"),
                "MessageError",
            )
        },
        "/v1/messages/count_tokens": {
            "post": _post(
                "countTokens",
                "The tokens of a chat's prompt; nothing is computed",
                ("MessageRequest", "TokenCount"),
                None,
                "MessageError",
            )
        },
    }


def _post(
    name: str, summary: str, kinds: tuple[str, str], events: Schema | None, error: str = "Error"
) -> Schema:
    """`kinds`: what is asked, and the whole answer; `events`: with stream: true, None = there are none."""
    asked, whole = kinds
    content = {
        "application/json": {"schema": ref(whole)},
        **({"text/event-stream": {"schema": events}} if events else {}),
    }
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": ref(asked)}}},
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{status: _error(status, error) for status in ERRORS},
        },
    }


def _events(kind: str) -> Schema:
    """With stream: true. What one event holds; an answer that fails midway ends with an error instead of [DONE]."""
    payload = {"anyOf": [ref(kind), ref("Error")]}
    piece = {"contentMediaType": "application/json", "contentSchema": payload}
    data = {"type": "string", "anyOf": [{"const": "[DONE]"}, piece]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _named_events(kind: str) -> Schema:
    """With stream: true. What one event holds; its name is the type that its data names, too."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": ref(kind)}
    return {
        "type": "object",
        "properties": {"event": {"type": "string"}, "data": data},
        "required": ["event", "data"],
    }


def _get(name: str, summary: str, answer: str, *errors: str) -> Schema:
    success = {"description": summary, "content": {"application/json": {"schema": ref(answer)}}}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {"200": success, **{status: _error(status) for status in (*errors, *ALWAYS)}},
    }


def _error(status: str, kind: str = "Error") -> Schema:
    response: Schema = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": ref(kind)}},
    }
    if status in WAITING:
        schema = {"type": "integer", "minimum": 1}
        response["headers"] = {"Retry-After": {"description": "seconds", "required": True, "schema": schema}}
    return response
