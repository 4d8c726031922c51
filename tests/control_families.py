"""Small tokenizers and chat templates in the form of known families, written into folders as a hub has them."""

import json
from pathlib import Path
from typing import NamedTuple

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from opensled.models.store import model_path
from tests.tiny_drafts import TOKENIZER_JSON

TINY = model_path("tiny")
CORPUS = [
    "a small house by the sea, and the words in it are many",
    "the end of a turn [1] <b> | for the user\n",
] * 9
PROMPT = "{% if add_generation_prompt %}"

# As Llama 3.1: any role, words are trimmed, tools in the system turn, calls as JSON.
LLAMA_3 = (
    "{{ bos_token }}{% if tools is not none %}{{ '<|start_header_id|>system<|end_header_id|>\n\n' }}"
    "{% for t in tools %}{{ t | tojson(indent=4) }}\n\n{% endfor %}<|eot_id|>{% endif %}"
    "{% for m in messages %}{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) "
    "+ '<|end_header_id|>\n\n' }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    '{{ \'{"name": "\' + c.function.name + \'", "parameters": \' }}{{ c.function.arguments | tojson }}}{% endfor %}'
    "{% elif m.role == 'tool' %}{{ m.content | tojson }}{% else %}{{ m.content | trim }}{% endif %}<|eot_id|>"
    "{% endfor %}" + PROMPT + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
# As Qwen 3: tags of tools and thoughts are added tokens, but not special; earlier thoughts are left out.
CHATML = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools\n<tools>' }}{% for t in tools %}{{ '\n' }}{{ t | tojson }}"
    "{% endfor %}{{ '\n</tools><|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m.content + '\n</tool_response><|im_end|>\n' }}{% else %}"
    "{% set text = m.content.split('</think>')[-1].lstrip('\n') if m.role == 'assistant' else m.content %}"
    "{{ '<|im_start|>' + m.role + '\n' + text }}{% for c in m.tool_calls or [] %}"
    '{{ \'\n<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}{{ c.function.arguments | tojson }}'
    "{{ '}\n</tool_call>' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}"
    + PROMPT
    + "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# As Gemma 2: no system, strict turns.
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}"
    "{% endif %}{% set role = 'model' if m.role == 'assistant' else m.role %}"
    "{{ '<start_of_turn>' + role + '\n' + m.content | trim + '<end_of_turn>\n' }}{% endfor %}"
    + PROMPT
    + "{{ '<start_of_turn>model\n' }}{% endif %}"
)
# As Mistral 7B v0.3: instructions in brackets, ids of nine letters, tools before the last question.
MISTRAL = (
    "{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{{ bos_token }}"
    "{% for m in rest %}{% if m.role == 'user' %}"
    "{% if tools is not none and m == (rest | selectattr('role', 'equalto', 'user') | list)[-1] %}"
    "[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "{% set lead = messages[0].content + '\n\n' if loop.last and messages[0].role == 'system' else '' %}"
    "{{ '[INST] ' + lead + m.content + '[/INST]' }}"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for c in m.tool_calls %}{% set out = c.function | tojson %}{{ out[:-1] }}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}"
    "{{ ', \"id\": \"' + c.id + '\"}' }}{% endfor %}]{{ eos_token }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS] {\"content\": ' + m.content + ', \"call_id\": \"' + m.tool_call_id "
    "+ '\"}[/TOOL_RESULTS]' }}{% elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported') }}{% endif %}{% endfor %}"
)
# As DeepSeek V3: the marks of turns are added tokens, but not special.
DEEPSEEK = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}"
    "{% elif m.role == 'assistant' %}{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + eos_token }}"
    "{% else %}{{ m.content }}{% endif %}{% endfor %}" + PROMPT + "<｜Assistant｜>{% endif %}"
)
# Of a Unigram tokenizer, which looks for its pieces everywhere, and changes letters before it does.
UNIGRAM = (
    "{% for m in messages %}{{ '<s>' + m.role + ': ' + m.content + '</s>' }}{% endfor %}"
    + PROMPT
    + "<s>{% endif %}"
)


BRACKETS = ("INST", "TOOL_CALLS", "AVAILABLE_TOOLS", "TOOL_RESULTS")


class Family(NamedTuple):
    """How a family spells its turns."""

    template: str
    special: tuple[str, ...]
    added: tuple[str, ...] = ()  # not special
    build: str = "byte_level"
    control: tuple[str, ...] = ()  # those of `added` that people must not write
    calls: bool = False  # whether the template writes calls of tools


FAMILIES = {
    "llama-3": Family(
        LLAMA_3,
        ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"),
        calls=True,
    ),
    "chatml": Family(
        CHATML,
        ("<|endoftext|>", "<|im_end|>", "<|im_start|>"),
        ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
        control=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "</think>"),
        calls=True,
    ),
    "gemma": Family(
        GEMMA,
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        ("\n\n", "\n\n\n", "<table>"),
        build="sentencepiece",
    ),
    "mistral": Family(
        MISTRAL,
        ("<s>", "</s>", *(f"[{end}{name}]" for name in BRACKETS for end in ("", "/"))),
        build="metaspace",
        calls=True,
    ),
    "deepseek": Family(
        DEEPSEEK,
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
        ("<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"),
        control=("<｜User｜>", "<｜Assistant｜>", "</think>"),
    ),
    "unigram": Family(UNIGRAM, ("<s>", "</s>"), build="unigram"),
}


def write(name: str, folder: Path) -> Path:
    """The family `name` in `folder`, and where that is; "tiny": the model itself."""
    if name == "tiny":
        return TINY
    family = FAMILIES[name]
    (folder / "tokenizer.json").write_text(BUILD[family.build](family).to_str())
    (folder / "chat_template.jinja").write_text(family.template)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": family.special[0],
        "eos_token": family.special[1],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def _byte_level(family: Family) -> Tokenizer:
    saved = json.loads(TOKENIZER_JSON)
    old = {token["content"] for token in saved["added_tokens"]}
    pieces = [
        piece
        for piece in sorted(saved["model"]["vocab"], key=saved["model"]["vocab"].get)
        if piece not in old
    ]
    saved["model"]["vocab"] = {piece: id for id, piece in enumerate(pieces)}
    saved["added_tokens"] = []
    return _with_tokens(Tokenizer.from_str(json.dumps(saved)), family)


def _sentencepiece(family: Family) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return _trained(tokenizer, family)


def _metaspace(family: Family) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _trained(tokenizer, family)


def _trained(tokenizer: Tokenizer, family: Family) -> Tokenizer:
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=500, special_tokens=["<unk>", *family.special, *raw], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["content"] not in raw]
    return _with_tokens(Tokenizer.from_str(json.dumps(saved)), family)


def _unigram(family: Family) -> Tokenizer:
    letters = sorted({letter for text in CORPUS for letter in text} | set('</>{}[]"_=0123456789ABCDEFUS'))
    pieces = [
        ("<unk>", 0.0),
        ("<s>", -1.0),
        ("</s>", -1.0),
        ("▁", -2.0),
        *((letter, -5.0) for letter in letters),
    ]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=True) for text in family.special])
    return tokenizer


def _with_tokens(tokenizer: Tokenizer, family: Family) -> Tokenizer:
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in family.special]
    )
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in family.added])
    if "bos_token" in family.template:
        bos = family.special[0]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


BUILD = {
    "byte_level": _byte_level,
    "sentencepiece": _sentencepiece,
    "metaspace": _metaspace,
    "unigram": _unigram,
}
