"""Requests as clients send them: fields without effect, values that mean off, earlier turns as they come back.

Each was refused once. http_api/effects.py has the rules.
"""

from typing import Any

PROMPTS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/chat": {"messages": [{"role": "user", "content": "Hi"}]},
    "/api/generate": {"prompt": "Hi"},
}

# Everywhere: any value, the header names them.
ANNOTATIONS: list[dict[str, Any]] = [
    {"cache_prompt": True}, {"service_tier": "flex"}, {"store": True}, {"verbosity": "low"}, {"metadata": {"a": 1}},
    {"user": 7}, {"client_metadata": {"a": "b"}}, {"reasoning_effort": "low"},
    {"usage": {"include": True}}, {"prediction": {"type": "content", "content": "a"}}, {"truncation": "auto"},
    {"max_tool_calls": 3}, {"keep_alive": "5m"}, {"cache_control": {"type": "ephemeral"}}, {"priority": 1},
    {"length_penalty": 1.0, "early_stopping": True}, {"mirostat_tau": 5, "xtc_threshold": 0.1, "dry_base": 1.75},
    {"n_keep": 4}, {"context_management": {"edits": []}}, {"inference_geo": "eu"},
    {"metadata": {"a": "b" * 600}}, {"metadata": []}, {"prompt_cache_key": "a", "safety_identifier": "b"},
    {"provider": {"order": ["a"]}}, {"models": ["a", "b"]}, {"route": "fallback"}, {"transforms": ["middle-out"]},
    {"ttl": 300},
]  # fmt: skip

# Everywhere: they ask for nothing, and no header says anything.
OFF: list[dict[str, Any]] = [
    {"anything_else": None}, {"prediction": None, "guided_json": None}, {"functions": []}, {"function_call": "auto"},
    {"n": 1}, {"best_of": 1}, {"suffix": ""}, {"use_beam_search": False}, {"min_tokens": 0},
    {"skip_special_tokens": True}, {"grammar": ""}, {"guided_choice": []}, {"structured_outputs": {}}, {"tools": []},
    {"chat_template_kwargs": {}}, {"repeat_penalty": 1}, {"mirostat": 0}, {"audio": None}, {"modalities": ["text"]},
    {"response_format": {}}, {"response_format": {"type": None}}, {"enable_thinking": False},
    {"chat_template_kwargs": {"enable_thinking": False}}, {"thinking": {"type": "disabled"}}, {"think": False},
    {"top_n_sigma": -1}, {"n_probs": 0}, {"web_search_options": False}, {"detokenize": True}, {"use_beam_search": 0},
    {"context": []}, {"images": []}, {"tool_choice": "auto"}, {"echo": False}, {"response_format": {"type": "text"}},
]  # fmt: skip

# A sampling field at a value that is off, and what it comes to: at OpenAI's paths beside the rest, at Ollama's in
# `options`.
SAMPLING: list[tuple[dict[str, Any], str, object]] = [
    ({"top_k": -1}, "top_k", 0), ({"top_k": -40}, "top_k", 0), ({"top_p": 0}, "top_k", 1), ({"top_p": 0.0}, "top_p", 1),
    ({"seed": 2**63}, "seed", -(2**63)), ({"seed": 2**64 - 1}, "seed", -1), ({"seed": 2**64 + 5}, "seed", 5),
    ({"seed": -(2**70) + 3}, "seed", 3), ({"stop": ""}, "stop", ()), ({"stop": ["", "a"]}, "stop", ("a",)),
    ({"stop": []}, "stop", ()), ({"min_p": 0}, "min_p", 0),
    ({"repeat_penalty": 1.1, "repeat_last_n": 64}, "repetition_penalty", 1.1),
    ({"repeat_penalty": 1.1, "repeat_last_n": 0}, "repetition_penalty", 1),
    ({"frequency_penalty": 0.5, "repeat_last_n": 0}, "frequency_penalty", 0), ({"num_batch": 512}, "min_p", 0),
]  # fmt: skip

# Of any field: what asks for nothing, but where tests/refused_when_empty.json says so.
EMPTY: list[Any] = [None, "", [], {}, False, 0]

