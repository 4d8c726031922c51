"""The measurement of drafts by text, on the tiny pair."""

from itertools import chain

import pytest

from lab.benchmarks.vocabularies import IDS, TEXT, Contender, TrimmedTokenizer, by_kind, main, share
from lab.benchmarks.vocabularies import _figure as figure
from lab.benchmarks.vocabularies import _measure as measure
from opensled.models.gguf_file import read_metadata
from opensled.models.store import model_file
from tests.five_tokenizers import TEXTS

pytest.importorskip("llama_cpp")


def test_a_model_by_text_is_right_as_often_as_by_its_ids():
    raw = {
        each.name: measure(each, 2) for each in (Contender("tiny", "tiny-draft", way) for way in (IDS, TEXT))
    }
    by_ids, by_text = (share(list(chain(*by_kind(units, "greedy")))) for units in raw.values())
    assert abs(by_ids - by_text) < 0.02 and by_ids > 0.2
    assert all(
        unit["accepted"] + unit["verdicts"] >= unit["tokens"] for units in raw.values() for unit in units
    )
    document = figure(raw).as_json({})
    assert document["samples"].keys() == {f"{name}, {way}" for name in raw for way in ("greedy", "T = 0.8")}


def test_fewer_ids_spell_the_same_texts():
    metadata = read_metadata(model_file("tiny-draft", "*.gguf"))
    tokenizer, whole = TrimmedTokenizer(metadata, 900), TrimmedTokenizer(metadata, 2048)
    for text in (TEXTS[kind] for kind in TEXTS if kind != "composed"):
        ids = tokenizer.encode_rendered(text)
        assert max(ids) < 900 and b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert len(ids) >= len(whole.encode_rendered(text))


def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "--items" in capsys.readouterr().out
