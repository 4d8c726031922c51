"""The tokenizer in a GGUF file's metadata, for Hugging Face's `tokenizers`.

GGUF only names the pre-tokenizer that splits text before byte pairs are merged (`tokenizer.ggml.pre`). The patterns
here come from each family's tokenizer.json. An unknown name is refused: another pattern gives other ids, silently.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from opensled.core.errors import UnsupportedModel
from verify_server.text import gguf_ends

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
APART = (UNKNOWN, CONTROL, USER_DEFINED)  # matched before all others
IN_HTML = "</s>"  # where it ends nothing, it is text
# GGUF does not say that a token takes the blanks behind it. llama.cpp goes by the model's name, and so do we.
TAKING_BLANKS = ("phi-3", "phi3")
KEEPING_BLANKS = ("<unk>", "<s>", "<|endoftext|>")  # of these models
NEXT_STEP = "put the model's own tokenizer.json beside the GGUF file"

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_FIRST = r"[^\r\n\p{L}\p{N}]?"  # characters with which a word may begin
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (rf"{_FIRST}{_UPPER}*{_LOWER}+", rf"{_FIRST}{_UPPER}+{_LOWER}*")
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_END = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_MARKS_END = rf" ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
_CASED_END = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"


@dataclass(frozen=True)
class BpeFamily:
    """How a family of byte-level BPE tokenizers prepares text."""

    pattern: str = ""  # "": that of GPT-2
    before: tuple[str, ...] = ()  # patterns that cut a text first, one after another
    nfc: bool = False
    ignore_merges: bool = False  # a word of the vocabulary is one token, whatever the merges give
    bos: bool = False  # a text begins with BOS, unless the file says otherwise


GPT2, DIGITS = BpeFamily(), BpeFamily(before=(r"\p{N}",))
LLAMA3 = BpeFamily(rf"{_CONTRACTION}|{_FIRST}\p{{L}}+|\p{{N}}{{1,3}}|{_END}", ignore_merges=True, bos=True)
QWEN2 = BpeFamily(rf"{_CONTRACTION}|{_FIRST}\p{{L}}+|\p{{N}}|{_END}", nfc=True)
QWEN35 = BpeFamily(rf"{_CONTRACTION}|{_FIRST}[\p{{L}}\p{{M}}]+|\p{{N}}|{_MARKS_END}", nfc=True)
TEKKEN = BpeFamily(rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_CASED_END}", ignore_merges=True, bos=True)
GPT4O = BpeFamily(rf"{_CASED[0]}{_CONTRACTION}?|{_CASED[1]}{_CONTRACTION}?|\p{{N}}{{1,3}}|{_CASED_END}")
_ASCII = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
DEEPSEEK = BpeFamily(
    rf"{_ASCII}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
    (r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"),
)
CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")
FAMILIES = {
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "jais", "exaone4", "mellum", "trillion"), GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell", "command-r", "exaone"), DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "lfm2"), LLAMA3),
    **dict.fromkeys(("glm4", "chatglm-bpe", "dbrx", "smaug-bpe"), BpeFamily(LLAMA3.pattern)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), DEEPSEEK),
    "deepseek-coder": BpeFamily(r"\p{N}", CODER),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), QWEN2),
    **dict.fromkeys(("hunyuan", "stablelm2"), BpeFamily(QWEN2.pattern)),
    "qwen35": QWEN35,
    "tekken": TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), GPT4O),
}


def build(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a GGUF file's metadata. Raises UnsupportedModel with the unknown name."""
    family = metadata.get("tokenizer.ggml.model")
    if family not in _BUILDERS:
        raise UnsupportedModel(
            f"the tokenizer of this GGUF file is {family!r}, which is not known; {NEXT_STEP}"
        )
    pieces = pieces_of(metadata)
    tokenizer, bos = _BUILDERS[family](metadata, pieces)
    _add_special(tokenizer, metadata, pieces)
    tokenizer.post_processor = _template(metadata, pieces, bos) or tokenizer.post_processor
    if tokenizer.get_vocab_size() != len(pieces):
        raise UnsupportedModel(f"this GGUF file spells some token ids alike; {NEXT_STEP}")
    return tokenizer


