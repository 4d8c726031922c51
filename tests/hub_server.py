"""A hub of models on localhost, for tests: the API paths that are used, ranges, tokens, redirects, and faults."""

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

import pytest

from opensled.cli import main as cli
from opensled.models import download, store

SHIFT = 0  # bytes by which the ranges of a hub begin too late
LARGE = 100  # bytes from which on a file is kept in LFS, which announces its sha256
NEWEST, OLDER = "b" * 40, "a" * 40
NAME = "Some-Org/Small-1B-GGUF"
Q4, Q8 = b"GGUF" + bytes(range(256)) * 30, b"GGUF" + bytes(range(255, -1, -1)) * 50
GGUFS = {
    "small-1b-q8_0.gguf": Q8,
    "small-1b-q4_k_m.gguf": Q4,
    "mmproj-f16.gguf": b"GGUF" + b"m" * 200,
    "README.md": b"# Small",
}
FOLDER = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b'{"version": "1.0"}' + b" " * 200,
    "tokenizer.model": b"pieces" * 40,
    "chat_template.jinja": b"{{ messages }}",
    "additional_chat_templates/tool_use.jinja": b"{{ tools }}",
    "model.safetensors": b"weights!" * 30,
    "pytorch_model.bin": b"pickle" * 99,
    "original/consolidated.safetensors": b"others" * 99,
    "train.py": b"import os",
}
FETCHED = (  # of FOLDER
    *("config.json", "tokenizer.json", "tokenizer.model", "chat_template.jinja"),
    *("additional_chat_templates/tool_use.jinja", "model.safetensors"),
)


def blob_id(content: bytes) -> str:
    """git's id of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Repository:
    """Files by commit, the newest one last."""

    commits: dict[str, dict[str, bytes]]
    gated: bool = False
    served: dict[str, bytes] = field(default_factory=dict)  # instead of what is announced
    listing: dict | None = None  # instead of the true one

    @property
    def newest(self) -> str:
        return list(self.commits)[-1]


class HubServer:
    """Knobs and records of one hub."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.token = "hf_secret"
        self.asked: list[str] = []  # method-less paths of all requests
        self.ranges: list[str] = []  # that files were asked for with
        self.break_after: list[int] = []  # bytes after which the next answers with a file break off
        self.knows_ranges = True
        self.tells_length = True  # of files; else they come in chunks
        self.page = 0  # entries of a page of a listing; 0 = all
        self.down = 0  # requests to be answered with 503
        self.down_after_break = 0  # the same, after an answer that breaks off
        self.elsewhere = ""  # another server to which files are redirected
        self.tokens: list[str | None] = []  # that came with requests
        self.address = ""

    def add(self, name: str, files: dict[str, bytes], commit: str = OLDER) -> Repository:
        repository = self.repositories.setdefault(name, Repository({}))
        repository.commits[commit] = files
        return repository

    def listing(self, name: str, revision: str) -> dict | None:
        repository = self.repositories[name]
        if repository.listing is not None:
            return repository.listing
        commit = repository.newest if revision in ("", "main") else revision
        if commit not in repository.commits:
            return None
        return {
            "id": name,
            "sha": commit,
            "siblings": [_entry(*item) for item in repository.commits[commit].items()],
        }


def _entry(name: str, content: bytes) -> dict:
    entry = {"rfilename": name, "size": len(content), "blobId": blob_id(content)}
    if len(content) >= LARGE:
        entry["lfs"] = {
            "sha256": hashlib.sha256(content).hexdigest(),
            "size": len(content),
            "pointerSize": 134,
        }
    return entry


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(self.path)
        self.hub.tokens.append(self.headers["Authorization"])
        if self.hub.down:
            self.hub.down -= 1
            return self._refuse(503, "")
        found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path)
        if found:
            return self._list(found[1], found[2] or "")
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        return self._file(*found.groups()) if found else self._refuse(404, "EntryNotFound")

    def _list(self, name: str, revision: str) -> None:
        if name not in self.hub.repositories:
            return self._refuse(401, "RepoNotFound")
        listing = self.hub.listing(name, revision)
        if listing is None:
            return self._refuse(404, "RevisionNotFound")
        size, headers = self.hub.page, {}
        if size:
            first, siblings = int(self.path.partition("from=")[2] or 0), listing["siblings"]
            listing = {**listing, "siblings": siblings[first : first + size]}
            if first + size < len(siblings):
                following = f"{self.hub.address}{self.path.partition('?')[0]}?from={first + size}"
                headers = {"Link": f'<{following}>; rel="next"'}
        self._answer(200, json.dumps(listing).encode(), headers=headers)

    def _file(self, name: str, commit: str, file: str) -> None:
        hub, repository = self.hub, self.hub.repositories[name]
        if repository.gated and self.headers["Authorization"] != f"Bearer {hub.token}":
            return self._refuse(403 if self.headers["Authorization"] else 401, "GatedRepo")
        if hub.elsewhere:
            self.send_response(302)
            self.send_header("Location", f"{hub.elsewhere}{self.path}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        content = repository.served.get(file, repository.commits[commit][file])
        asked = self.headers["Range"]
        if asked:
            hub.ranges.append(asked)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and hub.knows_ranges else 0
        start += SHIFT if start else 0
        self._answer(206 if start else 200, content[start:], start, len(content), breaks=True)

    def _answer(
        self, status: int, body: bytes, start: int = 0, whole: int = 0, breaks: bool = False, headers=()
    ) -> None:
        self.send_response(status)
        if self.hub.tells_length or not breaks:
            self.send_header("Content-Length", str(len(body)))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{whole - 1}/{whole}")
        self.end_headers()
        if breaks and self.hub.break_after:
            body = body[: self.hub.break_after.pop(0)]
            self.hub.down = self.hub.down_after_break
            self.close_connection = True
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def running() -> Iterator[HubServer]:
    """A hub that serves on a free port until the end of the block; `address` is its HF_ENDPOINT."""
    hub = HubServer()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub with a repository of GGUF files and one of safetensors; no token, an empty cache, no pauses."""
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("OPENSLED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(download, "PAUSE", 0.0)
    with running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        server.add(NAME, dict(GGUFS))
        server.add("org/plain", dict(FOLDER))
        yield server


def pull(name: str, *words: str) -> int:
    """Its exit code."""
    return cli.main(["pull", name, *words])


def folder(repository: str = NAME) -> Path:
    return store.pulled_folder(repository)


def files(repository: str = NAME) -> dict[str, bytes]:
    """What is in the folder of a repository, by path."""
    found = (item for item in folder(repository).rglob("*") if item.is_file() and item.name != ".lock")
    return {item.relative_to(folder(repository)).as_posix(): item.read_bytes() for item in found}


def complaint(capsys: pytest.CaptureFixture[str]) -> str:
    """The one error; lines that say what goes on may come before it."""
    shown = capsys.readouterr()
    assert shown.out == ""
    *before, last = shown.err.splitlines()
    assert last.startswith("error: ") and not any(line.startswith("error:") for line in before)
    return last
