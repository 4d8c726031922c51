"""The form of an answer, from JSON: `response_format`, `tools` and `tool_choice`.

Before the target samples, the server masks tokens that would leave the grammar. What a grammar cannot hold of a schema
is refused with `strict: true`; else it is left out and named in a header (http_api/left_out.py).
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from http_api.effects import is_nothing
from http_api.fields import Fields, fields_of, object_text, require_object, require_text
from http_api.left_out import CALLS_HEADER, leave_out, note, require_held
from opensled.core.bounds import MAX_TOOLS
from opensled.core.errors import InvalidRequest, Unsupported
from opensled.core.messages import GUIDE, Guide, ModelInfo, Tool
from opensled.text.call_forms import CALLING

ANY_OBJECT = "{}"
CHOICES = ("none", "auto", "required")
MODES = {**{mode: mode for mode in CHOICES}, "any": "required"}  # as clients spell them
NAMED = ("function", "tool", "custom")  # types of a choice of one tool
SCHEMAS = ("parameters", "input_schema", "inputSchema")  # of arguments: OpenAI's, Anthropic's, MCP servers'
Choice = tuple[tuple[Tool, ...], tuple[str, str], bool]  # see `read_choice`


class Form(NamedTuple):
    """The JSON schema of an answer ("" = text), and whether all of it must be held."""

    schema: str
    strict: bool = False


NO_FORM = Form("")


def read_form(fields: Fields) -> Form:
    """The form that the fields of a chat ask for."""
    value = fields.take("response_format")
    return (
        NO_FORM
        if value is None
        else read_format(
            fields_of(value, "response_format"), lambda fields: read_schema(fields.inside("json_schema"))
        )
    )


def read_calls(fields: Fields) -> Choice:
    """The tools of a chat, the choice among them, and whether there may be several calls."""
    return read_choice(fields, read_tools(fields.take("tools")))


def make_guide(
    form: Form,
    form_field: str,
    tools: tuple[Tool, ...],
    choice: tuple[str, str],
    parallel: bool,
    info: ModelInfo,
) -> Guide | None:
    """The guide of what was read, `form` from the field `form_field`; None: free text without tools.

    Refuses it where the server cannot guide.
    """
    for name, value in ((form_field, form.schema), ("tools", tools)):
        if value and GUIDE not in info.capabilities:
            raise Unsupported(f"the server of {info.model_id} cannot guide answers: leave {name} out", name)
    if not tools:
        return Guide(json_schema=form.schema, strict=form.strict) if form.schema else None
    if info.calls is None and choice[0] in CALLING:
        note(
            CALLS_HEADER, "text: the form of this model's calls is not known, and no grammar holds the answer"
        )
        return Guide("", tools, "none")
    return Guide(form.schema, tools, *choice, parallel, form.strict)


def read_format(fields: Fields, read_schema: Callable[[Fields], Form]) -> Form:
    """The form of the answer. `read_schema` reads the fields of the type json_schema."""
    kind, where = fields.text("type", "text"), fields.path("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise Unsupported(f"{where} must be text, json_object or json_schema", where)
    form = {"text": NO_FORM, "json_object": Form(ANY_OBJECT)}.get(kind) or read_schema(fields)
    fields.finish()
    return form


def read_schema(fields: Fields, named: bool = True) -> Form:
    """The schema of an answer, with its name if it is `named`; refuses other fields."""
    strict = fields.read("named_form" if named else "form").get("strict", False)
    schema = fields.take("schema")
    fields.finish()
    return Form(ANY_OBJECT if schema is None else schema_text(schema, fields.path("schema"), strict), strict)


def read_tools(value: object, custom: bool = False) -> tuple[Tool, ...]:
    """The functions of the field `tools`, in the form of any API that clients know; `custom`: see `functions`."""
    return _check_tools([read_function(tool) for tool, _ in functions(value, custom=custom)])


def read_spaces(value: object) -> tuple[tuple[Tool, ...], dict[str, tuple[str, str]]]:
    """The same, also of namespaces; and for each function of one, by the model's name of it, its namespace and its name
    there. It keeps that name where no other function has it, else it is NAMESPACE__NAME."""
    read = [(space, read_function(tool)) for tool, space in functions(value)]
    times = Counter(tool.name for _, tool in set(read))
    tools, spaces = list[Tool](), dict[str, tuple[str, str]]()
    for space, tool in read:
        own = f"{space}__{tool.name}" if space and times[tool.name] > 1 else tool.name
        if space:
            spaces[own] = (space, tool.name)
        tools.append(replace(tool, name=own))
    return _check_tools(tools), spaces


def _check_tools(given: list[Tool]) -> tuple[Tool, ...]:
    """Tools, each of a name of its own; raises InvalidRequest. One that comes twice as it is comes once."""
    tools = tuple(dict.fromkeys(given))
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"tools may hold at most {MAX_TOOLS} functions", "tools")
    if len({tool.name for tool in tools}) < len(tools):
        raise InvalidRequest("tools has two tools of the same name", "tools")
    return tools


def functions(
    value: object, where: str = "tools", space: str = "", custom: bool = False
) -> Iterator[tuple[Fields, str]]:
    """The fields of each function in a list of tools, and its namespace ("" = none).

    Other tools run elsewhere, and are left out; those of the type custom too, if they have no schema and are not
    functions in this API (`custom`).
    """
    tools = [] if value is None else value
    if not isinstance(tools, list):
        raise InvalidRequest(f"{where} must be a list of tools", where)
    for index, tool in enumerate(tools):
        place = f"{where}[{index}]"
        tool = require_object(tool, place)
        fields = fields_of(tool, place)
        # Google's tools have their name as their only key: {"google_search": {}}.
        name = next(iter(tool), "function")
        bare = len(tool) == 1 and name not in ("function", *SCHEMAS) and isinstance(tool[name], dict)
        kind = name if bare else fields.text("type", "function")
        if kind == "function" or (kind == "custom" and (custom or "input_schema" in tool)):
            if "function" in tool:
                outer, fields = fields, fields.inside("function")
                if outer.flag("strict", False):
                    leave_out(outer.path("strict"))
                outer.finish()
            yield fields, space
        elif kind == "namespace" and not space:
            if fields.text("description", ""):
                leave_out(f"{place}.description")
            inner, name = fields.take("tools"), read_name(fields)
            fields.finish()
            yield from functions(inner, f"{place}.tools", name)
        else:
            leave_out(f"{place} ({kind})")


def read_function(fields: Fields) -> Tool:
    """A tool by its name, description and the schema of its arguments; refuses other fields."""
    name = read_name(fields)
    given = fields.read("function")
    description, strict = given.get("description", ""), given.get("strict", False)
    where, schema = arguments_schema(fields)
    fields.finish()
    text = "" if schema is None else schema_text(schema, fields.path(where), strict)
    return Tool(name, description, text, strict)


def arguments_schema(fields: Fields) -> tuple[str, Any]:
    """The schema of a tool's arguments, with the name of its field; None: it has none."""
    found = [(name, schema) for name in SCHEMAS if (schema := fields.take(name)) is not None]
    return found[0] if found else (SCHEMAS[0], None)