# Bodies of clients that send each field, at its default: they change nothing.
DEFAULTS: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"temperature": 1, "top_p": 1, "n": 1, "presence_penalty": 0, "frequency_penalty": 0, "logit_bias": {},
         "logprobs": False, "top_logprobs": 0, "stop": None, "seed": None, "tools": [], "tool_choice": "none",
         "parallel_tool_calls": True, "response_format": {"type": "text"}, "modalities": ["text"], "max_tokens": -1},
        {"logprobs": 0}, {"logprobs": None, "top_logprobs": None}, {"seed": ""}, {"stop_token_ids": ""}, {"model": ""},
        # vLLM's fields
        {"best_of": None, "use_beam_search": False, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0,
         "stop_token_ids": [], "include_stop_str_in_output": False, "ignore_eos": False, "min_tokens": 0,
         "skip_special_tokens": True, "spaces_between_special_tokens": True, "echo": False,
         "add_generation_prompt": True, "continue_final_message": False, "documents": None,
         "chat_template": None, "chat_template_kwargs": None, "mm_processor_kwargs": None, "structured_outputs": None,
         "logits_processors": [], "return_tokens_as_token_ids": None, "return_token_ids": None,
         "kv_transfer_params": None},
        # llama-server's own page
        {"return_progress": False, "temperature": 1, "dynatemp_range": 0, "dynatemp_exponent": 1, "top_k": 0,
         "top_p": 1, "min_p": 0, "xtc_probability": 0, "xtc_threshold": 0.1, "typical_p": 1, "max_tokens": -1,
         "repeat_penalty": 1,
         "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
         "dry_penalty_last_n": -1, "samplers": [], "timings_per_token": False, "reasoning_format": "none"},
    ],
    "/v1/completions": [
        {"best_of": 1, "echo": False, "frequency_penalty": 0, "logit_bias": {}, "logprobs": None, "max_tokens": 16,
         "n": 1, "presence_penalty": 0, "seed": None, "stop": None, "stream": False, "stream_options": None,
         "suffix": None, "temperature": 1, "top_p": 1, "user": ""},
        {"n_probs": 0, "t_max_predict_ms": 0, "logprobs": False, "suffix": ""},
    ],
    "/v1/responses": [
        {"background": False, "include": [], "instructions": None, "max_output_tokens": None, "max_tool_calls": None,
         "metadata": {}, "parallel_tool_calls": True, "previous_response_id": "", "prompt": None, "reasoning": {},
         "service_tier": "auto", "store": True, "stream": False, "temperature": 1, "tool_choice": "auto", "tools": [],
         "text": {"format": {"type": "text"}, "verbosity": "medium"}, "top_logprobs": 0, "top_p": 1,
         "truncation": "disabled", "conversation": None},
        {"text": {}}, {"text": {"format": {}}}, {"text": {"format": {"type": None, "schema": ""}}}, {"text": ""},
    ],
    "/api/chat": [
        {"format": "", "think": False, "keep_alive": "5m", "tools": [], "truncate": True, "shift": True, "options": {}},
        {"options": {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.0, "seed": -1, "num_predict": -1,
                     "num_ctx": 4096, "num_keep": 4, "num_batch": 512, "num_gpu": -1, "repeat_last_n": 64,
                     "repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "typical_p": 1.0,
                     "stop": [], "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "numa": False,
                     "use_mmap": None, "low_vram": False, "vocab_only": False, "penalize_newline": True}},
        {"options": dict.fromkeys(("temperature", "top_k", "seed", "stop", "num_predict", "min_p", "num_ctx"), "")},
        {"format": []}, {"think": ""}, {"options": []}, {"keep_alive": ""},
    ],
    "/api/generate": [
        {"suffix": "", "system": "", "template": "", "context": [], "raw": False, "format": "", "images": [],
         "keep_alive": -1, "think": False, "options": None},
    ],
}  # fmt: skip

# Contents without a text, of any turn.
NO_TEXT: list[Any] = [None, "", [], {}, False, [None], [""], [{}], [{"type": "text", "text": ""}],
                      [{"type": "text", "text": None}]]  # fmt: skip


