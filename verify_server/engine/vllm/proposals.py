"""vLLM's own drafter as the drafter of the server: it has drafted in the step, for the sequences that asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from opensled.core.errors import UsageError
from verify_server.engine.vllm.served import VllmModel
from verify_server.engine.vllm.target import name_of
from verify_server.options.serve_config import ServeConfig
from verify_server.round.drafter import Ask, Proposal, ServerDrafter
from verify_server.round.loaded_model import LoadedModel


class Proposing(Protocol):
    """What of `VllmCore` is used here."""

    def proposal(self, id: str) -> list[int]: ...


class VllmProposals(ServerDrafter):
    """What `Decode.ask` has asked for. Its time is the step's."""

    def __init__(self, core: Proposing) -> None:
        self._core = core

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        """See `ServerDrafter`."""
        return [ask.chain([(id, 1.0) for id in self._core.proposal(name_of(ask.session))]) for ask in asks]


def drafter(*given: object) -> VllmProposals:
    """`--server-drafter vllm:NAME`: called with NAME, config and target. Raises UsageError."""
    *name, config, target = given
    assert isinstance(config, ServeConfig) and isinstance(target, LoadedModel)
    if not name or not isinstance(target, VllmModel):
        raise UsageError(
            f"--server-drafter {config.server_drafter}: a drafter of vLLM's own has a name, such as vllm:ngram, and "
            "needs --engine vllm"
        )
    return VllmProposals(target.core)
