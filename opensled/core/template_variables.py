"""Variables that a chat brings for its template, such as `enable_thinking`: one JSON object, of a size with a bound."""

import json
from typing import Any

from opensled.core.errors import InvalidRequest

MAX_SIZE = 16 << 10  # bytes of the JSON
# What every chat sets itself, or asks for something else than a variable.
RESERVED = (
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize",
    "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token",
    "additional_special_tokens",
)  # fmt: skip
FIELD = "template_variables"


def read_variables(text: str) -> dict[str, Any]:
    """The variables in a JSON text, "" = none; raises InvalidRequest for the field `template_variables`."""
    if not text:
        return {}
    if len(text.encode(errors="replace")) > MAX_SIZE:
        raise InvalidRequest(
            f"the variables of a chat template take more than {MAX_SIZE} bytes: send fewer", FIELD
        )
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the variables of a chat template are not JSON", FIELD) from error
    if not isinstance(value, dict):
        raise InvalidRequest("the variables of a chat template must be a JSON object", FIELD)
    if taken := next((name for name in RESERVED if name in value), ""):
        raise InvalidRequest(
            f"{taken!r} is set by the chat itself and cannot be a variable of a request", FIELD
        )
    return value
