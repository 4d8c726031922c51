"""What nothing here reads of a history becomes a line of text, by every API; what the user has just said is refused."""

from typing import Any

import pytest

from http_api.left_out import IGNORED_HEADER
from opensled.core.errors import InvalidRequest
from opensled.core.images import MAX_IMAGES
from tests.fake_backend import FakeBackend, call
from tests.left_out_cases import PROMPTS
from tests.message_cases import PDF, called, user
from tests.vision_world import DATA, FACTS, TEXT, URL

CHAT, RESPONSES, MESSAGES, OLLAMA, GENERATE = (
    "/v1/chat/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate",
)  # fmt: skip
COUNT = f"{MESSAGES}/count_tokens"
HI, OK = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "ok"}
UNREAD = "omitted: it cannot be read here"
BLIND, BROKEN = "[picture omitted: this model reads text]", f"[picture {UNREAD}]"
SHOWN = {"type": "image_url", "image_url": {"url": URL}}
INPUT = {"type": "input_image", "image_url": URL}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}}
FOUND = {"type": "web_search_result", "url": "https://g", "title": "Beds", "encrypted_content": "eA" * 200}
ITEM = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "read"}  # of what stands beside it
MADE = {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "look", "arguments": "{}"}}]}


def asked(path: str, turns: list[Any], **info: Any) -> tuple[FakeBackend, Any]:
    backend = FakeBackend(**info)
    field = "input" if path == RESPONSES else "messages"
    return backend, call(backend, path, {"model": "tiny", "stream": False, field: turns})


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


# Parts of an earlier turn of the user, and of an answer, and the text that is read of them.
ASKED: list[tuple[str, dict[str, Any], str]] = [
    *((path, part, BLIND) for path, part in ((CHAT, SHOWN), (RESPONSES, INPUT), (MESSAGES, BLOCK), (COUNT, BLOCK),
                                             (CHAT, BLOCK), (OLLAMA, SHOWN))),
    (CHAT, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, f"[input_audio {UNREAD}]"),
    (CHAT, {"type": "file", "file": {"filename": "a", "file_data": "data:;base64,aGk="}}, "[file: a]\nhi"),
    (CHAT, {"type": "file", "file": {"file_id": "f", "filename": "b.pdf"}}, f"[file b.pdf {UNREAD}]"),
    (RESPONSES, {"type": "input_file", "filename": "a", "file_data": "aGk="}, "[input_file: a]\nhi"),
    (RESPONSES, {"type": "input_file", "file_url": "https://g/a.pdf"}, f"[input_file {UNREAD}]"),
    (MESSAGES, PDF, f"[document {UNREAD}]"), (MESSAGES, document(data="//5oAGkA"), "[document]\nhi"),
    (MESSAGES, {**document(type="text", data="Bed 7."), "title": "b"}, "[document: b]\nBed 7."),
    (MESSAGES, document(content=[text("Bed 7."), BLOCK]), f"[document]\nBed 7.\n{BLIND}"),
    (MESSAGES, {"type": "search_result", "source": "g", "content": [text("a")]}, "[search_result: g]\na"),
    (MESSAGES, {"type": "container_upload", "file_id": "f"}, f"[container_upload {UNREAD}]"),
]  # fmt: skip
ANSWERED: list[tuple[str, dict[str, Any], str]] = [
    (MESSAGES, {"type": "server_tool_use", "id": "s", "name": "web", "input": {"q": "a"}}, "[server_tool_use: web a]"),
    (COUNT, {"type": "web_search_tool_result", "content": [FOUND]}, "[web_search_tool_result: https://g Beds]"),
    (MESSAGES, {"type": "mcp_tool_result", "content": [text("3 beds")]}, "[mcp_tool_result: 3 beds]"),
    (MESSAGES, {"type": "code_execution_tool_result", "content": {"stdout": "1"}}, "[code_execution_tool_result: 1]"),
    (MESSAGES, {"type": "mcp_tool_result", "is_error": False, "structuredContent": {"temp": 21.5, "open": False}},
     "[mcp_tool_result: temp 21.5 open false]"),
    (CHAT, {"type": "result", "toolCallId": "c", "n": [1, 2]}, "[result: n 1 n 2]"),
    (MESSAGES, {"type": "compaction", "content": "Of beds."}, "[compaction: Of beds.]"),
    (MESSAGES, {"type": "fallback", "from": {"model": "a"}}, ""),
    (MESSAGES, {"type": "of 2031!", "x": {"y": ["z"]}}, "[of?2031?: z]"),
    (CHAT, {"type": "audio", "audio": {"id": "a"}}, f"[audio {UNREAD}]"),
    (MESSAGES, {"type": "web_fetch_tool_result", "content": {"content": document(type="text", data="a b")}},
     "[web_fetch_tool_result: a b]"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "part", "read", "role"),
    [*((*row, "user") for row in ASKED), *((*row, "assistant") for row in ANSWERED)],
)
def test_a_part_of_an_earlier_turn_is_read_or_becomes_a_line(path, part, read, role):
    backend, answer = asked(path, [HI, {"role": role, "content": [part, text("?")]}, OK, HI])
    assert answer.status_code == 200, answer.text
    assert backend.tasks[0].prompt[1].content == (f"{read}\n?" if read else "?")
    assert ("type" in answer.headers.get(IGNORED_HEADER, "")) == ("omitted" in read or not read)


