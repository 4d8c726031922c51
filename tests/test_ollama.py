"""Ollama's API over a fake backend: raw HTTP, no client needed."""

import asyncio
import json
import re

import httpx
import pytest

from http_api.app import build_app
from http_api.bodies import MAX_CHAT_BODY
from http_api.calls import CallReader
from http_api.guard import Access
from http_api.ollama.whole_calls import WholeCalls
from opensled.core.answer import Chunk
from opensled.core.errors import Unreachable
from opensled.core.messages import ChatMessage, Tool, ToolCall
from opensled.text.call_forms import TAGGED
from tests.fake_backend import HELLO, STATS, WORDS, FakeBackend, call, chat, through
from tests.ollama_bodies import CHATS, TURN_ON, WEBUI_GENERATE, WEBUI_UNLOAD

TEXT = "".join(WORDS)


def ask(backend, path="/api/chat", **fields):
    return call(backend, path, {"model": "tiny", **fields})


def lines(response):
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def refusal(response, status=400):
    assert response.status_code == status, response.text
    told = response.json()
    assert set(told) == {"error"} and isinstance(told["error"], str)
    return told["error"]


def test_a_chat_streams_unless_told_otherwise():
    *pieces, last = lines(ask(FakeBackend(), messages=HELLO))
    assert [piece["message"]["content"] for piece in pieces] == ["Hello", " wörld", " 👍"]
    assert all(piece["done"] is False and piece["model"] == "tiny" for piece in pieces)
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")


def test_a_whole_answer_has_the_figures_in_nanoseconds(monkeypatch):
    monkeypatch.setattr(STATS, "seconds", 3.0)
    monkeypatch.setattr(STATS, "first_token", 1.25)
    response = ask(FakeBackend(reason="length"), messages=HELLO, stream=False)
    reply = response.json()
    assert response.headers["content-type"] == "application/json"
    assert reply["message"] == {"role": "assistant", "content": TEXT} and reply["created_at"].endswith("Z")
    figures = {"total_duration": 3_000_000_000, "load_duration": 0, "prompt_eval_count": 7,
               "prompt_eval_duration": 1_250_000_000, "eval_count": 4, "eval_duration": 1_750_000_000}  # fmt: skip
    assert {name: reply[name] for name in figures} == figures
    assert (reply["done"], reply["done_reason"], reply["opensled"]["rule"]) == (True, "length", "match")


@pytest.fixture
def backend():
    return FakeBackend()


def test_generate_is_a_chat_of_system_and_prompt(backend):
    *pieces, last = lines(ask(backend, "/api/generate", prompt="Hi", system="Be brief."))
    assert "".join(piece["response"] for piece in pieces) == TEXT and last["response"] == ""
    assert backend.asked[0][0] == (ChatMessage("system", "Be brief."), ChatMessage("user", "Hi"))


@pytest.mark.parametrize(("info", "raw"), [({}, True), ({"has_chat_template": False}, False)])
def test_a_prompt_as_it_is(info, raw):
    backend = FakeBackend(**info)
    assert ask(backend, "/api/generate", prompt="Hi", raw=raw, stream=False).json()["response"] == TEXT
    prompt, params, _ = backend.asked[0]
    assert (prompt, params.max_tokens) == ("Hi", 1024)
    assert "system" in refusal(ask(backend, "/api/generate", prompt="Hi", system="a", raw=raw))
    assert "format" in refusal(ask(backend, "/api/generate", prompt="Hi", format="json", raw=raw))


def test_every_option_reaches_the_backend():
    options = {"temperature": 0.5, "top_k": 5, "top_p": 0.7, "seed": 3, "num_predict": 9, "stop": ["a", "b"]}
    penalties = {"presence_penalty": 0.1, "frequency_penalty": 0.2, "repeat_penalty": 1.1, "min_p": 0.05}
    backend = FakeBackend()
    ask(backend, messages=HELLO, options={**options, **penalties, "repeat_last_n": -1})
    _, params, stop = backend.asked[0]
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.5, 5, 0.7, 3)
    assert (params.max_tokens, stop) == (9, ("a", "b"))
    assert (params.presence_penalty, params.frequency_penalty) == (0.1, 0.2)
    assert (params.repetition_penalty, params.min_p) == (1.1, 0.05)


@pytest.mark.parametrize(
    "options", [None, {}, {"seed": -1, "num_predict": -1}, {"num_predict": -2, "seed": None}]
)
def test_without_options_ollama_s_defaults_hold(options, backend):
    ask(backend, messages=HELLO, options=options)
    params = backend.asked[0][1]
    assert (params.temperature, params.top_k, params.top_p, params.seed) == (0.8, 40, 0.9, None)
    assert params.max_tokens == 1024


