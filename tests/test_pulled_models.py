"""What was pulled from a hub is used by its name afterwards: by a server, by a device, in the list."""

import json

import pytest

from edge_client.device.config import DeviceConfig
from edge_client.device.drafter_choice import FittingFactory
from edge_client.drafters.llamacpp import LlamaCppFactory
from opensled.cli import main as cli
from opensled.core.errors import NotFound
from opensled.models import store
from opensled.models.model_pairs import PAIRS
from tests.hub_server import FETCHED, FOLDER, NAME, folder, pull
from tests.hub_server import hub as hub
from tests.tiny_drafts import tiny_info
from verify_server.options.serve_config import ServeConfig
from verify_server.start.load_target import load_llamacpp

pytestmark = pytest.mark.usefixtures("plain_logs")


def bundled(name: str) -> bytes:
    return store.model_file(name, "*.gguf").read_bytes()


def test_a_server_serves_it_by_its_name(hub, capsys):
    hub.add("org/tiny-GGUF", {"tiny-f16.gguf": bundled("tiny")})
    with pytest.raises(
        NotFound, match="org/tiny-GGUF:F16 is not here; fetch it once: opensled pull org/tiny-GGUF:F16"
    ):
        load_llamacpp(ServeConfig(model="org/tiny-GGUF:F16"))
    assert pull("org/tiny-GGUF:F16") == 0
    for name in ("org/tiny-GGUF:F16", "org/tiny-GGUF"):
        target = load_llamacpp(ServeConfig(model=name, kv_tokens=256, context=128, threads=1))
        assert target.model_id == name and target.text.fingerprint == tiny_info().fingerprint


def test_a_device_drafts_with_it(hub):
    with pytest.raises(NotFound, match="org/d-GGUF is not here; fetch it once: opensled pull org/d-GGUF "):
        FittingFactory(DeviceConfig(draft_model="org/d-GGUF")).fit(tiny_info())
    hub.add("org/d-GGUF", {"d-q8_0.gguf": bundled("tiny-draft")})
    assert pull("org/d-GGUF") == 0
    factory = LlamaCppFactory("org/d-GGUF:Q8_0", threads=1)
    factory.fit(tiny_info())
    assert factory.name == "llamacpp d-q8_0.gguf"


def test_the_draft_of_a_pair_is_known_and_fetched_with_it(hub, capsys):
    target, draft = (part.partition(":")[0] for part in PAIRS["qwen2.5"][:2])
    info = tiny_info(model_id="qwen2.5")
    assert FittingFactory(DeviceConfig(threads=1)).fit(info) is None
    said = f"note: no draft model for 'qwen2.5' is here (opensled pull {PAIRS['qwen2.5'].draft} fetches one); drafting"
    assert said in capsys.readouterr().err
    hub.add(target, {f"big-q4_k_m-0000{n}-of-00002.gguf": b"GGUF%d" % n * 40 for n in (1, 2)})
    hub.add(draft, {"draft-q8_0.gguf": bundled("tiny-draft"), "draft-q4_k_m.gguf": b"GGUF" * 40})
    assert pull("qwen2.5") == 0
    shown = capsys.readouterr()
    assert shown.err.startswith(f"qwen2.5 is a pair that was not run here: target {target}:Q4_K_M, draft ")
    assert [line.split(" is ready")[0] for line in shown.out.splitlines()] == list(PAIRS["qwen2.5"][:2])
    assert store.model_path("qwen2.5") == folder(target) / "big-q4_k_m-00001-of-00002.gguf"
    assert pull("qwen2.5", "--json") == 0
    assert [each["fetched"] for each in json.loads(capsys.readouterr().out)] == [False, False]
    for name in ("qwen2.5", target, f"{target}:Q8_0"):
        factory = FittingFactory(DeviceConfig(threads=1))
        factory.fit(tiny_info(model_id=name))
        assert factory.name == "chain lookup, cacheback, llamacpp draft-q8_0.gguf"


def test_names_of_what_was_pulled(hub):
    assert store.is_hub_id("org/plain") and not store.is_here("org/plain") and store.is_name("org/plain")
    assert pull("org/plain") == 0 and pull(f"{NAME}:Q8_0") == 0
    assert not store.is_hub_id("org/plain") and store.is_here("org/plain")
    assert store.model_path("org/plain", "*.safetensors") == folder("org/plain")
    assert {"org/plain", f"{NAME}:Q8_0"} <= set(store.known_models())
    with pytest.raises(NotFound, match=f"{NAME}:Q4_K_M is not here; .*models here: .*{NAME}:Q8_0"):
        store.model_path(f"{NAME}:Q4_K_M")


def test_what_the_tools_of_the_hub_have_fetched_is_taken_where_it_lies(hub, tmp_path):
    snapshots = {}
    for name, files in (
        ("org/a", ("config.json", "model.safetensors")),
        ("org/b", ("x-Q4_K_M.gguf",)),
        ("org/c", ("config.json",)),
    ):
        cached = tmp_path / "hf/hub" / f"models--{name.replace('/', '--')}"
        snapshots[name] = cached / "snapshots/abc"
        for file in (*(snapshots[name] / file for file in files), cached / "refs/main"):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("abc\n")
    assert store.model_path("org/a") == snapshots["org/a"] and not store.is_here("org/c")
    assert store.model_path("org/b:Q4_K_M") == snapshots["org/b"] / "x-Q4_K_M.gguf"
    assert not store.is_here("org/b:Q8_0")


def test_the_list_shows_them_and_the_pairs(hub, capsys):
    parts = {f"big-Q6_K-0000{n}-of-00002.gguf": b"GGUF" * 40 for n in (1, 2)}
    hub.add("org/big", parts)
    assert pull("org/big") == 0 and pull("org/plain") == 0
    capsys.readouterr()
    assert cli.main(["models", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("org/big:Q6_K") and "gguf" in line for line in lines)
    assert "pairs of a target and a draft model, not run here (opensled pull NAME fetches both):" in lines
    assert f"qwen2.5   {PAIRS['qwen2.5'].target}" in lines
    assert cli.main(["models", "list", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    sizes = {each["name"]: each["bytes"] for each in document["models"]}
    assert sizes["org/big:Q6_K"] == 2 * 160
    assert sizes["org/plain"] == sum(len(FOLDER[name]) for name in FETCHED)
    assert {each["name"]: each["run_here"] for each in document["pairs"]} == dict.fromkeys(PAIRS, False)
