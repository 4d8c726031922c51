"""`opensled serve --engine vllm` before vLLM starts: the command, the environment, and what it refuses."""

from __future__ import annotations

import json
import re
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opensled.cli.config import options
from opensled.cli.config_layers import merge_layers
from opensled.cli.main import parse_flags
from opensled.core.errors import OpenSledError, Unsupported, UnsupportedModel, UsageError
from opensled.core.messages import Limits, Open, SamplingParams
from tests.fakes import FakeEngine, FakeText
from verify_server.access.security import Tenants
from verify_server.admission.input_processor import InputProcessor
from verify_server.drafting.choice import drafting_of
from verify_server.options.registries import ENGINES
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start import command
from verify_server.start.load_target import load_llamacpp, load_torch
from vllm_plugin import launch, versions

ROOT = Path(launch.__file__).parents[1]
KNOWN = {item.name: item for item in options(ServeConfig)}
PLAIN = ServeConfig(engine="vllm")
# A value that differs from the default, where the type of an option does not tell one
OTHERS = {
    "model": "tiny-draft",
    "http": "127.0.0.1:8411",
    "cors_origin": "https://a.example",
    "numerics": "exact",
    "server_drafter": "vllm:ngram",
    "policy": "fcfs",
    "rules": "ratio",
    "vllm": "seed=3",
    "log_level": "debug",
}
BESIDE = {"cors_origin": {"http": "127.0.0.1:1"}, "server_draft": {"server_drafter": "vllm:ngram"}}


def words(cpu: bool = True, **given: Any) -> list[str]:
    return launch.command_of(replace(PLAIN, **given), cpu)[4:]


def other(name: str) -> Any:
    item = KNOWN[name]
    if name in OTHERS:
        return OTHERS[name]
    if item.choices:
        return item.choices[-1]
    return {bool: not item.default, str: "x"}.get(item.kind, item.kind(3))


# -- no option is ignored -----------------------------------------------------------------------------------------


# This process acts by these itself: by `engine` it is here, and replicas are a gateway's
OURS = {"engine", "folder", *[name for name, item in KNOWN.items() if item.group == "replicas"]}
PREPARED = {"threads", "log_level"}  # see `versions.prepare`


@pytest.mark.parametrize("name", [name for name in KNOWN if name not in OURS | PREPARED])
def test_no_option_is_ignored(name):
    plain = replace(PLAIN, **BESIDE.get(name, {}))
    changed = replace(plain, **{name: other(name)})
    before = launch.command_of(plain, False), launch.environment(plain, {})
    try:
        after = launch.command_of(changed, False), launch.environment(changed, {})
    except UsageError as refused:
        assert KNOWN[name].key in str(refused) and re.search(r": \S.*|leave out", str(refused))
    else:
        assert before != after


def test_what_the_plug_in_is_told_it_reads():
    files = ["vllm_plugin/front.py", "vllm_plugin/option.py", "verify_server/start/command.py"]
    sources = "".join((ROOT / file).read_text("utf-8") for file in files)
    assert [name for name in launch.TOLD if not re.search(rf"\b(config|ours)\.{name}\b", sources)] == []


def test_the_environment_alone_tells_the_plug_in_its_options(monkeypatch, tmp_path):
    """What an operator exports or writes in a file is in the configuration already, or was overridden."""
    file = tmp_path / "opensled.toml"
    file.write_text("[serve]\nmax-sessions = 7\n")
    outer = {"OPENSLED_CONFIG": str(file), "OPENSLED_TOKENS": "exported", "PATH": "/bin"}
    config = replace(PLAIN, tls_cert="a.pem", draft_wait=float("inf"), pad_frames=True, tenant_prompt=9)
    told = launch.environment(config, outer)
    assert told["PATH"] == "/bin"
    monkeypatch.setattr("os.environ", told)
    found = ServeConfig(**merge_layers(ServeConfig, "serve", {})[0])
    assert found == replace(config, engine=found.engine)