@pytest.mark.parametrize(("format", "schema"), [("json", "{}"), ({"type": "object"}, '{"type": "object"}')])
def test_a_format_guides_the_answer(format, schema, backend):
    for path, prompt in (("/api/chat", {"messages": HELLO}), ("/api/generate", {"prompt": "Hi"})):
        ask(backend, path, format=format, **prompt)
    assert [json.loads(task.guide.json_schema) for task in backend.tasks] == [json.loads(schema)] * 2
    ask(backend, messages=HELLO, format="")
    assert backend.tasks[-1].guide is None


def test_calls_get_ids_and_results_find_their_calls(backend):
    made = [{"function": {"name": name, "arguments": {"a": "ü"}}} for name in ("f", "g")]
    turns = [*HELLO, {"role": "assistant", "tool_calls": made}, {"role": "tool", "content": "1"},
             {"role": "tool", "content": "2", "tool_name": "g"}, {"role": "tool", "content": "3"}]  # fmt: skip
    assert ask(backend, messages=turns).status_code == 200
    _, calls, *results = backend.asked[0][0]
    assert calls.tool_calls == tuple(ToolCall(f"call_{i}", n, '{"a": "ü"}') for i, n in ((1, "f"), (2, "g")))
    assert [(turn.tool_call_id, turn.name) for turn in results] == [("call_1", ""), ("call_2", "g"), ("", "")]


CALLED = (
    "Look: ",
    '<tool_call>\n{"name": "HassTurnOn", "argum',
    'ents": {"name": "kit',
    'chen"}}',
    "\n</tool_call>",
)
MADE = {"index": 0, "name": "HassTurnOn", "arguments": {"name": "kitchen"}}


def test_a_call_of_a_tool_is_sent_whole():
    *pieces, last = lines(ask(FakeBackend(words=CALLED), messages=HELLO, tools=[TURN_ON]))
    text, called = (piece["message"] for piece in pieces)
    assert text["content"].strip() == "Look:" and called["content"] == ""
    assert [made["function"] for made in called["tool_calls"]] == [MADE] and called["tool_calls"][0]["id"]
    assert last["done_reason"] == "stop"
    reply = ask(FakeBackend(words=CALLED), messages=HELLO, tools=[TURN_ON], stream=False).json()
    assert [made["function"] for made in reply["message"]["tool_calls"]] == [MADE]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('{"name":"f","arguments":{"a": "b', '{"name": "f", "arguments": {"a": "b'),
        ('<tool_call>{"name":"f","arguments":{"a": "b', '{"name": "f", "arguments": {"a": "b'),
        ('{"name":"f","arguments":{"a": NaN}}', '{"name": "f", "arguments": {"a": NaN}}'),
        ('{"name":"f","arguments":{"a": 1e999}}', '{"name": "f", "arguments": {"a": 1e999}}'),
        ('{"name":"f","arguments":{"a" 1}}', '{"name": "f", "arguments": {"a" 1}}'),
    ],
)
def test_a_call_that_is_cut_off_or_no_json_is_text(written, text):
    assert WholeCalls(CallReader([Tool("f")], TAGGED)).push(written, True) == [text]


def test_logprobs():
    *pieces, _ = lines(ask(FakeBackend(), messages=HELLO, logprobs=True, top_logprobs=2))
    entries = [entry for piece in pieces for entry in piece["logprobs"]]
    assert len(entries) == len(WORDS) and all(len(entry["top_logprobs"]) == 2 for entry in entries)
    raw = ask(FakeBackend(), "/api/generate", prompt="Hi", raw=True, logprobs=True, stream=False).json()
    assert [entry["token"] for entry in raw["logprobs"]] == [entry["token"] for entry in entries]
    told = refusal(ask(FakeBackend(), "/api/generate", prompt="Hi", raw=True, logprobs=True, top_logprobs=6))
    assert told.startswith("top_logprobs is out of range")


