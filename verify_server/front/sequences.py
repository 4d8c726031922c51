"""Who serves the sequences that the HTTP API asks for."""

from collections import Counter
from typing import NamedTuple, Protocol

from opensled.core.messages import ModelInfo
from opensled.metrics.answer_counts import AnswerCounts
from opensled.text.tokenizer import TargetTokenizer
from verify_server.access.byte_stream import ByteStream
from verify_server.access.clients import Clients
from verify_server.access.security import Tenants


class ServedModel(NamedTuple):
    """What a server tells of its target."""

    info: ModelInfo
    tokenizer: TargetTokenizer


class SequenceService(Protocol):
    """Who serves the sequences: the server itself, or its gateway."""

    clients: Clients  # all of them, over gRPC and HTTP
    tenants: Tenants
    refused: Counter[str]  # how many were refused, by code
    answers: AnswerCounts  # of those who ask over HTTP
    linger: float  # seconds for which a reader may be silent
    patience: float  # seconds for which a sequence that is lost without a further token is looked for again

    def model(self) -> ServedModel:
        """The target; raises Unreachable while it is not known."""

    @property
    def unready(self) -> str:
        """Why no new sequence would be admitted; "" = one would be. May be asked from any thread."""

    async def serve(self, stream: ByteStream) -> None:
        """Serve one call to its end."""