# Of options: what they come to.
OPTIONS: list[tuple[dict[str, Any], str, object]] = [
    ({"num_predict": 0}, "max_tokens", 1024), ({"num_predict": -1}, "max_tokens", 1024), ({"num_gqa": 1}, "top_k", 40),
    ({"draft_num_predict": 4}, "top_k", 40), ({"num_gqa": None, "nonsense": None}, "top_k", 40),
    ({"cache_prompt": True, "typical_p": 1, "tfs_z": 1.0}, "top_k", 40), ({"seed": -1}, "seed", None),
]  # fmt: skip

# Refused, also with --lenient, at each path: the answer would look right, and not be.
ASKED: list[tuple[dict[str, Any], str]] = [
    ({"guided_json": {}}, "guided_json"), ({"guided_regex": "a"}, "guided_regex"), ({"grammar": "root ::= a"},
    "grammar"),
    ({"guided_choice": ["a"]}, "guided_choice"), ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"json_schema": {}}, "json_schema"), ({"regex": "a"}, "regex"), ({"ebnf": "a"}, "ebnf"),
    ({"functions": [{"name": "f"}]}, "functions"), ({"function_call": {"name": "f"}}, "function_call"),
    ({"modalities": ["audio"]}, "modalities"), ({"web_search_options": {}}, "web_search_options"),
    ({"min_tokens": 5}, "min_tokens"), ({"use_beam_search": True}, "use_beam_search"), ({"best_of": 3}, "best_of"),
    ({"continue_final_message": True}, "continue_final_message"), ({"files": ["a"]}, "files"),
]  # fmt: skip
ASKED_OF: dict[str, list[tuple[dict[str, Any], str]]] = {
    "/v1/chat/completions": [
        ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
        ({"response_format": {"type": "text", "json_schema": {"name": "a"}}}, "response_format.json_schema"),
        ({"max_output_tokens": 5}, "max_output_tokens"), ({"prompt": "a"}, "prompt"), ({"format": "json"}, "format"),
        ({"messages": [{"role": "user", "content": "a", "images": ["iVBORw0KGgo="]}]}, "messages[0].images[0]"),
    ],
    "/v1/completions": [
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"tools": [{}]}, "tools"),
        ({"suffix": "b"}, "suffix"), ({"max_completion_tokens": 5}, "max_completion_tokens"),
    ],
    "/v1/responses": [
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"max_tokens": 5}, "max_tokens"),
        ({"text": {"format": {"type": "json_object", "schema": {}}}}, "text.format.schema"), ({"n": 2}, "n"),
        ({"background": True}, "background"),
    ],
    "/v1/messages": [
        ({"response_format": {"type": "json_object"}}, "response_format"), ({"prompt": "a"}, "prompt"),
        ({"max_output_tokens": 5}, "max_output_tokens"), ({"format": "json"}, "format"), ({"n": 2}, "n"),
        ({"container": "c"}, "container"), ({"mcp_servers": [{"name": "a"}]}, "mcp_servers"),
        ({"thread": {"type": "create"}}, "thread"), ({"compaction": {"type": "a"}}, "compaction"),
    ],
    "/api/chat": [
        ({"options": {"grammar": "a"}}, "options.grammar"), ({"response_format": {"type": "json_object"}},
        "response_format"),
        ({"messages": [{"role": "user", "content": "a", "images": ["iVBORw0KGgo="]}]}, "messages[0].images[0]"),
        ({"options": {"mirostat": 1}}, "options.mirostat"), ({"max_tokens": 5}, "max_tokens"),
    ],
    "/api/generate": [
        ({"context": [1, 2]}, "context"), ({"images": ["iVBORw0KGgo="]}, "images"), ({"suffix": "a"}, "suffix"),
        ({"template": "{{ .Prompt }}"}, "template"), ({"options": {"json_schema": {}}}, "options.json_schema"),
    ],
}  # fmt: skip


