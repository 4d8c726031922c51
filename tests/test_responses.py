"""POST /v1/responses: what is asked of the server, and the answer, whole and event by event."""

import pytest

from opensled.core.errors import InvalidRequest, Overloaded, Unreachable
from opensled.core.messages import ChatMessage, ToolCall
from tests.fake_backend import STATS, WORDS, FakeBackend, call, chat, named_events, refusal
from tests.response_cases import CLOCK, FORM, LAMP, LOGPROBS, ask, conforms

ARGUMENTS = '{"on": true}'
CALLS = ("Let me see.\n", '<tool_call>\n{"name": "lamp", "argu', f'ments": {ARGUMENTS}}}\n</tool_call>')


def told(response):
    """The events of a stream; each is numbered in order."""
    events = named_events(response)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def kinds(events):
    return [event["type"].removeprefix("response.") for event in events]


def without_ids(response):
    """What stays the same when the same is asked again."""
    output = [{**item, "id": None, "call_id": None} for item in response["output"]]
    return {**response, "id": None, "created_at": None, "completed_at": None, "output": output}


def test_an_answer():
    reply = ask(FakeBackend(), instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=9).json()
    conforms(reply, "Response")
    assert reply["id"].startswith("resp_") and reply["status"] == "completed" and reply["store"] is False
    (message,) = reply["output"]
    assert message["status"] == "completed" and message["content"][0]["text"] == "".join(WORDS)
    assert reply["instructions"] == "Be brief." and reply["metadata"] == {"a": "b"}
    assert reply["max_output_tokens"] == 9 and reply["system_fingerprint"] == "opensled-0/tiny/exact/match"
    assert reply["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 11,
        "opensled": {"rule": "match", **STATS.figures()},
    }


