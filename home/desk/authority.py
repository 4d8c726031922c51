"""A certificate authority of one's own, on NIST P-256: its certificate, its key, and what it signs."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from opensled.core.errors import UsageError
from opensled.net.address import as_ip

DAY = datetime.timedelta(days=1)
# How far clocks may differ. A Raspberry Pi has none that runs without power: after a start it shows the time of its
# last shutdown until the network tells it better.
CLOCKS = 30 * DAY

_USES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip


class Authority(NamedTuple):
    """Signs certificates of servers and devices that all live as long as `lifetime`."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    lifetime: datetime.timedelta

    @classmethod
    def new(
        cls, name: str, lifetime: datetime.timedelta, own_lifetime: datetime.timedelta | None = None
    ) -> Authority:
        """A fresh one; `own_lifetime` is that of its own certificate, default `lifetime`."""
        key, subject = new_key(), _name(name)
        return cls(issue(subject, key, subject, key, own_lifetime or lifetime, ca=True), key, lifetime)

    @classmethod
    def read(cls, certificate: bytes, key: bytes, lifetime: datetime.timedelta, where: str) -> Authority:
        """The one that these PEM texts of `where` hold; raises UsageError."""
        found = cls(read_certificate(certificate, where), read_key(key, where), lifetime)
        if found.certificate.public_key() != found.key.public_key():
            raise UsageError(f"{where}: certificate and key do not belong together")
        return found

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def has_signed(self, certificate: x509.Certificate) -> bool:
        """Whether it signed this certificate."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (ValueError, TypeError, InvalidSignature):
            return False
        return True

    def server(self, names: Sequence[str], key: ec.EllipticCurvePrivateKey) -> bytes:
        """The certificate (PEM) of a server that is called by these host names and IP addresses."""
        alternatives = x509.SubjectAlternativeName(
            [x509.IPAddress(address) if (address := as_ip(name)) else x509.DNSName(name) for name in names]
        )
        return self._signed(names[0][:64], key, ExtendedKeyUsageOID.SERVER_AUTH, alternatives)

    def client(self, name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
        """The certificate (PEM) of a client with this common name."""
        return self._signed(name, key, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _signed(
        self, name: str, key: ec.EllipticCurvePrivateKey, use: ObjectIdentifier, *more: x509.ExtensionType
    ) -> bytes:
        extensions = (x509.ExtendedKeyUsage([use]), *more)
        made = issue(_name(name), key, self.certificate.subject, self.key, self.lifetime, *extensions)
        return made.public_bytes(serialization.Encoding.PEM)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(pem: bytes, where: str) -> ec.EllipticCurvePrivateKey:
    """Raises UsageError."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{where} holds no private key") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{where} holds a key of another kind than opensled makes")
    return key


def read_certificate(pem: bytes, where: str) -> x509.Certificate:
    """Raises UsageError."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise UsageError(f"{where} holds no certificate") from error


def names_in(certificate: x509.Certificate) -> list[str]:
    """The host names and IP addresses by which a server with this certificate may be called."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))]


def issue(
    subject: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    signing: ec.EllipticCurvePrivateKey,
    lifetime: datetime.timedelta,
    *extensions: x509.ExtensionType,
    ca: bool = False,
) -> x509.Certificate:
    """The certificate of `subject` with `key`, signed by `issuer` with its key."""
    now = datetime.datetime.now(datetime.timezone.utc)
    uses = dict.fromkeys(_USES, False) | {"key_cert_sign" if ca else "digital_signature": True}
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCKS)
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(x509.KeyUsage(**uses), critical=True)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(signing, hashes.SHA256())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
