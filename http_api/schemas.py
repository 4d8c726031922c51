"""Requests of chats and completions, and what all requests have, in the notation of http_api/notation.py."""

from typing import Any

from http_api import chat_messages, content_parts, guides, requests, sampling_fields, thinking_fields
from http_api.asked_fields import GROUPS
from http_api.content_parts import TEXTS
from http_api.effects import ANNOTATIONS, EMPTY, OFF, OFF_OR_UNKNOWN, off_values
from http_api.guides import MODES
from http_api.model_names import names_of
from http_api.notation import Names, Schema, components_of, define
from http_api.thinking_fields import SET_ALREADY, TYPES
from opensled.core import bounds, messages
from opensled.core.bounds import MAX_CHARACTERS
from opensled.core.messages import GUIDE, MAX_BIAS, MAX_BIASES, PENALTIES, ModelInfo
from opensled.core.template_variables import RESERVED

READERS = (chat_messages, content_parts, guides, requests, sampling_fields, thinking_fields, bounds, messages)
# The notations have the limits and the names of kinds that the readers have.
CONSTANTS = {
    name: value
    for reader in READERS
    for name, value in vars(reader).items()
    if name.isupper() and isinstance(value, (int, float, tuple))
}

BASE = """
token = integer 0..LAST_TOKEN
count = -1 | integer 1..LARGEST
limit = -1 | integer 1..LARGEST | 0
told = any -- A text, a list of parts, or any other JSON, which is read as a text.
picture_url = text -- A data URL, data:image/png;base64,..., or base64.
picture = if IMAGES open{type!: picture_kind, image_url!: picture_url | open{url!: picture_url}} else none
arguments = (text | object)? -- A JSON object, as one or as a text; none is an empty one.
call_id = text? -- Without one the call is numbered.
result_id = text? -- The call it answers; without one the next call that waits, of the same name if it has one.

without_effect = request{
  *off
  *ANNOTATIONS: any -- Without effect; named in OpenSLED-Ignored.
}
asked = request{
  *without_effect
  model: served? -- The model served here, by any name.
}
served_sampling = if PENALIZES sampling else request{
  *sampling
  min_p: 0 | empty, presence_penalty: 0 | empty, frequency_penalty: 0 | empty
  repetition_penalty: 1 | empty, repeat_penalty: 1 | empty
}
everywhere = request{
  *asked
  *served_sampling
  logit_bias: biases? -- Token ids below <VOCABULARY>, as strings: what is added to the token's logit.
  stop: (text | [text] 0..MAX_STOPS)? -- Strings that end an answer; they are not shown. An empty one ends nothing.
  stop_token_ids: [token] 0..MAX_STOP_IDS? -- Tokens that end an answer.
  *delivery
  stream_options: request{*stream_options *without_effect}? -- Without effect unless stream is true.
  opensled: opensled? -- How the answer is served; what is left out is as configured here.
}
limited = request{
  *everywhere
  max_tokens: limit? -- Most tokens of an answer; 0 only with prompt_logprobs.
}

switches = request{
  enable_thinking: switch -- Whether the model thinks before it answers.
  thinking: (true | 0 | open{type: thinking_types | nothing})? -- The same, as DeepSeek and GLM have it.
  reasoning_effort: text? -- How much it thinks; none = not at all.
}
thinking = request{
  *switches
  include_reasoning: switch -- false: the answer comes without the thoughts.
  reasoning: open{
    enabled: switch -- Whether the model thinks before it answers.
    effort: text? -- How much it thinks; none = not at all.
    exclude: switch -- true: the answer comes without the thoughts.
  }? -- Others of its fields are left out.
  chat_template_kwargs: open{*reserved *switches}? -- Variables of the chat template; those that it does not read are
    -- left out.
}

only_text = request{type: "text" | nothing}
any_object = request{type!: "json_object"}
schema = request{
  schema: object? -- JSON schema of the answer; any object if left out.
}
answer_schema = request{*named_form, *schema}
typed_form = request{*answer_schema, type!: "json_schema"}
function = request{
  name!: name
  *function
  parameters: object? -- JSON schema of the arguments, an object.
}
other_tool = open{type!: name not ("function" | "namespace")} -- A tool that is no function.
allowed = request{mode: modes | nothing, tools!: [any] 1..}
tool_choice = (if GUIDES (
    name | true | request{
      type!: modes
      disable_parallel_tool_use: switch -- At most one call.
    }
    | request{type: NAMED, name!: name} | request{type: NAMED, function!: open{name!: name}}
    | request{type!: "allowed_tools", *allowed} | request{type!: "allowed_tools", allowed_tools!: request{*allowed}}
  ) else ("none" | "auto" | request{type!: "none" | "auto"})
  )? -- What it must do, or its name: a call can be asked for only of one of the tools. auto if left out.
"""
CALL_FIELDS = """
calls = request{
  tools: if GUIDES [tool | other_tool] 0..MAX_TOOLS else [any] 0..0? -- <tools>
  tool_choice: tool_choice
  parallel_tool_calls: switch -- Whether an answer may have several calls. true if left out.
}
"""
CONTENT = """
content = (text | [
    text | open{type: said | nothing, text!: text?} | open{type!: "refusal", refusal!: text?} | parts
    | open{
      type!: name not (TEXTS | own_types)
        -- Read if it can be; else refused in the user's last turn, and a line of text in any other.
    }
    | open{type: nothing} not open{text!: any} | nothing
  ])? -- None is an empty text.
"""
CHAT_PARTS = """
parts = picture
own_types = no_values
tool = request{type: "function" | nothing, function!: function}
"""
CHATS = """
form = if GUIDES (any_object | only_text | request{type!: "json_schema", json_schema!: answer_schema}) else only_text
named_turn = open{
  *BESIDE: any -- As a part of the content of that type, or several.
  name: text? -- Who speaks; for the chat template.
  tool_name: text? -- The same, as Ollama has it.
}
called = open{name!: text, arguments: arguments}
call = open{id: call_id, type: "function" | nothing, function!: called}
custom_call = open{id: call_id, type!: "custom", custom!: open{name!: text, input: text?}}
Message = open{role!: "system" | "developer" | "user", content!: content, *named_turn}
  | open{
    role!: "assistant", content: content, *named_turn
    *KEYS: any -- What it thought before: for templates that read it.
    refusal: text? -- The text of an answer that has no other.
    function_call: called? -- A call, as older clients remember it.
    tool_calls: [call | custom_call | open{type!: name not CALLS}]?
  }
  | open{role!: "tool" | "function", content: told, *named_turn, tool_call_id: result_id}
ChatRequest = request{
  messages!: [Message] 1..
  *limited
  *chat
  max_completion_tokens: limit? -- Newer name of max_tokens; of both the smaller one holds.
  *thinking
  *calls
  response_format: form? -- <kept>
}
CompletionRequest = request{
  *limited
  *completion
  best_of: integer 1..32? -- 1, equal to n, or left out.
  prompt!: text | [token] 1.. | [text] 1..MAX_PROMPTS | [[token] 1..] 1..MAX_PROMPTS
    -- Text or token ids, or a list of either; choices come in the order of the prompts.
  max_tokens: limit? -- Most tokens of an answer; <COMPLETION_TOKENS> if left out, 0 only with echo or prompt_logprobs.
}
TokenizeRequest = {
  *asked
  prompt: text ..MAX_TEXT
  add_special_tokens?: switch -- Whether the model's special tokens, such as BOS, are added.
  *tokenize
}
Tokens = open{count!: integer, max_model_len: integer, tokens!: [token], token_strs: [text] | null}
DetokenizeRequest = {*asked, tokens: [token]}
TokenText = open{prompt!: text, content: text}
"""

