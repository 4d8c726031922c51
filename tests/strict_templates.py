"""Chat templates as strict as those of known families, in a few lines each; tests/test_chat_forms.py renders them."""

ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles alternate') }}{% endif %}"
)
TURN = "{{ '<' + m.role + '>' + m.content | trim + '</>' }}"
END = "{% if add_generation_prompt %}<assistant>{% endif %}"

# As Llama 3: any order; a system message anywhere.
LLAMA = "{% for m in messages %}" + TURN + "{% endfor %}" + END
# As Llama 2: a system message first, or none, and it is written into the user's turn.
LLAMA_2 = (
    "{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set rest = messages[1:] if s else messages %}{% for m in rest %}"
    + ALTERNATE
    + "{% if loop.first and s %}<s>{{ s }}</s>{% endif %}"
    + TURN
    + "{% endfor %}"
    + END
)
# As Gemma: no system role, and roles that alternate.
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}" + ALTERNATE + TURN + "{% endfor %}" + END
)
# As Qwen 3.5: a system message at the beginning alone, and a question of the user somewhere.
QWEN = (
    "{% if messages | selectattr('role', 'equalto', 'user') | list | length == 0 %}"
    "{{ raise_exception('No user query found in messages.') }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    + TURN
    + "{% endfor %}"
    + END
)
# As gpt-oss: what is said by a later system message is left out without a word.
DROPS_LATER = (
    "{% for m in messages %}{% if m.role != 'system' or loop.first %}"
    + TURN
    + "{% endif %}{% endfor %}"
    + END
)
# As many old templates: they know two roles, and leave out the others.
DROPS_ALL = "{% for m in messages %}{% if m.role != 'system' %}" + TURN + "{% endif %}{% endfor %}" + END
# As SmolLM3: it takes a switch out of the system message, and shows the rest.
REWRITES = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content | replace('/no_think', '') | trim + '</>' }}"
    "{% endfor %}" + END
)
# As Mistral 7B v0.3: ids of nine letters, and turns with calls or results do not count.
MISTRAL = (
    "{% set ns = namespace(index=0) %}"
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}"
    "{% if messages[0].role == 'system' %}<s>{{ messages[0].content }}</s>{% endif %}"
    "{% for m in rest %}{% if m.role == 'user' or (m.role == 'assistant' and m.tool_calls is not defined) %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}"
    "{{ raise_exception('After the optional system message, roles must alternate') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{% if tools is not none %}<tools>{{ tools | tojson }}</tools>{% endif %}"
    "{% for m in rest %}{% if m.role in ('user', 'assistant') and m.tool_calls is not defined %}"
    + TURN
    + "{% elif m.tool_calls is defined %}{% for c in m.tool_calls %}"
    "{% if c.id | length != 9 %}{{ raise_exception('Tool call IDs must have length 9') }}{% endif %}"
    "<call>{{ c.function | tojson }}{{ c.id }}</>{% endfor %}"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('Tool call IDs must have length 9') }}{% endif %}<result>{{ m.content }}</>"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
    + END
)
# As DeepSeek V3: arguments of calls are text.
DEEPSEEK = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name + ' ' + c.function.arguments }}{% endfor %}</>{% endfor %}" + END
)
WHOLE = ("LLAMA", "LLAMA_2", "GEMMA", "QWEN", "DROPS_LATER", "DROPS_ALL", "REWRITES", "MISTRAL", "DEEPSEEK")

# -- templates that read contents as parts, or as text alone, or either by the role ------------------------------

TEXT, FIRST = "{{ '' + m.content }}", "{{ '' + m.content[0].text }}"
PARTS = "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
IDEFICS = PARTS.replace("{% endif %}", "{% elif part['type'] == 'image' %}<image>{% endif %}")
CHOSEN = "{% for part in m['content'] | selectattr('type', 'equalto', 'TYPE') %}SHOW{% endfor %}"
SAID = "{% generation %}{{ part['text'] }}{% endgeneration %}"
EITHER = "{% if m.content is string %}{{ m.content }}{% else %}" + IDEFICS + "{% endif %}"
REFUSED = "{% if m.content is KIND %}{{ raise_exception('no') }}{% endif %}"


def by_role(others: str = TEXT, **shown: str) -> str:
    """How a turn is shown, by its role."""
    cases = "".join(f"{{% if m.role == '{role}' %}}{show}{{% else %}}" for role, show in shown.items())
    return cases + others + "{% endif %}" * len(shown)


def turns(shown: str) -> str:
    return "{% for m in messages %}<{{ m.role }}>" + shown + "</>{% endfor %}" + END


INLINE = "see <image> this"  # a picture where it was sent
# What models' templates show of a turn, in a few words -> a turn with a picture
CONTENTS = {
    PARTS: INLINE,  # Llama Guard
    "{% for part in m.content %}{{ part['text'] }}{% endfor %}": INLINE,
    FIRST: INLINE,
    "{{ m.content | map(attribute='text') | join }}": INLINE,
    CHOSEN.replace("TYPE", "image").replace("SHOW", "<image>")
    + CHOSEN.replace("TYPE", "text").replace("SHOW", SAID): "<image>see  this",  # LLaVA
    IDEFICS: INLINE,  # and SmolVLM
    IDEFICS.replace("'image'", "'image_url'"): INLINE,
    EITHER: INLINE,  # Gemma 3, Llama 4, Qwen 2 VL
    by_role(EITHER, system="{{ m.content | trim }}"): INLINE,  # Llama 3.2 Vision
    by_role(user=EITHER): INLINE,  # Pixtral
    by_role(system=FIRST): INLINE,
    by_role(assistant=FIRST): INLINE,
    by_role(user=PARTS): INLINE,
    REFUSED.replace("KIND", "string") + PARTS: INLINE,
    REFUSED.replace("KIND", "not string") + TEXT: INLINE,
    PARTS.replace("part.text", "part.text | upper | lower | title"): "See <image> This",
    TEXT: INLINE,
}
