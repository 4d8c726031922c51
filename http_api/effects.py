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
        # how a router would choose among models and hosts; one model is here, and a prompt is never shortened
        "provider", "models", "route", "transforms", "ttl",
        # hints to models that think or tell less on demand; http_api/thinking_fields.py reads those of chats
        "reasoning", "reasoning_effort", "verbosity", "separate_reasoning", "reasoning_format",
        # Anthropic's: hints, and how much of a chat its own service keeps
        "effort", "task_budget", "context_management", "inference_geo", "speed", "diagnostics",
        "user_profile_id", "workspace_id", "anthropic_beta", "anthropic_version", "input_examples", "defer_loading",
        "allowed_callers", "eager_input_streaming", "fallbacks", "fallback_credit_token", "billing_policy",
        # of tools of MCP servers, which no model is told
        "annotations", "outputSchema", "title", "icons", "execution", "_meta", "display_name",
        # belongs to sampling that is off, or to a context that is never shortened
        "mirostat_tau", "mirostat_eta", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
        "xtc_threshold", "dynatemp_exponent", "length_penalty", "early_stopping", "num_ctx", "n_ctx", "n_keep",
        "num_keep", "penalize_newline",
        # how Ollama loads a model: here it is loaded, by its server
        "num_batch", "num_gpu", "main_gpu", "num_thread", "numa", "low_vram", "f16_kv", "use_mmap", "use_mlock",
        "logits_all", "num_gqa", "draft_num_predict",
        # figures and padding beside the text
        "usage", "continuous_usage_stats", "include_obfuscation", "timings_per_token", "return_progress",
    )
)  # fmt: skip

# They ask for nothing at these values. At others the answer would be another one, so they are refused then.
OFF: dict[str, tuple[object, ...]] = {
    "modalities": (["text"],),
    "function_call": ("none", "auto"),
    "suffix": (),
    "echo": (False,),
    "safe_prompt": (False,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "detokenize": (True,),
    "include_stop_str_in_output": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "documents": (),
    "repeat_penalty": (1,),
    "typical_p": (1,),
    "tfs_z": (1,),
    "top_a": (0,),
    "mirostat": (0,),
    "dry_multiplier": (0,),
    "xtc_probability": (0,),
    "dynatemp_range": (0,),
    "top_n_sigma": (0, -1),
    "n_probs": (0,),
    "t_max_predict_ms": (0, -1),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "audio": (),
    # of paths that do not have them, or of older clients
    "functions": (),
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "response_format": ({"type": "text"}, {"type": None}),
    "tools": (),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
}
# These are no flags, so false asks for nothing
LISTED = ("audio", "documents", "tools", "tool_choice", "modalities", "suffix")
# The same, but at other values the effect depends on the model: --lenient leaves them out.
OFF_OR_UNKNOWN: dict[str, tuple[object, ...]] = {
    "chat_template_kwargs": ({"enable_thinking": False}, {"thinking": False}),
    "enable_thinking": (False,),
    "think": (False,),
    "thinking": (False, {"type": "disabled"}),
    "thinking_budget": (0,),
}

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
    "repeat_penalty": "ask by options",
    "web_search_options": _SEARCH,
    **dict.fromkeys(("images", "image", "image_url", "input_audio", "video", "files", "attachments"), _PICTURE),
    "context": "no conversation is kept here: send its turns as messages to /api/chat",
    **dict.fromkeys(
        (
            "messages", "prompt", "input", "instructions", "system", "max_tokens",
            "max_completion_tokens", "max_output_tokens", "num_predict", "n_predict", "max_new_tokens",
        ),
        "it is a field of another path, or in Ollama's API of options; GET /openapi.json has the fields of this one",
    ),
    **dict.fromkeys(("template", "chat_template"), "a chat has the model's own template: leave it out"),
}  # fmt: skip
ASKED_PREFIX = "guided_"  # vLLM's names of forms
FULL_WHEN_EMPTY = ("guided_json", "json_schema", "schema", "web_search_options")  # {} asks for something
# A field that is empty is absent, whatever its type: some languages write an empty object as [], and a text of a form
# that nobody filled in is "". So is false, in place of a text, a list or an object.
EMPTY: tuple[object, ...] = (None, "", [], {})


def find_remedy(name: str) -> str:
    """What to do instead of the field `name`, which must not be left out; "" = it may be."""
    return ASKED.get(name) or (_FORM if name.startswith(ASKED_PREFIX) else "")


def off_values(name: str) -> tuple[object, ...]:
    """The values at which the field asks for nothing, as far as is known here."""
    empty = [value for value in EMPTY if value != {} or name not in FULL_WHEN_EMPTY]
    known = (*OFF.get(name, ()), *OFF_OR_UNKNOWN.get(name, ()))
    off = [0, False] if is_any_of(0, known) or is_any_of(False, known) else []
    return (*empty, *([False] if find_remedy(name) or name in LISTED else []), *known, *off)


def is_nothing(value: object) -> bool:
    """Whether this value of a text, a list or an object is as good as none."""
    return value is None or value is False or (not value and isinstance(value, str | list | dict))


def is_any_of(value: object, allowed: tuple[object, ...]) -> bool:
    """Whether it is one of these JSON values: 1 and 1.0 are the same, 1 and true are not."""
    return any(isinstance(value, bool) is isinstance(same, bool) and value == same for same in allowed)