def read_choice(fields: Fields, tools: tuple[Tool, ...]) -> Choice:
    """The tools that may be called, a mode of CHOICES with the only function that may be ("" = any), and whether there
    may be several calls; in the words of any API that clients know."""
    value, several = fields.raw("tool_choice"), fields.flag("parallel_tool_calls", True)
    if value is True:
        return tools, _checked("required", "", tools), several
    if is_nothing(value):
        return tools, ("auto" if tools else "none", ""), several
    if isinstance(value, str):
        value = {"type": value} if value.lower() in MODES else {"type": "function", "name": value}
    chosen = fields_of(value, "tool_choice")
    kind = chosen.text("type", "function")
    several = several and not chosen.flag("disable_parallel_tool_use", False)
    if kind.lower() in MODES:
        mode, name = MODES[kind.lower()], ""
    elif kind == "allowed_tools":
        tools, mode, name = _allowed(chosen, tools)
    elif kind in NAMED:
        mode, name = "required", _chosen_name(chosen, kind)
    else:
        where = chosen.path("type")
        raise Unsupported(
            f"{where} must be {', '.join((*MODES, 'allowed_tools', *NAMED))}: no other tool runs here", where
        )
    chosen.finish()
    return tools, _checked(mode, name, tools), several


def _checked(mode: str, name: str, tools: tuple[Tool, ...]) -> tuple[str, str]:
    if mode == "required" and name not in ("", *(tool.name for tool in tools)):
        raise InvalidRequest(f"tool_choice names {name}, which tools does not have", "tool_choice")
    if mode == "required" and not tools:
        raise InvalidRequest("tool_choice asks for a call, and tools has no function", "tool_choice")
    return mode, name


def _allowed(chosen: Fields, tools: tuple[Tool, ...]) -> tuple[tuple[Tool, ...], str, str]:
    """Those of `tools` that a list of some allows, and its mode; the list may stand in a field of its own. Tools of
    services are listed there too: nothing here has their names."""
    inner = chosen.take("allowed_tools")
    listed = chosen if inner is None else fields_of(inner, chosen.path("allowed_tools"))
    mode, given, where = listed.text("mode", "auto").lower(), listed.take("tools"), listed.path("tools")
    if mode not in MODES or not isinstance(given, list):
        raise InvalidRequest(
            f"tool_choice must have a mode (auto or required), and tools as a list in {where}", where
        )
    inners = [each.get("function", each) if isinstance(each, dict) else each for each in given]
    names = [each.get("name") if isinstance(each, dict) else each for each in inners]
    listed.finish()
    return tuple(tool for tool in tools if tool.name in names), MODES[mode], ""


def _chosen_name(chosen: Fields, kind: str) -> str:
    """The name of the tool that an object of this type names, in itself or in its field of the same name."""
    name = chosen.raw("name")
    if name is None and kind != "tool":
        return read_name(chosen.inside(kind))
    return require_text(name, chosen.path("name"))


def read_name(fields: Fields) -> str:
    """The name of a tool: any text, which a call bears as it was given."""
    name = require_text(fields.raw("name"), fields.path("name"))
    if not name:
        raise InvalidRequest(f"{fields.path('name')} is empty: give the tool a name", fields.path("name"))
    return name


def schema_text(schema: Any, where: str, strict: bool = False) -> str:
    """A JSON schema as the wire has it; refuses what `strict` asks for and no grammar holds."""
    text = object_text(schema, where)
    require_held(schema, where, strict)
    return require_text(text, where)
