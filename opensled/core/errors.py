"""All errors that a peer or a user can cause, as one tree. Our own invariants are asserts instead."""

INTERRUPTED = 130  # exit code of a command that Ctrl-C ended, as shells have it


class OpenSledError(Exception):
    """Root of the tree. `code` travels in `Failure`, `exit_code` ends the command line."""

    code = "internal"
    exit_code = 1


class UsageError(OpenSledError):
    code, exit_code = "usage", 2  # a flag or a configuration value makes no sense


class RequestError(OpenSledError):
    code = "request"  # the request cannot be served

    def __init__(self, reason: str, field: str = "", retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.field = field  # name of the offending request field, "" if none
        self.retry_after = retry_after  # seconds, 0 = unknown


class InvalidRequest(RequestError):
    code = "invalid_request"  # a field has a bad value; `field` names it


class Unsupported(RequestError):
    code = "unsupported"  # a field is known but not served here; `field` names it


class NotFound(RequestError):
    code, exit_code = "not_found", 3  # no such model, file or session


class MissingImage(NotFound):
    code = "missing_image"  # it was named, and this server has it no more: send the file


class Unauthorized(RequestError):
    code, exit_code = "unauthorized", 4  # no valid token


class Overloaded(RequestError):
    code, exit_code = "overloaded", 6  # try again after `retry_after` seconds


class ProtocolError(OpenSledError):
    code = "protocol"  # the peer broke the position rules (docs/protocol.md)


class FutureBase(ProtocolError):
    code = "future_base"  # a draft built on tokens the server never committed


class TruthConflict(ProtocolError):
    code = "truth_conflict"  # two messages disagree about one position


class Unreachable(OpenSledError):
    code, exit_code = "unreachable", 5  # no server answers at that address


class Loading(Unreachable):
    code = "loading"  # it listens, and answers as soon as its model is loaded
    words = "the server is loading its model; try again"  # what a server says meanwhile


class ModelError(OpenSledError):
    code = "model"  # a model cannot be used


class UnsupportedModel(ModelError):
    code = "unsupported_model"  # this family cannot be verified or rolled back here


class SelfTestFailed(ModelError):
    code = "self_test_failed"  # the engine's attention disagrees with plain attention


class VocabularyMismatch(ModelError):
    code = "vocabulary_mismatch"  # draft and target do not share a vocabulary


class DraftRefused(ModelError):
    code = "draft_refused"  # what was handed out is of another key or tenant, older, or no draft


class DraftSourceError(OpenSledError):
    code = "draft_source"  # what drafts for a device did not answer, or gave no answer: it costs drafts only


class EngineError(OpenSledError):
    code = "engine"  # a step failed on the server


class NonFiniteLogits(EngineError):
    code = "non_finite_logits"  # the target gave NaN or infinity for one session's row


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


MAX_CAUSE = 300  # characters of another library's error in ours; chosen


def first_line(error: BaseException) -> str:
    """What an error of another library says in its first line, or its type if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:MAX_CAUSE] if lines else type(error).__name__
