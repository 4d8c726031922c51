"""The JSON schemas of the fields about the form of an answer, which guides.py reads."""

from http_api.effects import EMPTY
from http_api.guides import MODES, NAMED
from http_api.replies import TEXT, Schema, items, one_of, open_object, optional, request_object, switch
from opensled.core.bounds import MAX_TOOLS
from opensled.core.messages import GUIDE, ModelInfo

NAME: Schema = {"type": "string", "minLength": 1}
FUNCTION = one_of("function", *EMPTY, False)
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
    format_kinds = [
        request_object({"type": one_of("json_object")}, "type"),
        ONLY_TEXT,
        request_object({"type": one_of("json_schema"), "json_schema": json_schema()}, "type", "json_schema"),
    ]
    tool = request_object({"type": FUNCTION, "function": function()}, "function")
    return {
        "response_format": optional({"anyOf": format_kinds}, "Kept to by a grammar."),
        **tools(tool),
    }


def tools(tool: Schema) -> Schema:
    """The fields about calls."""
    about = "Functions that the model may call, each name once, in the form of any API here or of MCP servers; other "
    about += "tools run elsewhere, and are left out."
    return {
        "tools": optional(items({"anyOf": [tool, OTHER]}, 0, MAX_TOOLS), about),
        "tool_choice": choice(),
        "parallel_tool_calls": switch("Whether an answer may have several calls. true if left out."),
    }


def choice() -> Schema:
    """What must be called, in the words of any API."""
    kind, named = {"type": one_of(*NAMED)}, open_object({"name": NAME}, "name")
    one = [
        request_object({**kind, "name": NAME}, "name"),
        request_object({**kind, "function": named}, "function"),
    ]
    several = {"mode": one_of(*MODES, *EMPTY, False), "tools": items({}, 1)}  # nothing but names is read
    mode = {"type": one_of(*MODES), "disable_parallel_tool_use": switch("At most one call.")}
    listed = {"type": one_of("allowed_tools")}
    kinds = [
        *[NAME, one_of(True), request_object(mode, "type"), *one],
        request_object({**listed, **several}, "type", "tools"),
        request_object(
            {**listed, "allowed_tools": request_object(several, "tools")}, "type", "allowed_tools"
        ),
    ]
    about = (
        "What it must do, or its name: a call can be asked for only of one of the tools. auto if left out."
    )
    return optional({"anyOf": kinds}, about)


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
    return _named_object("For readers.", {"name": optional(TEXT, "For readers."), **more}, more, schema=own)


def function(**more: Schema) -> Schema:
    """A function that the model may call; `more`: fields beside these."""
    own = optional({"type": "object"}, "JSON schema of the arguments, an object.")
    return _named_object("For the model.", {"name": NAME, **more}, {"name": NAME}, parameters=own)


def _named_object(purpose: str, first: Schema, required: Schema, **own: Schema) -> Schema:
    """`purpose`: of the description."""
    fields = {**first, "description": optional(TEXT, purpose), "strict": switch(STRICT), **own}
    return request_object(fields, *required)
