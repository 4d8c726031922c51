"""Who may make devices run a draft: the holder of an Ed25519 key. The one place that signs and verifies.

A *signer* is one text, `TENANT:KEY`, that the operator gives a device outside of the server: whose drafts it takes,
and the public key that has to sign them, in 64 hex digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from adapt.shelf.draft_manifest import MAX_TEXT, DraftManifest, read_manifest
from opensled.core.errors import DraftRefused, UsageError

CONTEXT = b"opensled-draft-1\0"  # what else this key may sign is never taken for a manifest
_KEY = re.compile(r"[0-9a-f]{64}")


class Signed(NamedTuple):
    """A manifest as it travels."""

    manifest: bytes
    signature: bytes


@dataclass(frozen=True)
class Signer:
    """Whose drafts a device takes, and who has to sign them."""

    tenant: str
    key: str  # public, hex

    def __str__(self) -> str:
        return f"{self.tenant}:{self.key}"

    def verify(self, signed: Signed) -> DraftManifest:
        """The manifest, if this key signed it for this tenant; nothing of it is read before. Raises DraftRefused."""
        try:
            public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.key))
            public.verify(signed.signature, CONTEXT + signed.manifest)
        except (InvalidSignature, ValueError):
            raise DraftRefused(
                f"the draft is not signed by the key {self.key[:16]}...: another key signed it, or it was changed in "
                "transit. Nothing was replaced. If the operator has a new key, give it with --signer"
            ) from None
        found = read_manifest(signed.manifest)
        if found.tenant != self.tenant:
            raise DraftRefused(
                f"the draft is for devices of {found.tenant[:80]!r}, and this device belongs to {self.tenant!r}; "
                "check its token, and the tenant in --signer"
            )
        return found


def read_signer(text: str) -> Signer:
    """The signer in a text as the operator gives it; raises UsageError."""
    tenant, colon, key = text.strip().rpartition(":")
    if not (colon and tenant and len(tenant) <= MAX_TEXT and tenant.isprintable() and _KEY.fullmatch(key)):
        raise UsageError(
            f"{text[:80]!r} is not a signer; write TENANT:KEY as opensled drafts publish prints it, with 64 hex digits"
        )
    return Signer(tenant, key)


class SigningKey:
    """The secret half."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def new(cls) -> SigningKey:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def read(cls, pem: bytes, where: str) -> SigningKey:
        """Raises UsageError."""
        try:
            key = serialization.load_pem_private_key(pem, None)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{where} holds no private key without a passphrase (PEM)") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise UsageError(f"{where} holds a key of another kind; make one: opensled drafts keygen")
        return cls(key)

    @property
    def pem(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    @property
    def public(self) -> str:
        """Hex."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, manifest: DraftManifest) -> Signed:
        content = manifest.encode()
        read_manifest(content)  # what no device would take is not signed
        return Signed(content, self._key.sign(CONTEXT + content))
