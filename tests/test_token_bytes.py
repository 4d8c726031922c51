"""The bytes of each token, for every family of tokenizer: joined, they are the bytes of the text."""

from __future__ import annotations

import pytest

from tests.test_tokenizer import TOKENIZERS

SENTENCE = "naïve 你好 👍 the\ttheatre, isn't it? <|end|>"


def test_byte_level_tokens_join_to_the_text():
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode(SENTENCE)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == SENTENCE
    assert any(_is_half(tokenizer.token_bytes(id)) for id in ids), "a token may hold a part of a character"


def test_every_byte_has_a_token():
    tokenizer = TOKENIZERS["byte-level"]
    singles = {tokenizer.token_bytes(id) for id in range(len(tokenizer.pieces))}
    assert {bytes([byte]) for byte in range(256)} <= singles


@pytest.mark.parametrize(
    ("family", "piece", "expected"),
    [
        ("byte-level", "<|end|>", b"<|end|>"),
        ("sentencepiece", "<0xF0>", b"\xf0"),
        ("sentencepiece", "<0x0A>", b"\n"),
        ("sentencepiece", "▁▁", b"  "),
        ("sentencepiece", "▁the", b" the"),
        ("sentencepiece", "你", "你".encode()),
        ("sentencepiece", "<s>", b"<s>"),
        ("sentencepiece", "<tool>", b"<tool>"),
        ("metaspace", "▁the", b" the"),
        ("wordpiece", "the", b"the"),
        ("word-suffix", "the</w>", b"the"),
    ],
)
def test_pieces_and_their_bytes(family, piece, expected):
    tokenizer = TOKENIZERS[family]
    assert tokenizer.token_bytes(tokenizer.pieces.index(piece)) == expected


def test_an_id_beyond_the_vocabulary_has_no_bytes():
    assert TOKENIZERS["byte-level"].token_bytes(10**6) == b""


def _is_half(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False
