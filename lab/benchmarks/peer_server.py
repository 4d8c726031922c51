"""llama.cpp's whole server, from the wheel `xllamacpp`, as a process: `python -m lab.benchmarks.peer_server --help`."""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from lab.testbed.process_guard import guard
from opensled.core.errors import NotFound, OpenSledError
from opensled.process import distribution

START_S = 60.0
SPECULATIVE = ("none", "ngram_simple", "ngram_map_k", "ngram_map_k4v", "ngram_mod", "ngram_cache")


class Running(NamedTuple):
    url: str
    pid: int


def require() -> None:
    """Raises NotFound where this peer is not installed: called before anything is measured."""
    if find_spec("xllamacpp") is None:
        raise NotFound(f"llama.cpp's server needs one more package: {distribution.command('bench')}", "peer")


def command(model: Path, port: int, slots: int, context: int, speculative: str = "none") -> list[str]:
    """The command of a server of one thread whose `slots` have `context` positions each. Raises NotFound."""
    require()
    flags = ("--slots", str(slots), "--context", str(context), "--speculative", speculative)
    return [sys.executable, "-m", "lab.benchmarks.peer_server", str(model), str(port), *flags]


@contextmanager
def running(command: Sequence[str], port: int) -> Iterator[Running]:
    """A server process for the length of a `with`, from when it answers."""
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        guard(process.pid)
        try:
            if not _becomes_ready(process, url):
                log.seek(0)
                said = log.read().decode("utf-8", "replace")[-2000:]
                raise OpenSledError(f"{' '.join(command)} did not become ready:\n{said}")
            yield Running(url, process.pid)
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


# -- the process ----------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.benchmarks.peer_server", description=__doc__)
    parser.add_argument("model", type=Path, help="GGUF file")
    parser.add_argument("port", type=int)
    parser.add_argument("--slots", type=int, default=1, help="sequences at once")
    parser.add_argument("--context", type=int, default=1024, help="positions of each slot")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--speculative", choices=SPECULATIVE, default="none", help="its own way of drafting")
    parser.add_argument("--draft-model", default="", metavar="FILE", help="a GGUF file that drafts")
    server = _serve(parser.parse_args())
    threading.Event().wait()
    del server


def _serve(arguments: argparse.Namespace) -> Any:
    """Its defaults, but for the numbers of threads and slots; answers are streamed as OpenAI's API has them."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.port = str(arguments.model), arguments.port
    params.n_parallel, params.n_ctx = arguments.slots, arguments.slots * arguments.context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = arguments.threads
    params.cont_batching = True
    if arguments.speculative != "none":
        kind = f"COMMON_SPECULATIVE_TYPE_{arguments.speculative.upper()}"
        params.speculative.types = [getattr(xllamacpp.common_speculative_type, kind)]
    if arguments.draft_model:
        params.speculative.draft.mparams.path = arguments.draft_model
        params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
