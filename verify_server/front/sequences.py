"""The seam between the HTTP API of a server and who serves its sequences: messages pass, no bytes and no sessions."""

from collections import Counter
from collections.abc import AsyncGenerator
from functools import partial
from typing import NamedTuple, Protocol

from opensled.core.messages import ModelInfo, Open, ServerMessage
from opensled.metrics.answer_counts import AnswerCounts
from opensled.text.tokenizer import TargetTokenizer
from verify_server.access.clients import Clients, StreamAccount
from verify_server.access.security import Tenants
from verify_server.admission.session_manager import SessionManager
from verify_server.front.service import VerifyService
from verify_server.front.session_stream import answer


class ServedModel(NamedTuple):
    """What a server tells of its target."""

    info: ModelInfo
    tokenizer: TargetTokenizer


class Sequences(Protocol):
    """Who serves the sequences: the server itself, or its gateway."""

    clients: Clients  # all of them, over gRPC and HTTP
    tenants: Tenants
    refused: Counter[str]  # how many were refused, by code
    answers: AnswerCounts  # of those who ask over HTTP
    patience: float  # seconds for which a sequence that is lost without a further token is looked for again

    def model(self) -> ServedModel:
        """The target; raises Unreachable while it is not known."""

    @property
    def unready(self) -> str:
        """Why no new sequence would be admitted; "" = one would be. May be asked from any thread."""

    def answer(
        self, tenant: str, opening: Open, account: StreamAccount
    ) -> AsyncGenerator[ServerMessage, None]:
        """The messages of a sequence without drafts, which waits while they are not read; closing this ends it.

        A refusal is a message, too. `account` is charged for reading the prompt.
        """


class OwnSequences:
    """The sequences of a server with a target of its own."""

    patience = 0.0  # none is lost without the server

    def __init__(self, service: VerifyService, manager: SessionManager) -> None:
        self.clients, self.tenants = service.clients, service.tenants
        self.refused, self.answers = manager.stats.refused, manager.stats.answers
        self._manager, self.answer = manager, partial(answer, manager)
        self._model = ServedModel(service.info, TargetTokenizer(manager.inputs.text.tokenizer_json))

    def model(self) -> ServedModel:
        return self._model

    @property
    def unready(self) -> str:
        return self._manager.unready
