"""Tokenizers and chat templates of GGUF files: as llama.cpp cuts text, and as transformers reads the same model."""

import json
import random
import shutil
import unicodedata
from pathlib import Path

import gguf
import pytest
from transformers import AutoTokenizer

from opensled.core.errors import InvalidRequest, NotFound, Unsupported, UnsupportedModel, VocabularyMismatch
from opensled.core.messages import ChatMessage, Tool
from opensled.models.gguf_file import read_metadata
from opensled.models.llama import LlamaModel
from opensled.models.store import model_file, model_path
from opensled.text.chat_render import ChatRenderer, TemplateRefused
from tests.tiny_gguf import add_tokenizer, random_gguf, save, sentencepiece_gguf
from verify_server.text.gguf_text import PROBES, GgufText
from verify_server.text.gguf_tokenizer import FAMILIES
from verify_server.text.hf_text import HFText

TINY = model_path("tiny")
PIECES = [
    *("a", "b", "Z", "É", "é", "ß", "1", "2", "345", " ", "  ", "\n", "\r\n", "\t", "'s", "'LL", "'t", "'", '"'),
    *("!", "?", "/", "//", "(", "_", "-"),
    *( "नि", "你", "好", "п", "р", "ع", "😀", "👍🏽", "²", "½", "the", "def ", "return", "€"),
]  # fmt: skip
CHAT = [
    ChatMessage("system", "You are brief."),
    ChatMessage("user", "Hello <|end|> there, 12 times"),
    ChatMessage("assistant", "Yes."),
    ChatMessage("user", "Ünïcode 你好 😀"),
]
TOOL = Tool("light", "Switches", '{"type": "object", "properties": {"room": {"type": "string"}}}')


def texts(count: int = 400) -> list[str]:
    chance = random.Random(0)
    made = ("".join(chance.choices(PIECES, k=chance.randint(1, 14))) for _ in range(count))
    return [*PROBES, *(unicodedata.normalize("NFC", text) for text in made)]


def bare(path: Path, template: str | None = None, pre: str = "qwen2") -> Path:
    """A GGUF file with a tokenizer and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    add_tokenizer(writer, pre)
    if template is not None:
        writer.add_chat_template(template)
    save(writer)
    return path


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> Path:
    """The tiny target's GGUF file without the files that lie beside it."""
    return Path(shutil.copy(model_file("tiny", "*.gguf"), tmp_path_factory.mktemp("alone")))


@pytest.mark.parametrize("place", ["alone", "beside"])
def test_ids_and_chats_are_those_of_transformers(place, alone):
    expected, text = HFText(TINY), GgufText(alone if place == "alone" else model_file("tiny", "*.gguf"))
    assert (text.fingerprint, text.vocab_size) == (expected.fingerprint, expected.vocab_size)
    assert text.chat_template == expected.chat_template
    for sample in texts():
        assert text.encode(sample) == expected.encode(sample)
    for tools in ((), (TOOL,)):
        assert text.render(CHAT, tools) == expected.render(CHAT, tools)


@pytest.mark.parametrize("pre", FAMILIES)
def test_text_is_split_as_llama_cpp_splits_it(pre, tmp_path):
    path = random_gguf("llama", tmp_path / "model.gguf", pre=pre)
    model, text = LlamaModel(path), GgufText(path)
    text.require_same(model.pieces(), model.tokenize, model.frame())
    for sample in texts():
        assert text._tokenizer.encode(sample, add_special_tokens=False).ids == model.tokenize(sample)


NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
TURNS = ("<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>")
TURN = "  {% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}<|assistant|>\n"
# Name of the model, more tokens, and their type: what llama.cpp knows of them though the file does not say it
VOCABULARIES = {
    "as it is": ("", (), NORMAL),
    "Phi-3": ("Phi-3 Mini 4K", TURNS, CONTROL),
    "Phi-3 of another type": ("a PHI3", TURNS, USER_DEFINED),
    "another name": ("Phi 3", TURNS, CONTROL),
    "blanks": ("", ("  ", "   ", "\n\n", "\t"), USER_DEFINED),
    "ends by their spelling": ("", ("<|end|>", "<|im_end|>", "</s>", "<|fim_pad|>"), NORMAL),
    "unused ends": ("", ("<|eot_id|>", "<end_of_turn>", "<|fim_prefix|>"), UNUSED),
    "HTML beside tools": ("", ("</s>", "<|tool_response>", "<turn|>"), NORMAL),
}


