"""Ollama's API of real processes: the official Python client, and what Open WebUI and Home Assistant send."""

import json

import httpx
import pytest

from tests.conformance.system import KEY, device
from tests.ollama_bodies import CHATS, HOME_CHATS, MODEL, TURN_ON, WEBUI_GENERATE, WEBUI_UNLOAD

# It starts real processes; tests/test_ollama.py has the same bodies over a fake
pytestmark = pytest.mark.long
BEARER = {"Authorization": f"Bearer {KEY}"}
QUESTION = [{"role": "user", "content": "How many days are 17 weeks?"}]
GREEDY = {"temperature": 0, "num_predict": 12}
SCHEMA = {
    "type": "object",
    "properties": {"days": {"enum": ["a few", "many"]}},
    "required": ["days"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with device(tmp_path_factory.mktemp("keys")) as url:
        yield url


@pytest.fixture(scope="module")
def ollama():
    return pytest.importorskip("ollama", reason="the official client is not installed: pip install ollama")


@pytest.fixture
def client(ollama, url):
    return ollama.Client(host=url, headers=BEARER, timeout=60)


def post(url, path, body):
    return httpx.post(url + path, json=body, headers=BEARER, timeout=60)


def openai_text(url):
    """The same chat through the OpenAI API of the device."""
    body = {"model": "tiny", "messages": QUESTION, "temperature": 0, "max_tokens": 12}
    return post(url, "/v1/chat/completions", body).json()["choices"][0]["message"]["content"]


def test_both_apis_give_the_same_text(url):
    body = {"model": MODEL, "messages": QUESTION, "options": GREEDY}
    whole = post(url, "/api/chat", {**body, "stream": False}).json()
    assert whole["message"]["content"] == openai_text(url)
    assert 0 < whole["prompt_eval_duration"] <= whole["total_duration"] and whole["prompt_eval_count"] > 0
    *pieces, last = [json.loads(line) for line in post(url, "/api/chat", body).text.splitlines()]
    assert "".join(piece["message"]["content"] for piece in pieces) == openai_text(url)
    assert last["eval_count"] == whole["eval_count"]


@pytest.mark.parametrize("name", CHATS)
def test_the_bodies_of_other_programs_are_served(url, name):
    body = CHATS[name]
    limited = {**body, "options": {"num_predict": 24, **body["options"]}} if "options" in body else body
    response = post(url, "/api/chat", limited)
    assert response.status_code == 200, response.text
    replies = [json.loads(line) for line in response.text.splitlines()]
    assert replies[-1]["done"] and replies[-1]["eval_count"] > 0


def test_generate_and_unload(url):
    replies = [json.loads(line) for line in post(url, "/api/generate", WEBUI_GENERATE).text.splitlines()]
    assert replies[-1]["eval_count"] == 8 or replies[-1]["done_reason"] == "stop"
    assert post(url, "/api/generate", WEBUI_UNLOAD).json()["done_reason"] == "unload"


def test_the_official_client_chats_and_streams(client, url):
    reply = client.chat(model=MODEL, messages=QUESTION, options=GREEDY)
    assert reply.message.content == openai_text(url) and reply.eval_count > 0 and reply.total_duration > 0
    pieces = list(client.chat(model="tiny", messages=QUESTION, options=GREEDY, stream=True))
    assert "".join(piece.message.content for piece in pieces) == openai_text(url)
    assert pieces[-1].done and pieces[-1].done_reason == reply.done_reason
    written = client.generate(model="tiny", prompt=QUESTION[0]["content"], options=GREEDY)
    assert written.response == openai_text(url)
    raw = client.generate(model="tiny", prompt="def add(a, b):", raw=True, options=GREEDY, stream=True)
    assert list(raw)[-1].eval_count == 12


def test_the_official_client_asks_for_a_schema(client):
    reply = client.chat(model="tiny", messages=QUESTION, format=SCHEMA, options={"temperature": 0})
    assert json.loads(reply.message.content)["days"] in ("a few", "many")


def test_the_official_client_calls_tools(client):
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first number
            b: the second number
        """
        return a + b

    messages = [*HOME_CHATS["a command"]["messages"]]
    options = {**GREEDY, "num_predict": 60}
    reply = client.chat(model="tiny", messages=messages, tools=[TURN_ON], options=options)
    made = reply.message.tool_calls
    assert made and all(call.function.name == "HassTurnOn" for call in made)
    assert all(isinstance(call.function.arguments, dict) for call in made)
    messages += [
        reply.message,
        *({"role": "tool", "tool_name": call.function.name, "content": "ok"} for call in made),
    ]
    again = client.chat(model="tiny", messages=messages, tools=[TURN_ON, add], options=GREEDY)
    assert again.done


def test_the_official_client_lists_and_shows(client):
    (listed,) = client.list().models
    (running,) = client.ps().models
    shown = client.show(listed.model)
    assert listed.model == running.model == MODEL and listed.modified_at.tzinfo
    assert "completion" in shown.capabilities and shown.modelinfo["opensled.context_length"] > 0


def test_the_official_client_sees_errors(client, ollama, url):
    for fields, status in (({"model": "other"}, 404), ({"model": "tiny", "think": True}, 400)):
        with pytest.raises(ollama.ResponseError) as caught:
            client.chat(messages=QUESTION, **fields)
        assert caught.value.status_code == status and isinstance(caught.value.error, str)
    with pytest.raises(ollama.ResponseError) as caught:
        ollama.Client(host=url).list()
    assert caught.value.status_code == 401 and "API key" in caught.value.error


async def test_the_official_client_without_threads(ollama, url):
    api = ollama.AsyncClient(host=url, headers=BEARER)
    stream = await api.chat(model="tiny", messages=QUESTION, options=GREEDY, stream=True)
    assert "".join([piece.message.content async for piece in stream]) == openai_text(url)
