"""GET /openapi.json: an OpenAPI 3.1 description of exactly what is served here.

tests/test_openapi.py keeps it true: what it allows is accepted, what it forbids is refused, and answers look like it.
"""

from http_api import replies, schemas
from http_api.error_forms import MESSAGES
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


# Of each path its name, what is asked, the whole answer, an event of its stream (- = there is none), and what it does
POSTS = """
/v1/chat/completions createChatCompletion ChatRequest ChatCompletion ChatCompletionChunk Answer a chat
/v1/completions createCompletion CompletionRequest Completion CompletionChunk Continue a text
/v1/responses createResponse ResponseRequest Response ResponseEvent Answer a chat, in the form of the Responses API
/v1/messages createMessage MessageRequest AnthropicMessage MessageEvent Answer a chat, in the form of Anthropic's API
/v1/messages/count_tokens countTokens MessageRequest TokenCount - The tokens of a chat's prompt; nothing is computed
/tokenize tokenize TokenizeRequest Tokens - The tokens of a text
/detokenize detokenize DetokenizeRequest TokenText - The text of tokens
"""
# Of each path its name, the answer, and what it does
GETS = """
/v1/models listModels ModelList The model served here, in a list
/openapi.json describe Description This description
/status draftStatus Status How answers are drafted just now, and why
"""


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
    posts = [line.split(" ", 5) for line in POSTS.strip().splitlines()]
    gets = [line.split(" ", 3) for line in GETS.strip().splitlines()]
    model_id = {"type": "string", "enum": [*names_of(info)]}
    named = _get("retrieveModel", "Model", "The model served here", "404")
    named["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": model_id}]
    return {
        **{path: {"post": _post(path, *told)} for path, *told in posts},
        **{path: {"get": _get(*told)} for path, *told in gets},
        "/v1/models/{model}": {"get": named},
        **{path: _probe(path, "Health", "Whether the process works") for path in (LIVE, "/health")},
        **{path: _probe(path, "Ready", "Whether a request would be answered now", "503") for path in READY},
    }


def _probe(path: str, answer: str, summary: str, *errors: str) -> Schema:
    return {"get": {**_get(path.removeprefix("/"), answer, summary, *errors), "security": []}}


def _post(path: str, name: str, asked: str, whole: str, event: str, summary: str) -> Schema:
    error = "MessageError" if MESSAGES in path else "Error"
    events = {} if event == "-" else {"text/event-stream": {"schema": _events(event)}}
    answer = {"description": "The answer.", "content": {**_json(whole), **events}}
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": _json(asked)},
        "responses": {"200": answer, **{status: _error(status, error) for status in ERRORS}},
    }


def _get(name: str, answer: str, summary: str, *errors: str) -> Schema:
    told = {"200": {"description": summary, "content": _json(answer)}}
    told |= {status: _error(status) for status in (*errors, *ALWAYS)}
    return {"operationId": name, "summary": summary, "responses": told}


def _events(kind: str) -> Schema:
    """With stream: true. One event: of named ones the name is the type that its data names, too; other streams end with
    [DONE], or with an error where an answer fails midway."""
    is_named = kind.endswith("Event")
    told = _ref(kind) if is_named else {"anyOf": [_ref(kind), _ref("Error")]}
    piece = {"contentMediaType": "application/json", "contentSchema": told}
    data = {"type": "string", **(piece if is_named else {"anyOf": [{"const": "[DONE]"}, piece]})}
    named = {"event": {"type": "string"}} if is_named else {}
    return {"type": "object", "properties": {**named, "data": data}, "required": [*named, "data"]}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str) -> Schema:
    return {"application/json": {"schema": _ref(name)}}


def _error(status: str, kind: str = "Error") -> Schema:
    response: Schema = {"description": ERRORS[status], "content": _json(kind)}
    if status in WAITING:
        schema = {"type": "integer", "minimum": 1}
        response["headers"] = {"Retry-After": {"description": "seconds", "required": True, "schema": schema}}
    return response