# A form or a tool that no grammar holds wholly, and the header's name of what is left out.
UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
AT = "properties.a.uniqueItems"
FUNCTION = {"name": "f", "parameters": UNIQUE}
SPELLED: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions",
     {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": UNIQUE}}},
     f"response_format.json_schema.schema.{AT}"),
    ("/v1/chat/completions", {"tools": [{"type": "function", "function": FUNCTION}]},
     f"tools[0].function.parameters.{AT}"),
    ("/v1/responses", {"text": {"format": {"type": "json_schema", "name": "a", "schema": UNIQUE}}},
     f"text.format.schema.{AT}"),
    ("/v1/responses", {"tools": [{"type": "function", **FUNCTION}]}, f"tools[0].parameters.{AT}"),
    ("/v1/responses", {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", **FUNCTION}]}]},
     f"tools[0].tools[0].parameters.{AT}"),
    ("/api/chat", {"format": UNIQUE}, f"format.{AT}"), ("/api/generate", {"format": UNIQUE}, f"format.{AT}"),
    ("/api/chat", {"tools": [{"type": "function", "function": FUNCTION}]}, f"tools[0].function.parameters.{AT}"),
]  # fmt: skip

# Calls without ids, and results of older clients: what the turns are read as.
OLD_CALL = {"name": "pump", "arguments": '{"a": 1}'}
UNNAMED: list[tuple[list[dict[str, Any]], list[tuple[str, list[str], str]]]] = [
    ([{"role": "assistant", "tool_calls": [{"id": None, "function": OLD_CALL}, {"id": "", "function": OLD_CALL}]},
      {"role": "tool", "content": "x"}, {"role": "tool", "tool_call_id": None, "content": "y"}],
     [("assistant", ["call_1", "call_2"], ""), ("tool", [], "call_1"), ("tool", [], "call_2")]),
    ([{"role": "assistant", "tool_calls": [{"id": "a", "function": OLD_CALL}, {"id": "b", "function": OLD_CALL}]},
      {"role": "tool", "tool_call_id": "a", "content": "x"}, {"role": "tool", "content": "y"}],
     [("assistant", ["a", "b"], ""), ("tool", [], "a"), ("tool", [], "b")]),
    ([{"role": "assistant", "content": None, "function_call": OLD_CALL},
      {"role": "function", "name": "pump", "content": "x"}],
     [("assistant", ["call_1"], ""), ("tool", [], "call_1")]),
    ([{"role": "function", "name": "pump", "content": "x"}], [("tool", [], "")]),
]  # fmt: skip


def called(arguments: Any, in_function: dict[str, Any] | None = None, **in_call: Any) -> list[dict[str, Any]]:
    """A chat in which a call was made."""
    function = {"name": "pump", "arguments": arguments, **(in_function or {})}
    call = {"id": "c1", "type": "function", "function": function, **in_call}
    return [
        {"role": "user", "content": "Runs it?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": None},
    ]


def answered(content: Any = "Yes.", **extras: Any) -> list[dict[str, Any]]:
    """A chat with an earlier answer."""
    turn = {"role": "assistant", "content": content, **extras}
    return [{"role": "user", "content": "Is 7 prime?"}, turn, {"role": "user", "content": "And 8?"}]


