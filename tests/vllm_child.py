"""A child process of a replica of engine vllm, with a fake target in the place of vLLM."""

import asyncio
import sys
import time

from hw_profiles.step_cost import HardwareProfile
from scheduler.fcfs import Fcfs
from tests.fakes import FakeEngine, FakeText
from tests.rounds import looping
from verify_server.admission.session_manager import SessionLimits, SessionManager
from verify_server.options.serve_config import ServeConfig
from verify_server.round.loaded_model import ServedModel
from verify_server.start.command import Served, describe
from vllm_plugin import replica, serve


async def _serve() -> None:
    target = ServedModel("fake", FakeEngine(num_blocks=200), FakeText())
    loop = looping(target.engine, Fcfs(1.0), HardwareProfile(64), time.monotonic)
    manager = SessionManager(loop, target, SessionLimits(max_draft=8), replica.own_place()[1].signer)
    config = ServeConfig(listen="127.0.0.1:0")
    await replica.join_cluster(config, None, Served(manager, describe(manager, target), target))
    await loop.run()


def main() -> None:
    if "--no-memory" in sys.argv:
        print("(EngineCore) ERROR 11-30 ValueError: no memory is left", file=sys.stderr)
        sys.exit("RuntimeError: Engine core initialization failed. See root cause above.")
    serve.main = lambda words: asyncio.run(_serve())
    replica.main()
