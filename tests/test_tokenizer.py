"""Streaming text: exact for every family of decoder, never taken back; and stop strings."""

import asyncio
import re
import resource
import time
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from edge_client.drafters.tables_command import read_tokenizer
from edge_client.link.tokenizer_cache import load
from opensled.core.errors import InvalidRequest, ProtocolError, VocabularyMismatch
from opensled.text.answer_text import StopStrings, TextStream
from opensled.text.tokenizer import TargetTokenizer
from tests.five_tokenizers import TOKENIZERS
from tests.layers import EVERYTHING
from tests.tiny_drafts import TOKENIZER_JSON, tiny_info, tiny_tokenizer
from tests.tiny_gguf import random_gguf
from verify_server.text.gguf_text import GgufText
from verify_server.text.hf_text import HFText

ROOT = Path(__file__).parents[1]


EMOJI = "naïve 你好 👩‍👩‍👧‍👦 ünï \ufffd 🏳️‍🌈!"


def stream(tokenizer: TargetTokenizer, parts: list[list[int]]) -> list[str]:
    text = TextStream(tokenizer)
    return [*[text.push(part) for part in parts], text.flush()]


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_streamed_text_is_the_decoded_whole(name, data):
    tokenizer = TOKENIZERS[name]
    any_id = st.integers(0, len(tokenizer.pieces) - 1)
    parts = data.draw(st.lists(st.lists(any_id, max_size=6), max_size=12))
    whole = [token for part in parts for token in part]
    assert "".join(stream(tokenizer, parts)) == tokenizer.decode(whole)


@given(st.text(max_size=30))
def test_real_text_never_shows_half_a_character(text):
    tokenizer = TOKENIZERS["byte-level"]
    texts = stream(tokenizer, [[token] for token in tokenizer.encode(text)])
    assert "".join(texts) == text
    assert text.count("\ufffd") == sum(part.count("\ufffd") for part in texts)


def test_a_character_is_shown_as_soon_as_it_is_whole():
    tokenizer = TOKENIZERS["byte-level"]
    text, encoded = TextStream(tokenizer), tokenizer.encode("aé👍b")
    assert [part for part in [text.push([token]) for token in encoded] if part] == ["a", "é", "👍", "b"]


def test_an_unfinished_character_shows_at_the_end():
    tokenizer = TOKENIZERS["byte-level"]
    text = TextStream(tokenizer)
    assert text.push(tokenizer.encode("a👍")[:-1]) == "a"
    assert text.flush() == "\ufffd"
    assert text.flush() == ""


def test_special_tokens_do_not_show():
    tokenizer = TOKENIZERS["byte-level"]
    special = min(tokenizer.special_ids)
    ids = tokenizer.encode("👍")
    assert TextStream(tokenizer).push([special, ids[0], special, *ids[1:], special]) == "👍"


@pytest.mark.timed
def test_the_cost_of_a_token_does_not_grow():
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode(EMOJI * 20)

    def seconds(count: int) -> float:
        started = time.perf_counter()
        stream(tokenizer, [[token] for token in (ids * 100)[:count]])
        return time.perf_counter() - started

    seconds(500)
    assert seconds(8000) < 60 * seconds(500) + 0.5  # quadratic cost would give 256 times


def test_encode_and_its_refusal():
    tokenizer = TOKENIZERS["byte-level"]
    assert tokenizer.decode(tokenizer.encode(EMOJI)) == EMOJI
    with pytest.raises(InvalidRequest, match="surrogate"):
        tokenizer.encode("\ud800")


CHARACTERS = st.text("abc", max_size=12)