@pytest.mark.parametrize(("path", "part"), [row[:2] for row in ASKED if "omitted" in row[2]])
def test_what_the_user_has_just_said_is_refused_if_it_cannot_be_read(path, part):
    backend, answer = asked(path, [HI, OK, {"role": "user", "content": [text("?"), part]}])
    field = "input" if path == RESPONSES else "messages"
    assert answer.status_code == 400 and f"{field}[2].content[1]" in answer.text and not backend.tasks


# Items of a response behind "Hi", and the texts of the turns that are read.
ITEMS: list[tuple[list[dict[str, Any]], list[str]]] = [
    ([{"type": "file_search_call", "queries": ["q"], "results": [{"file_id": "f", "text": "a bed"}]}, OK],
     ["[file_search_call: q a bed]\nok"]),
    ([{"type": "code_interpreter_call", "code": "1", "outputs": [{"logs": "2"}]}], ["[code_interpreter_call: 1 2]"]),
    ([{"type": "image_generation_call", "result": TEXT}], [BLIND]),
    ([{"type": "computer_call", "call_id": "c", "action": {"type": "click"}},
      {"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": URL}}],
     [f"[computer_call {UNREAD}]", BLIND]),
    ([{"type": "local_shell_call", "call_id": "c", "action": {"command": ["ls"]}}, OK], ["[local_shell_call: ls]\nok"]),
    ([{"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "outcome": {"type": "exit"}}]}], ["a"]),
    ([{"type": "mcp_call", "name": "beds", "arguments": "{}", "output": "3"}], ["[mcp_call: beds {} 3]"]),
    ([{"type": "mcp_list_tools", "tools": [{"name": "beds"}]}], []),
    ([{"type": "item_reference", "id": "i"}, OK], [f"[item_reference {UNREAD}]\nok"]),
    ([{"type": "of_2031", "x": "y"}, OK], ["[of_2031: y]\nok"]),
    ([ITEM, {"type": "custom_tool_call_output", "call_id": "c", "output": [INPUT]}], ["", BLIND]),
]  # fmt: skip


@pytest.mark.parametrize(("items", "read"), ITEMS, ids=range(len(ITEMS)))
def test_items_of_other_services_are_told(items, read):
    backend, answer = asked(RESPONSES, [HI, *items, HI])
    assert answer.status_code == 200, answer.text
    assert [turn.content for turn in backend.tasks[0].prompt[1:-1]] == read


RESULTS = [
    ({"temp": 21.5}, '{"temp": 21.5}'), (3, "3"), ([1, "ü"], '[1, "ü"]'), ({"type": 5}, '{"type": 5}'),
    ([{"text": 5}], '[{"text": 5}]'), ([{"type": "text"}], '[{"type": "text"}]'),
]  # fmt: skip


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, OLLAMA])
@pytest.mark.parametrize(("told", "read"), RESULTS)
def test_a_result_of_a_tool_that_is_no_text_is_told_as_json(path, told, read):
    output = {"type": "function_call_output", "call_id": "c", "output": told}
    turns = {RESPONSES: [HI, ITEM, output], MESSAGES: called(told)}
    backend, answer = asked(path, turns.get(path, [HI, MADE, {"role": "tool", "content": told}]))
    assert answer.status_code == 200 and backend.tasks[0].prompt[2].content == read, answer.text


