"""All errors that a peer or a user can cause, as one tree. Our own invariants are asserts instead.

OpenSledError
 |- UsageError            a flag or a configuration value makes no sense                    exit 2
 |- RequestError          the request cannot be served                                     exit 1
 |   |- InvalidRequest        a field has a bad value; `field` names it
 |   |- Unsupported           a field is known but not served here; `field` names it
 |   |- NotFound              no such model, file or session                               exit 3
 |   |- Unauthorized          no valid token                                               exit 4
 |   '- Overloaded            try again after `retry_after` seconds                        exit 6
 |- ProtocolError         the peer broke the position rules (docs/protocol.md)             exit 1
 |   |- FutureBase            a draft built on tokens the server never committed
 |   '- TruthConflict         two messages disagree about one position
 |- Unreachable           no server answers at that address                                exit 5
 |- ModelError            a model cannot be used                                           exit 1
 |   |- UnsupportedModel      this family cannot be verified or rolled back here
 |   |- SelfTestFailed        the engine's attention disagrees with plain attention
 |   '- VocabularyMismatch    draft and target do not share a vocabulary
 '- EngineError           a step failed on the server                                      exit 1
     '- NonFiniteLogits       the target gave NaN or infinity for one session's row
"""

from __future__ import annotations


class OpenSledError(Exception):
    """Root of the tree. `code` travels in `Failure`, `exit_code` ends the command line."""

    code = "internal"
    exit_code = 1


class UsageError(OpenSledError):
    code, exit_code = "usage", 2


class RequestError(OpenSledError):
    code = "request"

    def __init__(self, reason: str, field: str = "", retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.field = field  # name of the offending request field, "" if none
        self.retry_after = retry_after  # seconds, 0 = unknown


class InvalidRequest(RequestError):
    code = "invalid_request"


class Unsupported(RequestError):
    code = "unsupported"


class NotFound(RequestError):
    code, exit_code = "not_found", 3


class Unauthorized(RequestError):
    code, exit_code = "unauthorized", 4


class Overloaded(RequestError):
    code, exit_code = "overloaded", 6


class ProtocolError(OpenSledError):
    code = "protocol"


class FutureBase(ProtocolError):
    code = "future_base"


class TruthConflict(ProtocolError):
    code = "truth_conflict"


class Unreachable(OpenSledError):
    code, exit_code = "unreachable", 5


class ModelError(OpenSledError):
    code = "model"


class UnsupportedModel(ModelError):
    code = "unsupported_model"


class SelfTestFailed(ModelError):
    code = "self_test_failed"


class VocabularyMismatch(ModelError):
    code = "vocabulary_mismatch"


class EngineError(OpenSledError):
    code = "engine"


class NonFiniteLogits(EngineError):
    code = "non_finite_logits"


def _tree(root: type[OpenSledError]) -> dict[str, type[OpenSledError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


BY_CODE = _tree(OpenSledError)


def from_code(code: str, reason: str, field: str = "", retry_after: float = 0.0) -> OpenSledError:
    """The exception of a `Failure`; an unknown code (a newer server) becomes the root."""
    kind = BY_CODE.get(code, OpenSledError)
    if issubclass(kind, RequestError):
        return kind(reason, field, retry_after)
    return kind(reason)
