"""What clients of the API get of a server that is away: comments that keep a stream open, and labels."""

import json

import pytest

from http_api.responses import LOCAL_HEADER
from tests.fake_backend import HELLO, PATH, AwayBackend, FakeBackend, ask, call, comments_of, post


def chunks_of(response):
    """Each event has data, also one with a comment."""
    data = [part.split("data: ")[1] for part in response.text.split("\n\n") if part]
    assert data.pop() == "[DONE]"
    return [json.loads(line) for line in data]


def test_a_stream_is_kept_open_by_comments_and_holds_confirmed_text_only():
    response = ask(AwayBackend(), stream=True)
    comments = comments_of(response)
    assert 1 <= len(comments) <= 3, "not with every look"
    assert all(comment.startswith(": waiting for the server, ") for comment in comments)
    assert comments[0].endswith("0 s") and comments == sorted(set(comments))
    deltas = [choice["delta"].get("content", "") for c in chunks_of(response) for choice in c["choices"]]
    assert "".join(deltas) == "Hello there" and "guess" not in response.text


def test_heartbeats_can_be_turned_off():
    assert ": waiting" not in ask(AwayBackend(), heartbeat=0, stream=True).text
    assert ": waiting" not in ask(AwayBackend(), heartbeat=60, stream=True).text


@pytest.mark.parametrize("kind", ["chat.completion", "text_completion"])
def test_whole_answers_just_wait(kind):
    if kind == "chat.completion":
        answer = ask(AwayBackend()).json()
        assert answer["choices"][0]["message"]["content"] == "Hello there"
    else:
        answer = post(AwayBackend(), "/v1/completions", {"model": "tiny", "prompt": "Hi"}).json()
        assert answer["choices"][0]["text"] == "Hello there"
    assert answer["object"] == kind and answer["usage"]["opensled"]["rule"] == "match"


def test_the_draft_models_own_words_are_labelled():
    response = ask(AwayBackend(looks=0, local=(0, 1)))
    answer = response.json()
    assert response.headers[LOCAL_HEADER] == "local-only"
    assert answer["system_fingerprint"].endswith("/draft-model/local-only")
    assert answer["model"] == "draft-alone/tiny"
    assert answer["usage"]["opensled"]["rule"] == "local-only"
    assert answer["usage"]["opensled"]["local_tokens"] == 2
    usual = ask(AwayBackend(looks=0))
    assert LOCAL_HEADER not in usual.headers and usual.json()["usage"]["opensled"]["local_tokens"] == 0
    assert usual.json()["system_fingerprint"].endswith("/match")


def test_in_a_stream_the_label_comes_with_the_first_word_of_its_own():
    response = ask(AwayBackend(looks=0, local=(1,)), stream=True)
    labels = [chunk["system_fingerprint"].rsplit("/")[-1] for chunk in chunks_of(response)]
    assert labels == ["match"] * 2 + ["local-only"] * (len(labels) - 2) and len(labels) > 3
    assert LOCAL_HEADER not in response.headers, "it had gone out before"
    names = [chunk["model"] for chunk in chunks_of(response)]
    assert names == ["tiny"] * 2 + ["draft-alone/tiny"] * (len(names) - 2)
    response = ask(AwayBackend(looks=0, local=(0, 1)), stream=True)
    assert response.headers[LOCAL_HEADER] == "local-only"


ALONE = "draft-alone/tiny"


def asked_for(name, path=PATH, writes_alone=True):
    """What a device is asked that may answer alone; or the refusal."""
    backend = AwayBackend(looks=0, local=(0, 1))
    backend.writes_alone = writes_alone
    body = {"model": name, "messages": HELLO, "input": "Hi", "prompt": "Hi", "stream": False}
    fields = {"/v1/responses": ("model", "input"), "/v1/completions": ("model", "prompt")}
    wanted = fields.get(path, ("model", "messages", *(["stream"] if path.startswith("/api") else [])))
    response = call(backend, path, {field: body[field] for field in wanted})
    return response, [task.alone for task in backend.tasks]


@pytest.mark.parametrize("path", [PATH, "/v1/completions", "/v1/responses", "/api/chat"])
def test_the_draft_model_alone_has_a_name_that_can_be_asked(path):
    response, alone = asked_for(ALONE, path)
    assert response.status_code == 200 and alone == [True] and response.json()["model"] == ALONE
    assert asked_for("tiny", path)[1] == [False]
    assert asked_for(ALONE, path, writes_alone=False)[0].status_code == 404


def test_its_name_is_listed_where_it_may_answer():
    backend = FakeBackend()
    for listed in ([], [ALONE]):
        backend.writes_alone = bool(listed)
        cards = call(backend, "/v1/models", method="GET").json()["data"]
        assert [card["id"] for card in cards] == ["tiny", *listed]
        tags = call(backend, "/api/tags", method="GET").json()["models"]
        assert [tag["name"] for tag in tags] == ["tiny:latest", *(f"{name}:latest" for name in listed)]
        assert call(backend, f"/v1/models/{ALONE}", method="GET").status_code == (200 if listed else 404)
    assert call(backend, "/api/show", {"model": f"{ALONE}:latest"}).status_code == 200
