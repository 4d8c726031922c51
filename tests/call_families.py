"""How families of models write calls of tools: short templates in their forms, some on one line, some in several."""

NAME, ARGS, TEXT = (
    "{{ c.function.name }}",
    "{{ c.function.arguments | tojson }}",
    "{{ v if v is string else v | tojson }}",
)
END = "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def chatml(call: str, first: str = "", last: str = "", between: str = "") -> str:
    """A template that writes calls so; a break of a line is written as `^`."""
    rest = f"{{% if not loop.last %}}{between}{{% endif %}}{{% endfor %}}{last}"
    made = f"{first}{{% for c in m.tool_calls %}}{call}{rest}"
    turn = "{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}{% if m.tool_calls %}"
    template = (
        f"{{% for m in messages %}}{turn}{made}{{% endif %}}{{{{ '<|im_end|>\n' }}}}{{% endfor %}}{END}"
    )
    return template.replace("^", "{{ '\n' }}")


def each(parameter: str, between: str = "") -> str:
    comma = f"{{% if not loop.last %}}{between}{{% endif %}}" if between else ""
    return f"{{% for k, v in c.function.arguments | items %}}{parameter}{comma}{{% endfor %}}"


def json_call(name: str = "name", arguments: str = "arguments") -> str:
    return f'{{"{name}": "{NAME}", "{arguments}": {ARGS}}}'


PYTHON = f"{NAME}({each('{{ k }}={{ v | tojson }}', ', ')})"
QUOTED = (
    "{% macro f(a) %}{% if a is string %}Q{{ a }}Q{% elif a is boolean %}{{ 'true' if a else 'false' }}"
    "{% elif a is mapping %}{{ '{' }}{% for k, v in a | dictsort %}{{ k }}:{{ f(v) }}{% if not loop.last %},{% endif %}"
    "{% endfor %}{{ '}' }}{% elif a is sequence %}[{% for v in a %}{{ f(v) }}{% if not loop.last %},{% endif %}"
    "{% endfor %}]{% else %}{{ a | tojson }}{% endif %}{% endmacro %}"
)
OPEN, NAMED, CLOSE = "<parameter={{ k }}>", '<parameter name="{{ k }}">', "</parameter>^"
GEMMA = "{{ f(c.function.arguments) }}"
QWEN_VALUE = "{{ v | tojson if v is mapping or (v is sequence and v is not string) else v | string }}"
ARG = "<arg_key>{{ k }}</arg_key>^<arg_value>" + TEXT + "</arg_value>^"
DSML = "<D parameter name=\"{{ k }}\" string=\"{{ 'true' if v is string else 'false' }}\">" + TEXT
HEADER = "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' }}"

