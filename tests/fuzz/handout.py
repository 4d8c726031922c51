"""Drafts that are handed out: what a key signed, and the messages of GetDraft."""

import contextlib
import json
from pathlib import Path

from adapt.shelf.draft_manifest import MAX_BYTES, MAX_FILES, read_manifest
from adapt.shelf.signature import Signed
from opensled.core.errors import DraftRefused, OpenSledError
from opensled.v1 import verify_pb2 as pb
from opensled.wire import codec, draft_codec
from tests.fuzz import bodies
from tests.fuzz.choices import Choices
from tests.handed_out import KITCHEN, manifest, signed

KNOWN = json.loads(manifest().encode())
REPLIED = (
    draft_codec.manifest_bytes(*signed(manifest())),
    draft_codec.part_bytes(b"part"),
    pb.GetDraftReply(failure=pb.Failure(code="not_found", reason="none")).SerializeToString(),
)
ASKED = draft_codec.draft_request("ab" * 32, 5).SerializeToString()


def draft_manifest(data: bytes) -> None:
    """A manifest with anything in it: what is read names plain files, and is read again as it was."""
    choose = Choices(data)
    content = bodies.changed_json(KNOWN, choose) if choose.byte() < 200 else choose.rest()
    with contextlib.suppress(OpenSledError):
        draft = read_manifest(content)
        for file in draft.files:
            assert (Path("/a/b") / file.name).resolve().parent == Path("/a/b")
        assert 0 < len(draft.files) <= MAX_FILES and 0 < draft.total <= MAX_BYTES and draft.serial > 0
        assert draft.title().isprintable() and read_manifest(draft.encode()) == draft


def draft_reply(data: bytes) -> None:
    """What a server answers to GetDraft; nothing that this key did not sign is believed."""
    with contextlib.suppress(OpenSledError, codec.Malformed):
        found = draft_codec.decode_draft_reply(pb.GetDraftReply.FromString(data))
        if isinstance(found, bytes):
            assert 0 < len(found) <= draft_codec.PART_BYTES
            return
        try:
            assert KITCHEN.verify(Signed(*found)) == manifest()
        except DraftRefused:
            assert found != signed(manifest())


def draft_asked(data: bytes) -> None:
    """What a device asks of GetDraft."""
    with contextlib.suppress(OpenSledError, codec.Malformed):
        file, offset = draft_codec.read_draft_request(data)
        assert offset >= 0 and (not file or int(file, 16) >= 0)
