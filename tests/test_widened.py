"""A small quantized GGUF target is served widened to 16 bits; one that is not is compared with its own weights."""

import json
import os
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from edge_client.device.config import DeviceConfig
from edge_client.device.drafter_choice import FittingFactory
from edge_client.drafters import llamacpp
from opensled.core.errors import ModelError, UnsupportedModel, UsageError
from opensled.models import derived, llama_api, widened
from opensled.models.gguf_file import read_head
from opensled.models.llama import LlamaModel
from opensled.models.store import cache_folder, model_path
from tests.tiny_drafts import tiny_info, tiny_tokenizer
from tests.tiny_gguf import source as source
from tests.tiny_gguf import stored as stored
from verify_server.engine.llamacpp import agreement
from verify_server.engine.llamacpp.agreement import Agreement
from verify_server.engine.torch.gguf_model import _values
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start import load_target

F16, Q8_0 = 1, 8  # ggml's numbers


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of this user, and empty."""
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "widened"


def kinds(path: Path) -> set[int]:
    return {info.kind for info in read_head(path).tensors.values() if len(info.shape) > 1}


@pytest.mark.parametrize("package", [llama_api.BUILT, llama_api.PREBUILT])  # the second has no quantizer
def test_the_same_weights_in_16_bits(package, source, cache, capsys, monkeypatch):
    monkeypatch.setattr(llama_api, "package", lambda: package)
    file = widened.file_to_run(source, "auto")
    assert file.parent == cache and kinds(source) == {Q8_0} and kinds(file) == {F16}
    before, after = read_head(source), read_head(file)
    assert before.metadata["tokenizer.ggml.tokens"] == after.metadata["tokenizer.ggml.tokens"]
    for name, info in before.tensors.items():
        own, wide = (
            _values(source, name, info, info.shape),
            _values(file, name, after.tensors[name], info.shape),
        )
        assert np.allclose(wide, own, rtol=2**-10, atol=1e-7), name
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: tiny-q8_0.gguf runs in 16 bits a weight") and str(file) in line
    assert f"{file.stat().st_size / 1e6:.0f} MB" in line and "--dtype stored" in line
    assert abs(file.stat().st_size / widened.wide_bytes(before) - 1) < 0.05


def test_it_is_written_once(source, capsys):
    file = widened.file_to_run(source, "auto")
    written = file.stat().st_mtime_ns
    capsys.readouterr()
    assert widened.file_to_run(source, "auto") == file and file.stat().st_mtime_ns == written
    assert "note" not in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["shorter", "other bytes", "no record"])
def test_a_damaged_file_is_written_again(damage, source):
    file = widened.file_to_run(source, "auto")
    whole = file.read_bytes()
    if damage == "no record":
        file.with_suffix(".json").write_text("{")
    else:
        file.write_bytes(whole[:-64] if damage == "shorter" else whole[:-64] + bytes(64))
    assert widened.file_to_run(source, "auto").read_bytes() == whole


def test_it_goes_with_its_source(source, stored, cache):
    first = widened.file_to_run(source, "auto")
    os.utime(source, ns=(1, 1))  # another file of that name
    assert widened.file_to_run(source, "auto") != first and not first.exists()
    source.unlink()
    (cache / ".tiny-7.part").touch()  # of a server that works on it
    (cache / ".tiny-8.part").touch()
    os.utime(cache / ".tiny-8.part", (1, 1))  # of one that was killed
    widened.file_to_run(stored, "stored")
    assert [item.name for item in cache.iterdir()] == [".tiny-7.part"]


def test_what_is_left_as_it_is(source, cache, capsys, monkeypatch):
    plain = model_path("tiny", "*.gguf") / "tiny-f16.gguf"
    assert widened.file_to_run(plain, "float16") == plain  # not quantized
    assert widened.file_to_run(source, "stored") == source  # by the user's wish
    size = widened.wide_bytes(read_head(source))
    monkeypatch.setattr(widened, "MAX_BYTES", size - 1)
    assert widened.file_to_run(source, "auto") == source  # too many parameters
    monkeypatch.setattr(widened, "MAX_BYTES", size)
    monkeypatch.setattr(widened, "available_host_bytes", lambda: 3 * size)
    assert widened.file_to_run(source, "auto") == source  # too little memory
    assert "too little memory is free" in capsys.readouterr().err
    assert not cache.exists()
    assert widened.file_to_run(source, "float16").parent == cache  # by the user's wish


@pytest.mark.parametrize("drafter", ["llamacpp", "auto", "accelerated:llamacpp"])
@pytest.mark.parametrize(("offline", "kind"), [("local-only", F16), ("provisional", Q8_0)])
def test_a_device_that_may_answer_alone_widens_its_model(drafter, offline, kind, source, monkeypatch):
    runs = list[Path]()
    monkeypatch.setattr(llamacpp, "LlamaModel", lambda path: runs.append(path) or LlamaModel(path))
    config = DeviceConfig(drafter=drafter, draft_model=str(source), offline=offline, threads=1)
    factory = FittingFactory(config)
    factory.fit(tiny_info(), tiny_tokenizer())
    assert [kinds(path) for path in runs] == [{kind}] and source.name in factory.name


def test_an_8b_model_is_never_widened_by_itself():
    assert widened.MAX_BYTES < 8e9 * 2


def test_a_full_disk(source, cache, capsys, monkeypatch):
    monkeypatch.setattr(derived, "require_room", Mock(side_effect=ModelError("no room")))
    assert widened.file_to_run(source, "auto") == source
    assert "note: tiny-q8_0.gguf runs as it is stored" in capsys.readouterr().err
    with pytest.raises(ModelError, match="no room"):
        widened.file_to_run(source, "float16")
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written(source, cache, capsys):
    cache.parent.write_text("a file")
    assert widened.file_to_run(source, "auto") == source
    assert "OPENSLED_CACHE_DIR" in capsys.readouterr().err


def test_a_file_that_llama_cpp_cannot_read_leaves_nothing(source, cache):
    source.write_bytes(source.read_bytes()[:-5000])
    with pytest.raises(UnsupportedModel, match=r"llama.cpp cannot write .*tiny-q8_0.gguf in F16: ."):
        widened.file_to_run(source, "float16")
    assert list(cache.iterdir()) == []


# What a server makes of it


def serve(source: Path, dtype: str) -> ServedModel:
    return load_target.load_llamacpp(
        ServeConfig(model=str(source), dtype=dtype, threads=1, kv_tokens=256, context=128)
    )


def test_a_server_widens_by_default(source, capsys):
    assert serve(source, "auto").engine.info.dtype == "F16"
    assert "compared with" not in capsys.readouterr().err
    assert serve(source, "stored").engine.info.dtype == "Q8_0"


def test_a_stored_file_is_compared_once(source, cache, capsys):
    serve(source, "stored")
    first = capsys.readouterr().err
    assert "compared with its weights in 16 bits in " in first and " of 128 equal" in first
    assert not list(cache.iterdir())  # what it was compared with is gone
    serve(source, "stored")
    assert "compared with" not in capsys.readouterr().err


def test_one_line_of_warning_where_the_agreement_is_poor(source, capsys, monkeypatch):
    monkeypatch.setattr(agreement, "compare", lambda *given: Agreement(120, 128))
    line = (
        "note: tiny-q8_0.gguf computes other answers than its weights in 16 bits: 8 of 128 next tokens differ; "
        "opensled serve --dtype float16 widens it"
    )
    for _ in range(2):  # the second time it is remembered
        serve(source, "stored")
        assert capsys.readouterr().err.count(line) == 1
    (kept,) = (cache_folder() / "self-tests").glob("*.json")
    assert json.loads(kept.read_bytes()) == {"equal": 120, "places": 128}
    kept.write_text('{"equal": "many"}')
    monkeypatch.setattr(agreement, "compare", lambda *given: Agreement(128, 128))
    serve(source, "stored")
    assert line not in capsys.readouterr().err


def test_other_weights_disagree(source):
    """The comparison itself: a model against its own answers, and against those of another one."""
    model = LlamaModel(source)
    prompts = [list(range(20, 30 + index)) for index in range(4)]
    own = agreement._answers(model, prompts, 1)
    assert agreement.compare(model, prompts, own, 1).equal >= 60  # of 64; a near tie may fall otherwise
    other = [[(token + 1) % model.vocab_size for token in answer] for answer in own]
    assert agreement.compare(model, prompts, other, 1).is_poor


@pytest.mark.parametrize("engine", ["llamacpp", "torch"])
def test_a_precision_of_the_other_engine(engine, source):
    dtype = {"llamacpp": "bfloat16", "torch": "stored"}[engine]
    load = {"llamacpp": load_target.load_llamacpp, "torch": load_target.load_torch}[engine]
    with pytest.raises(UsageError, match=f"--dtype {dtype}"):
        load(ServeConfig(model=str(source), dtype=dtype))