def pieces_of(metadata: Mapping[str, Any]) -> list[str]:
    """The spelling of each token id, without the padding that converters add at the end."""
    pieces: list[str] = list(metadata.get("tokenizer.ggml.tokens") or ())
    if not pieces:
        raise UnsupportedModel(f"this GGUF file carries no tokenizer; {NEXT_STEP}")
    while pieces and pieces[-1] == f"[PAD{len(pieces) - 1}]":
        pieces.pop()
    return pieces


def _byte_level(metadata: Mapping[str, Any], pieces: Sequence[str]) -> tuple[Tokenizer, bool]:
    name = metadata.get("tokenizer.ggml.pre")
    family = FAMILIES.get(name)  # type: ignore[arg-type]
    if family is None:
        raise UnsupportedModel(
            f"this GGUF file splits text as {name!r} before it merges bytes, which is not known; {NEXT_STEP}"
        )
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    merges = [merge.partition(" ")[::2] for merge in metadata.get("tokenizer.ggml.merges") or ()]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=family.ignore_merges))
    if family.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(_steps(family)))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer, family.bos


def _steps(family: BpeFamily) -> Iterator[pre_tokenizers.PreTokenizer]:
    for pattern in filter(None, (*family.before, family.pattern)):
        yield pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    yield pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not family.pattern)


def _sentencepiece(metadata: Mapping[str, Any], pieces: Sequence[str]) -> tuple[Tokenizer, bool]:
    """SentencePiece BPE: the scores give the merges, bytes replace text without a piece."""
    scores = metadata.get("tokenizer.ggml.scores") or ()
    if len(scores) < len(pieces):
        raise UnsupportedModel(f"this GGUF file has no score for some of its tokens; {NEXT_STEP}")
    types = _types(metadata, pieces)
    unknown = next((piece for piece, kind in zip(pieces, types) if kind == UNKNOWN), None)
    vocabulary = {piece: id for id, piece in enumerate(pieces)}
    merges = _merges(vocabulary, scores)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    prefixed = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    steps = [normalizers.Prepend("▁")] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    ends = [decoders.Strip(" ", 1, 0)] if prefixed else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    )
    return tokenizer, True


def _merges(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs that make a piece, in the order of the pieces' scores, best first."""
    pairs = [
        (piece[:cut], piece[cut:])
        for piece in vocabulary
        for cut in range(1, len(piece))
        if piece[:cut] in vocabulary and piece[cut:] in vocabulary
    ]
    return sorted(pairs, key=lambda pair: (-scores[vocabulary["".join(pair)]], vocabulary["".join(pair)]))


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _types(metadata: Mapping[str, Any], pieces: Sequence[str]) -> list[int]:
    """As llama.cpp takes them, which knows some tokens by their spelling."""
    types: list[int] = list(metadata.get("tokenizer.ggml.token_type") or ())
    control, text = gguf_ends.control_spellings(metadata), gguf_ends.excepted(pieces) & {IN_HTML}

    def taken(piece: str, stated: int) -> int:
        if piece in text:
            return NORMAL
        return CONTROL if piece in control and stated not in APART else stated

    return list(map(taken, pieces, types[: len(pieces)] or [NORMAL] * len(pieces)))


def _add_special(tokenizer: Tokenizer, metadata: Mapping[str, Any], pieces: Sequence[str]) -> None:
    """Tokens that are matched before all others; control tokens among them do not show in decoded text."""
    name = str(metadata.get("general.name", "")).lower()
    takes = any(part in name for part in TAKING_BLANKS)
    tokenizer.add_tokens(
        [
            AddedToken(
                piece,
                special=kind != USER_DEFINED,
                normalized=False,
                rstrip=takes and piece not in KEEPING_BLANKS,
            )
            for piece, kind in zip(pieces, _types(metadata, pieces))
            if kind in APART and piece
        ]
    )


def _template(
    metadata: Mapping[str, Any], pieces: Sequence[str], bos: bool
) -> processors.PostProcessor | None:
    """Puts BOS and EOS around a text; None if the family uses neither."""
    ids = {}
    for name, default in (("bos", bos), ("eos", False)):
        id = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if metadata.get(f"tokenizer.ggml.add_{name}_token", default) and id is not None and id < len(pieces):
            ids[name] = int(id)
    if not ids:
        return None
    before, after = (([pieces[ids[name]]] if name in ids else []) for name in ("bos", "eos"))
    return processors.TemplateProcessing(
        single=[*before, "$A", *after], special_tokens=[(pieces[id], id) for id in ids.values()]
    )
