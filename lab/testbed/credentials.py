"""Throw-away certificates and tokens for a fleet on this machine. For real ones see docs/security.md."""

import datetime
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from home.desk import authority

LIFETIME = datetime.timedelta(days=1)


class Authority:
    """A certificate authority of one day. Its own key never leaves this process."""

    def __init__(self, name: str) -> None:
        self._signing = authority.Authority.new(name, LIFETIME)

    @property
    def pem(self) -> bytes:
        return self._signing.pem

    def server(self, address: str) -> tuple[bytes, bytes]:
        """(certificate, key), PEM, of a server at an IP address."""
        key = authority.new_key()
        return self._signing.server([address], key), authority.private_pem(key)

    def client(self, name: str) -> tuple[bytes, bytes]:
        """(certificate, key), PEM, of a client with this common name."""
        key = authority.new_key()
        return self._signing.client(name, key), authority.private_pem(key)


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
            *self._identity("server", "tls"),
            *("--tls-client-ca", self._path("ca.pem"), "--tokens", self._path("tokens")),
        )

    def device(self, name: str) -> Sequence[str]:
        return (
            *self._identity(name, "client"),
            *("--tls-ca", self._path("ca.pem"), "--token-file", self._path(f"{name}.token")),
        )

    def _identity(self, name: str, whose: str) -> tuple[str, ...]:
        return f"--{whose}-cert", self._path(f"{name}.pem"), f"--{whose}-key", self._path(f"{name}.key")

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
