"""A tokenizer of as many ids as the fake target knows, real enough to compile grammars for."""

import string

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.fakes import VOCAB


def small_tokenizer() -> bytes:
    """tokenizer.json of VOCAB ids, enough to write JSON with; 0 ends a sequence."""
    letters = '{}[]":,' + string.ascii_letters
    pieces = ["<end>", *letters[: VOCAB - 1]]
    tokenizer = Tokenizer(models.BPE({piece: id for id, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>"])
    return tokenizer.to_str().encode()
