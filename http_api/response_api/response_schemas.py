"""Requests for responses, responses, and the events of their streams, in the notation of http_api/notation.py."""

from http_api import replies
from http_api.notation import Schema
from http_api.response_api.input_items import OUTPUTS, READERS, ROLES, STATES
from http_api.response_api.response_request import ELSEWHERE, INCLUDED, LOGPROBS
from http_api.schemas import CALL_FIELDS, CONTENT, described, elsewhere
from opensled.core.messages import ModelInfo

PARTS = """
parts = picture
own_types = no_values
tool = request{type: "function" | nothing, *function}
inner_tool = tool | other_tool
tool = tool | request{
  type!: "namespace", name!: name
  description: text? -- Left out.
  tools: [inner_tool]? -- As beside it; all names in all namespaces are told apart.
}
"""
REQUESTS = """
form = if GUIDES (any_object | only_text | typed_form) else only_text
ResponseRequest = request{
  input!: text | [InputItem] 1.. -- The user's words, or a conversation.
  *everywhere
  instructions: text? -- A system turn before the input.
  max_output_tokens: count? -- Most tokens of the answer.
  include: [INCLUDED]? -- Log-probabilities come with <LOGPROBS>, where no tool may be called.
  *top_logprobs
  *thinking
  metadata: any -- The caller's own; the answer repeats texts of a usual size.
  store: any -- Nothing is stored here.
  background: false | empty
  *elsewhere
  text: request{
    format: form? -- <kept>
    *without_effect
  }? -- The form of the answer.
  *calls
}
InputItem = open{type: "message" | nothing, role!: askers, content!: content}
  | open{type: "message" | nothing, role!: "assistant", content: content}
  | open{type!: "function_call", call_id: call_id, name!: text, arguments: arguments}
  | open{type!: "custom_tool_call", call_id: call_id, name!: text, input: text?}
  | open{type!: OUTPUTS, call_id: result_id, name: text?, output: told}
  | open{type!: name not ("message" | readers)}
"""
ANSWERS = """
Response = {
  id: text /^resp_/, object: "response"
  created_at: natural -- unix seconds
  completed_at: natural | null
  status: "in_progress" | "completed" | "incomplete" | "failed"
  error: {code: "server_error" | "rate_limit_exceeded" | "invalid_prompt", message: text} | null
  incomplete_details: {reason: "max_output_tokens" | null} | null
    -- also where the context is full; its reason is null if a stop string cut a call or JSON
  model: text, system_fingerprint: fingerprint, output: [OutputItem]
  usage: {
    input_tokens: natural, output_tokens: natural, total_tokens: natural
    input_tokens_details: {
      cached_tokens: cached_tokens
      cache_write_tokens: 0 -- not told
    }
    output_tokens_details: {reasoning_tokens: natural}
    opensled: draft_figures
  } | null
  instructions: text | null, max_output_tokens: natural | null, metadata: map text, parallel_tool_calls: flag
  reasoning: {effort: text | null, summary: null}
  temperature: number, top_logprobs: natural, top_p: number
  text: {format: {type: "text" | "json_object"} | typed_form, verbosity: "medium"}
  tool_choice: tool_choice, tools: [request{type: "function", *function}]
  background: false, previous_response_id: null, service_tier: "default", truncation: "disabled"
  store: false -- No answer is stored here, so none can be asked for later.
}
thought = {type: "reasoning_text", text: text}
OutputText = {type: "output_text", text: text, annotations: [any] 0..0, logprobs: logprobs}
OutputItem = {id: text /^msg_/, type: "message", status: STATES, role: "assistant", content: [OutputText] 0..1}
  | {id: text /^rs_/, type: "reasoning", status: STATES, summary: [any] 0..0, content: [thought] 0..1}
  | {
    id: text /^fc_/, type: "function_call", status: STATES, call_id: text /^call_/, namespace?: text, name: text
    arguments: text
  }
event = {sequence_number: natural}
about_part = {*event, output_index: natural, item_id: text, content_index: 0}
about_call = {*event, output_index: natural, item_id: text}
about_all = "response.created" | "response.in_progress" | "response.completed" | "response.incomplete"
ResponseEvent = {type: about_all | "response.failed", *event, response: Response}
  | {type: "response.output_item.added" | "response.output_item.done", *event, output_index: natural, item: OutputItem}
  | {type: "response.content_part.added" | "response.content_part.done", *about_part, part: OutputText | thought}
  | {type: "response.reasoning_text.delta", *about_part, delta: text}
  | {type: "response.reasoning_text.done", *about_part, text: text}
  | {type: "response.output_text.delta", *about_part, delta: text, logprobs: logprobs}
  | {type: "response.output_text.done", *about_part, text: text, logprobs: logprobs}
  | {type: "response.function_call_arguments.delta", *about_call, delta: text}
  | {type: "response.function_call_arguments.done", *about_call, name: text, arguments: text}
  | {type: "error", *event, code: text, message: text, param: text | null}
"""


def components(info: ModelInfo) -> Schema:
    """Those of responses, for a server that says `info`."""
    return described(
        info,
        PARTS + CALL_FIELDS + CONTENT + REQUESTS + replies.SHARED + ANSWERS,
        picture_kind=("input_image",),
        elsewhere=elsewhere(ELSEWHERE),
        askers=tuple(role for role in ROLES if role != "assistant"),
        readers=tuple(READERS),
        INCLUDED=INCLUDED,
        LOGPROBS=LOGPROBS,
        OUTPUTS=OUTPUTS,
        STATES=STATES,
    )
