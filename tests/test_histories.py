"""What a history has that nothing here reads: a line of text in its place, by every API; the user's latest is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from http_api.bodies import IGNORED_HEADER
from opensled.core.errors import InvalidRequest
from opensled.core.images import MAX_IMAGES, ImageFacts
from tests.fake_backend import FakeBackend, call
from tests.message_cases import PDF, called
from tests.test_image_requests import DATA, TEXT, URL

FACTS = ImageFacts(token_id=3, rows=9)
CHAT, RESPONSES, MESSAGES, COUNT, OLLAMA = (
    "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/api/chat",
)  # fmt: skip
HI, OK = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "ok"}
BLIND, BROKEN = "[picture omitted: this model reads text]", "[picture omitted: it cannot be read here]"
SHOWN = {"type": "image_url", "image_url": {"url": URL}}
INPUT = {"type": "input_image", "image_url": URL}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}}
FILE = {"type": "file", "file": {"filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}}
FOUND = {
    "type": "web_search_result",
    "url": "https://g.example",
    "title": "Beds",
    "encrypted_content": "eA" * 200,
}
ITEM = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
MADE = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]}


def asked(path: str, turns: list[Any], **info: Any) -> tuple[FakeBackend, Any]:
    backend = FakeBackend(**info)
    field = "input" if path == RESPONSES else "messages"
    body = {"model": "tiny", "stream": False, field: turns}
    return backend, call(backend, path, body)


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


# Parts of an earlier turn of the user, or of an answer, and the text that is read of them.
PARTS: list[tuple[str, str, dict[str, Any], str]] = [
    *((path, "user", part, BLIND) for path, part in ((CHAT, SHOWN), (RESPONSES, INPUT), (MESSAGES, BLOCK),
                                                     (COUNT, BLOCK), (CHAT, BLOCK), (OLLAMA, SHOWN))),
    (CHAT, "user", {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
     "[input_audio omitted: it cannot be read here]"),
    (CHAT, "user", FILE, "[file: a.txt]\nhello"),
    (CHAT, "user", {"type": "file", "file": {"file_id": "f", "filename": "b.pdf"}},
     "[file b.pdf omitted: it cannot be read here]"),
    (RESPONSES, "user", {"type": "input_file", "filename": "a.md", "file_data": "aGVsbG8="}, "[input_file: a.md]\nhello"),
    (RESPONSES, "user", {"type": "input_file", "file_url": "https://g.example/a.pdf"},
     "[input_file omitted: it cannot be read here]"),
    (MESSAGES, "user", PDF, "[document omitted: it cannot be read here]"),
    (MESSAGES, "user", {"type": "document", "title": "b", "source": {"type": "text", "data": "Bed 7."}},
     "[document: b]\nBed 7."),
    (MESSAGES, "user", {"type": "document", "source": {"type": "content", "content": [text("Bed 7."), BLOCK]}},
     f"[document]\nBed 7.\n{BLIND}"),
    (MESSAGES, "user", {"type": "document", "source": {"type": "base64", "data": "//5oAGkA"}}, "[document]\nhi"),
    (MESSAGES, "user", {"type": "search_result", "source": "https://g", "title": "T", "content": [text("found")]},
     "[search_result: T https://g]\nfound"),
    (MESSAGES, "user", {"type": "container_upload", "file_id": "f"}, "[container_upload omitted: it cannot be read here]"),
    (MESSAGES, "assistant", {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "beds"}},
     "[server_tool_use: web_search beds]"),
    (COUNT, "assistant", {"type": "web_search_tool_result", "tool_use_id": "s", "content": [FOUND]},
     "[web_search_tool_result: https://g.example Beds]"),
    (MESSAGES, "assistant", {"type": "mcp_tool_result", "tool_use_id": "m", "content": [text("3 beds")]},
     "[mcp_tool_result: 3 beds]"),
    (MESSAGES, "assistant", {"type": "code_execution_tool_result", "content": {"stdout": "1", "return_code": 0}},
     "[code_execution_tool_result: 1]"),
    (MESSAGES, "assistant", {"type": "compaction", "content": "Of beds."}, "[compaction: Of beds.]"),
    (MESSAGES, "assistant", {"type": "fallback", "from": {"model": "a"}}, ""),
    (MESSAGES, "assistant", {"type": "of 2031!", "x": {"y": ["z"]}}, "[of?2031?: z]"),
    (CHAT, "assistant", {"type": "audio", "audio": {"id": "a"}}, "[audio omitted: it cannot be read here]"),
    (RESPONSES, "assistant", {"type": "refusal", "refusal": "No."}, "No."),
]  # fmt: skip


@pytest.mark.parametrize(("path", "role", "part", "read"), PARTS, ids=range(len(PARTS)))
def test_a_part_of_an_earlier_turn_is_read_or_becomes_a_line(path, role, part, read):
    backend, answer = asked(path, [HI, {"role": role, "content": [part, text("?")]}, OK, HI])
    assert answer.status_code == 200, answer.text
    assert backend.tasks[0].prompt[1].content == (f"{read}\n?" if read and read != "No." else f"{read}?")
    assert ("type" in answer.headers.get(IGNORED_HEADER, "")) == ("omitted" in read or not read)


@pytest.mark.parametrize(
    ("path", "part"), [row[::2] for row in PARTS if row[1] == "user" and "omitted" in row[3]]
)
def test_what_the_user_has_just_said_is_refused_if_it_cannot_be_read(path, part):
    backend, answer = asked(path, [HI, OK, {"role": "user", "content": [text("?"), part]}])
    field = "input" if path == RESPONSES else "messages"
    assert answer.status_code == 400 and f"{field}[2].content[1]" in answer.text and not backend.tasks


# Items of a response behind "Hi", and the texts of the turns that are read.
ITEMS: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([{"type": "file_search_call", "queries": ["q"], "results": [{"file_id": "f", "text": "a bed"}]}, OK],
     ["[file_search_call: q a bed]\nok"]),
    ([{"type": "code_interpreter_call", "code": "1", "outputs": [{"type": "logs", "logs": "2"}]}],
     ["[code_interpreter_call: 1 2]"]),
    ([{"type": "image_generation_call", "result": TEXT}], [BLIND]),
    ([{"type": "computer_call", "call_id": "c", "action": {"type": "click"}},
      {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": URL}}],
     ["[computer_call omitted: it cannot be read here]", BLIND]),
    ([{"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}},
      {"type": "local_shell_call_output", "call_id": "c", "output": "a"}], ["[local_shell_call: ls]", "a"]),
    ([{"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "outcome": {"type": "exit"}}]}], ["a"]),
    ([{"type": "mcp_call", "name": "beds", "arguments": "{}", "output": "3"}], ["[mcp_call: beds {} 3]"]),
    ([{"type": "mcp_list_tools", "tools": [{"name": "beds"}]}], []),
    ([{"type": "item_reference", "id": "i"}, OK], ["[item_reference omitted: it cannot be read here]\nok"]),
    ([{"type": "of_2031", "x": "y"}, OK], ["[of_2031: y]\nok"]),
    ([ITEM, {"type": "custom_tool_call_output", "call_id": "c", "output": [INPUT]}], ["", BLIND]),
]  # fmt: skip


@pytest.mark.parametrize(("items", "read"), ITEMS, ids=range(len(ITEMS)))
def test_items_of_other_services_are_told(items, read):
    backend, answer = asked(RESPONSES, [HI, *items, HI])
    assert answer.status_code == 200, answer.text
    assert [turn.content for turn in backend.tasks[0].prompt[1:-1]] == read


# Whose picture a model that sees is shown, and in which turn; the last turn has no words of the user.
SEEN: list[tuple[str, list[Any], int]] = [
    (CHAT, [HI, MADE, {"role": "tool", "tool_call_id": "c", "content": [text("taken"), SHOWN]}], 3),
    (CHAT, [HI, {**OK, "images": [SHOWN]}, HI], 2),
    (CHAT, [{"role": "system", "content": [SHOWN]}, HI], 1),
    (RESPONSES, [HI, ITEM, {"type": "function_call_output", "call_id": "c", "output": [INPUT]}], 3),
    (RESPONSES, [HI, {"type": "image_generation_call", "result": TEXT}, OK, HI], 2),
    (MESSAGES, called([BLOCK]), 3),
    (MESSAGES, called([{"type": "document", "source": {"type": "content", "content": [BLOCK]}}]), 3),
    (OLLAMA, [HI, MADE, {"role": "tool", "tool_name": "look", "content": "taken", "images": [TEXT]}], 3),
]  # fmt: skip


@pytest.mark.parametrize(("path", "turns", "place"), SEEN, ids=range(len(SEEN)))
def test_a_model_that_sees_is_shown_pictures_of_tools_and_answers(path, turns, place):
    backend, answer = asked(path, turns, images=FACTS)
    assert answer.status_code == 200, answer.text
    shown = [
        (index, each.image.data) for index, turn in enumerate(backend.tasks[0].prompt) for each in turn.images
    ]
    assert shown == [(place, DATA)] and backend.tasks[0].prompt[place].role == "user"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, OLLAMA])
def test_pictures_that_are_broken_or_too_many_end_no_session(path):
    turn = {
        "role": "user",
        "content": [text("a"), SHOWN, {**SHOWN, "image_url": "https://g.example/a.png"}, text("b")],
    }
    backend, answer = asked(path, [*[turn] * (MAX_IMAGES + 1), OK, HI], images=FACTS)
    assert answer.status_code == 200, answer.text
    first, second, *_ = backend.tasks[0].prompt
    assert "a[picture omitted: this model takes no more" in first.content and not first.images
    assert second.content == f"a\n{BROKEN}\nb" and [each.offset for each in second.images] == [1]


def test_a_document_beside_the_result_of_a_tool_came_with_it():
    turns = called("read")
    turns[-1]["content"].append(PDF)
    assert asked(MESSAGES, turns)[1].status_code == 200


LINE = "x-anthropic-billing-header: cc_version=2.1.63; cch={};"


@pytest.mark.parametrize("end", ["\n\n", "\r\n", "", " "])
@pytest.mark.parametrize(
    ("path", "field"),
    [
        (CHAT, ""),
        (OLLAMA, ""),
        (RESPONSES, "instructions"),
        (MESSAGES, "system"),
        ("/api/generate", "system"),
    ],
)
def test_a_line_of_accounting_before_the_rules_is_left_out(path, field, end):
    for line in (LINE.format("a1"), LINE.format("b2").title(), "X-Litellm-Session-Id: 7\n", "x-axis: time\n"):
        backend, rules = FakeBackend(), f"{line}{end}Be brief.\nx-request-id: 5"
        prompt = {"/api/generate": "prompt", RESPONSES: "input"}.get(path)
        turns = [*([] if field else [{"role": "system", "content": rules}]), HI]
        body = {
            "stream": False,
            **({prompt: "Hi"} if prompt else {"messages": turns}),
            **({field: rules} if field else {}),
        }
        answer = call(backend, path, body)
        kept = rules if line.startswith("x-axis") else "Be brief.\nx-request-id: 5"
        assert answer.status_code == 200 and backend.tasks[0].prompt[0].content == kept
        assert (kept == rules) or line.partition(":")[0].lower() in answer.headers[IGNORED_HEADER]


# By API, fields with bad values, as it spells them; words that are of other APIs.
FAULTS: dict[str, tuple[list[tuple[dict[str, Any], str]], str]] = {
    OLLAMA: ([
        ({"messages": [{**HI, "images": [TEXT, "AAAA"]}]}, "messages[0].images[1]"),
        ({"messages": [{**HI, "images": ["https://g.example/a.png"]}]}, "messages[0].images[0]"),
        ({"messages": [{"role": "tool", "tool_name": 3}]}, "messages[0].tool_name"), ({"think": 3}, "think"),
        ({"options": {"num_predict": -3}}, "options.num_predict"), ({"format": "xml"}, "format"),
        ({"options": {"repeat_penalty": 9}}, "options.repeat_penalty"), ({"options": {"stop": 3}}, "options.stop"),
    ], r"image_url|content\[|max_tokens|prompt_logprobs|repetition|response_format"),
    "/api/generate": ([
        ({"images": ["AAAA"]}, "images[0]"), ({"images": [TEXT, "AAAA"], "system": "s"}, "images[1]"),
        ({"images": [TEXT] * (MAX_IMAGES + 1)}, f"images[{MAX_IMAGES}]"), ({"images": [TEXT], "raw": True}, "images"),
        ({"system": 3}, "system"), ({"prompt": 3}, "prompt"), ({"template": "a"}, "template"),
    ], r"image_url|content\[|messages|prompt is|reads no pictures|another path"),
    MESSAGES: ([
        ({"system": [{"type": "text"}]}, "system[0].text"), ({"max_tokens": 0}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{**BLOCK, "source": {"data": "AAAA"}}]}]},
         "messages[0].content[0].source.data"),
        ({"tools": [{"name": "f", "input_schema": 3}]}, "tools[0].input_schema"),
    ], r"image_url|prompt_logprobs|echo|function"),
    RESPONSES: ([
        ({"input": [{"role": "user", "content": [{**INPUT, "image_url": "data:,"}]}]}, "input[0].content[0].image_url"),
        ({"max_output_tokens": 0}, "max_output_tokens"), ({"instructions": 3}, "instructions"),
        ({"text": {"format": {"type": "json_schema", "name": "a", "schema": 3}}}, "text.format.schema"),
    ], r"messages|prompt_logprobs|echo|response_format"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("path", "fields", "named"), [(path, *row) for path, (rows, _) in FAULTS.items() for row in rows]
)
def test_an_error_names_the_field_that_the_client_wrote(path, fields, named):
    prompt = {"/api/generate": {"prompt": "Hi"}, RESPONSES: {"input": "Hi"}}.get(path, {"messages": [HI]})
    answer = call(FakeBackend(images=FACTS), path, {**prompt, **fields})
    error = answer.json()["error"]
    told = error if isinstance(error, str) else error["message"]
    assert answer.status_code == 400 and re.search(
        rf"^{re.escape(named)}\b|\b{re.escape(named)}[ :]", told
    ), told
    assert not re.search(FAULTS[path][1], told), told


# What a server says of the fields of `Open`, and the field that the client hears of.
SAID = [
    ("images", "an image cannot be decoded"),
    ("max_tokens", "max_tokens is out of range"),
    ("prompt", "is too long"),
]
HEARD = {
    CHAT: "messages max_completion_tokens messages", RESPONSES: "input max_output_tokens input",
    MESSAGES: "messages max_tokens messages", OLLAMA: "images options.num_predict messages",
    "/api/generate": "images options.num_predict prompt",
}  # fmt: skip


@pytest.mark.parametrize("path", HEARD)
def test_what_a_server_refuses_is_named_as_the_client_wrote_it(path):
    prompt = {"/api/generate": {"prompt": "Hi"}, RESPONSES: {"input": "Hi"}}.get(path, {"messages": [HI]})
    for (field, said), heard in zip(SAID, HEARD[path].split(), strict=True):
        answer = call(
            FakeBackend(InvalidRequest(said, field), fail_after=0), path, {**prompt, "stream": False}
        )
        error = answer.json()["error"]
        told = error if isinstance(error, str) else f"{error.get('param')} {error['message']}"
        assert answer.status_code == 400 and heard in told and ("max_tokens" not in told or heard == field), (
            told
        )
