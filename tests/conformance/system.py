"""The system under test: `opensled serve` and `opensled edge` of the tiny family, as real processes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.testbed.processes import Process, free_port

KEY = "sled-conformance-key"
CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "cases.json").read_text("utf-8"))


@contextmanager
def device(folder: Path, *, keys: bool = True) -> Iterator[str]:
    """A device with a server of its own; the URL of its API, which asks for KEY if `keys`."""
    serve = ["serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1"]
    with Process(serve, isolated=True) as server:
        edge = ["edge", "--server", server.wait_ready(), "--drafter", "lookup", "--http", "127.0.0.1:0"]
        with Process([*edge, *(_keys(folder) if keys else ())], isolated=True) as process:
            yield f"http://{process.wait_ready()}"


@contextmanager
def deviceless(folder: Path) -> Iterator[str]:
    """A server alone; the URL of its own API, which asks for KEY."""
    tokens = folder / "tokens.txt"
    tokens.write_text(f"{KEY} tenant\n")
    tokens.chmod(0o600)
    address = f"127.0.0.1:{free_port()}"
    serve = ["serve", "--model", "tiny", "--listen", "127.0.0.1:0", "--threads", "1", "--http", address]
    with Process([*serve, "--tokens", str(tokens)], isolated=True) as server:
        server.wait_ready()
        yield f"http://{address}"


def _keys(folder: Path) -> list[str]:
    file = folder / "keys.txt"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    return ["--http-keys", str(file)]
