"""In all APIs alike: names of the model, errors before an answer, texts of tokens, what is said of embeddings."""

import pytest

from opensled.core.errors import (
    EngineError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unauthorized,
    Unreachable,
    Unsupported,
    UsageError,
)
from tests.fake_backend import FakeBackend, call
from tests.left_out_cases import PROMPTS
from verify_server.options.serve_config import model_names

ALIASES = {"aliases": ("gpt-4o", "Home/Chat")}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}
PATHS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi"},
    "/v1/responses": {"input": "hi"},
    "/api/chat": {**CHAT, "stream": False},
    "/api/generate": {"prompt": "hi", "stream": False},
    "/api/show": {},
    "/api/pull": {"stream": False},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [5]},
}
TAKEN = ("tiny", "TINY", "tiny:latest", "Tiny:Latest", "gpt-4o", "GPT-4O:latest", "home/chat", "", None)


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("path", PATHS)
def test_every_api_takes_the_same_names(path, name):
    assert call(FakeBackend(**ALIASES), path, {**PATHS[path], "model": name}).status_code == 200


@pytest.mark.parametrize("name", ["gpt-4", "tiny2", "tiny:1b", "latest", ":latest", "tin y", "chat"])
@pytest.mark.parametrize("path", PATHS)
def test_every_api_refuses_the_same_names_and_says_which_ones_there_are(path, name):
    reply = call(FakeBackend(**ALIASES), path, {**PATHS[path], "model": name})
    assert reply.status_code == 404
    for word in ("'tiny' or 'gpt-4o' or 'Home/Chat'", repr(name), "--served-model-name"):
        assert word in reply.text.replace('\\"', '"')


def test_all_names_are_listed_and_answers_tell_whose_they_are():
    backend = FakeBackend(aliases=("Tiny", *ALIASES["aliases"], "GPT-4o"))
    listed = call(backend, "/v1/models", method="GET").json()["data"]
    assert [card["id"] for card in listed] == ["tiny", "gpt-4o", "Home/Chat"]
    tags = call(backend, "/api/tags", method="GET").json()["models"]
    assert [card["name"] for card in tags] == ["tiny:latest", "gpt-4o:latest", "Home/Chat:latest"]
    assert call(backend, "/v1/models/HOME/chat", method="GET").json()["id"] == "Home/Chat"
    assert call(backend, "/v1/chat/completions", {**CHAT, "model": "gpt-4o"}).json()["model"] == "tiny"


def test_names_of_the_option():
    assert model_names("") == ()
    assert model_names("gpt-4o, my-model,gpt-4o") == ("gpt-4o", "my-model")
    for bad in (",", "a,,b", "two words", "x" * 129, "tab\tbed"):
        with pytest.raises(UsageError, match="is not a valid model name"):
            model_names(bad)


FIELDS = {  # by path, what a client calls the field that an error names
    "/v1/chat/completions": {
        "prompt": "messages",
        "max_tokens": "max_completion_tokens",
        "stop_ids": "stop_token_ids",
    },
    "/v1/completions": {"prompt": "prompt", "max_tokens": "max_tokens"},
    "/v1/responses": {"prompt": "input", "max_tokens": "max_output_tokens", "response_format": "text.format"},
    "/v1/messages": {"prompt": "messages", "max_tokens": "max_tokens"},
    "/api/chat": {"prompt": "messages", "max_tokens": "options.num_predict"},
    "/api/generate": {"prompt": "prompt", "max_tokens": "options.num_predict"},
}
ERRORS = [
    *[
        (path, InvalidRequest("bad", field), 400, word)
        for path in FIELDS
        for field, word in FIELDS[path].items()
    ],
    *[(path, Unsupported("no", "rule"), 400, "rule") for path in FIELDS],
    *[(path, NotFound("gone"), 404, None) for path in FIELDS],
    *[(path, Unauthorized("who"), 401, None) for path in FIELDS],
    *[(path, Overloaded("full", retry_after=2.5), 429, None) for path in FIELDS],
    *[(path, Unreachable("down"), 503, None) for path in FIELDS],
    *[(path, EngineError("broken"), 500, None) for path in FIELDS],
    *[(path, ValueError("secret"), 500, None) for path in FIELDS],
]
TYPES = {  # of errors of /v1/messages
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error",
    500: "api_error", 503: "overloaded_error",
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "error", "status", "field"), ERRORS)
def test_errors_before_the_first_word_have_a_status(path, error, status, field, stream):
    backend = FakeBackend(error, fail_after=0)
    response = call(backend, path, {"model": "tiny", **PROMPTS[path], "stream": stream})
    assert response.status_code == status and backend.closed == 1
    assert response.headers.get("retry-after") == {429: "3", 503: "1"}.get(status)
    told = response.json()["error"]
    words = "internal error" if isinstance(error, ValueError) else str(error)
    if "param" in told:
        assert told["param"] == field and told["message"].startswith(words)
    else:
        text = told if path.startswith("/api") else told["message"]
        assert text.startswith(f"{field}: {words}" if field else words)
    assert path != "/v1/messages" or told["type"] == TYPES[status]
    assert "secret" not in response.text


TEXTS = ["", "Hello, world!", "  two\n\nlines ", "naïve 😀 你好", "<|user|>hi<|end|>"]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_become_tokens_and_texts_again(text):
    backend = FakeBackend()
    asked = {"prompt": text, "return_token_strs": True}
    told = call(backend, "/tokenize", asked).json()
    assert told["tokens"] == list(backend.tokenizer.encode(text))
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert told["max_model_len"] == backend.info.limits.context_length
    back = call(backend, "/detokenize", {"tokens": told["tokens"]}).json()
    assert back == {"prompt": text, "content": text}  # tiny adds no special token
    assert call(backend, "/tokenize", {"content": text}).json()["tokens"] == told["tokens"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tokenize", {"prompt": ["a", "b"]}, "prompt"),
        ("/tokenize", {"prompt": "x" * 70_000}, "prompt"),
        ("/tokenize", {"prompt": "a", "pieces": True}, "pieces"),
        ("/detokenize", {"tokens": "5"}, "tokens"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens"),
        ("/tokenize", {}, "prompt"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_has_no_tokens_is_refused_by_name(path, body, field):
    reply = call(FakeBackend(), path, body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, field)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/api/embed", "/api/embeddings"])
def test_embeddings_are_refused_with_the_reason_and_the_way(path):
    reply = call(FakeBackend(), path, {"model": "tiny", "input": "hi"})
    assert reply.status_code in (400, 501)
    assert "the target writes text and gives none; run a server with an embedding model" in reply.text