TOOLS = (
    "Functions that the model may call, each name once, in the form of any API here or of MCP servers; other tools run "
    "elsewhere, and are left out."
)


def components(info: ModelInfo) -> Schema:
    """Those of chats, completions and tokens, for a server that says `info`."""
    return described(info, CHAT_PARTS + CALL_FIELDS + CONTENT + CHATS, picture_kind=("image_url",))


def described(info: ModelInfo, notation: str, **names: Any) -> Schema:
    """The components of one API, whose notation goes on behind BASE, for a server that says `info`."""
    return components_of(define(BASE + notation, {**CONSTANTS, **GROUPS, **_served(info), **names}))


def _served(info: ModelInfo) -> Names:
    """What depends on the server, and fields that are in tables."""
    guides = GUIDE in info.capabilities
    biases = {
        "type": "object",
        "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
        "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
        "maxProperties": MAX_BIASES,
    }
    return {
        "GUIDES": guides,
        "IMAGES": bool(info.images),
        "PENALIZES": PENALTIES in info.capabilities,
        "MAX_TEXT": MAX_CHARACTERS * info.limits.context_length,
        "VOCABULARY": info.vocab_size,
        "LAST_TOKEN": info.vocab_size - 1,
        "kept": "Kept to by a grammar." if guides else "Only text at this server.",
        "tools": TOOLS if guides else "None at this server.",
        "served": names_of(info),
        "biases": biases,
        "ANNOTATIONS": tuple(sorted(ANNOTATIONS)),
        "off": _values({name: off_values(name) for name in (*OFF, *OFF_OR_UNKNOWN)}),
        "reserved": _values({name: (*SET_ALREADY.get(name, ()), None) for name in RESERVED}),
        "modes": tuple(MODES),
        "thinking_types": tuple(TYPES),
        "said": tuple(kind for kind in TEXTS if kind != "refusal"),
    }


def elsewhere(remedies: dict[str, str]) -> Schema:
    """Fields that another service alone can serve, so that only empty ones are taken; each with what to do instead."""
    fields = _values(dict.fromkeys(remedies, (*EMPTY, False)))
    for name, remedy in remedies.items():
        fields["properties"][name]["description"] = remedy
    return fields


def _values(fields: dict[str, tuple[object, ...]]) -> Schema:
    """Fields with the values that each may have."""
    return {"properties": {name: {"enum": [*values]} for name, values in fields.items()}, "required": []}
