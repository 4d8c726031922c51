"""General plug-ins of vLLM for tests: asynchronous scheduling on a processor, a drafter that rests, faults on purpose.

`installed(folder)` makes the folder that names them; it goes to PYTHONPATH, and their names to VLLM_PLUGINS.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

FAULT = "OPENSLED_TEST_FAULT"  # names the file that names the part which is to fail once
DRAFTS = ".drafts"  # end of the name of the file beside it, with the drafts of vLLM's drafter
PARTS = {  # of the plug-in, by its process: the module, and the function that fails
    "engine": {
        "news": ("devices", "Fleet.hear"),
        "plan": ("devices", "Fleet.plan"),
        "grow": ("devices", "Device.grow"),
        "place": ("scheduler", "DeviceScheduler._place"),
        "count": ("scheduler", "DeviceScheduler._count"),
        "commit": ("scheduler", "DeviceScheduler._commit"),
    },
    "worker": {"decide": ("worker", "decide"), "check": ("worker", "DeviceWorker._check")},
}
WITH_DRAFTER = {  # parts that run beside a drafter of vLLM's
    "engine": {"proposals": ("proposals", "Proposals.plan")},
    "worker": {"draft": ("draft_model", "DraftModel.propose")},
}


def installed(folder: Path) -> Path:
    """The folder, with a distribution whose entry points are the functions below."""
    place = folder / "opensled_testing-0.1.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: opensled-testing\nVersion: 0.1\n")
    names = "".join(f"testing_{each} = {__name__}:{each}\n" for each in ("asynchronous", "rests", "faults"))
    (place / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{names}")
    return folder


class _Event:
    """In place of an event of CUDA: on a processor all is done when it is recorded."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Nothing."""

    def record(self, *args: Any) -> None:
        """Nothing."""

    synchronize = wait = record


def asynchronous() -> None:
    """Schedule asynchronously, which vLLM's build for processors switches off."""
    import torch
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.worker.cpu_worker import CPUWorker

    plain = CpuPlatform.check_and_update_config.__func__

    def check_and_update_config(cls: type, vllm_config: Any) -> None:
        plain(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(check_and_update_config)
    torch.cuda.Event = _Event
    init = CPUWorker.init_device

    def init_device(self: Any) -> None:
        init(self)
        _without_streams()

    CPUWorker.init_device = init_device


def _without_streams() -> None:
    from vllm.v1.outputs import AsyncModelRunnerOutput
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.worker import gpu_model_runner

    class Output(AsyncModelRunnerOutput):
        def __init__(self, output: Any, tokens: Any, logprobs: Any, invalid: Any, width: int, **options: Any):
            self.output, self.tokens, self.logprobs = output, tokens, logprobs
            self.invalid, self.width = invalid, width
            self.sampled_token_ids_cpu, self.async_copy_ready_event = tokens, _Event()

        def get_output(self) -> Any:
            if self.tokens.shape[-1] > 1:
                ids, logprobs = RejectionSampler.parse_output(
                    self.tokens, self.width, self.invalid, logprobs_tensors=self.logprobs
                )
            else:
                ids, logprobs = self.tokens.tolist(), self.logprobs and self.logprobs.tolists()
                for place in self.invalid:
                    ids[place].clear()
            self.output.sampled_token_ids, self.output.logprobs = ids, logprobs
            return self.output

    def made(model_runner_output: Any, sampled_token_ids: Any, logprobs_tensors: Any, **rest: Any) -> Output:
        return Output(
            model_runner_output,
            sampled_token_ids,
            logprobs_tensors,
            rest["invalid_req_indices"],
            rest["vocab_size"],
        )

    gpu_model_runner.AsyncGPUModelRunnerOutput = made


def rests() -> None:
    """vLLM's drafter drafts for a text at 8 of 32 lengths if its limit is odd, always if it is even; a file has all
    drafts by limit and length."""
    from vllm_plugin.proposals import Proposals

    def plan(self: Any, deciding: Any, profile: Any, now: float) -> None:
        self.asks = {}
        with Path(os.environ[FAULT] + DRAFTS).open("a") as file:
            for id, request in deciding.items():
                most, length = request.max_tokens, request.num_tokens
                file.write(f"{most}, {length}, {request.spec_token_ids}\n")
                if not most % 2 or length % 32 < 8:
                    self.asks[id] = 3

    Proposals.plan = plan  # type: ignore[method-assign]


def faults() -> None:
    """Each part fails once when the file FAULT names it; a session that begins then mends what an earlier one broke."""
    from vllm.config import SchedulerConfig
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    scheduler_of, init = SchedulerConfig.get_scheduler_cls, WorkerWrapperBase.init_device

    def get_scheduler_cls(self: Any) -> Any:
        found = scheduler_of(self)
        _fail("engine")
        _mend()
        return found

    def init_device(self: Any) -> None:
        _fail("worker")
        init(self)

    SchedulerConfig.get_scheduler_cls, WorkerWrapperBase.init_device = get_scheduler_cls, init_device


def _fail(process: str) -> None:
    for part, (module, name) in {**PARTS[process], **WITH_DRAFTER[process]}.items():
        owner: Any = importlib.import_module(f"vllm_plugin.{module}")
        *path, last = name.split(".")
        for each in path:
            owner = getattr(owner, each)
        setattr(owner, last, _failing(part, getattr(owner, last)))


def _failing(part: str, plain: Any) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        place = Path(os.environ[FAULT])
        if place.exists() and place.read_text() == part:
            place.unlink()
            raise RuntimeError(f"a fault on purpose in {part}")
        return plain(*args, **options)

    return call


def _mend() -> None:
    devices = importlib.import_module("vllm_plugin.scheduler").DeviceScheduler
    add = devices.add_request

    def add_request(self: Any, request: Any) -> None:
        self.broken = self.broken and not Path(os.environ[FAULT]).exists()
        add(self, request)

    devices.add_request = add_request