# Whose picture a model that sees is shown, and in which turn; the last turn has no words of the user.
SEEN: list[tuple[str, list[Any], int]] = [
    (CHAT, [HI, MADE, {"role": "tool", "tool_call_id": "c", "content": [text("taken"), SHOWN]}], 3),
    (CHAT, [HI, {**OK, "images": [SHOWN]}, HI], 2),
    (RESPONSES, [HI, ITEM, {"type": "function_call_output", "call_id": "c", "output": [INPUT]}], 3),
    (RESPONSES, [HI, {"type": "image_generation_call", "result": TEXT}, OK, HI], 2),
    (MESSAGES, called([BLOCK]), 3), (CHAT, [{"role": "system", "content": [SHOWN]}, HI], 1),
    (MESSAGES, called([document(content=[BLOCK])]), 3), (MESSAGES, [*called(None)[:2], *user(RESULT, PDF, BLOCK)], 3),
    (OLLAMA, [HI, MADE, {"role": "tool", "tool_name": "look", "content": "taken", "images": [TEXT]}], 3),
]  # fmt: skip


@pytest.mark.parametrize(("path", "turns", "place"), SEEN, ids=range(len(SEEN)))
def test_a_model_that_sees_is_shown_pictures_of_tools_and_answers(path, turns, place):
    backend, answer = asked(path, turns, images=FACTS)
    assert answer.status_code == 200, answer.text
    shown = [[each.image.data for each in turn.images] for turn in backend.tasks[0].prompt]
    assert [each for each in shown if each] == [shown[place]] == [[DATA]] and backend.tasks[0].prompt[
        place
    ].role == "user"


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES, OLLAMA])
def test_pictures_that_are_broken_or_too_many_end_no_session(path):
    parts = [text("a"), SHOWN, {**SHOWN, "image_url": "https://g/a.png"}, text("b")]
    backend, answer = asked(path, [*[{**HI, "content": parts}] * (MAX_IMAGES + 1), OK, HI], images=FACTS)
    assert answer.status_code == 200, answer.text
    first, second, *_ = backend.tasks[0].prompt
    assert "a[picture omitted: this model takes no more" in first.content and not first.images
    assert second.content == f"a\n{BROKEN}\nb" and [each.offset for each in second.images] == [1]


LINE = "x-anthropic-billing-header: cc_version=2.1.63; cch={};"


@pytest.mark.parametrize("end", ["\n\n", "\r\n", "", " "])
@pytest.mark.parametrize("path", [CHAT, OLLAMA, RESPONSES, MESSAGES, GENERATE])
def test_a_line_of_accounting_before_the_rules_is_left_out(path, end):
    for line in (LINE.format("a1"), LINE.format("b2").title(), "X-Litellm-Session-Id: 7\n", "x-axis: time\n"):
        backend, rules = FakeBackend(), f"{line}{end}Be brief.\nx-request-id: 5"
        ways = {RESPONSES: {"instructions": rules}, MESSAGES: {"system": rules}, GENERATE: {"system": rules}}
        body = ways.get(path) or {"messages": [{"role": "system", "content": rules}, HI]}
        answer = call(backend, path, {**PROMPTS[path], "stream": False, **body})
        kept = rules if line.startswith("x-axis") else "Be brief.\nx-request-id: 5"
        assert answer.status_code == 200 and backend.tasks[0].prompt[0].content == kept
        assert kept == rules or line.partition(":")[0].lower() in answer.headers[IGNORED_HEADER]


# What a server says of the fields of `Open`, and the fields that a client hears of.
SAID = [
    ("images", "an image is broken"),
    ("max_tokens", "max_tokens is too large"),
    ("prompt", "is too long"),
]
HEARD = {
    CHAT: "messages max_completion_tokens messages", RESPONSES: "input max_output_tokens input",
    MESSAGES: "messages max_tokens messages", OLLAMA: "images options.num_predict messages",
    GENERATE: "images options.num_predict prompt",
}  # fmt: skip


@pytest.mark.parametrize("path", HEARD)
def test_what_a_server_refuses_is_named_as_the_client_wrote_it(path):
    for (field, said), heard in zip(SAID, HEARD[path].split(), strict=True):
        backend = FakeBackend(InvalidRequest(said, field), fail_after=0)
        answer = call(backend, path, {**PROMPTS[path], "stream": False})
        error = answer.json()["error"]
        told = error if isinstance(error, str) else f"{error.get('param')} {error['message']}"
        assert answer.status_code == 400 and heard in told
        assert "max_tokens" not in told or heard == field
