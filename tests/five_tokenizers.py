"""Tokenizers as five families of models have them, trained in a second; and texts to cut."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from opensled.text.tokenizer import TargetTokenizer
from tests.tiny_drafts import TOKENIZER_JSON, tiny_tokenizer

TRAINED_ON = Path(__file__).with_name("golden") / "tokenizer_texts.json.gz"
SPACE = "▁"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# As Qwen 2.5 and Llama 3 split texts, but for contractions in capitals
WORDS = (
    r"'(?:s|t|re|ve|m|ll|d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MORE = "Straße 你好世界，今天天气很好。こんにちは 안녕하세요 привет мир नमस्ते 😀👍🏽 → 12345 " * 40

TEXTS = {
    "plain": "The quick brown fox jumps over the lazy dog, and it doesn't look back. Nobody saw it again that year.",
    "code": "def area(width: int) -> float:\n    if width_px == 0:\n        return 0.0\n\n    return width_px ** 2\n",
    "digits": "In 2024 it was 3.14159, then 1,234,567.89 and 0x1F4A9; call +49 30 901820 at 12:45:07.",
    "scripts": "你好，世界！今天是2024年。 Привет, мир. नमस्ते दुनिया こんにちは 안녕하세요 سلام Ünïcödé naïve.",
    "emoji": "Well done 😀😀👍🏽 family 👨‍👩‍👧‍👦 flags 🇩🇪🇯🇵 and ✨ → done ☕️!",
    "spaces": "  two in front,   three inside\n\n\n\tand a tab \t at\n   the   end   of lines  \n  x",
    "long": "Donaudampfschifffahrtsgesellschaftskapitänsmütze antidisestablishmentarianism " * 3,
    "composed": "e\u0301te\u0301 and \ufb01ne \u00bd x\u00b2 \u212b: as a normalizer writes otherwise, and on it goes.",
}


def _llama2() -> Tokenizer:
    """SentencePiece BPE with bytes; a space in front of every text, and no pre-tokenizer."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    # Merges are learned within words; the tokenizer itself has no pre-tokenizer
    tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    _train_bpe(tokenizer, ["<unk>", "<s>", "</s>", *BYTES], 1500)
    tokenizer.pre_tokenizer = None
    return _framed(tokenizer, "<s>")


def _qwen() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _train_bpe(tokenizer, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], 2000)
    return tokenizer


def _gemma() -> Tokenizer:
    """SentencePiece BPE with bytes, as Gemma has it: no space in front of a text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(SPACE, "merged_with_next")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    _train_bpe(tokenizer, [*names, *BYTES], 2500)
    return _framed(tokenizer, "<bos>")


def _unigram() -> Tokenizer:
    """SentencePiece Unigram with bytes and compatibility forms (NFKC), as T5 and many others have it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(SPACE, "always")])
    trainer = trainers.UnigramTrainer(
        vocab_size=900, special_tokens=["<unk>", "</s>", *BYTES], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator([text[:1500] for text in _corpus()[:20]] + [MORE], trainer)  # it takes long
    document = json.loads(tokenizer.to_str())
    document["model"]["byte_fallback"] = True
    return Tokenizer.from_str(json.dumps(document))


def _gpt2() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(False)
    tokenizer.decoder = decoders.ByteLevel()
    _train_bpe(tokenizer, ["<|endoftext|>"], 3000)
    return tokenizer


def _train_bpe(tokenizer: Tokenizer, special: list[str], size: int) -> None:
    is_bytes = "ByteLevel" in str(tokenizer.decoder)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if is_bytes else [],
        limit_alphabet=400,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)


def _framed(tokenizer: Tokenizer, begin: str) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
    )
    return tokenizer


@cache
def _corpus() -> list[str]:
    """Pages and sources of this project as they were once: with those of today each edit would cut words otherwise."""
    texts: list[str] = json.loads(gzip.decompress(TRAINED_ON.read_bytes()))
    return [*texts, MORE]


MADE = {"llama2": _llama2, "qwen": _qwen, "gemma": _gemma, "unigram": _unigram, "gpt2": _gpt2}
# Names of the token that ends an answer
ENDS = {
    "llama2": "</s>",
    "qwen": "<|im_end|>",
    "gemma": "<eos>",
    "unigram": "</s>",
    "gpt2": "<|endoftext|>",
    "tiny": "<|end|>",
}


@cache
def tokenizer_json(name: str) -> bytes:
    """The tokenizer.json of that family."""
    if name == "tiny":
        return TOKENIZER_JSON
    document = json.loads(MADE[name]().to_str())
    # The trainers know bytes as special tokens only; in such files they are pieces like others
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in BYTES]
    return json.dumps(document).encode()


@cache
def family(name: str) -> FamilyTokenizer:
    return FamilyTokenizer(tokenizer_json(name), name)


class FamilyTokenizer(TargetTokenizer):
    """The tokenizer of a target, and of a draft model as well."""

    def __init__(self, content: bytes, name: str) -> None:
        super().__init__(content)
        self.size, self.frame = len(self.pieces), self.encode("")
        self.end = self.pieces.index(ENDS[name])
        self.ends = frozenset({self.end})


def _tokenizer(pieces, model, decoder, special="<s>") -> TargetTokenizer:
    tokenizer = Tokenizer(model({piece: index for index, piece in enumerate(pieces)}))
    tokenizer.decoder = decoder
    tokenizer.add_special_tokens([AddedToken(special, special=True)])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    return TargetTokenizer(tokenizer.to_str().encode())


def sentencepiece() -> TargetTokenizer:
    """Llama-2 style: a lost first space, raw bytes for what has no piece."""
    raw = [f"<0x{byte:02X}>" for byte in range(256)]
    decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    pieces = ["<unk>", *raw, "▁", "▁▁", "▁the", "a", "b", "é", "你", "\ufffd"]
    return _tokenizer(pieces, lambda vocab: models.BPE(vocab, [], unk_token="<unk>"), decoder)


def metaspace() -> TargetTokenizer:
    pieces = ["<unk>", "▁", "▁the", "the", "a", "b", "é"]
    return _tokenizer(pieces, lambda vocab: models.BPE(vocab, []), decoders.Metaspace())


def wordpiece() -> TargetTokenizer:
    """Spaces between words and none before marks: what a token shows depends on its neighbour."""
    pieces = ["[UNK]", "the", "##re", "a", ".", ",", "n't", "'s", "##é"]
    return _tokenizer(pieces, lambda vocab: models.WordPiece(vocab, unk_token="[UNK]"), decoders.WordPiece())


def word_suffix() -> TargetTokenizer:
    pieces = ["the</w>", "a", "b</w>", "é</w>"]
    return _tokenizer(pieces, lambda vocab: models.BPE(vocab, []), decoders.BPEDecoder("</w>"))


TOKENIZERS = {
    "byte-level": tiny_tokenizer(),
    "sentencepiece": sentencepiece(),
    "metaspace": metaspace(),
    "wordpiece": wordpiece(),
    "word-suffix": word_suffix(),
}
