"""A target ready to serve: an engine and the tokenizer that belongs to it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hw_profiles.step_cost import StepCost
from opensled.core.messages import CallForm, ChatMessage, Tool
from opensled.models.store import is_name, model_path
from verify_server.engine.base import EngineInfo, TargetEngine
from verify_server.engine.costs import measure
from verify_server.options.serve_config import ServeConfig
from verify_server.round.block_target import BlockTarget
from verify_server.round.draft_stage import DraftStage
from verify_server.round.target import Target
from verify_server.rules.served import ServedRules


class TextCodec(Protocol):
    """A target's tokenizer and chat template."""

    tokenizer_json: bytes  # with which devices decode
    tokenizer_hash: str  # sha256 of it, hex
    chat_template: str  # "" if the target has none
    tool_template: str  # that of chats with tools, mostly the same
    calls: CallForm | None  # how its model writes calls of tools; None = in a form that is not known
    template_variables: tuple[str, ...]  # that they read, besides what every chat gives them
    eos_ids: tuple[int, ...]  # ends of a turn, by all files that state one
    vocab_size: int  # ids that the tokenizer knows
    fingerprint: str  # of the spelling of each of them (opensled/core/vocabulary.py)

    def encode(self, text: str) -> tuple[int, ...]:
        """Token ids of raw text, as the tokenizer frames it by default. Raises InvalidRequest."""

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] = (),
        variables: Mapping[str, Any] | None = None,
    ) -> tuple[int, ...]:
        """Token ids of a chat up to the start of the assistant's next turn, in which it may call `tools`.

        `variables`: further ones for the template.
        Raises Unsupported without a template, InvalidRequest for what the template refuses.
        """


class LoadedModel(ABC):
    """The model that `opensled serve` serves, on any engine."""

    model_id: str  # its name for users
    text: TextCodec
    keeps_budgets: bool = True  # of KV, for each tenant

    @property
    @abstractmethod
    def info(self) -> EngineInfo:
        """Facts of its engine."""

    @abstractmethod
    def rules(self, config: ServeConfig) -> ServedRules:
        """The acceptance rules that `config` names, ready to decide. Raises UsageError."""

    @abstractmethod
    def cost(self, seed: StepCost) -> StepCost:
        """The cost of its steps, measured before there are sessions, `seed` as far as none show it; or stated."""

    @abstractmethod
    def target(self, config: ServeConfig, drafting: DraftStage | None, prefix_key: bytes = b"") -> Target:
        """The target that computes the server's steps, with the stage of server drafts; `prefix_key`: see
        `BlockTarget`."""


@dataclass(frozen=True)
class ServedModel(LoadedModel):
    """A target that one of our engines computes."""

    model_id: str
    engine: TargetEngine
    text: TextCodec
    stated_cost: StepCost | None = None  # of its steps; None = they are measured

    @property
    def info(self) -> EngineInfo:
        """See `LoadedModel`."""
        return self.engine.info

    def rules(self, config: ServeConfig) -> ServedRules:
        """See `LoadedModel`."""
        found = ServedRules(config.rules, config.trust_device_probabilities, config.loose_rules)
        found.load(config.model, config.pivots, self.engine, self.text.fingerprint)
        return found

    def cost(self, seed: StepCost) -> StepCost:
        """See `LoadedModel`."""
        return self.stated_cost or measure(self.engine, seed)

    def target(self, config: ServeConfig, drafting: DraftStage | None, prefix_key: bytes = b"") -> Target:
        """See `LoadedModel`."""
        return BlockTarget(self.engine, drafting, config.shares_prefixes, prefix_key)


def model_id_of(model: str) -> str:
    """A name as it is; of a path the last part, without the suffix of a file."""
    if is_name(model):
        return model
    path = model_path(model)
    return path.stem if path.is_file() else path.name
