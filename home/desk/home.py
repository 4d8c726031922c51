"""The folder of a home: its authority, its server's certificate and key, and the tokens of its devices.

Made at first use, by `opensled pair` or `opensled serve --paired`. Only its owner may enter it.
"""

from __future__ import annotations

import datetime
import os
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from home.desk.authority import Authority, names_in, new_key, private_pem, read_certificate, read_key
from home.pairing.handover import is_host
from opensled.cli.config import user_folder
from opensled.core.errors import UsageError
from opensled.core.files import read_bytes, read_secret, user_path, write_whole
from opensled.net.own_addresses import machine_addresses

NAME = "OpenSLED home"
YEAR = datetime.timedelta(days=365)
AUTHORITY_LIFETIME, LIFETIME = 20 * YEAR, 2 * YEAR  # Apple refuses servers' certificates beyond 825 days
RENEWED_AFTER = YEAR  # the server's certificate, within a day
MAX_NAMES = 64  # in a certificate; of more, those asked for first go
TOKENS_HEAD = b"""\
# Tokens of paired devices: opensled pair adds a line, opensled pair revoke NAME takes it away.
"""


def home_folder(given: str) -> Path:
    """The folder of --folder, or the user's."""
    return user_path(given) if given else user_folder() / "home"


class Home:
    """One such folder. Everything that is missing is made; what is there stays."""

    def __init__(self, folder: Path) -> None:
        """Raises UsageError for a folder or a file that cannot be used."""
        self.folder = folder
        self.ca, self._ca_key = folder / "ca.pem", folder / "ca.key"
        self.cert, self.key, self.tokens = folder / "server.pem", folder / "server.key", folder / "tokens.txt"
        self._signer = folder / "signer.txt"
        self._make_folder()
        with self.lock_folder():
            self.authority = self._authority()
            if not self.key.exists():
                # It stays while its certificates change, so that no reader sees two that do not match
                write_whole(self.key, private_pem(new_key()), private=True)
            if not self.tokens.exists():
                write_whole(self.tokens, TOKENS_HEAD, private=True)
        self.name_server(())

    @property
    def signer(self) -> str:
        """Public key (hex) that signs drafts for the home's devices; "" = none was named."""
        try:
            return self._signer.read_text("ascii").strip()
        except (OSError, ValueError):
            return ""

    def name_signer(self, key: str) -> None:
        """Hand this key to all devices that are paired from now on."""
        write_whole(self._signer, f"{key}\n".encode(), private=True)

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            mode = self.folder.stat().st_mode
        except OSError as error:
            raise UsageError(
                f"{self.folder} cannot be used: {error.strerror}; choose another --folder"
            ) from error
        if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise UsageError(f"{self.folder} is open to others; run: chmod 700 {self.folder}")

    @contextmanager
    def lock_folder(self) -> Iterator[None]:
        """While inside, no other process changes the folder."""
        try:
            file = (self.folder / ".lock").open("w")
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be written: {error.strerror}") from error
        with file:
            with suppress(ImportError):  # not everywhere
                import fcntl

                fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            yield

    def _authority(self) -> Authority:
        if not (self.ca.exists() or self._ca_key.exists()):
            # Two homes of one name would be taken for each other until a signature fails
            name = f"{NAME} of {socket.gethostname()[:30]}, {secrets.token_hex(4)}"
            made = Authority.new(name, LIFETIME, AUTHORITY_LIFETIME)
            write_whole(self._ca_key, private_pem(made.key), private=True)
            write_whole(self.ca, made.pem)
        key = read_secret(self._ca_key, "key file")
        return Authority.read(read_bytes(self.ca, "certificate file"), key, LIFETIME, str(self.folder))

    def name_server(self, hosts: Iterable[str]) -> bool:
        """Let the server's certificate name these hosts, this machine, and all that it named before.

        Whether a new one had to be written: for a new name, or because the old one grew old.
        """
        with self.lock_folder():
            named, due = self._check_certificate()
            own, wanted = _own_names(), [host.lower().rstrip(".") for host in hosts]
            if not due and {*own, *wanted} <= {*named}:
                return False
            names = list(dict.fromkeys([*own, *wanted, *named]))[:MAX_NAMES]
            key = read_key(read_secret(self.key, "key file"), str(self.key))
            write_whole(self.cert, self.authority.server(names, key))
        return True

    def _check_certificate(self) -> tuple[list[str], bool]:
        """The names in the server's certificate, and whether a new one is due: it is old, not ours, or not there."""
        if not self.cert.exists():
            return [], True
        known = read_certificate(read_bytes(self.cert, "certificate file"), str(self.cert))
        if not self.authority.has_signed(known):
            return [], True
        now = datetime.datetime.now(datetime.timezone.utc)
        return names_in(known), now - known.not_valid_before_utc > RENEWED_AFTER


def _own_names() -> list[str]:
    """By which devices may call this machine."""
    host = socket.gethostname().lower()
    short = host.split(".")[0]
    names = [host, short, f"{short}.local", "localhost", *machine_addresses()]
    return [name for name in dict.fromkeys(names) if is_host(name)]
