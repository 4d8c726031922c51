"""Requests, answers and events of Anthropic's API, in the notation of http_api/notation.py."""

from http_api import replies
from http_api.error_forms import BY_CODE
from http_api.messages_api.message_reply import STOP_REASONS
from http_api.messages_api.message_request import ELSEWHERE, MAX_TEMPERATURE
from http_api.messages_api.message_turns import CALL, RESULT
from http_api.notation import Schema
from http_api.schemas import CONTENT, described, elsewhere
from opensled.core.messages import ModelInfo

SYSTEM = """
parts = none
own_types = no_values
"""
USER = """
system_content = content
parts = if IMAGES open{
    type!: "image"
    source!: open{type: "base64" | nothing, data!: text} | open{type!: "url", url!: text /^data:/}
  } else none
  | open{
    type!: RESULT, tool_use_id: result_id, content: told
    is_error: switch -- The result begins with "Error: " then.
  }
own_types = RESULT
"""
ASSISTANT = """
user_content = content
parts = open{type!: CALL, id: call_id, name!: text, input: arguments}
own_types = CALL
"""
REQUESTS = """
assistant_content = content
MessageTurn = open{role!: "system", content: system_content} | open{role!: "user", content: user_content}
  | open{role!: "assistant", content: assistant_content}
tool = request{
  type: "custom" | nothing, name!: name
  description: text? -- For the model.
  input_schema: object? -- JSON schema of the input, an object.
  strict: strict
  cache_control: any, input_examples: any, defer_loading: any, allowed_callers: any, eager_input_streaming: any
}
other_tool = open{type!: name not ("custom" | "function")} -- Anthropic's own tools are left out, and named in
  -- OpenSLED-Ignored.
form = (if GUIDES (only_text | any_object | request{*form, *schema, type!: "json_schema"}) else only_text)? -- <kept>
MessageRequest = request{
  *everywhere
  *thinking
  messages!: [MessageTurn] 1.. -- The last one is not the assistant's.
  system: system_content -- Before the messages.
  max_tokens: count? -- Most tokens of the answer.
  stop_sequences: (text | [text] 0..MAX_STOPS)? -- Strings that end an answer.
  temperature: (0 | number MIN_TEMPERATURE..WARMEST)? -- 0 takes the likeliest token. 1 if left out.
  *elsewhere
  tools: if GUIDES [tool | other_tool] 0..MAX_TOOLS else [any] 0..0? -- <tools>
  tool_choice: tool_choice
  output_config: request{*without_effect, format: form}? -- The form of the answer.
  output_format: form -- As output_config.format, which goes before it.
}
"""
ANSWERS = """
stop = {
  stop_reason: stop_reasons | null
  stop_sequence: text | null -- the one that ended it
}
usage = {
  input_tokens: natural -- without those found in the cache; 0 at the start of a stream
  cache_creation_input_tokens: 0
  cache_read_input_tokens: natural -- positions whose KV the server found in its cache
  output_tokens: natural, opensled?: draft_figures
}
block = {type: "text", text: text} | {type: "tool_use", id: text /^toolu_/, name: text, input: object}
  | {type: "thinking", thinking: text, signature: ""}
AnthropicMessage = {
  id: text /^msg_/, type: "message", role: "assistant", model: text, content: [block], *stop, usage: usage
}
delta = {type: "text_delta", text: text} | {type: "input_json_delta", partial_json: text}
  | {type: "thinking_delta", thinking: text}
MessageEvent = {type: "message_start", message: AnthropicMessage}
  | {type: "content_block_start", index: natural, content_block: block}
  | {type: "content_block_delta", index: natural, delta: delta} | {type: "content_block_stop", index: natural}
  | {type: "message_delta", delta: stop, usage: usage} | {type: "message_stop"} | {type: "ping"} | MessageError
MessageError = {
  type: "error", error: {type: errors, message: text, details?: object}, request_id: text | null
}
TokenCount = {input_tokens: natural}
"""
CONTENTS = SYSTEM + CONTENT + USER + CONTENT + ASSISTANT + CONTENT
ERRORS = ("invalid_request_error", "authentication_error", "rate_limit_error", "api_error", *BY_CODE.values())


def components(info: ModelInfo) -> Schema:
    """Those of this API, for a server that says `info`."""
    return described(
        info,
        CONTENTS + REQUESTS + replies.SHARED + ANSWERS,
        picture_kind=(),
        elsewhere=elsewhere(ELSEWHERE),
        WARMEST=MAX_TEMPERATURE,
        stop_reasons=(*STOP_REASONS.values(), "stop_sequence"),
        errors=ERRORS,
        CALL=(CALL,),
        RESULT=(RESULT,),
    )
