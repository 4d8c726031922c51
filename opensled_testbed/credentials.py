"""Throw-away certificates and tokens for a fleet on this machine. For real ones see docs/security.md."""

import datetime
import ipaddress
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

LIFETIME = datetime.timedelta(days=1)
CLOCKS = datetime.timedelta(minutes=5)  # how far clocks may differ

_NO_USE = dict.fromkeys(
    ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
     "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False
)  # fmt: skip


class Authority:
    """A certificate authority of one day, on NIST P-256. Its own key never leaves this process."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._cert = (
            self._builder(self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.KeyUsage(**_NO_USE | {"key_cert_sign": True}), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self._cert.public_bytes(serialization.Encoding.PEM)

    def server(self, address: str) -> tuple[bytes, bytes]:
        """(certificate, key), PEM, of a server at an IP address."""
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        return self._issue(address, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def client(self, name: str) -> tuple[bytes, bytes]:
        """(certificate, key), PEM, of a client with this common name."""
        return self._issue(name, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(self, name: str, use: ObjectIdentifier, *more: x509.ExtensionType) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            self._builder(_name(name), key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**_NO_USE | {"digital_signature": True}), critical=True)
            .add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        )
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        cert = builder.sign(self._key, hashes.SHA256())
        return cert.public_bytes(serialization.Encoding.PEM), key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    def _builder(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.timezone.utc)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCKS)
            .not_valid_after(now + LIFETIME)
        )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


class FleetFlags:
    """What the server and the devices of one fleet are started with so that each knows the other."""

    def __init__(self, folder: Path, address: str, devices: Iterable[str]) -> None:
        """Writes the files into `folder`; the server is to be reached at `address`."""
        self._folder = folder
        authority = Authority("OpenSLED demo")
        self._write("ca.pem", authority.pem)
        self._write_pair("server", *authority.server(address))
        tokens = {device: secrets.token_hex(32) for device in devices}
        for device, token in tokens.items():
            self._write_pair(device, *authority.client(device))
            self._write(f"{device}.token", token.encode())
        lines = [f"{token} {device} max_sessions=8\n" for device, token in tokens.items()]
        self._write("tokens", "".join(lines).encode())

    def server(self) -> Sequence[str]:
        return (
            *self._identity("server"),
            *("--tls-client-ca", self._path("ca.pem"), "--tokens", self._path("tokens")),
        )

    def device(self, name: str) -> Sequence[str]:
        return (
            *self._identity(name),
            *("--tls-ca", self._path("ca.pem"), "--token-file", self._path(f"{name}.token")),
        )

    def _identity(self, name: str) -> tuple[str, ...]:
        return "--tls-cert", self._path(f"{name}.pem"), "--tls-key", self._path(f"{name}.key")

    def _write_pair(self, name: str, cert: bytes, key: bytes) -> None:
        self._write(f"{name}.pem", cert)
        self._write(f"{name}.key", key)

    def _write(self, name: str, content: bytes) -> None:
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_bytes(content)

    def _path(self, name: str) -> str:
        return str(self._folder / name)


@contextmanager
def fleet_flags(address: str, devices: Iterable[str]) -> Iterator[FleetFlags]:
    """Credentials for a fleet, in a folder that is gone afterwards."""
    with TemporaryDirectory(prefix="opensled-demo-") as folder:
        yield FleetFlags(Path(folder), address, devices)
