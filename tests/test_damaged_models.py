"""Model files that are cut off, nested or absurd: one clear line each, soon, and no traceback."""

import json
import shutil
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


def state(folder: Path, **numbers: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **numbers}))


def test_a_whole_model_loads(model):
    load(model)


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.999])
def test_weights_that_are_cut_off(model, share):
    content = (model / WEIGHTS).read_bytes()
    (model / WEIGHTS).write_bytes(content[: int(len(content) * share)])
    assert "cannot be read" in refusal(load, model) and "again" in refusal(load, model)


@pytest.mark.parametrize(
    "content", [len(DEEP).to_bytes(8, "little") + DEEP, (1 << 60).to_bytes(8, "little") + b"{}"]
)
def test_weights_with_an_absurd_head(model, content):
    (model / WEIGHTS).write_bytes(content)
    assert "cannot be read" in refusal(load, model)


@pytest.mark.parametrize("content", [DEEP, b"", b"[]", b'{"model_type": "llama"'])
def test_a_config_that_is_damaged(model, content):
    (model / "config.json").write_bytes(content)
    refusal(load, model)


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layers", "num_local_experts", "num_experts"])
@pytest.mark.parametrize("count", [10**9, 5000, -1])
def test_an_absurd_number_of_parts_is_refused_before_they_are_built(model, key, count):
    state(model, text_config={key: count})
    assert f"{key} = {count}" in refusal(load, model)


def test_no_layers_are_no_model(model):
    state(model, num_hidden_layers=0)
    assert "num_hidden_layers = 0" in refusal(load, model)


@pytest.mark.parametrize("numbers", [{"hidden_size": 64}, {"vocab_size": 4000}])
def test_weights_of_other_shapes(model, numbers):
    state(model, **numbers)
    assert "other shapes" in refusal(load, model)


@pytest.mark.parametrize("key", ["vocab_size", "intermediate_size", "head_dim"])
def test_absurd_sizes_are_refused_before_memory_is_allocated(model, key):
    state(model, **{key: 10**8})
    assert f"{key} = {10**8}" in refusal(load, model)


@pytest.mark.parametrize(
    "numbers", [{"num_attention_heads": 0}, {"num_hidden_layers": "many"}, {"rope_parameters": 1}]
)
def test_values_that_no_config_has(model, numbers):
    state(model, **numbers)
    refusal(load, model)


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


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_tokenizer_that_is_cut_off(text, share):
    content = (text / "tokenizer.json").read_bytes()
    (text / "tokenizer.json").write_bytes(content[: int(len(content) * share)])
    assert "tokenizer" in refusal(HFText, text)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_tokenizer_that_is_nested(text, name):
    (text / name).write_bytes(DEEP)
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