# -- what vLLM is told --------------------------------------------------------------------------------------------


def test_options_of_the_target_are_vllms_own():
    given = words(context=512, dtype="bfloat16", prefix_cache=False, served_model_name="a,b", drain=2.5)
    assert given[:2] == ["--opensled", "--opensled-listen=127.0.0.1:7411"]
    names = given.index("--served-model-name")
    assert given[names + 1 : names + 4] == ["tiny", "a", "b"]
    assert {"--max-model-len=512", "--dtype=bfloat16", "--no-enable-prefix-caching"} <= {*given}
    assert {"--max-num-seqs=256", "--shutdown-timeout=2"} <= {*given}


def test_the_model_is_its_folder_or_left_to_vllm(tmp_path):
    def model(name: str) -> str:
        return launch.command_of(replace(PLAIN, model=name), True)[3]

    assert model("tiny") == str(ROOT / "models/tiny") and model("org/other") == "org/other"
    with pytest.raises(OpenSledError, match="nothing"):
        model("nothing-here")
    (tmp_path / "a.safetensors.part").touch()
    with pytest.raises((OpenSledError, UnsupportedModel)):
        model(str(tmp_path))


def test_arguments_of_vllm_come_one_by_one_or_in_one_text():
    flags = parse_flags("serve", ["--vllm", 'hf_overrides={"a": 1}', "--vllm", "async-scheduling=true"])
    assert words(vllm=flags["vllm"])[-2:] == ['--hf-overrides={"a": 1}', "--async-scheduling"]
    assert words(vllm="seed=3  kv_cache_dtype=fp8 ")[-2:] == ["--seed=3", "--kv-cache-dtype=fp8"]
    assert words(vllm="--pipeline-parallel-size=2\nasync_scheduling=False")[-2:] == [
        "--pipeline-parallel-size=2",
        "--no-async-scheduling",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("enforce_eager", "write KEY=VALUE"),
        ("max_num_seqs=3", "use --max-sessions instead"),
        ("max_model_len=5", "use --context instead"),
        ("--max-model-len=5", "use --context instead"),
        ("model=x", "use --model instead"),
        ("num_gpu_blocks_override=5", "use --kv-tokens instead"),
        ("speculative_config={}", "use --server-drafter and --draft-model instead"),
        ("port=80", "use --http instead"),
        ("ssl_keyfile=k", "use --tls-cert and --tls-key instead"),
        ("scheduler-cls=a.B", "OpenSLED sets it itself"),
        ("worker_cls=a.B", "OpenSLED sets it itself"),
        ("block_size=x", "write a whole number"),
    ],
)
def test_other_arguments_are_refused_with_the_way(given, says):
    with pytest.raises(UsageError, match=says):
        words(vllm=given)


def test_processes_of_a_model_are_known_without_vllm():
    def count(given: str) -> int:
        return launch.processes(replace(PLAIN, vllm=given))

    assert count("") == count("seed=3") == 1
    assert count("tensor-parallel-size=4 pipeline_parallel_size=2") == 8
    for wrong in ("two", "", "-1"):
        with pytest.raises(UsageError, match=r"tensor_parallel_size=.*: write a whole number"):
            count(f"tensor_parallel_size={wrong}")


# -- memory -------------------------------------------------------------------------------------------------------