def test_every_event_in_its_order():
    events = told(ask(FakeBackend(), stream=True, stream_options={"include_obfuscation": False}))
    for event in events:
        conforms(event, "ResponseEvent")
    deltas = [event["delta"] for event in events if "delta" in event]
    assert "".join(deltas) == "".join(WORDS) and len(deltas) == 3
    assert kinds(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", *["output_text.delta"] * 3,
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert events[0]["response"]["output"] == [] and events[0]["response"]["usage"] is None
    assert events[-2]["item"] == events[-1]["response"]["output"][0]
    whole = ask(FakeBackend()).json()
    assert without_ids(events[-1]["response"]) == without_ids(whole)


def test_an_answer_that_is_cut_off_is_incomplete():
    reply = ask(FakeBackend(reason="length")).json()
    conforms(reply, "Response")
    assert reply["status"] == "incomplete" and reply["completed_at"] is None
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert reply["output"][0]["status"] == "incomplete"
    assert kinds(told(ask(FakeBackend(reason="length"), stream=True)))[-1] == "incomplete"


def test_an_answer_without_a_word_is_an_empty_message():
    reply = ask(FakeBackend(words=())).json()
    assert reply["output"][0]["content"][0]["text"] == "" and reply["status"] == "completed"


def test_a_text_and_a_call():
    backend = FakeBackend(words=CALLS)
    reply = ask(backend, tools=[LAMP, CLOCK]).json()
    conforms(reply, "Response")
    text, function_call = reply["output"]
    assert text["content"][0]["text"] == "Let me see.\n" and function_call["call_id"].startswith("call_")
    assert (function_call["name"], function_call["arguments"]) == ("lamp", ARGUMENTS)
    assert reply["tools"] == [LAMP, {**CLOCK, "description": None, "parameters": None, "strict": False}]
    assert reply["status"] == function_call["status"] == "completed" and reply["tool_choice"] == "auto"
    events = told(ask(FakeBackend(words=CALLS), tools=[LAMP, CLOCK], stream=True))
    for event in events:
        conforms(event, "ResponseEvent")
    assert kinds(events)[6:] == [
        "content_part.done", "output_item.done", "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert events[-3]["arguments"] == ARGUMENTS and events[-3]["output_index"] == 1
    assert without_ids(events[-1]["response"]) == without_ids(reply)


def test_a_call_that_is_cut_off_is_incomplete():
    reply = ask(FakeBackend(words=(CALLS[1], 'ments": {"on'), reason="length"), tools=[LAMP]).json()
    (function_call,) = reply["output"]
    assert (function_call["status"], function_call["arguments"]) == ("incomplete", '{"on')


def test_log_probabilities_are_those_of_a_chat():
    part = ask(FakeBackend(), include=[LOGPROBS], top_logprobs=1).json()["output"][0]["content"][0]
    choice = call(FakeBackend(), body=chat(logprobs=True, top_logprobs=1)).json()["choices"][0]
    assert part["logprobs"] == choice["logprobs"]["content"] and len(part["logprobs"]) == len(WORDS)
    events = told(ask(FakeBackend(), include=[LOGPROBS], top_logprobs=1, stream=True))
    streamed = [entry for event in events if "delta" in event for entry in event["logprobs"]]
    assert streamed == part["logprobs"]
    for event in events:
        conforms(event, "ResponseEvent")


@pytest.mark.parametrize(
    ("error", "code", "param"),
    [
        (Unreachable("the server is lost"), "server_error", None),
        (Overloaded("full"), "rate_limit_exceeded", None),
        (InvalidRequest("too long", "prompt"), "invalid_prompt", "input"),
        (ValueError("secret"), "server_error", None),
    ],
)
def test_errors_midway_are_the_last_events(error, code, param):
    backend = FakeBackend(error, fail_after=2)
    response = ask(backend, stream=True)
    events = told(response)
    for event in events:
        conforms(event, "ResponseEvent")
    assert kinds(events)[-3:] == ["output_item.done", "error", "failed"]
    fault, failed = events[-2], events[-1]["response"]
    assert fault["param"] == param and fault["message"] == failed["error"]["message"]
    assert failed["status"] == "failed" and failed["error"]["code"] == code
    assert (
        failed["output"][0]["content"][0]["text"] == "Hello" and failed["output"][0]["status"] == "incomplete"
    )
    assert "secret" not in response.text and backend.closed == 1


def test_an_answer_without_an_end_fails():
    assert refusal(ask(FakeBackend(reason=None)), 500)
    assert kinds(told(ask(FakeBackend(reason=None), stream=True)))[-1] == "failed"


def test_the_official_client_repeats_what_it_got(client):
    backend = FakeBackend(words=CALLS)
    api = client(backend)
    first = api.responses.create(model="tiny", input="Hi", tools=[LAMP])
    assert first.output_text == "Let me see.\n"
    function_call = first.output[1]
    result = {"type": "function_call_output", "call_id": function_call.call_id, "output": "on"}
    said = [{"role": "user", "content": "Hi"}, *first.output, result]
    with api.responses.stream(model="tiny", input=said, tools=[LAMP]) as stream:
        assert stream.get_final_response().output_text == "Let me see.\n"
    again = [said[0], *(item.model_dump() for item in first.output), result]
    assert api.responses.create(model="tiny", input=again, tools=[LAMP]).status == "completed"
    lamp = ToolCall(function_call.call_id, "lamp", ARGUMENTS)
    assert (
        backend.tasks[1].prompt
        == backend.tasks[2].prompt
        == (
            ChatMessage("user", "Hi"),
            ChatMessage("assistant", "Let me see.\n", (lamp,)),
            ChatMessage("tool", "on", tool_call_id=function_call.call_id),
        )
    )


HALF = 'ments": {"on": tr'

# -- what is cut is no success ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reason", "fields", "status", "cut"),
    [
        (CALLS, "eos", {"tools": [LAMP]}, "completed", None),
        (CALLS, "stop", {"tools": [LAMP]}, "completed", None),  # a stop string behind the call
        ((*CALLS[:2], HALF), "stop", {"tools": [LAMP]}, "incomplete", None),
        ((*CALLS[:2], HALF), "length", {"tools": [LAMP]}, "incomplete", "max_output_tokens"),
        (CALLS, "length", {"tools": [LAMP]}, "incomplete", "max_output_tokens"),
        (['{"on": tr'], "stop", {"text": {"format": FORM}}, "incomplete", None),
        (['{"on": true}'], "stop", {"text": {"format": FORM}}, "completed", None),
        (["It is o"], "stop", {}, "completed", None),
    ],
)
def test_a_stop_string_midway_leaves_the_response_incomplete(words, reason, fields, status, cut):
    backend = FakeBackend(words=words, reason=reason)
    whole = ask(backend, **fields).json()
    conforms(whole, "Response")
    assert whole["status"] == status and whole["output"][-1]["status"] == status
    assert whole["incomplete_details"] == ({"reason": cut} if status == "incomplete" else None)
    last = told(ask(FakeBackend(words=words, reason=reason), stream=True, **fields))[-1]
    assert last["type"] == f"response.{status}" and last["response"]["status"] == status


# -- tools that are no functions --------------------------------------------------------------------------

SPACE = {"type": "namespace", "name": "home", "description": "d", "tools": [LAMP, {"type": "web_search"}]}


def test_namespaces_are_flattened_and_other_tools_left_out_by_name():
    tools = [CLOCK, {"type": "web_search"}, SPACE]
    backend = FakeBackend(words=CALLS)
    answer = ask(backend, tools=tools)
    assert [tool.name for tool in backend.tasks[0].guide.tools] == ["clock", "lamp"]
    left = answer.headers["OpenSLED-Ignored"]
    assert left == "tools[1] (web_search), tools[2].description, tools[2].tools[1] (web_search)"
    conforms(answer.json(), "Response")
    said = answer.json()["output"][-1]
    assert (said["namespace"], said["name"], said["arguments"]) == ("home", "lamp", ARGUMENTS)


def test_functions_of_one_name_in_two_namespaces_are_told_apart():
    tools = [CLOCK, {**SPACE, "name": "a"}, {**SPACE, "name": "b"}]
    backend = FakeBackend(words=[words.replace("lamp", "b__lamp") for words in CALLS])
    said = ask(backend, tools=tools).json()["output"][-1]
    assert [tool.name for tool in backend.tasks[0].guide.tools] == ["clock", "a__lamp", "b__lamp"]
    assert (said["namespace"], said["name"]) == ("b", "lamp")


def test_a_reference_to_an_item_says_what_to_send():
    error = refusal(ask(FakeBackend(), [{"type": "item_reference", "id": "msg_1"}]))
    assert error["param"] == "input[0].type" and "send the item itself" in error["message"]