@pytest.mark.parametrize("writes", ["", "<s>{##}\n", "{{ bos_token }}{##}\n"])
@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_chat_has_the_ids_of_llama_cpp_and_one_bos(kind, writes, tmp_path):
    name, pieces, type = VOCABULARIES[kind]
    more, chance = dict.fromkeys(pieces, type), random.Random(2)
    path = sentencepiece_gguf(tmp_path / "model.gguf", not writes, writes + TURN, name, more)
    model, text = LlamaModel(path), GgufText(path)
    text.require_same(model.pieces(), model.tokenize, model.frame())
    said = [ChatMessage("user", "  the \n"), ChatMessage("assistant", "an\n\n"), ChatMessage("user", "\tthe")]
    turns = [{"role": turn.role, "content": turn.content} for turn in said]
    assert list(text.render(said)) == model.tokenize("<s>" + ChatRenderer(TURN, {}).render(turns, None))
    some = [*pieces, *"\n\t\r q", "  ", "the", "ing", "<s>", "</s>", "<unk>"]
    for sample in ("".join(chance.choices(some, k=9)) for _ in range(100)):
        ids = text._tokenizer.encode(sample, add_special_tokens=False).ids
        assert ids == model.tokenize(sample), sample


def test_without_the_word_of_the_file_there_is_no_bos(tmp_path):
    text = GgufText(sentencepiece_gguf(tmp_path / "model.gguf", template=TURN, add_bos=False))
    assert 1 not in text.render(CHAT) and 1 not in text.encode("the")


def test_a_tokenizer_json_that_takes_blanks_wins_and_is_told(tmp_path, capfd):
    """Also with a token that tokenizer_config.json alone states."""
    path = sentencepiece_gguf(tmp_path / "model.gguf", True, TURN, more=dict.fromkeys(TURNS, CONTROL))
    saved, last = json.loads(GgufText(path).tokenizer_json), TURNS[-1]
    tokens = [{**token, "rstrip": token["content"] in TURNS} for token in saved["added_tokens"]]
    saved["added_tokens"] = [token for token in tokens if token["content"] != last]
    del saved["model"]["vocab"][last]
    stated = {"added_tokens_decoder": {token["id"]: token for token in tokens}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(stated))
    model, text = LlamaModel(path), GgufText(path)
    text.require_same(model.pieces(), model.tokenize, model.frame())
    assert "otherwise than the tokenizer.json beside it" in capfd.readouterr().err
    assert text.encode(f"<|user|>\n\nan{last}") == text.encode(f"<|user|>an{last}")
    assert text._pieces[text.encode(last)[-1]] == last


@pytest.mark.parametrize("frames", [True, False])
def test_a_tokenizer_json_that_frames_otherwise_is_told(frames, tmp_path, capfd):
    path = sentencepiece_gguf(tmp_path / "model.gguf", template=TURN)
    saved = json.loads(GgufText(path).tokenizer_json)
    saved["post_processor"] = saved["post_processor"] if frames else None
    (tmp_path / "tokenizer.json").write_text(json.dumps(saved))
    model = LlamaModel(path)
    GgufText(path).require_same(model.pieces(), model.tokenize, model.frame())
    assert ("llama.cpp begins texts of model.gguf" in capfd.readouterr().err) != frames


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda path: random_gguf("llama", path, pre="gpt-2"), "different tokens"),
        (sentencepiece_gguf, "beside the GGUF file"),
    ],
    ids=["split", "model"],
)
def test_a_tokenizer_of_another_split_or_model_is_refused(tmp_path, made, said):
    path = made(tmp_path / "model.gguf")
    shutil.copy(TINY / "tokenizer.json", tmp_path)
    model = LlamaModel(path)
    with pytest.raises(VocabularyMismatch, match=said):
        GgufText(path).require_same(model.pieces(), model.tokenize, model.frame())


def test_an_unknown_split_or_tokenizer_is_refused_by_name(tmp_path):
    with pytest.raises(UnsupportedModel, match="'who-knows'"):
        GgufText(bare(tmp_path / "one.gguf", pre="who-knows"))
    writer = gguf.GGUFWriter(tmp_path / "two.gguf", "llama")
    writer.add_tokenizer_model("rwkv")
    save(writer)
    with pytest.raises(UnsupportedModel, match="'rwkv'"):
        GgufText(tmp_path / "two.gguf")


