"""`opensled serve --engine vllm`: what of a server's options vLLM takes, and the model that it then serves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hw_profiles.step_cost import StepCost
from opensled.core.errors import UsageError
from opensled.process.load_thread import in_thread_that_ends
from opensled.process.logs import tell, tell_long
from verify_server.drafting.choice import choose
from verify_server.engine.base import EngineInfo
from verify_server.engine.vllm import arguments, costs, loading, versions
from verify_server.engine.vllm.target import VllmTarget
from verify_server.options.serve_config import ServeConfig
from verify_server.round.draft_stage import DraftStage
from verify_server.round.loaded_model import LoadedModel, TextCodec, model_id_of
from verify_server.rules.served import ServedRules
from verify_server.text.hf_text import HFText

if TYPE_CHECKING:
    from verify_server.engine.vllm.core import VllmCore

# Drafters of the server that need neither KV nor hidden states of the target
BESIDE = ("none", "lookup", "cacheback")
OWN = "vllm:"  # vLLM's own
RULE = "match"  # vLLM's worker decides by it


@dataclass(frozen=True)
class VllmModel(LoadedModel):
    """A target that vLLM computes."""

    model_id: str
    text: TextCodec
    core: VllmCore
    facts: EngineInfo
    keeps_budgets = False

    @property
    def info(self) -> EngineInfo:
        """See `LoadedModel`."""
        return self.facts

    def rules(self, config: ServeConfig) -> ServedRules:
        """See `LoadedModel`."""
        return ServedRules(RULE)

    def cost(self) -> StepCost:
        """See `LoadedModel`."""
        return costs.measure(self.core)

    def target(self, config: ServeConfig, drafting: DraftStage | None, prefix_key: bytes = b"") -> VllmTarget:
        """See `LoadedModel`; vLLM has keys of its own."""
        return VllmTarget(self.core, self.facts, drafting)


def load(config: ServeConfig) -> VllmModel:
    """A folder or a hub id. Raises UsageError, NotFound, UnsupportedModel, SelfTestFailed."""
    for problem in _problems(config):
        raise UsageError(f"engine vllm: {problem}")
    versions.require()
    versions.prepare(config.threads, config.log_level)
    tell(f"loading {config.model}")  # before torch is imported, which takes seconds
    with tell_long("still starting torch and transformers"):
        from vllm_plugin.model_folder import folder_of

    folder = folder_of(config.model)
    drafter = choose(config).drafter
    own = drafter.removeprefix(OWN) if drafter.startswith(OWN) else "none"
    draft = (
        str(folder_of(config.draft_model))
        if own == "draft_model" and config.draft_model
        else config.draft_model
    )
    text = HFText(folder)
    core, info = in_thread_that_ends(
        loading.load,
        str(folder),
        text,
        dtype=config.dtype,
        context=config.context,
        kv_tokens=config.kv_tokens,
        longest_draft=config.max_draft,
        drafter=own,
        draft_model=draft,
        numerics=config.numerics,
        device=config.device,
        sequences=config.max_sessions,
        step_tokens=config.max_step_tokens,
        prefix_cache=config.shares_prefixes,
        graphs=config.graphs != "off",
        given=split_arguments(config.vllm),
    )
    return VllmModel(model_id_of(config.model), text, core, info)


def processes_of(config: ServeConfig) -> int:
    """How many processes compute the model together. Raises UsageError."""
    return arguments.processes(split_arguments(config.vllm))


def split_arguments(text: str) -> list[str]:
    """The arguments KEY=VALUE in a text: one in a line, or blanks between them."""
    return [one for one in re.split(r"\n|\s+(?=[\w-]+=)", text.strip()) if one]


def _problems(config: ServeConfig) -> Iterator[str]:
    """What of the options engine vllm does not serve, each with the way out."""
    if config.gpu_layers >= 0:
        yield "--gpu-layers is for engine llamacpp; leave it out"
    if config.attention != "auto":
        yield "attention is for engine torch; add --vllm attention_backend=NAME instead"
    if config.dtype in ("stored", "float64"):
        yield f"--dtype {config.dtype}: vLLM computes in float32, bfloat16 or float16"
    if config.tenant_kv_tokens:
        yield "tenant-kv-tokens: vLLM keeps no KV budget of a tenant; set tenant-sessions, or use --engine torch"
    if config.loose_rules or config.trust_device_probabilities:
        yield "it decides by the rule match alone; leave out --loose-rules and --trust-device-probabilities"
    if config.rules not in ("", RULE):
        yield f"it decides by the rule match alone, not {config.rules}; leave out rules"
    yield from _drafter_problems(config)


def _drafter_problems(config: ServeConfig) -> Iterator[str]:
    name = choose(config).drafter
    if not (name in BESIDE or name.startswith(OWN)):
        yield (
            f"--server-drafter {name} is not served beside it; choose from {', '.join(BESIDE)}, or one of vLLM's "
            "own, such as vllm:ngram"
        )
    if config.draft_model and not config.server_drafter.startswith(OWN):
        yield f"--draft-model {config.draft_model} has no drafter that takes it; add --server-drafter vllm:draft_model"
