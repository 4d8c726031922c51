"""The messages of GetDraft, and what may stand in them."""

from __future__ import annotations

import re

from opensled.core.bounds import MAX_NAME
from opensled.core.errors import InvalidRequest, ProtocolError
from opensled.core.messages import Failure
from opensled.v1 import verify_pb2 as pb

PART_BYTES = 64 << 10  # most of one message
MAX_MANIFEST = 16 << 10  # bytes
SIGNATURE_BYTES = 64
_SHA256 = re.compile(r"[0-9a-f]{64}")

Reply = tuple[bytes, bytes] | bytes


def draft_request(file: str = "", offset: int = 0) -> pb.GetDraftRequest:
    """For the manifest, or for a file (sha256, hex) from that byte on."""
    return pb.GetDraftRequest(file=file, offset=offset)


def read_draft_request(data: bytes) -> tuple[str, int]:
    """File ("" = the manifest) and offset; raises InvalidRequest and `codec.Malformed`."""
    asked = pb.GetDraftRequest.FromString(data)
    if asked.file and not _SHA256.fullmatch(asked.file):
        raise InvalidRequest("file must be a sha256 of 64 hex digits", "file")
    if asked.offset and not asked.file:
        raise InvalidRequest("a manifest cannot be read from an offset; leave offset out", "offset")
    return asked.file, asked.offset


def manifest_bytes(manifest: bytes, signature: bytes) -> bytes:
    """A reply."""
    signed = pb.SignedManifest(manifest=manifest, signature=signature)
    return pb.GetDraftReply(manifest=signed).SerializeToString()


def part_bytes(part: bytes) -> bytes:
    """A reply."""
    return pb.GetDraftReply(part=part).SerializeToString()


def failure_bytes(failure: Failure) -> bytes:
    """A reply."""
    return pb.GetDraftReply(failure=pb.Failure(**vars(failure))).SerializeToString()


def decode_draft_reply(reply: pb.GetDraftReply) -> Reply:
    """(manifest, signature), or the next bytes of a file. Raises the error that the server sent, and ProtocolError."""
    kind = reply.WhichOneof("kind")
    if kind == "failure":
        failure = reply.failure
        seconds = failure.retry_after if 0 <= failure.retry_after < 3600 else 0.0
        code, reason, field = failure.code[:MAX_NAME], failure.reason[:MAX_NAME], failure.field[:MAX_NAME]
        raise Failure(code, reason, field, seconds).error()
    if kind == "manifest":
        signed = reply.manifest
        if len(signed.manifest) > MAX_MANIFEST or len(signed.signature) != SIGNATURE_BYTES:
            raise ProtocolError("the server sent a manifest or a signature of an invalid size")
        return signed.manifest, signed.signature
    if kind == "part" and 0 < len(reply.part) <= PART_BYTES:
        return reply.part
    raise ProtocolError("the server sent a part of a draft that this version cannot read")
