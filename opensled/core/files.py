"""Reads files that a user named, certificates and keys too, with errors that name file and cause; writes them whole."""

import contextlib
import errno
import os
import shutil
import ssl
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from opensled.core.errors import ModelError, NotFound, UsageError

NO_HOME = Path("/nonexistent")  # as Debian has it for nobody
FULL = (errno.ENOSPC, errno.EDQUOT)
REFUSALS = (*FULL, errno.EACCES, errno.EPERM, errno.EROFS)  # why a file cannot be written


def home() -> Path:
    """The user's home folder; where there is none that this process may enter: one that holds and takes nothing."""
    try:
        found = Path.home()
        (found / ".config").exists()
    except (RuntimeError, PermissionError):  # in a container: no name, or another one's HOME
        return NO_HOME
    return found


def user_path(path: str | Path) -> Path:
    """A path as a person writes it, with ~ for the home folder; raises UsageError."""
    first, *rest = Path(path).parts or (".",)
    if first == "~":
        return home().joinpath(*rest)
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{path}: {first[1:]} is no user here; write the whole path") from error


def read_bytes(path: str | Path, what: str) -> bytes:
    """The bytes of `what` (such as "token file"); raises NotFound or UsageError."""
    try:
        content = read_kept(user_path(path))
    except OSError as error:
        raise UsageError(f"{what} {path} cannot be read: {error.strerror}") from error
    if content is None:
        raise NotFound(f"{what} {path} does not exist")
    return content


def read_kept(path: Path) -> bytes | None:
    """The bytes of a record; None where it is not there, below a file (HOME=/dev/null) included."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def decode_text(content: bytes) -> str:
    """Text in UTF-8, or in UTF-16 with its mark, as Windows writes it. Raises UnicodeDecodeError."""
    return content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")


def read_secret_text(path: str | Path, what: str) -> str:
    """Like `read_secret`, for text that travels in headers."""
    try:
        return decode_text(read_secret(path, what)).encode("ascii").decode()
    except UnicodeError as error:
        raise UsageError(f"{what} {path} holds text other than ASCII") from error


def read_secret(path: str | Path, what: str) -> bytes:
    """Like `read_bytes`, for keys and tokens: raises UsageError when other users could read the file.

    The rule is PostgreSQL's for its private key: our own file must be closed to all other users; a file of
    another user (root) may be open to its group, as systemd's LoadCredential= and Kubernetes provide it.
    """
    content = read_bytes(path, what)
    if os.name != "posix":  # no POSIX modes there
        return content
    status = user_path(path).stat()
    closed = stat.S_IRWXO | (stat.S_IRWXG if status.st_uid == os.geteuid() else stat.S_IWGRP)
    if status.st_mode & closed:
        raise UsageError(f"{what} {path} is readable by others; run: chmod 600 {path}")
    return content


def write_whole(path: Path, content: bytes, private: bool = False) -> None:
    """Write a file atomically: readers see the new file or the old one. `private`: only this user may read it (600)."""
    with explain_errors(path, len(content)):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            unfinished = Path(file.name)  # made with mode 600
            try:
                file.write(content)
                file.flush()
                if not private:
                    unfinished.chmod(0o644)
                unfinished.replace(path)
            finally:
                with contextlib.suppress(OSError):  # where the disk was full, no part of the file stays
                    unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def explain_errors(path: Path, needed: int = 0) -> Iterator[None]:
    """While inside, `path` is written, or files in it: an OSError names it, and tells why (`why_not_written`)."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, why_not_written(path, error, needed), str(path)) from error


def why_not_written(path: Path, error: OSError, needed: int = 0) -> str:
    """Why the system refused to write a file or folder of `needed` bytes (0 = unknown), in words for a person."""
    if error.errno not in FULL:
        below = path.parts[len(home().parts) :][:1] if path.is_relative_to(home()) else ()
        hint = "; set HOME to a folder that this user may write to" if "".join(below).startswith(".") else ""
        return (error.strerror or type(error).__name__) + hint
    what = "its disk is full" if error.errno == errno.ENOSPC else "this user's quota of its disk is used up"
    wanted = f"{_size(needed)} needed, " if needed else ""
    return f"{what} ({wanted}{_size(free_bytes(path))} free): make room"


def _size(number: int) -> str:
    return f"{number / 1e6:,.1f} MB" if number >= 100_000 else f"{number / 1e3:,.1f} kB"


def free_bytes(path: Path) -> int:
    """Of the disk on which `path` lies, or will lie."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def lock_alone(number: int, folder: Path, command: str) -> None:
    """Lock an open file, by its number, that stands for a folder; raises ModelError while another process holds it."""
    try:
        import fcntl  # not everywhere
    except ImportError:
        return
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise ModelError(f"another {command} writes into {folder}; wait until it ends") from error


@dataclass(frozen=True)
class Identity:
    """A certificate chain and its private key, PEM: the identity of one end of a TLS connection."""

    cert: bytes
    key: bytes = field(repr=False)


CLIENT_FLAGS = ("--client-cert", "--client-key")


def read_identity(
    cert: str, key: str, flags: tuple[str, str] = ("--tls-cert", "--tls-key")
) -> Identity | None:
    """The identity in two files, None without any; raises UsageError or NotFound, naming `flags` or the file."""
    if bool(cert) != bool(key):
        raise UsageError(f"{flags[0]} and {flags[1]} go together: give both, or neither")
    if not cert:
        return None
    identity = Identity(read_bytes(cert, "certificate file"), read_secret(key, "key file"))
    server_context(cert, key)
    return identity


def server_context(cert: str | Path, key: str | Path) -> ssl.SSLContext:
    """What a server encrypts with, by the certificate chain and the key in these files; raises UsageError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    paths = user_path(cert), user_path(key)
    try:
        context.load_cert_chain(*paths, password=lambda: "")  # else OpenSSL would ask the terminal for one
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise UsageError(
            f"{cert} and {key} are not a PEM certificate and its key; remove a passphrase with: openssl pkey -in KEY"
        ) from error
    return context


def read_authorities(path: str | Path) -> bytes:
    """The certificates (PEM) in a file, at least one; raises UsageError or NotFound, naming the file."""
    pem = read_bytes(path, "certificate file")
    try:
        text = pem.decode("ascii", "ignore")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text or "nothing")
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"certificate file {path} holds no PEM certificate, which begins with -----BEGIN CERTIFICATE-----"
        ) from error
    return pem


def read_token(path: str) -> str:
    """The bearer token in a file; "" for no file. Raises UsageError or NotFound."""
    tokens = read_secret_text(path, "token file").split() if path else [""]
    if not tokens:
        raise UsageError(f"token file {path} is empty; write the bearer token into it")
    return tokens[0]