# Chats as they come back, at /v1/chat/completions and /api/chat: the text of turn 1, the arguments of its call.
HISTORIES: list[tuple[list[dict[str, Any]], str, str | None]] = [
    *((called(empty), "", "{}") for empty in ("", " ", "\n", "null", "{}", {}, None, [], "[]", False)),
    (called({"a": 1}), "", '{"a": 1}'), (called('{"a": "ü"}'), "", '{"a": "ü"}'),
    (called("{}", index=0), "", "{}"), (called("{}", {"parsed_arguments": {}}), "", "{}"),
    (called("{}", {"parsed_arguments": None, "index": 0}, provider_specific_fields={"a": 1}), "", "{}"),
    (called("{}", type=None), "", "{}"),
    *((answered(**{extra: value}), "Yes.", None)
      for extra in ("reasoning_content", "reasoning", "id", "parsed", "audio", "annotations",
      "provider_specific_fields",
                    "phase", "thinking", "function_call", "tool_calls", "unheard_of", "cache_control", "refusal")
      for value in (None, [] if extra == "tool_calls" else "")),
    *((answered(**{extra: value}), "Yes.", None)
      for extra, value in (("reasoning_content", "a"), ("reasoning_details", [{"type": "x"}]), ("parsed", {"a": 1}),
                           ("thinking_blocks", [{"thinking": "a"}]), ("images", None), ("unheard_of", {"a": [1]}))),
    (answered(None), "", None), (answered(None, tool_calls=[]), "", None), (answered([]), "", None),
    (answered(None, refusal="No."), "No.", None), (answered([{"type": "refusal", "refusal": "No."}]), "No.", None),
    (answered([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Yes.", "citations": []}]), "Yes.",
    None),
    (answered([{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}]), "Yes.", None),
]  # fmt: skip

# Items of a response as they come back: roles and texts of the turns they are read as.
CALL = {"type": "function_call", "call_id": "c1", "name": "pump", "arguments": ""}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "it runs"}
ITEMS: list[tuple[list[dict[str, Any]], list[tuple[str, str]]]] = [
    ([{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": None}], []),
    ([{"type": "reasoning", "summary": [{"type": "summary_text", "text": "thought"}]}], []),
    ([{"type": "web_search_call", "id": "w", "status": "completed", "action": {"type": "search", "query": "beds"}}],
     [("assistant", "[web_search_call: beds]")]),
    ([{"type": "mcp_list_tools", "server_label": "garden", "tools": [{"name": "beds", "description": "all"}]}], []),
    ([{"role": "assistant", "content": "Yes.", "phase": "final_answer", "status": "new"}], [("assistant", "Yes.")]),
    ([{"role": "assistant", "content": None}], [("assistant", "")]),
    ([{"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}], [("assistant", "No.")]),
    ([{**CALL, "namespace": None, "parsed_arguments": {}, "status": None}, OUTPUT], [("assistant", ""), ("tool",
    "it runs")]),
    ([CALL, {**OUTPUT, "output": None}], [("assistant", ""), ("tool", "")]),
    ([{"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": "a"},
      {"type": "custom_tool_call_output", "call_id": "c", "output": "ok"}], [("assistant", ""), ("tool", "ok")]),
    ([{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}], "name": "b"}], [("user", "a")]),
]  # fmt: skip


def _made(name: str, call_id: str | None = None) -> dict[str, Any]:
    """A turn with one call."""
    given = {} if call_id is None else {"id": call_id}
    return {"role": "assistant", "tool_calls": [{**given, "function": {"name": name, "arguments": {}}}]}


def _result(call_id: str | None = None, name: str | None = None) -> dict[str, Any]:
    return {"role": "tool", "content": "ok", "tool_call_id": call_id, "name": name}


def as_item(turn: dict[str, Any]) -> dict[str, Any]:
    """The same as an item of a response."""
    if turn["role"] == "user":
        return turn
    if turn["role"] == "tool":
        named = {"call_id": turn["tool_call_id"], "name": turn["name"]}
        return {"type": "function_call_output", "output": turn["content"], **named}
    (call,) = turn["tool_calls"]
    return {"type": "function_call", "call_id": call.get("id"), **call["function"]}


AGAIN = {"role": "user", "content": "Again"}
# Turns whose calls or results lack an id: the ids of the calls, and those of the results' calls.
WITHOUT_IDS: list[tuple[list[dict[str, Any]], list[str], list[str]]] = [
    ([_made("f"), _result()], ["call_1"], ["call_1"]), ([_made("f", ""), _result("")], ["call_1"], ["call_1"]),
    ([_made("f", "a"), _result()], ["a"], ["a"]), ([_made("f", "a"), _result(None, "f")], ["a"], ["a"]),
    ([_made("f", "a"), _result("a"), _result(None, "goal")], ["a"], ["a", ""]),
    ([_made("f", "a"), _result(None, "goal"), _result("a")], ["a"], ["", "a"]),
    ([_made("f", "a"), _result("b")], ["a"], ["b"]), ([_result(None, "goal")], [], [""]), ([_result()], [], [""]),
    ([_made("f"), AGAIN, _made("g"), _result()], ["call_1", "call_2"], ["call_2"]),
    ([_made("f"), _result(), AGAIN, _made("f"), _result(), _result()], ["call_1", "call_2"],
     ["call_1", "call_2", ""]),
]  # fmt: skip

# No arguments: refused with the call's own field.
CUT_ARGUMENTS = [
    '"kitchen"',
    "[1]",
    '{"room": "ki',
    '{"a": NaN}',
    '{"a": -Infinity}',
    "true",
    "{'a': 1}",
    "{}}",
    "[" * 9999,
]
