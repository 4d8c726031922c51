"""OpenAI servers from outside, started as their own documentation says: llama-cpp-python's, and llama.cpp's binary."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import httpx

from opensled.errors import NotFound, OpenSledError

LLAMA_SERVER = "OPENSLED_LLAMA_SERVER"  # environment variable: path of llama.cpp's own llama-server
CONTEXT = 1024  # positions of one sequence: all the tiny target has
SLOTS = 4  # sequences at once, for the peer that can decode several
THREADS = 1
START_S = 60.0


def llama_cpp_python(model: Path, port: int) -> list[str]:
    """The command of llama-cpp-python's server; raises NotFound where its packages are missing."""
    if not all(find_spec(name) for name in ("fastapi", "sse_starlette", "starlette_context")):
        raise NotFound("llama-cpp-python's server needs more packages: pip install 'opensled[bench]'", "peer")
    flags = ("--n_ctx", str(CONTEXT), "--n_threads", str(THREADS), "--verbose", "False")
    # Without this flag the server ends a stream as soon as another request arrives.
    several = ("--interrupt_requests", "False")
    return [sys.executable, "-m", "llama_cpp.server", "--model", str(model), *_at(port), *flags, *several]


def llama_server(model: Path, port: int) -> list[str]:
    """The command of llama.cpp's own server, continuous batching over SLOTS sequences."""
    path = os.environ[LLAMA_SERVER]
    if not Path(path).is_file():
        raise NotFound(f"{LLAMA_SERVER} names {path!r}, which is no file", "peer")
    room = ("--ctx-size", str(SLOTS * CONTEXT), "--parallel", str(SLOTS))
    return [path, "--model", str(model), *_at(port), "--threads", str(THREADS), *room]


def _at(port: int) -> tuple[str, ...]:
    return ("--host", "127.0.0.1", "--port", str(port))


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[str]:
    """A server process for the length of a `with`; yields its base URL once it answers there."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        try:
            if not _becomes_ready(process, url):
                log.seek(0)
                said = log.read().decode("utf-8", "replace")[-2000:]
                raise OpenSledError(f"{' '.join(command)} did not become ready:\n{said}")
            yield url
        finally:
            _stop(process)


def _becomes_ready(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + START_S
    with httpx.Client(base_url=url, trust_env=False, timeout=5) as http:
        while process.poll() is None and time.monotonic() < deadline:
            if _answers(http):
                return True
            time.sleep(0.05)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _answers(http: httpx.Client) -> bool:
    """llama-server says 503 while it loads."""
    try:
        return http.get("/v1/models").status_code == 200
    except httpx.TransportError:
        return False
