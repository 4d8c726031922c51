"""The JSON schemas of the fields about the form of an answer, which guides.py reads."""

from http_api.effects import EMPTY
from http_api.guides import CHOICES, NAME
from http_api.replies import TEXT, Schema, items, one_of, optional, request_object, switch
from opensled.core.bounds import MAX_TOOLS
from opensled.core.messages import GUIDE, ModelInfo

NAMED: Schema = {"type": "string", "pattern": f"^{NAME}$"}
OTHER: Schema = {
    "type": "object",
    "properties": {"type": {"type": "string", "minLength": 1, "not": one_of("function", "namespace")}},
    "required": ["type"],
    "description": "A tool that is no function.",
}
STRICT = (
    "true: refuse a schema that the grammar cannot hold wholly. Else what it cannot hold is left out of the grammar, "
    "and named in the header OpenSLED-Not-In-Grammar."
)
ONLY_TEXT = request_object({"type": one_of("text", *EMPTY, False)})


def guide_fields(info: ModelInfo) -> Schema:
    """The fields of a chat about the form of its answer."""
    return _fields_with_guide() if GUIDE in info.capabilities else _fields_without_guide()


def _fields_with_guide() -> Schema:
    named = request_object({"name": NAMED}, "name")
    format_kinds = [
        request_object({"type": one_of("json_object")}, "type"),
        ONLY_TEXT,
        request_object({"type": one_of("json_schema"), "json_schema": json_schema()}, "type", "json_schema"),
    ]
    chosen = request_object({"type": one_of("function"), "function": named}, "type", "function")
    tool = request_object({"type": one_of("function"), "function": function()}, "type", "function")
    return {
        "response_format": optional({"anyOf": format_kinds}, "Kept to by a grammar."),
        **tools(tool, chosen),
    }


def tools(tool: Schema, chosen: Schema) -> Schema:
    """The fields about calls; `chosen`: a choice of one tool by its name."""
    about = "Functions that the model may call, each name once; other tools run elsewhere, and are left out."
    return {
        "tools": optional(items({"anyOf": [tool, OTHER]}, 0, MAX_TOOLS), about),
        "tool_choice": optional(
            {"anyOf": [one_of(*CHOICES), chosen]},
            "What it must do; a call can be asked for only of one of the tools. auto if left out.",
        ),
        "parallel_tool_calls": switch("Whether an answer may have several calls. true if left out."),
    }


def _fields_without_guide() -> Schema:
    return {"response_format": optional(ONLY_TEXT, "Only text at this server."), **no_tools()}


def no_tools() -> Schema:
    """Where the server cannot mask by a grammar: only values that ask for nothing."""
    return {
        "tools": optional(items({}, 0, 0), "None at this server."),
        "tool_choice": one_of("none", "auto", *EMPTY, False),
        "parallel_tool_calls": switch("Without meaning at this server."),
    }


def json_schema(**more: Schema) -> Schema:
    """The schema of an answer, with its name; `more`: required fields beside these."""
    own = optional({"type": "object"}, "JSON schema of the answer; any object if left out.")
    return _named_object("For readers.", more, schema=own)


def function(**more: Schema) -> Schema:
    """A function that the model may call; `more`: required fields beside these."""
    own = optional({"type": "object"}, "JSON schema of the arguments, an object.")
    return _named_object("For the model.", more, parameters=own)


def _named_object(purpose: str, required: Schema, **own: Schema) -> Schema:
    """`purpose`: of the description."""
    fields = {
        **required,
        "name": NAMED,
        "description": optional(TEXT, purpose),
        "strict": switch(STRICT),
        **own,
    }
    return request_object(fields, "name", *required)