def test_on_a_processor_kv_gets_a_part_of_the_memory_and_nothing_is_compiled(monkeypatch):
    monkeypatch.setattr(launch, "available_host_bytes", lambda: 10**9)
    token = 2 * 4 * 5 * 2 * 64
    assert words()[-6:-2] == [
        "--no-use-tqdm-on-load",
        "--enforce-eager",
        "--block-size=32",
        f"--kv-cache-memory-bytes={250_000_000 + 32 * token}",
    ]
    assert f"--kv-cache-memory-bytes={64 * 100 * token + 32 * token}" in words(context=100)
    assert "--kv-cache-memory-bytes=250000000" in words(model="org/other")
    own = "block_size=64 gpu_memory_utilization=0.3 enforce_eager=false"
    assert not {"--enforce-eager", "--block-size=32"} & {*words(vllm=own)}
    assert not any("memory-bytes" in word for word in words(vllm=own))
    assert not any("block" in word or "memory" in word or "eager" in word for word in words(cpu=False))
    assert "--enforce-eager" in words(cpu=False, graphs="off")


def test_kv_tokens_are_blocks_of_vllm():
    assert "--num-gpu-blocks-override=5" in words(kv_tokens=100)
    assert "--num-gpu-blocks-override=8" in words(cpu=False, kv_tokens=100, vllm="block_size=16")
    with pytest.raises(
        UsageError, match="--kv-tokens needs the size of a KV block: add --vllm block_size=16"
    ):
        words(cpu=False, kv_tokens=100)


# -- its API ------------------------------------------------------------------------------------------------------


def test_the_api_of_vllm_is_as_safe_as_the_port_of_devices():
    assert not any(
        word.startswith(("--port", "--ssl", "--allowed")) for word in words(tls_cert="c", tls_key="k")
    )
    found = words(http="[::1]:8411", tls_cert="c", tls_key="k", tls_client_ca="a")
    assert {"--host=::1", "--port=8411", "--allowed-origins=[]", "--ssl-certfile=c", "--ssl-keyfile=k"} <= {
        *found
    }
    assert {"--ssl-ca-certs=a", "--ssl-cert-reqs=2"} <= {*found}
    assert '--allowed-origins=["https://a.b"]' in words(http="127.0.0.1:1", cors_origin="https://a.b")


# -- drafters -----------------------------------------------------------------------------------------------------


def test_a_drafter_of_vllm_is_its_speculative_config():
    for none in ("auto", "none"):
        assert not any(word.startswith(("--spec", "--no-async")) for word in words(server_drafter=none))
    assert "--no-async-scheduling" in words(server_drafter="vllm:ngram")  # devices' drafts need it then
    [config] = [
        word for word in words(server_drafter="vllm:ngram", server_draft=3) if word.startswith("--spec")
    ]
    told = json.loads(config.removeprefix("--speculative-config="))
    assert (told["method"], told["num_speculative_tokens"]) == ("ngram", 3)
    drafting = words(server_drafter="vllm:draft_model", draft_model="tiny-draft")
    assert any(str(ROOT / "models/tiny-draft") in word for word in drafting if word.startswith("--spec"))
    with pytest.raises(UsageError, match="choose from vllm:ngram"):
        words(server_drafter="vllm:medusa")


def test_a_drafter_of_vllm_needs_its_engine_and_a_name():
    other = ServedModel("fake", FakeEngine(10), FakeText())
    with pytest.raises(UsageError, match="vllm:ngram is vLLM's own: add --engine vllm"):
        drafting_of(ServeConfig(server_drafter="vllm:ngram"), other)
    with pytest.raises(UsageError, match="unknown server drafter 'vllm'"):
        KNOWN["server_drafter"].check_value("vllm", "--server-drafter")


