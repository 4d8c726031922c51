"""Signed manifests of drafts: what a device believes, and what it refuses before it does anything."""

from __future__ import annotations

import json

import pytest

from adapt.shelf.draft_manifest import MAX_BYTES, MAX_FILES, MAX_MANIFEST, read_manifest
from adapt.shelf.signature import CONTEXT, Signed, SigningKey, read_signer
from opensled.core.errors import DraftRefused, InvalidRequest, NotFound, ProtocolError, UsageError
from opensled.core.messages import Failure
from opensled.v1 import verify_pb2 as pb
from opensled.wire import draft_codec
from tests.handed_out import KEY, KITCHEN, STRANGER, handed, manifest, signed


def test_what_is_signed_is_read_as_it_was():
    draft = manifest(7)
    assert KITCHEN.verify(signed(draft)) == draft
    assert draft.gain == "acceptance 0.24 -> 0.93 at T = 0, 0.20 -> 0.89 at T = 0.8"
    assert "passed no gate" in manifest(passed=False, before=(), after=()).title()


def test_only_the_key_of_the_signer_counts():
    draft = signed(manifest())
    for wrong in (
        signed(manifest(), STRANGER),
        Signed(draft.manifest.replace(b"mine", b"fine"), draft.signature),
        Signed(draft.manifest, bytes(64)),
        Signed(b"", draft.signature),
    ):
        with pytest.raises(DraftRefused, match="not signed by the key"):
            KITCHEN.verify(wrong)


def test_what_the_key_signed_for_another_purpose_is_no_manifest():
    content = manifest().encode()
    with pytest.raises(DraftRefused, match="not signed"):
        KITCHEN.verify(Signed(content, KEY._key.sign(content)))
    assert KITCHEN.verify(Signed(content, KEY._key.sign(CONTEXT + content)))


def test_a_draft_of_another_tenant_is_refused():
    with pytest.raises(DraftRefused, match=r"for devices of 'garage'.*belongs to 'kitchen'"):
        KITCHEN.verify(signed(manifest(tenant="garage")))


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(manifest().encode()), **fields}).encode()


def file(**fields: object) -> dict[str, object]:
    return {"name": "a.gguf", "bytes": 5, "sha256": "a" * 64, **fields}


NAMES = (
    "../a.gguf", "/etc/a.gguf", "..", ".gguf", "a/b.gguf", "a\\b.gguf", "a.gguf\0", "a.gguf\n", "C:a.gguf", "a.py",
    "manifest.sig", "x" * 125 + ".gguf", "", "-a.gguf", "ä.gguf",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_that_could_be_paths_are_refused(name):
    with pytest.raises(DraftRefused, match="not a file name"):
        read_manifest(changed(files=[file(name=name)]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not JSON"),
        (b"[" * 5000, "not JSON"),
        (b'{"format": NaN}', "not JSON"),
        (b"[]", "format"),
        (changed(format=2), "format"),
        (b" " * (MAX_MANIFEST + 1), "at most"),
        (changed(files=[]), "no GGUF file"),
        (changed(files=[file(name="genai_config.json")]), "no GGUF file"),
        (changed(files=[file(), file(name="A.gguf")]), "one name"),
        (changed(files=[file(name=f"{number}.gguf") for number in range(MAX_FILES + 1)]), "17 files"),
        (changed(files=[file(bytes=0)]), "bytes"),
        (changed(files=[file(bytes=True)]), "bytes"),
        (changed(files=[file(bytes=MAX_BYTES), file(name="b.gguf")]), "4 GiB"),
        (changed(files=[file(sha256="A" * 64)]), "sha256"),
        (changed(files=["a.gguf"]), "name"),
        (changed(serial=0), "serial"),
        (changed(serial=1.5), "serial"),
        (changed(serial=2**60), "serial"),
        (changed(tenant="a\nb"), "tenant"),
        (changed(tenant=""), "tenant"),
        (changed(name="x" * 300), "name"),
        (changed(fingerprint="x"), "fingerprint"),
        (changed(created=-1), "created"),
        (changed(passed=1), "passed"),
        (changed(after=[]), "other temperatures"),
        (changed(before=[{"temperature": 0, "acceptance": 2, "tokens_per_round": 1}]), "acceptance"),
    ],
)
def test_a_manifest_that_is_none_is_refused(content, said):
    with pytest.raises(DraftRefused, match=said):
        read_manifest(content)


def test_a_key_signs_nothing_that_no_device_would_take():
    with pytest.raises(DraftRefused):
        KEY.sign(manifest(files=(handed(name="../x.gguf"),)))


def test_a_signer_is_one_text():
    assert read_signer(f" {KITCHEN} \n") == KITCHEN
    assert read_signer(f"a:b:{KEY.public}").tenant == "a:b"
    for wrong in (
        "",
        "kitchen",
        f":{KEY.public}",
        "kitchen:abc",
        f"kitchen:{KEY.public.upper()}",
        "k\n:" + "a" * 64,
    ):
        with pytest.raises(UsageError, match="not a signer"):
            read_signer(wrong)


def test_a_key_is_read_again(tmp_path):
    assert SigningKey.read(KEY.pem, "file").public == KEY.public
    with pytest.raises(UsageError, match="no private key"):
        SigningKey.read(b"nothing", "file")


def test_requests_and_replies_within_their_limits():
    sha256 = handed().sha256
    asked = draft_codec.draft_request(sha256, 5).SerializeToString()
    assert draft_codec.read_draft_request(asked) == (sha256, 5)
    for wrong in (pb.GetDraftRequest(file="../x"), pb.GetDraftRequest(offset=3)):
        with pytest.raises(InvalidRequest):
            draft_codec.read_draft_request(wrong.SerializeToString())
    draft = signed(manifest())
    read = draft_codec.decode_draft_reply
    assert read(pb.GetDraftReply.FromString(draft_codec.manifest_bytes(*draft))) == draft
    assert read(pb.GetDraftReply.FromString(draft_codec.part_bytes(b"abc"))) == b"abc"
    for wrong in (
        pb.GetDraftReply(),
        pb.GetDraftReply(part=b""),
        pb.GetDraftReply(part=bytes(draft_codec.PART_BYTES + 1)),
        pb.GetDraftReply(manifest=pb.SignedManifest(manifest=draft.manifest, signature=b"short")),
        pb.GetDraftReply(manifest=pb.SignedManifest(manifest=bytes(20_000), signature=bytes(64))),
    ):
        with pytest.raises(ProtocolError):
            read(wrong)
    failure = draft_codec.failure_bytes(Failure.of(NotFound("none here", "draft")))
    with pytest.raises(NotFound, match="none here"):
        read(pb.GetDraftReply.FromString(failure))
