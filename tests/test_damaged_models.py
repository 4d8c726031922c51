"""Model files that are cut off, nested or absurd: one clear line each, soon, and no traceback."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from opensled.core.errors import InvalidRequest, UnsupportedModel
from opensled.core.messages import ChatMessage
from opensled.models.store import model_file, model_path
from tests.tiny_models import random_model
from verify_server.engine.torch import model_sizes
from verify_server.engine.torch.loading import DTYPES, Weights, load_network, pick_device, read_config
from verify_server.text.gguf_text import GgufText
from verify_server.text.hf_text import HFText

DEEP = b'{"a":' * 100_000
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return random_model("llama", tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture
def model(whole, tmp_path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "model"))


def load(folder: Path) -> None:
    read_config(Weights(folder))
    load_network(Weights(folder), pick_device("cpu"), DTYPES["float32"])


def refusal(call, folder: Path) -> str:
    """The one line that a user reads."""
    with pytest.raises(UnsupportedModel) as refused:
        call(folder)
    line = str(refused.value)
    assert "\n" not in line and len(line) < 600 and str(folder) in line
    return line


def stating(**numbers: object) -> Callable[[Path], object]:
    def state(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **numbers}))

    return state


def holding(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def cut(name: str, share: float) -> Callable[[Path], object]:
    """Of a file, this share is left."""

    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(len(content) * share)])

    return damage


PARTS = ("num_hidden_layers", "n_layers", "num_local_experts", "num_experts")
SIZES = ("vocab_size", "intermediate_size", "head_dim")
# What damages a model's folder, and what is said of it.
DAMAGED = [
    *[(cut(WEIGHTS, share), "cannot be read.*again") for share in (0.0, 0.0001, 0.3, 0.999)],
    (holding(WEIGHTS, len(DEEP).to_bytes(8, "little") + DEEP), "cannot be read"),
    (holding(WEIGHTS, (1 << 60).to_bytes(8, "little") + b"{}"), "cannot be read"),
    *[(holding("config.json", content), "") for content in (DEEP, b"", b"[]", b'{"model_type": "llama"')],
    *[  # before they are built
        (stating(text_config={key: count}), f"{key} = {count}")
        for key in PARTS
        for count in (10**9, 5000, -1)
    ],
    (stating(num_hidden_layers=0), "num_hidden_layers = 0"),
    *[(stating(**{key: 10**8}), f"{key} = {10**8}") for key in SIZES],  # before memory is allocated
    (stating(hidden_size=64), "other shapes"),
    (stating(vocab_size=4000), "other shapes"),
    (stating(num_attention_heads=0), ""),
    (stating(num_hidden_layers="many"), ""),
    (stating(rope_parameters=1), ""),
]
DAMAGED_TEXT = [
    *[cut("tokenizer.json", share) for share in (0.0, 0.5, 0.99)],
    *[holding(name, DEEP) for name in ("tokenizer.json", "tokenizer_config.json")],
]


def test_a_whole_model_loads(model):
    load(model)


@pytest.mark.parametrize(("damage", "said"), DAMAGED)
def test_a_damaged_model_is_refused(model, damage, said):
    damage(model)
    assert re.search(said, refusal(load, model))


def test_real_counts_are_sane(tmp_path):
    config = {"num_hidden_layers": 126, "num_experts": 512, "shared_expert_intermediate_size": 20_480}
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_window_layers": 80, "n_mtp_layers": 0}))
    model_sizes.require_sane(tmp_path / "config.json")


@pytest.fixture
def text(tmp_path) -> Path:
    """A folder with the files of tiny's tokenizer."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json"):
        shutil.copy(model_path("tiny") / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("damage", DAMAGED_TEXT)
def test_a_damaged_tokenizer_is_refused(text, damage):
    damage(text)
    assert "tokenizer" in refusal(HFText, text)


def test_the_settings_beside_a_gguf_file_that_are_nested(text):
    shutil.copy(model_file("tiny", "*.gguf"), text)
    (text / "chat_template.jinja").unlink()
    for content in (DEEP, b"[]"):
        (text / "tokenizer_config.json").write_bytes(content)
        assert "tokenizer_config.json" in refusal(lambda folder: GgufText(folder / "tiny-f16.gguf"), text)


GREEDY_TEMPLATES = {
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "times": "{{ messages[0].content * 10**10 }}",
    "doubling": "{% set ns = namespace(a='x' * 99) %}{% for i in range(40) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}",
    "as it is compiled": "{{ 'a' * 10**10 }}",
}


@pytest.mark.parametrize("template", GREEDY_TEMPLATES.values(), ids=GREEDY_TEMPLATES)
def test_a_template_that_takes_too_much_is_refused_at_load(text, template):
    (text / "chat_template.jinja").write_text(template)
    line = refusal(HFText, text)
    assert "chat template" in line and ("processor time" in line or "memory" in line)


def test_a_template_that_burns_for_some_messages_fails_those_alone(text):
    burn = "{% if messages | length > 1 %}" + GREEDY_TEMPLATES["loops"] + "{% endif %}Hi"
    (text / "chat_template.jinja").write_text(burn)
    codec = HFText(text)
    with pytest.raises(InvalidRequest, match="2 s of processor time") as refused:
        codec.render((ChatMessage("user", "a"), ChatMessage("user", "b")))
    assert refused.value.field == "messages"
    assert codec.render((ChatMessage("user", "a"),)) == codec.encode("Hi")