FAMILIES = {
    "hermes": chatml(f"^<tool_call>^{json_call()}^</tool_call>"),
    "exaone": chatml(f"<tool_call>{json_call()}</tool_call>", between="^"),
    "qwen3-thinking": chatml(f"^<tool_call>^{json_call()}^</tool_call>") + "{{ '<think>\n' }}{# </think> #}",
    "qwen3-coder": chatml(
        f"<tool_call>^<function={NAME}>^{each(OPEN + '^' + QWEN_VALUE + '^' + CLOSE)}</function>^</tool_call>",
        between="^",
    ),
    "glm-4.5": chatml(f"^<tool_call>{NAME}^{each(ARG)}</tool_call>"),
    "glm-4.7": chatml(f"<tool_call>{NAME}{each(ARG.replace('^', ''))}</tool_call>"),
    "seed-oss": chatml(
        f"<seed:tool_call>^<function={NAME}>^{each(OPEN + TEXT + CLOSE)}</function>^</seed:tool_call>",
        between="^",
    ),
    "minimax-m2": chatml(
        f'<invoke name="{NAME}">^{each(NAMED + TEXT + CLOSE)}</invoke>^',
        "<minimax:tool_call>^", "</minimax:tool_call>",
    ).replace("<|im_end|>", "[e~["),
    "step-3": chatml(
        f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{NAME}">'
        + each('<steptml:parameter name="{{ k }}">' + TEXT + "</steptml:parameter>")
        + "</steptml:invoke><｜tool_call_end｜>",
        "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>",
    ),
    "deepseek-v3": chatml(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{NAME}^```json^{ARGS}^```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "^",
    ),
    "deepseek-v3.1": chatml(
        f"<｜tool▁call▁begin｜>{NAME}<｜tool▁sep｜>{ARGS}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>",
    ),
    "deepseek-v3.2": chatml(
        f'<D invoke name="{NAME}">^{each(DSML + "</D parameter>^")}</D invoke>^',
        "<D function_calls>^", "</D function_calls>",
    ).replace("D ", "{{ '｜DSML｜' }}"),
    "kimi-k2": chatml(
        f"<|tool_call_begin|>functions.{NAME}:{{{{ loop.index0 }}}}<|tool_call_argument_begin|>{ARGS}<|tool_call_end|>",
        "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    ),
    "command-r7b": chatml(
        f'^    {{"tool_call_id": "{{{{ loop.index0 }}}}", "tool_name": "{NAME}", "parameters": {ARGS}}}',
        "<|START_ACTION|>[", "^]<|END_ACTION|>", ",",
    ),
    "mistral-nemo": chatml(json_call(), "[TOOL_CALLS][", "]", ", "),
    "mistral-small-3.2": chatml(f"[TOOL_CALLS]{NAME}[CALL_ID]{{{{ c.id }}}}[ARGS]{ARGS}"),
    "devstral": chatml(f"[TOOL_CALLS]{NAME}[ARGS]{ARGS}"),
    "granite": chatml("{{ c.function | tojson }}", "<|tool_call|>[", "]", ", "),
    "phi-4-mini": chatml("<|tool_call|>{{ c.function | tojson }}<|/tool_call|>"),
    "hunyuan": chatml(f"<tool_call>{NAME}^```json^{ARGS}^```</tool_call>", "<tool_calls>^", "^</tool_calls>", "^"),
    "apertus": chatml(f'{{"{NAME}": {ARGS}}}', "<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
    "nemotron-nano": chatml(json_call(), "<TOOLCALL>[", "]</TOOLCALL>", ", "),
    "nemotron-nano-2": "{% if messages[-1].role == 'assistant' %}{% set messages = messages[:-1] %}{% endif %}"
    + chatml(json_call(), "<TOOLCALL>[", "]</TOOLCALL>", ", "),
    "longcat": chatml(f"<longcat_tool_call>{NAME}^{each(ARG.replace('arg_', 'longcat_arg_'))}</longcat_tool_call>^"),
    "minicpm-3": chatml(PYTHON, "<|tool_call_start|>^```python^", "^```^<|tool_call_end|>", "^"),
    "olmo-3": chatml(PYTHON, "<function_calls>", "</function_calls>", "^"),
    "glm-4-9b": chatml(f"{NAME}^{ARGS}").replace("m.tool_calls %}{{ c", "m.tool_calls[:1] %}{{ c"),
    "functionary-3.2": chatml(f"{NAME}^{ARGS}", between=">>>"),
    "hyperclova": chatml(json_call(), " -> tool/function_call^[", "]", ", "),
    "functionary-3.1": chatml(f"<function={NAME}>{ARGS}</function>"),
    "internlm": chatml(f"<|action_start|><|plugin|>^{json_call('name', 'parameters')}<|action_end|>"),
    "xlam": chatml(json_call(), "[", "]", ", "),
    "lfm2": chatml(PYTHON, "<|tool_call_start|>[", "]<|tool_call_end|>", ", "),
    "llama-4": chatml(PYTHON, "[", "]", ", "),
    "gemma-4": QUOTED.replace("Q", '<|"|>') + chatml(f"<|tool_call>call:{NAME}{GEMMA}<tool_call|>"),
    "functiongemma": QUOTED.replace("Q", "<escape>")
    + chatml(f"<start_function_call>call:{NAME}{GEMMA}<end_function_call>"),
    "llama-3.1": "{% for m in messages %}" + HEADER + "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}"
    "{{ raise_exception('one call at a time') }}{% endif %}{% set c = m.tool_calls[0] %}"
    + json_call("name", "parameters") + "<|eot_id|>{% else %}{{ m.content + '<|eot_id|>' }}{% endif %}{% endfor %}"
    + HEADER.replace("m.role", "'assistant'"),
}  # fmt: skip
FAMILIES["deepseek-r1"] = FAMILIES["deepseek-v3"].replace(
    "if m.tool_calls", "if m.role == 'assistant' and m.content is none"
)
UNKNOWN = {
    "sentences": chatml(f"<<call {NAME} with {{{{ c.function.arguments.values() | join(' and ') }}}}>>"),
    "minimax-m3": chatml(
        f'<tool_call><invoke name="{NAME}">{each("<{{ k }}>{{ v }}</{{ k }}>")}</invoke></tool_call>'
    ),
    "yaml": chatml(f"call: {NAME}^{each('  {{ k }}: {{ v }}^')}"),
}


def text_and_calls(reader, parts):
    """Reads an answer by its parts: its text, and the name and arguments of each call."""
    text, calls = "", []
    for piece in [piece for part in parts for piece in reader.push(part)] + reader.flush():
        if piece.kind == "text":
            text += piece.text
        elif piece.kind == "name":
            calls.append([piece.text, ""])
        else:
            calls[-1][1] += piece.text
    return text, [tuple(found) for found in calls]
