"""Which vision-language families are served, and how the others are refused: at the start, by name."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from opensled.core.errors import EngineError, SelfTestFailed, UnsupportedModel
from tests.vision_models import picture, vision_model
from verify_server.engine.torch import torch_engine
from verify_server.engine.torch.image_encoder import FAMILIES, ImageEncoder, require_family
from verify_server.vision.decoding import pixels_of


@pytest.mark.parametrize("family", ["llava_next", "qwen2_vl", "paligemma", "idefics3", "gemma3"])
def test_families_whose_pictures_cannot_be_placed_are_refused_by_name(family):
    with pytest.raises(
        UnsupportedModel, match=f"{family} is a vision-language family.*{', '.join(FAMILIES)}"
    ):
        require_family(SimpleNamespace(model_type=family))


def test_a_config_of_such_a_family_is_refused_before_its_weights_are_read(tmp_path):
    folder = vision_model(tmp_path / "seer")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "llava_next"}))
    with pytest.raises(UnsupportedModel, match="llava_next"):
        torch_engine.load(str(folder), dtype="float64", kv_tokens=512)


def test_a_family_with_several_layers_of_features_is_served(tmp_path):
    folder = vision_model(tmp_path / "seer", kind="vipllava")
    engine = torch_engine.load(str(folder), dtype="float64", kv_tokens=512)
    rows = engine.see(pixels_of(picture(1)))
    assert len(rows) == engine.info.images.rows and bool(rows.isfinite().all())


def test_a_folder_that_does_not_say_how_pictures_are_prepared_is_refused(tmp_path):
    folder = vision_model(tmp_path / "seer")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(UnsupportedModel, match=r"preprocessor_config\.json"):
        torch_engine.load(str(folder), dtype="float64", kv_tokens=512)


def test_an_encoder_that_the_whole_model_does_not_agree_with_is_caught(tmp_path, monkeypatch):
    """A planted fault: rows of the picture in the opposite order."""
    folder, encode = vision_model(tmp_path / "seer"), ImageEncoder.encode
    monkeypatch.setattr(ImageEncoder, "encode", lambda eyes, pixels: encode(eyes, pixels).flip(0))
    with pytest.raises(SelfTestFailed, match="with a picture"):
        torch_engine.load(str(folder), dtype="float64", kv_tokens=512)


def test_nan_of_the_tower_fails_one_picture(tmp_path):
    folder = vision_model(tmp_path / "seer")
    engine = torch_engine.load(str(folder), dtype="float64", kv_tokens=512)
    tower = engine._eyes.whole.model.multi_modal_projector
    with torch.no_grad():
        tower.linear_2.bias[0] = float("nan")
    with pytest.raises(EngineError, match="NaN or infinity"):
        engine.see(np.zeros((8, 8, 3), np.uint8))
