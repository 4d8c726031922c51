"""The profile of this machine: written, read back, damaged, shared, and who goes by it."""

import json
import logging
from pathlib import Path

import pytest
import tomllib

from edge_client.drafters.threads import draft_threads, model_drafter
from hw_profiles import calibration, catalog
from hw_profiles.detect import Board, detect, usable_cores
from hw_profiles.profiles import MeasuredDraft, MeasuredLink, Quantity
from tests.golden_boards import plant


def a_profile(name="", **changes):
    board = detect()
    one = Quantity(12.5, 10.0, 15.25, 'it\'s said in "C:\\\\here", 50 °C')
    draft = MeasuredDraft("2026-11-22T01:50:00Z", 1, 0.25, {"1": one})
    base = calibration.baseline(board)
    told = {
        "calibrated": {"llamacpp:tiny-draft": draft},
        "servers": {"hub:7411": MeasuredLink("now", one, 0.125)},
    }
    return catalog.DeviceProfile(
        **{**vars(base), **told, "id": "this-machine", "name": name or board.name, **changes}
    )


def test_what_is_written_is_read_back(own_calibration):
    profile = a_profile()
    calibration.write(profile, own_calibration)
    assert catalog.device("this-machine") == profile == calibration.own_profile()
    assert "this-machine" in catalog.names("devices") and list(own_calibration.parent.iterdir()) == [
        own_calibration
    ]


def test_a_board_keeps_what_is_published_of_other_drafts(own_calibration, tmp_path):
    board = detect(plant("pi-5", tmp_path / "pi"))
    base = calibration.baseline(board)
    assert base.drafts["1b"] == catalog.device("pi-5").drafts["1b"]
    assert (base.name, base.memory_gib) == ("Raspberry Pi 5 Model B Rev 1.0", 7.9)
    unknown = calibration.baseline(Board("a PC", "", "", "x86", 8, (), 16.0))
    assert unknown.drafts == {} and unknown.busy_w.source.startswith("not measured")


def test_a_home_folder_that_another_machine_shares(own_calibration):
    calibration.write(a_profile(name="another machine"), own_calibration)
    assert calibration.own_profile() is None
    assert calibration.baseline(detect()).calibrated == {}


def test_measured_threads_are_used(own_calibration):
    calibration.write(a_profile(), own_calibration)
    assert draft_threads(0, "llamacpp", "tiny-draft") == 1
    assert draft_threads(0, "chain:cacheback,llamacpp", "tiny-draft") == 1
    assert draft_threads(3, "llamacpp", "tiny-draft") == 3
    assert draft_threads(0, "llamacpp", "another") == max(1, usable_cores() - 1)


def test_more_threads_than_this_process_may_use(own_calibration, monkeypatch):
    measured = next(iter(a_profile().calibrated.values()))
    many = MeasuredDraft(**{**vars(measured), "threads": 64})
    calibration.write(a_profile(calibrated={"llamacpp:tiny-draft": many}), own_calibration)
    assert draft_threads(0, "llamacpp", "tiny-draft") == usable_cores()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("cores = ", "kernels = "),
        lambda text: text.replace("threads = 1", "threads = 'one'"),
        lambda text: text.replace('"4" = {', '"4" = [') + "x",
        lambda text: text.replace("load = 0.25\n", ""),
    ],
)
def test_a_file_that_was_damaged_is_named_and_not_believed(own_calibration, damage, caplog):
    calibration.write(a_profile(), own_calibration)
    own_calibration.write_text(damage(own_calibration.read_text()))
    with caplog.at_level(logging.WARNING):
        assert draft_threads(0, "llamacpp", "tiny-draft") == max(1, usable_cores() - 1)
    assert str(own_calibration) in caplog.text
    assert calibration.baseline(detect()).calibrated == {}  # the next calibration replaces it


def test_profiles_of_ones_own_win_over_packaged_ones(own_calibration):
    folder = own_calibration.parents[1] / "links"
    folder.mkdir(parents=True)
    packaged = tomllib.loads((Path(catalog.__file__).parent / "links.toml").read_text())["lte"]
    own = "\n".join(f"{key} = {json.dumps(value)}" for key, value in packaged.items())
    (folder / "lte.toml").write_text(own.replace('"LTE"', '"my LTE"'))
    (folder / "cellar.toml").write_text(own)
    assert catalog.link("lte").name == "my LTE"
    assert "cellar" in catalog.names("links") and catalog.names("links").count("lte") == 1


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("qwen2.5-0.5b-instruct-q4_k_m.gguf", "0.5b"),
        ("/models/Llama-3.2-1B-Instruct-Q4_K_M.gguf", "1b"),
        ("SmolLM2-135M", "135m"),
        ("tiny-draft", "tiny-draft"),
        ("my-model.gguf", "my-model"),
        ("phi-4bit.gguf", "phi-4bit"),
    ],
)
def test_the_size_in_a_models_name(model, size):
    assert calibration.size_of(model) == size


@pytest.mark.parametrize(
    ("drafter", "model"),
    [
        ("llamacpp", "llamacpp"),
        ("chain:cacheback,llamacpp", "llamacpp"),
        ("accelerated:onnx", "onnx"),
        ("chain:lookup,cacheback", ""),
        ("none", ""),
        ("mine.llamacpp:Factory", ""),
    ],
)
def test_the_model_in_a_chain(drafter, model):
    assert model_drafter(drafter) == model
