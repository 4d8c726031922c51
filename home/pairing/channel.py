"""The channel of one pairing: SPAKE2 over the code, proofs of the key, then sealed messages.

SPAKE2 (RFC 9382, of the library `spake2`) makes a key that both ends share only if both know the code; who does not can
test one guess in a run, and nothing afterwards. All keys come from that key and from everything that both ends sent in
clear, by HKDF-SHA256: a changed byte, another version, another role or another authority is another key.

The proofs (HMAC) come before anything is unsealed: ChaCha20-Poly1305 alone does not commit to its key, so a crafted
text that opens under many keys would test as many guesses at once (partitioning oracle attacks, Len et al. 2021).
"""

from __future__ import annotations

import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from spake2 import SPAKE2_A, SPAKE2_B

from opensled.core.errors import ProtocolError, Unauthorized

VERSION = b"opensled-pairing-1"
DEVICE, SERVER = b"opensled device", b"opensled server"
ELEMENT_BYTES = 33  # of SPAKE2: a letter for the side, and a point
KEY_BYTES = PROOF_BYTES = FINGERPRINT_BYTES = 32
HELLO_BYTES = len(VERSION) + ELEMENT_BYTES
ANSWER_BYTES = HELLO_BYTES + FINGERPRINT_BYTES

WRONG_CODE = (
    "the code is not the one that the server shows, or someone on the network changed messages; look at the server's "
    "screen (it withdraws a code after a few wrong ones: then run opensled pair there again)"
)


def fingerprint(certificate: bytes) -> bytes:
    """SHA-256 of a certificate (DER)."""
    return hashlib.sha256(certificate).digest()


class DeviceEnd:
    """The device's side of one run; it speaks first."""

    def __init__(self, digits: str) -> None:
        self._pake = SPAKE2_A(digits.encode(), DEVICE, SERVER)
        self.hello = VERSION + self._pake.start()

    def channel(self, answer: bytes) -> tuple[SealedChannel, bytes]:
        """The channel, and the fingerprint of the server's authority. Raises ProtocolError."""
        shared = _finish(self._pake, _element(answer, ANSWER_BYTES))
        return SealedChannel(shared, self.hello, answer, own=0), answer[HELLO_BYTES:]


class ServerEnd:
    """The server's side of one run."""

    def __init__(self, digits: str, authority: bytes, hello: bytes) -> None:
        """`authority`: fingerprint of its certificate. Raises ProtocolError for a `hello` that is none.

        Nothing that is sent before the device's proof depends on the shared key: a run that ends here tests no guess.
        """
        self._hello, self._element = hello, _element(hello, HELLO_BYTES)
        self._pake = SPAKE2_B(digits.encode(), DEVICE, SERVER)
        self.answer = VERSION + self._pake.start() + authority

    def channel(self) -> SealedChannel:
        """Raises ProtocolError."""
        return SealedChannel(_finish(self._pake, self._element), self._hello, self.answer, own=1)


def _element(message: bytes, length: int) -> bytes:
    """The element of SPAKE2 in a first message; raises ProtocolError."""
    if not message.startswith(VERSION):
        raise ProtocolError("the other end speaks another version of pairing; bring both to one release")
    if len(message) != length:
        raise ProtocolError("the other end sent an invalid pairing message")
    return message[len(VERSION) : HELLO_BYTES]


def _finish(pake: SPAKE2_A | SPAKE2_B, element: bytes) -> bytes:
    try:
        key: bytes = pake.finish(element)
    except Exception as error:
        # No point of the group, our own element sent back, ...: the library's errors have no root of their own
        raise ProtocolError("the other end sent an invalid pairing message") from error
    return key


class SealedChannel:
    """Sealed messages in both directions, in order."""

    def __init__(self, shared: bytes, hello: bytes, answer: bytes, own: int) -> None:
        """`own`: 0 at the device, 1 at the server. Both first messages have fixed lengths, so joined they are
        unambiguous."""
        heard = hashlib.sha256(hello + answer).digest()
        derived = HKDF(hashes.SHA256(), 4 * KEY_BYTES, salt=heard, info=VERSION + b" keys").derive(shared)
        keys = [derived[place : place + KEY_BYTES] for place in range(0, len(derived), KEY_BYTES)]
        proofs = [hmac.digest(key, heard, "sha256") for key in keys[:2]]  # of having the key, by its sender
        seals = [ChaCha20Poly1305(key) for key in keys[2:]]
        self.proof, self._awaited = proofs[own], proofs[1 - own]
        self._out, self._in = seals[own], seals[1 - own]
        self._sent = self._received = 0

    def require_proof(self, given: bytes) -> None:
        """Raises Unauthorized unless the other end has our key: it knows the code, and saw what we saw."""
        if not hmac.compare_digest(self._awaited, given):
            raise Unauthorized(WRONG_CODE)

    def seal(self, text: bytes) -> bytes:
        self._sent += 1
        return self._out.encrypt(_nonce(self._sent), text, None)

    def unseal(self, sealed: bytes) -> bytes:
        """Raises Unauthorized for what the other end did not seal as its next message."""
        self._received += 1
        try:
            return self._in.decrypt(_nonce(self._received), sealed, None)
        except InvalidTag as error:
            raise Unauthorized(
                "someone on the network changed a message of the pairing; try again"
            ) from error


def _nonce(count: int) -> bytes:
    """Each key seals the messages of one direction of one run, so a count never comes twice."""
    return count.to_bytes(12, "big")
