"""Answers of chats and completions, and what other paths tell, in the notation of http_api/notation.py."""

from http_api.notation import Schema, components_of, define

SHARED = """
cached_tokens = natural -- positions whose KV the server found in its prefix cache
fingerprint = text -- opensled-RELEASE/MODEL/NUMERICS/RULE: with it equal, equal seeds give equal answers.
  -- opensled-RELEASE/draft-model/local-only: text of the draft model alone, or of a relay's (relay-model), see
  -- local_tokens.
token_logprobs = {
  token: text, bytes: [integer 0..255]
  logprob: number -- nats; the target's own, before temperature and masks
}
logprobs = [{*token_logprobs, top_logprobs: [token_logprobs]}]
draft_figures = {
  rule: text -- acceptance rule; local-only: a part of the text is not verified
  rounds: natural, drafted: natural, accepted: natural
  loose: natural -- of the accepted, tokens that are not the target's own; 0 by every rule but loose ones
  tokens_per_round: number, wasted: natural, server_decoded: natural
  local_tokens: natural -- written by the draft model or a relay's alone, while the target could not be reached
  tokens_per_second: number -- behind the first token; 0 = of one token there is no rate
  first_token_seconds: number -- from the request to the first token
}
"""
ANSWERS = """
Usage = {
  prompt_tokens: natural, completion_tokens: natural, total_tokens: natural
  prompt_tokens_details: {cached_tokens: cached_tokens}
  completion_tokens_details: {
    reasoning_tokens: natural, accepted_prediction_tokens: natural, rejected_prediction_tokens: natural
  }
  opensled: draft_figures
}
frame = {
  id: text, model: text, system_fingerprint: fingerprint
  created: natural -- unix seconds
}
told_prompt = {
  prompt_logprobs?: [map {
    logprob: number, decoded_token: text
    rank: integer 1.. -- ids at least as likely, itself included
  } | null] -- of each token of the prompt, by id; null = the first
}
chat_logprobs = {content: logprobs, refusal: null} | null
call = {id: text /^call_/, type: "function", function: {name: text, arguments: text}}
call_piece = {index: natural, id?: text, type?: "function", function: {name?: text, arguments: text}}
ChatCompletion = {
  *frame, *told_prompt, object: "chat.completion", usage: Usage
  choices: [{
    index: natural, logprobs: chat_logprobs, finish_reason: "stop" | "length" | "tool_calls"
    message: {
      role: "assistant", content: text | null, refusal: null, tool_calls?: [call] 1..
      reasoning_content?: text -- What the model thought before its answer; absent if it thought nothing.
    }
  }]
}
ChatCompletionChunk = {
  *frame, object: "chat.completion.chunk", usage?: Usage | null
  choices: [{
    index: natural, logprobs: chat_logprobs, finish_reason: "stop" | "length" | "tool_calls" | null
    delta: {role?: "assistant", content?: text, reasoning_content?: text, tool_calls?: [call_piece] 1..1}
  }]
}
text_logprobs = {
  tokens: [text], text_offset: [natural]
  token_logprobs: [number | null], top_logprobs: [map number | null]
} | null
Completion = {
  *frame, object: "text_completion", usage: Usage
  choices: [{index: natural, text: text, logprobs: text_logprobs, finish_reason: "stop" | "length", *told_prompt}]
}
CompletionChunk = {
  *frame, object: "text_completion", usage?: Usage | null
  choices: [{index: natural, text: text, logprobs: text_logprobs, finish_reason: "stop" | "length" | null}]
}
Model = {
  id: text, object: "model", created: natural, owned_by: text
  max_model_len: integer 1.. -- tokens, prompt included
}
ModelList = {object: "list", data: [Model] 1..1}
Error = {error: {
  message: text
  type: "invalid_request_error" | "authentication_error" | "rate_limit_error" | "server_error"
  param: text | null -- the field, as the client spells it
  code: text -- docs/protocol.md has those of the server
}}
Health = {status: "ok", server: "reachable" | "away" | "loading" | "refuses"}
Ready = {status: "ready", server: "reachable" | "away"}
Status = {
  drafting: flag
  words: text -- how it drafts, and why
  length: natural -- tokens of a draft block; 0 = it drafts nothing now
  drafted_rate: number 0.. | null -- tokens/s of the latest answers with drafts; null = not known yet
  plain_rate: number 0.. | null -- tokens/s of the latest answers without drafts
  compared: natural -- tokens that were timed with drafts and without, the fewer
  gain: number 0.. | null -- drafted_rate / plain_rate; null = too few tokens yet
  gain_words: text -- the gain, or why it is not known
}
Description = open{openapi!: "3.1.0", info!: any, paths!: any, components!: any}
"""


def components() -> Schema:
    """Those of all these answers."""
    return components_of(define(SHARED + ANSWERS, {}))
