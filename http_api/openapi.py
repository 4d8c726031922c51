"""GET /openapi.json: an OpenAPI 3.1 description of exactly what is served here.

tests/test_openapi.py keeps it true: what it allows is accepted, what it forbids is refused, and answers look like it.
"""

from http_api import replies, schemas
from http_api.messages_api import message_schemas
from http_api.model_names import names_of
from http_api.notation import Schema
from http_api.response_api import response_schemas
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


# A path: its name, what it does, what is asked, the whole answer, an event of its stream ("" = there is none), an error
POSTS = {
    "/v1/chat/completions": (
        "createChatCompletion", "Answer a chat", "ChatRequest", "ChatCompletion", "ChatCompletionChunk", "Error",
    ),
    "/v1/completions": (
        "createCompletion", "Continue a text", "CompletionRequest", "Completion", "CompletionChunk", "Error",
    ),
    "/v1/responses": (
        "createResponse", "Answer a chat, in the form of the Responses API",
        "ResponseRequest", "Response", "ResponseEvent", "Error",
    ),
    "/v1/messages": (
        "createMessage", "Answer a chat, in the form of Anthropic's API",
        "MessageRequest", "AnthropicMessage", "MessageEvent", "MessageError",
    ),
    "/v1/messages/count_tokens": (
        "countTokens", "The tokens of a chat's prompt; nothing is computed",
        "MessageRequest", "TokenCount", "", "MessageError",
    ),
    "/tokenize": ("tokenize", "The tokens of a text", "TokenizeRequest", "Tokens", "", "Error"),
    "/detokenize": ("detokenize", "The text of tokens", "DetokenizeRequest", "TokenText", "", "Error"),
}  # fmt: skip
# A path: its name, what it does, and the answer
GETS = {
    "/v1/models": ("listModels", "The model served here, in a list", "ModelList"),
    "/openapi.json": ("describe", "This description", "Description"),
    "/status": ("draftStatus", "How answers are drafted just now, and why", "Status"),
}


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
    named = _get("retrieveModel", "The model served here", "Model", "404")
    named["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": model_id}]
    return {
        **{path: {"post": _post(*told)} for path, told in POSTS.items()},
        **{path: {"get": _get(*told)} for path, told in GETS.items()},
        "/v1/models/{model}": {"get": named},
        **{path: _probe(path, "Whether the process works", "Health") for path in (LIVE, "/health")},
        **{path: _probe(path, "Whether a request would be answered now", "Ready", "503") for path in READY},
    }


def _probe(path: str, summary: str, schema: str, *errors: str) -> Schema:
    return {"get": {**_get(path.removeprefix("/"), summary, schema, *errors), "security": []}}


def _post(name: str, summary: str, asked: str, whole: str, event: str, error: str) -> Schema:
    content = {
        "application/json": {"schema": _ref(whole)},
        **({"text/event-stream": {"schema": _events(event)}} if event else {}),
    }
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ref(asked)}}},
        "responses": {
            "200": {"description": "The answer.", "content": content},
            **{status: _error(status, error) for status in ERRORS},
        },
    }


def _events(kind: str) -> Schema:
    """With stream: true. One event: of named ones the name is the type that its data names, too; other streams end with
    [DONE], or with an error where an answer fails midway."""
    is_named = kind.endswith("Event")
    told = _ref(kind) if is_named else {"anyOf": [_ref(kind), _ref("Error")]}
    piece = {"contentMediaType": "application/json", "contentSchema": told}
    data = {"type": "string", **(piece if is_named else {"anyOf": [{"const": "[DONE]"}, piece]})}
    named = {"event": {"type": "string"}} if is_named else {}
    return {"type": "object", "properties": {**named, "data": data}, "required": [*named, "data"]}


def _get(name: str, summary: str, answer: str, *errors: str) -> Schema:
    success = {"description": summary, "content": {"application/json": {"schema": _ref(answer)}}}
    return {
        "operationId": name,
        "summary": summary,
        "responses": {"200": success, **{status: _error(status) for status in (*errors, *ALWAYS)}},
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _error(status: str, kind: str = "Error") -> Schema:
    response: Schema = {
        "description": ERRORS[status],
        "content": {"application/json": {"schema": _ref(kind)}},
    }
    if status in WAITING:
        schema = {"type": "integer", "minimum": 1}
        response["headers"] = {"Retry-After": {"description": "seconds", "required": True, "schema": schema}}
    return response