REFUSED = [
    ({"options": {"num_predict": -3}}, "options.num_predict"),
    ({"options": {"temperature": "hot"}}, "options.temperature"),
    ({"options": {"top_p": 1.5}}, "options.top_p"),
    ({"options": {"stop": ["a"] * 65}}, "options.stop"),
    ({"options": {"mirostat": 1}}, "options.mirostat"),
    ({"options": {"presence_penalty": 9}}, "options.presence_penalty"),
    ({"options": {"nonsense": 1}}, "options.nonsense"),
    ({"options": 3}, "options"),
    ({"format": "yaml"}, "format"),
    ({"format": {"type": "object", "x": float("nan")}}, "format"),
    ({"think": True}, "think"),
    ({"think": "high"}, "think"),
    ({"truncate": 1}, "truncate"),
    ({"keep_alive": [5]}, "keep_alive"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"nonsense": 1}, "nonsense"),
    ({"stream": 1}, "stream"),
]
REFUSED_CHAT = [
    ({"messages": [{"role": "user", "content": "Hi", "images": ["aGk="]}]}, "messages[0].images[0]"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ({"messages": [{"role": "robot", "content": ""}]}, "messages[0].role"),
    ({"messages": ["Hi"]}, "messages[0]"),
    ({"messages": "Hi"}, "messages"),
    ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]}]},
     "messages[0].tool_calls[0].function.arguments"),
    ({"tools": [{"type": 7}]}, "tools[0].type"),
    ({"tools": [TURN_ON, {"name": "HassTurnOn"}]}, "tools"),
]  # fmt: skip
REFUSED_GENERATE = [
    ({"suffix": "b"}, "suffix"),
    ({"template": "{{ .Prompt }}"}, "template"),
    ({"context": [1]}, "context"),
    ({"images": ["aGk="]}, "images"),
    ({"prompt": 3}, "prompt"),
]


@pytest.mark.parametrize(
    ("path", "fields", "name"),
    [
        *(("/api/chat", *case) for case in [*REFUSED, *REFUSED_CHAT]),
        *(("/api/generate", *case) for case in [*REFUSED, *REFUSED_GENERATE]),
    ],
)
def test_what_is_not_served_is_refused_by_name(path, fields, name, backend):
    prompt = {"messages": HELLO} if path == "/api/chat" else {"prompt": "Hi"}
    content = json.dumps({"model": "tiny", **prompt, **fields})  # httpx itself writes no NaN
    told = refusal(call(backend, path, content=content, headers={"content-type": "application/json"}))
    assert name in told and not backend.tasks
    others = r"max_tokens|response_format|repetition_penalty|prompt_logprobs|image_url|content\["
    assert not re.search(
        others + ("|messages" if path == "/api/generate" and name != "context" else ""), told
    )


def test_the_model_with_its_tag_or_without(backend):
    for name in ("tiny", "tiny:latest"):
        assert lines(call(backend, "/api/chat", chat(model=name)))[0]["model"] == name
        assert call(backend, "/api/show", {"model": name}).status_code == 200
    for path, body in (("/api/chat", chat(model="other")), ("/api/generate", {"model": "tiny:7b", "prompt": "a"}),
                       ("/api/show", {"name": "other"})):  # fmt: skip
        assert "not found" in refusal(call(backend, path, body), 404)


@pytest.mark.parametrize(
    ("keep", "reason"), [(0, "unload"), ("0s", "unload"), ("5m", "load"), (None, "load")]
)
def test_without_a_prompt_nothing_is_asked(keep, reason, backend):
    for path, fields in (
        ("/api/generate", {"prompt": ""}),
        ("/api/chat", {"messages": []}),
        ("/api/chat", {}),
    ):
        reply = ask(backend, path, keep_alive=keep, **fields).json()
        assert (reply["done"], reply["done_reason"]) == (True, reason)
    assert not backend.tasks


# -- the service --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [Unreachable("the server is lost"), ValueError("secret")])
def test_an_error_midway_is_a_line(error):
    backend = FakeBackend(error, fail_after=2)
    *pieces, last = lines(ask(backend, messages=HELLO))
    assert pieces[-1]["message"]["content"] == "Hello" and list(last) == ["error"]
    assert "secret" not in last["error"] and backend.closed == 1


class AwayBackend(FakeBackend):
    """Its server is away after the first word."""

    async def _chunks(self, number, top):
        yield self._chunk("Hello", 40, top)
        for _ in range(2):
            await asyncio.sleep(0.01)
            yield Chunk("", (), waiting=1.0)
        yield self._chunk("", 0, top, self.reason, STATS)


@pytest.mark.parametrize(("heartbeat", "beats"), [(0.001, 2), (0, 0)])
def test_a_waiting_stream_sends_empty_lines_of_json(heartbeat, beats):
    app = build_app(AwayBackend(), heartbeat=heartbeat)
    *pieces, last = lines(through(app, "POST", "/api/chat", json=chat()))
    assert [piece["message"]["content"] for piece in pieces] == ["Hello", *[""] * beats] and last["done"]


