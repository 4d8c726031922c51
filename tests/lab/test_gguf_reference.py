"""The reference for GGUF files, and checks in one pass, against the reference for folders: the tiny target is both."""

from __future__ import annotations

import numpy as np
import pytest

from lab.testbed.forcing import follow
from lab.testbed.gguf_reference import GgufReference
from lab.testbed.reference import Reference
from opensled.models.store import model_file, model_path

CHAT = [{"role": "user", "content": "Turn on the kitchen light, and say naïve 12 times."}]


@pytest.fixture(scope="module")
def folder() -> Reference:
    return Reference(model_path("tiny"), dtype="float32")


@pytest.fixture(scope="module")
def file() -> GgufReference:
    return GgufReference(model_file("tiny", "*.gguf"))


def test_they_cut_and_spell_texts_alike(folder: Reference, file: GgufReference) -> None:
    ids = folder.render_chat(CHAT)
    assert file.render_chat(CHAT) == ids and file.decode(ids) == folder.decode(ids)
    assert (file.eos_ids, file.context_length) == (folder.eos_ids, folder.context_length)


def test_they_compute_the_same_logits(folder: Reference, file: GgufReference) -> None:
    ids = folder.render_chat(CHAT)
    np.testing.assert_allclose(file.logits(ids, 5), folder.logits(ids, 5), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 3}], ids=str)
def test_one_pass_follows_as_many_do(
    sampling: dict, folder: Reference, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"messages": CHAT, "max_tokens": 12, **sampling}
    ids, _ = folder.generate(folder.render_chat(CHAT), **sampling, max_tokens=12)
    text = folder.decode(ids)
    expected = follow(folder, body, text, 1e-4)
    passes, logits = [], folder.logits
    monkeypatch.setattr(folder, "logits", lambda *given, **more: passes.append(1) or logits(*given, **more))
    assert expected is not None and follow(folder, body, text, 1e-4, one_pass=True) == expected
    assert len(passes) < expected.tokens
    assert follow(folder, body, text[:-2] + "zz", 1e-4, one_pass=True) is None
