"""`opensled serve --engine vllm` before vLLM is imported: what of a server's options it refuses, and what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opensled.cli.main import parse_flags
from opensled.core.errors import Unsupported, UsageError
from opensled.core.messages import Limits, Open, SamplingParams
from tests.fake_vllm import FakeCore
from tests.fakes import FakeEngine, FakeText
from tests.test_target_contract import over_vllm
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.input_processor import InputProcessor
from verify_server.engine.vllm import served
from verify_server.engine.vllm.proposals import VllmProposals
from verify_server.options.registries import SERVER_DRAFTERS
from verify_server.options.serve_config import ServeConfig
from verify_server.round.drafter import Ask
from verify_server.round.loaded_model import ServedModel
from verify_server.start.command import session_limits
from verify_server.start.load_target import load_llamacpp, load_torch


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gpu_layers": 0}, "--gpu-layers is for engine llamacpp"),
        ({"attention": "sdpa"}, "attention is for engine torch"),
        ({"dtype": "float64"}, "float32, bfloat16 or float16"),
        ({"dtype": "stored"}, "float32, bfloat16 or float16"),
        ({"tenant_kv_tokens": 100}, "no KV budget of a tenant"),
        ({"loose_rules": "fly"}, "rule match alone"),
        ({"rules": "match,ratio"}, "rule match alone, not match,ratio"),
        ({"trust_device_probabilities": True}, "rule match alone"),
        ({"server_drafter": "ctc"}, "--server-drafter ctc is not served beside it; choose from none, lookup"),
        ({"server_drafter": "vllm"}, "--server-drafter vllm is not served"),
        ({"server_drafter": "exit:3"}, "--server-drafter exit:3 is not served"),
        ({"server_drafter": "model", "draft_model": "tiny-draft"}, "--server-drafter model is not served"),
        ({"draft_model": "tiny-draft"}, "add --server-drafter vllm:draft_model"),
    ],
)
def test_what_it_does_not_serve_is_refused_with_the_way(options, says):
    with pytest.raises(UsageError, match=says) as refused:
        served.load(ServeConfig(engine="vllm", **options))
    assert str(refused.value).startswith("engine vllm: ")


def test_a_drafter_of_vllm_needs_its_engine_and_a_name():
    other = ServedModel("fake", FakeEngine(10), FakeText())
    for name in ("vllm:ngram", "vllm"):
        with pytest.raises(UsageError, match="has a name, such as vllm:ngram, and needs --engine vllm"):
            SERVER_DRAFTERS.get(name)(ServeConfig(server_drafter=name), other)
    assert isinstance(SERVER_DRAFTERS.get("vllm:ngram")(ServeConfig(), model()), VllmProposals)


@pytest.mark.parametrize("load", [load_torch, load_llamacpp])
def test_other_engines_refuse_its_arguments(load):
    with pytest.raises(UsageError, match="only --engine vllm takes it"):
        load(ServeConfig(model="tiny", vllm="block_size=32"))


def model() -> served.VllmModel:
    return served.VllmModel("fake", FakeText(), FakeCore(10), over_vllm(10).facts)


def test_arguments_of_vllm_come_one_by_one_or_in_one_text():
    flags = parse_flags("serve", ["--vllm", 'hf_overrides={"a": 1}', "--vllm", "seed=3"])
    assert served.split_arguments(flags["vllm"]) == ['hf_overrides={"a": 1}', "seed=3"]
    assert served.split_arguments("seed=3  kv_cache_dtype=fp8 ") == ["seed=3", "kv_cache_dtype=fp8"]
    assert served.split_arguments("seed=3\nenforce_eager") == ["seed=3", "enforce_eager"]
    assert served.split_arguments("") == []


def test_one_rule_is_served_and_no_budget_of_a_tenant():
    limits = session_limits(ServeConfig(), model(), Tenants())
    assert [rule.name for rule in limits.rules.facts()] == ["match"]
    with pytest.raises(UsageError, match="engine vllm has no KV budgets of tenants"):
        session_limits(ServeConfig(), model(), Tenants(default=TenantLimits(kv_tokens=64)))
    with pytest.raises(Unsupported, match="KV budget"):
        over_vllm(10).memory.place("t", 64, {})


def test_a_target_that_scores_no_prompts_says_so():
    info, limits = replace(model().info, scores_prompts=False), Limits(8, 100, 0)
    inputs = InputProcessor(FakeText(), info, limits, Tenants())
    opened = Open((1, 2), SamplingParams(max_tokens=4), prompt_logprobs=0)
    with pytest.raises(Unsupported, match="engine vllm has log-probabilities of the answer only"):
        inputs.check(opened, (1, 2), inputs.ends(opened, 2, "t"), "t")


def test_proposals_of_vllm_are_drafts_of_the_server():
    class Core:
        def proposal(self, id: str) -> list[int]:
            return {"7": [3, 4, 5]}.get(id, [])

    asks = [Ask(number, "t", (1, 2), 2, SamplingParams(), b"") for number in (7, 8)]
    [made, none] = VllmProposals(Core()).propose(asks)
    assert (made.block.base, made.block.ids, none.block.ids) == (2, (3, 4), ())