def cut_at_once(text: str, stops: list[str]) -> tuple[str, str]:
    """The oracle: read letter by letter; the first stop string that is complete cuts, and which one that is."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, ""


@given(st.lists(CHARACTERS, max_size=8), st.lists(st.text("abc", min_size=1, max_size=5), max_size=4))
def test_stop_strings_cut_however_the_text_is_chopped(parts, stops):
    watch = StopStrings(stops)
    shown = ""
    for part in parts:
        if watch.hit:
            break
        shown += watch.push(part)
        possible, _ = cut_at_once("".join(parts), stops)
        assert possible.startswith(shown)
    hit = watch.hit
    shown += watch.flush()
    assert (shown, hit) == cut_at_once("".join(parts), stops)


def test_holds_back_no_more_than_may_become_a_stop_string():
    watch = StopStrings(["\nUser:", "END"])
    assert watch.push("well\n") == "well"
    assert watch.push("U") == ""
    assert watch.push("nder E") == "\nUnder "
    assert watch.push("ND of it") == ""
    assert watch.hit == "END" and watch.push("more") == "" and watch.flush() == ""


def load_now(info, fetch, cache_dir=None):
    async def fetched():
        return fetch()

    return asyncio.run(load(info, fetched, cache_dir))


def test_fetches_once_and_then_reads_the_cache(tmp_path):
    cache = tmp_path / "deep" / "cache"
    load_now(tiny_info(), lambda: TOKENIZER_JSON, cache)
    assert (
        load_now(tiny_info(), Mock(side_effect=AssertionError("the cache was there")), cache).pieces
        == tiny_tokenizer().pieces
    )
    assert [path.name for path in cache.iterdir()] == [f"{tiny_info().tokenizer_hash}.json"]


def test_a_damaged_cache_is_fetched_again(tmp_path):
    load_now(tiny_info(), lambda: TOKENIZER_JSON, tmp_path)
    path = next(tmp_path.iterdir())
    path.write_bytes(TOKENIZER_JSON[:-1])
    load_now(tiny_info(), lambda: TOKENIZER_JSON, tmp_path)
    assert path.read_bytes() == TOKENIZER_JSON


def test_works_without_a_usable_cache(tmp_path):
    blocked = tmp_path / "file"
    blocked.touch()
    assert load_now(tiny_info(), lambda: TOKENIZER_JSON, blocked).pieces
    assert load_now(tiny_info(), lambda: TOKENIZER_JSON).pieces


def test_a_full_disk_keeps_nothing_half_written(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(TOKENIZER_JSON) // 2, before[1]))
    try:
        assert load_now(tiny_info(), lambda: TOKENIZER_JSON, tmp_path).pieces
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("announced", ["../../etc/passwd", "0" * 64])
def test_refuses_a_server_that_announces_something_else(tmp_path, announced):
    with pytest.raises(ProtocolError):
        load_now(tiny_info(tokenizer_hash=announced), lambda: TOKENIZER_JSON, tmp_path)
    assert not list(tmp_path.iterdir())


def test_refuses_a_vocabulary_that_is_not_the_announced_one():
    with pytest.raises(VocabularyMismatch, match="another vocabulary"):
        load_now(tiny_info(fingerprint="0" * 64), lambda: TOKENIZER_JSON)


def test_refuses_what_is_no_tokenizer():
    with pytest.raises(ProtocolError, match="cannot be read"):
        TargetTokenizer(b"{}")


@pytest.mark.parametrize("encode", [TargetTokenizer.encode, TargetTokenizer.encode_rendered])
def test_a_pattern_that_never_ends_is_an_error_of_its_text(encode):
    """tokenizers panics there, which is no Exception."""
    endless = Tokenizer(models.WordLevel({"a": 0}, "a"))
    endless.pre_tokenizer = pre_tokenizers.Split(Regex("^(a+)+$"), "isolated")
    tokenizer = TargetTokenizer(endless.to_str().encode())
    assert encode(tokenizer, "a") == (0,)
    with pytest.raises(ProtocolError, match=r"breaks down at this text: .*retry-limit"):
        encode(tokenizer, "a" * 40 + "b")


def test_a_byte_level_tokenizer_trained_elsewhere_streams_too():
    tokenizer = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pre_tokenizers.ByteLevel.alphabet())}, [])
    )
    tokenizer.decoder = decoders.ByteLevel()
    edge = TargetTokenizer(tokenizer.to_str().encode())
    ids = [edge.pieces.index(piece) for piece in pre_tokenizers.ByteLevel.alphabet()]
    assert "".join(stream(edge, [[token] for token in ids])) == edge.decode(ids)


# What a training run leaves in a tokenizer.json
LEFT = {
    "truncation": lambda tokenizer: tokenizer.enable_truncation(4),
    "padding": lambda tokenizer: tokenizer.enable_padding(length=64),
    "dropout": lambda tokenizer: setattr(tokenizer.model, "dropout", 0.9),
}
READERS = {
    "a device": lambda folder: TargetTokenizer((folder / "tokenizer.json").read_bytes()).encode,
    "devices of a server": lambda folder: TargetTokenizer(HFText(folder).tokenizer_json).encode,
    "beside a GGUF file": lambda folder: GgufText(random_gguf("llama", folder / "model.gguf")).encode,
    "draft tables": lambda folder: lambda text: tuple(read_tokenizer(str(folder)).encode(text).ids),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("left", LEFT)
def test_what_a_training_run_left_in_the_file_does_not_act(left, reader, tmp_path):
    tokenizer = Tokenizer.from_buffer(TOKENIZER_JSON)
    LEFT[left](tokenizer)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert READERS[reader](tmp_path)(EMOJI) == tiny_tokenizer().encode(EMOJI)


def test_tokenizers_are_read_at_one_place():
    """Others would cut texts where a file says so."""
    texts = {path.name: path.read_text() for room in EVERYTHING for path in (ROOT / room).rglob("*.py")}
    found = {name for name, text in texts.items() if re.search(r"\bTokenizer\.from_", text)}
    assert found == {"control_tokens.py", "tokenizer.py"}


# -- the bytes of each token --------------------------------------------------------------------------------------


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
    assert tokenizer.token_bytes(10**6) == b"", "an id beyond the vocabulary"


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


def _is_half(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False
