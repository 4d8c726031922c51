"""The flags, numbers and texts of requests, in the notation of http_api/notation.py: `Fields.read` takes them as they
are described here, and http_api/schemas.py puts the same groups into the bodies of /openapi.json."""

from http_api.notation import define, rows
from opensled.core import messages

NOTATION = """
factor = number MIN_REPETITION..MAX_PENALTY
additive = number -MAX_PENALTY..MAX_PENALTY
sampling = request{
  repeat_penalty: factor? -- llama.cpp's name of repetition_penalty, which is taken of both.
  temperature: (0 | number MIN_TEMPERATURE..100)? -- 0 takes the likeliest token. 1 if left out.
  top_k: integer ..LARGEST? -- Keep the K likeliest tokens; 0 or less = all.
  top_p: number 0..1? -- Keep the likeliest tokens that together reach P; 0 = the likeliest token alone.
  seed: integer? -- Same seed, same answer; it counts modulo 2^64. The first choice is drawn with it, choice i with
    -- a hash of seed and i.
  ignore_eos: switch -- Go on behind the model's own end. Not with a grammar.
  min_p: number 0..1? -- Keep tokens at least P times as probable as the likeliest; 0 = all.
  presence_penalty: additive? -- Subtracted from the logit of tokens that the answer has.
  frequency_penalty: additive? -- Subtracted for each time that the answer has the token.
  repetition_penalty: factor? -- Divides a positive logit of tokens that the answer has, multiplies a negative one.
    -- The prompt does not count.
}
several = request{
  prompt_logprobs: integer 0..MAX_TOP_LOGPROBS? -- Tell the log-probabilities of the prompt's tokens, and of so many of
    -- the likeliest. Not in a stream.
  n: integer 1..32? -- Answers to each prompt.
}
top_logprobs = request{
  top_logprobs: integer 0..MAX_TOP_LOGPROBS? -- Beside log-probabilities only: of so many of the likeliest tokens, too.
}
chat = request{
  *several
  logprobs: switch -- Tell the log-probabilities of the answer's tokens.
  *top_logprobs
}
completion = request{
  echo: switch -- Show the prompt before the answer.
  *several
  logprobs: (false | integer 0..5)? -- Tell the log-probabilities of the answer's tokens, with echo also of the
    -- prompt's, and of so many of the likeliest.
}
delivery = request{
  stream: switch -- Send the answer as server-sent events.
}
stream_options = request{
  include_usage: switch -- End with an event that has the usage.
}
opensled = request{
  pace: number 0..MAX_PACE? -- tokens/s the answer needs; the server promises them or refuses the request. 0 = no
    -- promise.
  background: switch -- No reader waits for the answer: under load other answers go first.
  drafts: switch -- false: the device drafts nothing for it. The text is the same.
}
strict = switch -- true: refuse a schema that the grammar cannot hold wholly. Else what it cannot hold is left out of
  -- the grammar, and named in the header OpenSLED-Not-In-Grammar.
form = request{
  description: text? -- For readers.
  strict: strict
}
named_form = request{
  name: text? -- For readers.
  *form
}
function = request{
  description: text? -- For the model.
  strict: strict
}
tokenize = request{
  return_token_strs: switch -- Whether the tokens are spelled out, too.
}
"""
# Groups whose ranges are checked by what is made of them, in words of its own
CHECKED_LATER = ("sampling", "opensled")
GROUPS = define(NOTATION, vars(messages))
FIELDS = {
    name: rows(group, name not in CHECKED_LATER)
    for name, group in GROUPS.items()
    if isinstance(group, dict) and "properties" in group
}
