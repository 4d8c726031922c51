"""Fields that no reader here takes, by what they would do: nothing, nothing at some values, or something that must not
be missed in silence.

Names of other servers' fields stand here too, for clients send them to every server.
"""

# They cannot change a text: any value is taken, and the answer's header names them.
ANNOTATIONS = frozenset(
    (
        # the caller's own
        "user", "metadata", "client_metadata", "safety_identifier", "session_id", "request_id", "trace",
        "extra_headers", "provider_specific_fields", "provider_options", "providerOptions",
        # how it is stored, cached, scheduled or paid for
        "store", "service_tier", "priority", "cache_control", "cache_prompt", "cache_salt", "prompt_cache_key",
        "prompt_cache_retention", "prompt_cache_options", "keep_alive", "id_slot", "prediction", "truncation",
        "max_tool_calls", "guided_decoding_backend",
        # hints to models that reason or tell less on demand
        "reasoning", "reasoning_effort", "verbosity",
        # Anthropic's: hints, and how much of a chat its own service keeps
        "thinking", "effort", "task_budget", "context_management", "inference_geo", "speed", "diagnostics",
        "user_profile_id", "workspace_id", "anthropic_beta", "anthropic_version", "input_examples", "defer_loading",
        "allowed_callers", "eager_input_streaming", "fallbacks", "fallback_credit_token", "billing_policy",
        # figures and padding beside the text
        "usage", "continuous_usage_stats", "include_obfuscation", "timings_per_token", "return_progress",
    )
)  # fmt: skip

# They ask for nothing at these values. At others the answer would be another one, so they are refused then.
OFF: dict[str, tuple[object, ...]] = {
    "modalities": (["text"],),
    "function_call": ("none", "auto"),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "early_stopping": (False,),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": ([],),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "audio": ({},),
    # of paths that do not have them, or of older clients
    "functions": ([],),
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
# The same, but at other values the effect depends on the model: --lenient leaves them out.
OFF_OR_UNKNOWN: dict[str, tuple[object, ...]] = {"chat_template_kwargs": ({},)}

_FORM = (
    "it asks for a form of the answer: ask by response_format with a JSON schema (text.format in a response, format "
    "in Ollama's API), or leave it out"
)
_SEARCH = "no search runs here: put what it would find into the messages, or leave it out"
_PICTURE = "this model reads no pictures at this place: leave it out, or describe it in words"
# Refused unless they are empty, also with --lenient: an answer without them would look right and not be -> next step.
ASKED: dict[str, str] = {
    **dict.fromkeys(
        (
            "grammar", "json_schema", "schema", "regex", "ebnf", "structural_tag", "structured_outputs",
            "response_format", "format",
        ),
        _FORM,
    ),
    "functions": "list them in tools",
    "function_call": "name it in tool_choice, or among the tool_calls of an earlier turn",
    "repeat_penalty": "ask by repetition_penalty, or in Ollama's API by options",
    "web_search_options": _SEARCH,
    **dict.fromkeys(("images", "image", "image_url", "input_audio", "video", "files", "attachments"), _PICTURE),
    "context": "no conversation is kept here: send its turns as messages to /api/chat",
    **dict.fromkeys(
        (
            "messages", "prompt", "input", "instructions", "system", "template", "chat_template", "max_tokens",
            "max_completion_tokens", "max_output_tokens", "num_predict", "n_predict", "max_new_tokens",
        ),
        "it is a field of another path; GET /openapi.json has the fields of this one",
    ),
}  # fmt: skip
ASKED_PREFIX = "guided_"  # vLLM's names of forms
FULL_WHEN_EMPTY = ("guided_json", "json_schema", "schema", "web_search_options")  # {} asks for something


def asked(name: str) -> str:
    """What to do instead of the field `name`, which must not be left out; "" = it may be."""
    return ASKED.get(name) or (_FORM if name.startswith(ASKED_PREFIX) else "")


def off_values(name: str) -> tuple[object, ...]:
    """The values at which the field asks for nothing, as far as is known here."""
    empty: list[object] = ["", [], *([] if name in FULL_WHEN_EMPTY else [{}])]
    return (*(empty if asked(name) else ()), *OFF.get(name, ()), *OFF_OR_UNKNOWN.get(name, ()))


def is_any_of(value: object, allowed: tuple[object, ...]) -> bool:
    """Whether it is one of these JSON values: 1 and 1.0 are the same, 1 and true are not."""
    return any(isinstance(value, bool) is isinstance(same, bool) and value == same for same in allowed)
