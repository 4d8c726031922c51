"""Messages survive the wire; what cannot be is refused by name."""

import re
from pathlib import Path

import pytest
import tomllib
from grpc_tools import protoc

from opensled.core.errors import BY_CODE, OpenSledError, Overloaded
from opensled.core.messages import (
    Cancel,
    ChatMessage,
    Draft,
    DraftBlock,
    DraftToken,
    Failure,
    HintReason,
    Limits,
    ModelInfo,
    Open,
    Opened,
    Prefill,
    PromptToken,
    RuleFacts,
    SamplingParams,
    ThoughtTags,
    Verdict,
)
from opensled.v1 import verify_pb2 as pb
from opensled.v1 import verify_pb2_grpc
from opensled.wire import codec

CLIENT = [
    Open("text"),
    Open(
        (1, 2, 3),
        SamplingParams(0.8, 5, 0.95, -7, 33, (4,), True),
        (9, 8),
        "match",
        b"k" * 16,
        b"resume",
        "model",
        "print",
    ),
    Open((ChatMessage("user", "hé"), ChatMessage("assistant", "", reasoning="hm"))),
    Open((ChatMessage("user", "a"),), template_variables='{"enable_thinking": false}'),
    Draft(3, DraftBlock(7, (DraftToken(5), DraftToken(151_935)))),
    Draft(4, DraftBlock(7)),
    Draft(5, DraftBlock(7, (DraftToken(5), DraftToken(6), DraftToken(7)), (-1, -1, 1)), 0.5),
    Open((1, 2), SamplingParams(max_tokens=0), prompt_logprobs=0),
    Cancel(),
]
SERVER = [
    Opened((1, 2), b"k" * 16, b"resume", Limits(16, 4096, 64), coarse_tools=("slow", "other")),
    Verdict(7, (5, 6), 1, 3, "", 0),
    Verdict(7, (), 0, 0, "eos", None),
    Verdict(7, (5,), hint=0, why=HintReason("step", 4, 3.125, 0.875, 15.0, 22.0, 0.125, 1.5)),
    Opened((1,), b"k" * 16, b"", Limits(16, 4096), 0, why=HintReason("operator")),
    Prefill(1200, 6596, 640),
    Prefill(0, 1),
    Prefill(2, 9, 0, 0, (PromptToken(0, ((5, 0.0),)), PromptToken(7, ((6, -1.5), (8, -0.25))))),
    Failure("overloaded", "full", "field", 1.5),
]


INFO = ModelInfo(
    "m", 9, "f", (1,), Limits(4, 9), (RuleFacts("match", True, True, False),), "exact", "0", "h", True,
    template_variables=("enable_thinking",), thoughts=ThoughtTags("<think>", "</think>"),
)  # fmt: skip


def test_eight_tokens_are_about_thirty_bytes():
    ids = (9000, 300, 5, 77, 1000, 100_000, 3, 2000)
    draft = Draft(12, DraftBlock(500, tuple(DraftToken(id) for id in ids)))
    assert len(codec.encode_client(draft).SerializeToString()) <= 30


def test_failures_become_the_errors_they_stand_for():
    error = Failure.of(Overloaded("full", retry_after=2.0)).error()
    assert isinstance(error, Overloaded) and error.retry_after == 2.0
    for code, kind in BY_CODE.items():
        assert type(Failure(code, "x").error()) is kind
    assert type(Failure("from_the_future", "x").error()) is OpenSledError


def test_an_unexpected_exception_keeps_its_text_at_home():
    assert "secret" not in Failure.of(ValueError("secret")).reason


# A field that no version knows yet, as a number, as bytes and as a message.
UNKNOWN = b"\xc0\x3e\x07" + b"\xca\x3e\x03new" + b"\xd2\x3e\x02\x08\x01"


def extended(message):
    """The bytes of a message of another version, which has more fields, also inside of what it carries."""
    kind = message.WhichOneof("kind")
    part = getattr(message, kind)
    part.MergeFromString(UNKNOWN)
    for field, value in part.ListFields():
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        for each in (value,) if hasattr(value, "MergeFromString") else value:
            each.MergeFromString(UNKNOWN)
    data = message.SerializeToString() + UNKNOWN
    assert data.count(b"new") > 1
    return data


@pytest.mark.parametrize("message", CLIENT, ids=str)
def test_a_server_reads_what_a_newer_device_says(message):
    assert codec.client_message(extended(codec.encode_client(message))) == message


@pytest.mark.parametrize("message", SERVER, ids=str)
def test_a_device_reads_what_a_newer_server_says(message):
    assert codec.server_message(extended(codec.encode_server(message))) == message


def test_a_device_reads_how_a_newer_server_describes_itself():
    reply = codec.encode_info(INFO)
    reply.MergeFromString(UNKNOWN)
    reply.limits.MergeFromString(UNKNOWN)
    assert codec.decode_description(reply.SerializeToString()) == INFO


# As the release before wrote them: no reason of a hint.
OLD = {
    "1211080712040102ac021802200330004a0101": Verdict(7, (1, 2, 300), 2, 3, hint=0, loose=(1,)),
    "0a290a02050612106b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b1a01742205081010e807280442056d61746368": Opened(
        (5, 6), b"k" * 16, b"t", Limits(16, 1000), hint=4
    ),
}


@pytest.mark.parametrize(("wire", "message"), OLD.items())
def test_hints_without_a_reason_are_written_and_read_as_before(wire, message):
    assert codec.server_message(bytes.fromhex(wire)) == message
    assert codec.encode_server(message).SerializeToString().hex() == wire


@pytest.mark.parametrize("why", [pb.HintReason(cause=99), pb.HintReason(cause=1, gain=float("nan"))])
def test_a_reason_that_says_nothing_here_spoils_no_verdict(why):
    sent = pb.ServerMessage(verdict=pb.Verdict(base=7, tokens=[5], hint=0, why=why))
    assert codec.server_message(sent.SerializeToString()) == Verdict(7, (5,), hint=0, why=HintReason())


# -- the committed code -------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[1]


def test_generated_code_is_fresh(tmp_path):
    arguments = [f"--proto_path={ROOT / 'proto'}"]
    arguments += [f"--{kind}={tmp_path}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    assert protoc.main(["protoc", *arguments, "opensled/v1/verify.proto"]) == 0
    fresh = {path.name: path.read_bytes() for path in (tmp_path / "opensled/v1").iterdir()}
    committed = {path.name: path.read_bytes() for path in (ROOT / "opensled/v1").glob("verify_*")}
    assert committed == fresh, "run: make proto"


def test_metadata_asks_for_runtimes_new_enough():
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    header = (ROOT / "opensled/v1/verify_pb2.py").read_text("utf-8")
    (protobuf,) = re.findall(r"^# Protobuf Python Version: (.*)$", header, re.MULTILINE)
    assert f"protobuf>={protobuf}" in needs
    assert f"grpcio>={verify_pb2_grpc.GRPC_GENERATED_VERSION}" in needs