def test_padding_of_the_vocabulary_is_no_part_of_it(tmp_path):
    """Converters pad a vocabulary to the width of the logits; the tokenizer's own size decides the fingerprint."""
    metadata = read_metadata(bare(tmp_path / "plain.gguf"))
    writer = gguf.GGUFWriter(tmp_path / "padded.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([*metadata["tokenizer.ggml.tokens"], "[PAD2048]", "[PAD2049]"])
    writer.add_token_types([*metadata["tokenizer.ggml.token_type"], 5, 5])
    writer.add_token_merges(metadata["tokenizer.ggml.merges"])
    save(writer)
    assert GgufText(tmp_path / "padded.gguf").fingerprint == GgufText(tmp_path / "plain.gguf").fingerprint


# Chat templates


def rendered(template: str, tmp_path: Path, tools: tuple[Tool, ...] = ()) -> str:
    text = GgufText(bare(tmp_path / "model.gguf", template))
    return text._tokenizer.decode(text.render(CHAT[:1], tools), skip_special_tokens=False)


TEMPLATES = (
    "{{ messages[0].content | tojson }}|{{ tools | tojson(indent=1) }}|{{ bos_token }}{{ eos_token }}",
    "{% generation %}a{% endgeneration %}{{ dict(a=1) | tojson }}{{ dict.fromkeys('ab', 1) | tojson }}",
    "{% set ns = namespace(n=1, self=2) %}{% set ns.n = 2 %}{{ ns.n }}{{ ns.self }}{{ documents }}",
    "  {% if add_generation_prompt %}\n  x\n{% endif %}\n{{ strftime_now('%Y')[:2] }}",
    "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    (TINY / "chat_template.jinja").read_text(),
)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "f"}}]])
def test_templates_render_as_in_transformers(template, tools):
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    chat = [{"role": "system", "content": "Be <brief>."}, {"role": "user", "content": "ü"}]
    expected = tokenizer.apply_chat_template(
        chat, tools=tools, chat_template=template, add_generation_prompt=True, tokenize=False
    )
    assert ChatRenderer(template, tokenizer.special_tokens_map).render(chat, tools) == expected


def test_a_namespace_keeps_no_names_that_lead_into_python():
    for template in ("{{ namespace(_a=1) }}", "{% set ns = namespace() %}{% set ns.__class__ = 1 %}"):
        with pytest.raises(TemplateRefused, match="underscore"):
            ChatRenderer(template, {}).render([], None)


@pytest.mark.parametrize(
    "template",
    ["{{ raise_exception('no system role') }}", "{{ ''.__class__.__mro__ }}", "{{ messages.clear() }}"],
)
def test_a_template_that_refuses_or_reaches_out_fails_the_request_alone(template, tmp_path):
    with pytest.raises(InvalidRequest, match="refuses these messages"):
        rendered(template, tmp_path)


def test_a_template_that_is_none_is_refused_at_load(tmp_path):
    with pytest.raises(UnsupportedModel, match="cannot be compiled"):
        GgufText(bare(tmp_path / "model.gguf", "{% if %}"))


def test_without_a_template_chats_are_unsupported(tmp_path):
    with pytest.raises(Unsupported, match="--raw"):
        GgufText(bare(tmp_path / "model.gguf")).render(CHAT)


# The file


def test_a_damaged_file_is_named(tmp_path):
    whole = bare(tmp_path / "whole.gguf", "x").read_bytes()
    path = tmp_path / "damaged.gguf"
    for length in [*range(0, 200, 7), *range(200, len(whole) - 1, 4001)]:
        path.write_bytes(whole[:length])
        with pytest.raises(UnsupportedModel, match=r"damaged\.gguf is not a readable GGUF file"):
            read_metadata(path)
    chance = random.Random(3)
    for _ in range(300):  # whatever is in it: an answer or a typed error, at once
        mixed = bytearray(whole[:3000])
        for _ in range(4):
            mixed[chance.randrange(4, 300)] = chance.randrange(256)
        path.write_bytes(mixed)
        with pytest.raises(UnsupportedModel):
            read_metadata(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(NotFound, match=r"no\.gguf"):
        read_metadata(tmp_path / "no.gguf")