# -- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"gpu_layers": 0}, "--gpu-layers has no meaning there"),
        ({"attention": "sdpa"}, "attention has no meaning there: add --vllm attention_backend"),
        ({"dtype": "float64"}, "float32, bfloat16 or float16"),
        ({"numerics": "exact"}, "VLLM_BATCH_INVARIANT"),
        ({"tenant_kv_tokens": 100}, "no KV budget of a tenant"),
        ({"loose_rules": "fly"}, "use --engine torch"),
        ({"rules": "fly"}, "rule match alone, not fly.*use --engine torch"),
        ({"rules": "match,ratio"}, "rule match alone, not match,ratio"),
        ({"trust_device_probabilities": True}, "use --engine torch"),
        (
            {"server_drafter": "ctc"},
            "--server-drafter ctc is not served there; choose one of vLLM's: vllm:ngram",
        ),
        ({"server_drafter": "lookup"}, "--server-drafter lookup is not served"),
        ({"draft_model": "tiny-draft"}, "add --server-drafter vllm:draft_model"),
        ({"http": "127.0.0.1:1", "tokens": "t"}, "knows no tenants"),
        ({"cors_origin": "https://a.b"}, "is for the API at --http"),
        ({"announce": True}, "--server HOST:PORT"),
    ],
)
def test_what_has_no_meaning_there_is_refused_with_the_way(given, says):
    with pytest.raises(UsageError, match=says) as refused:
        words(**given)
    assert str(refused.value).startswith("engine vllm: ")


@pytest.fixture
def started(monkeypatch) -> list[Any]:
    """Commands that took the place of this process."""
    found: list[Any] = []

    def replaced(file: str, command: list[str], environ: dict[str, str]) -> None:
        found.append((command, environ))
        raise SystemExit

    monkeypatch.setattr(launch.os, "execve", replaced)
    monkeypatch.setattr(versions, "require", lambda: "0.32.0")
    monkeypatch.setattr(versions, "prepare", lambda *_: None)
    return found


def test_serve_becomes_vllms_server(started):
    with pytest.raises(SystemExit):
        command.serve(replace(PLAIN, listen="127.0.0.1:0", http="127.0.0.1:0", tenant_sessions=3))
    [(words, environ)] = started
    assert words[1:4] == ["-m", "vllm_plugin.serve", str(ROOT / "models/tiny")]
    [port] = [word.removeprefix("--port=") for word in words if word.startswith("--port=")]
    assert int(port) > 0 and environ["OPENSLED_TENANT_SESSIONS"] == "3"


def test_what_other_engines_refuse_before_they_load_it_refuses_too(started, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("secret alice kv_tokens=64\n")
    tokens.chmod(0o600)
    for given, says in (
        ({"listen": "0.0.0.0:0"}, "--listen 0.0.0.0:0 is reachable"),
        ({"tokens": str(tokens)}, "engine vllm has no KV budgets of tenants"),
        ({"model": "no-such-model"}, "no-such-model"),
        ({"tls_cert": str(tmp_path / "none.pem")}, "tls"),
    ):
        with pytest.raises(OpenSledError, match=says):
            command.serve(replace(PLAIN, **{"listen": "127.0.0.1:0", **given}))
    assert started == []


@pytest.mark.parametrize("flag", ["listen", "http"])
def test_a_taken_port_is_told_before_vllm_loads(started, flag):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OpenSledError, match=f"cannot listen on {address}"):
            command.serve(replace(PLAIN, **{"listen": "127.0.0.1:0", flag: address}))
    assert started == []


@pytest.mark.parametrize("load", [load_torch, load_llamacpp])
def test_other_engines_refuse_its_arguments(load):
    with pytest.raises(UsageError, match="only --engine vllm takes it"):
        load(ServeConfig(model="tiny", vllm="block_size=32"))


def test_it_computes_no_model_in_a_process_of_ours():
    with pytest.raises(UsageError, match="use engine torch or llamacpp here"):
        ENGINES.get("vllm")(PLAIN)


def test_a_target_that_scores_no_prompts_says_so():
    info = replace(FakeEngine(10).info, scores_prompts=False, runtime="vllm")
    inputs = InputProcessor(FakeText(), info, Limits(8, 100, 0), Tenants())
    opened = Open((1, 2), SamplingParams(max_tokens=4), prompt_logprobs=0)
    with pytest.raises(Unsupported, match="engine vllm has log-probabilities of the answer only"):
        inputs.check(opened, (1, 2), inputs.ends(opened, 2, "t"), "t")