async def test_an_ending_device_ends_the_answer():
    ending, backend = asyncio.Event(), FakeBackend(endless=True)
    app = build_app(backend, ending=ending)
    asyncio.get_running_loop().call_later(0.05, ending.set)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://edge") as client:
        response, closed = await client.post("/api/chat", json=chat()), backend.closed
    assert "shutting down" in lines(response)[-1]["error"] and closed == 1


def get(path, access=Access(), method="GET", **headers):
    return through(build_app(FakeBackend(), access), method, path, headers=headers)


def test_what_clients_probe():
    response = get("/")
    assert response.status_code == 200 and response.text == "Ollama is running"
    assert get("/", method="HEAD").status_code == 200
    version = get("/api/version").json()["version"]
    # open_webui/routers/ollama.py reads it like this and asks for 0.6.4, Codex with --oss for 0.13.4
    assert tuple(map(int, version.split("."))) >= (0, 13, 4)


def test_the_model_in_all_lists():
    (tag,) = get("/api/tags").json()["models"]
    (loaded,) = get("/api/ps").json()["models"]
    assert tag["name"] == tag["model"] == loaded["model"] == "tiny:latest"
    assert tag["digest"] == loaded["digest"] and len(tag["digest"]) == 64 and loaded["context_length"] == 1024
    shown = call(FakeBackend(), "/api/show", {"model": "tiny", "verbose": True}).json()
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 1024
    assert shown["capabilities"] == ["completion", "tools"]
    unguided = call(FakeBackend(capabilities=()), "/api/show", {"model": "tiny"}).json()
    assert unguided["capabilities"] == ["completion"]
    assert "nonsense" in refusal(call(FakeBackend(), "/api/show", {"nonsense": 1}))


@pytest.mark.parametrize("name", ["push", "create", "copy", "delete"])
def test_what_a_device_cannot_do_is_refused(name):
    assert f"/api/{name}" in refusal(call(FakeBackend(), f"/api/{name}", {"model": "other"}))


def test_the_model_that_is_here_need_not_be_pulled():
    for body in ({"model": "tiny"}, {"name": "tiny:latest", "insecure": False}):
        for stream in ({}, {"stream": True}, {"stream": False}):
            answer = call(FakeBackend(), "/api/pull", {**body, **stream})
            assert answer.json() == {"status": "success"}
    assert "'tiny' is served here" in refusal(call(FakeBackend(), "/api/pull", {"model": "llama3"}), 404)


def test_refusals_before_the_fields_are_read_speak_ollama_too():
    assert "/api/nothing" in refusal(get("/api/nothing"), 404)
    assert refusal(get("/api/chat"), 405)
    assert refusal(call(FakeBackend(), "/api/chat", content=b"{"))[0]
    assert refusal(call(FakeBackend(), "/api/chat", content=b" " * (MAX_CHAT_BODY + 1)), 413)
    plain = {"content-type": "text/plain"}
    assert refusal(call(FakeBackend(), "/api/chat", content=b"{}", headers=plain), 415)


def test_the_guards_are_those_of_the_other_routes():
    keyed = Access(("key-one",))
    for path in ("/api/tags", "/api/ps", "/api/version"):
        assert "API key" in refusal(get(path, keyed), 401)
        assert get(path, keyed, authorization="Bearer key-one").status_code == 200
        assert refusal(get(path, Access(local=True), host="evil.example"), 403)
        assert refusal(get(path, origin="https://evil.example"), 403)
    assert get("/", keyed).text == "Ollama is running"  # as of Ollama itself: who asks learns nothing else
    assert get("/", origin="https://evil.example").status_code == 403


@pytest.mark.parametrize("name", CHATS)
def test_what_open_webui_and_home_assistant_send_is_served(name):
    body = CHATS[name]
    response = call(FakeBackend(), "/api/chat", body)
    last = lines(response)[-1] if body["stream"] else response.json()
    assert last["done"] and last["model"] == body["model"]


def test_what_open_webui_generates_and_unloads_is_served():
    assert lines(call(FakeBackend(), "/api/generate", WEBUI_GENERATE))[-1]["done"]
    unloaded = call(FakeBackend(), "/api/generate", WEBUI_UNLOAD)
    assert unloaded.headers["content-type"] == "application/json"  # its client reads no other type
    assert unloaded.json()["done_reason"] == "unload"
