"""Endpoint plug-in of vLLM: the calls of devices, served in the event loop of vLLM's API server."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from typing import Any

from vllm.logger import init_logger

from hw_profiles.step_cost import HardwareProfile, StepCost
from opensled.core.errors import OpenSledError, SelfTestFailed
from opensled.metrics.registry import add_to_page
from opensled.net.address import host_port, join_host_port
from opensled.process.logs import show_ready
from scheduler import make_policy
from scheduler.plan import PolicyOptions
from verify_server.admission.session_manager import SessionManager
from verify_server.engine.base import EngineInfo, known_ends
from verify_server.front import service
from verify_server.front.server_metrics import device_metrics
from verify_server.options.serve_config import ServeConfig, model_names
from verify_server.round.draft_stage import DraftStage
from verify_server.round.loaded_model import LoadedModel
from verify_server.round.machine import StepMachine
from verify_server.rules.served import ServedRules
from verify_server.start.command import Served, client_limits, clients, describe, session_limits
from vllm_plugin import replica, selftest
from vllm_plugin.loop import VllmLoop, VllmTarget
from vllm_plugin.option import serve_config
from vllm_plugin.text import text_of

logger = init_logger("vllm.opensled")

QUESTIONS = ("What is the capital of Italy?", "Name three animals.", "Write one sentence about the moon.")


class VllmModel(LoadedModel):
    """The model of this server, as its front knows it."""

    keeps_budgets = False

    def __init__(self, vllm_config: Any, name: str) -> None:
        model = vllm_config.model_config
        self.model_id, self.text = name, text_of(model)
        self._info = EngineInfo(
            model_id=name,
            vocab_size=int(model.get_vocab_size()),
            context_length=int(model.max_model_len),
            eos_ids=known_ends(self.text.eos_ids, int(model.get_vocab_size())),
            numerics="fast",
            dtype=str(model.dtype).removeprefix("torch."),
            device=str(vllm_config.device_config.device),
            num_blocks=int(vllm_config.cache_config.num_gpu_blocks or 2) - 1,
            block_size=int(vllm_config.cache_config.block_size),
            shares_blocks=bool(vllm_config.cache_config.enable_prefix_caching),
            runtime="vllm",
            processes=int(vllm_config.parallel_config.world_size),
            scores_prompts=False,
        )

    @property
    def info(self) -> EngineInfo:
        """See `LoadedModel`."""
        return self._info

    def rules(self, config: ServeConfig) -> ServedRules:
        """See `LoadedModel`."""
        return ServedRules("match")

    def cost(self, seed: StepCost) -> StepCost:
        """See `LoadedModel`; the scheduler learns its own."""
        return seed

    def target(self, config: ServeConfig, drafting: DraftStage | None, prefix_key: bytes = b"") -> VllmTarget:
        """See `LoadedModel`."""
        return VllmTarget(self._info)


class DeviceFront:
    """See vLLM's `EndpointPlugin`."""

    name = "opensled"
    required_tasks = ("generate",)

    def __init__(self) -> None:
        self._carrying: asyncio.Task[None] | None = None
        self._server: Any = None

    def attach_router(self, app: Any) -> None:
        """Nothing: devices have a port of their own."""

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """Listen for devices, where `--opensled` was given."""
        if not getattr(args, "opensled", False):
            return
        try:
            await self._listen(engine_client, args)
        except OpenSledError as error:
            raise SystemExit(f"opensled: {error}") from None

    async def _listen(self, engine_client: Any, args: Namespace) -> None:
        config = serve_config(engine="vllm", listen=args.opensled_listen, model=args.model)
        here = replica.own_place()
        tls, tenants = clients(config, config.listen)
        names = args.served_model_name or [args.model]
        model = await asyncio.to_thread(VllmModel, engine_client.vllm_config, names[0])
        machine = StepMachine(
            VllmTarget(model.info),
            make_policy(config.policy, PolicyOptions(config.draft_wait)),
            HardwareProfile(),
        )
        loop = VllmLoop(machine, engine_client, time.monotonic)
        try:
            await selftest.run(
                engine_client, engine_client.vllm_config.model_config, map(model.text.encode, QUESTIONS)
            )
        except SelfTestFailed as error:
            logger.error("OpenSLED: devices are served, but none of their drafts is verified: %s", error)
            loop.rests = True
        limits = session_limits(config, model, tenants)
        manager = SessionManager(loop, model, limits, here[1].signer if here else None)
        info = describe(
            manager, model, config.pad_frames, (*names[1:], *model_names(config.served_model_name))
        )
        self._carrying = asyncio.create_task(loop.run())
        add_to_page(device_metrics(manager))
        if here:
            await replica.join_cluster(config, tls, Served(manager, info, model))
            return
        frontend = service.VerifyService(manager, info, model.text, tenants, client_limits(config, manager))
        shared = (("grpc.so_reuseport", 1),) if (args.api_server_count or 1) > 1 else ()
        self._server, port = await service.start(frontend, config.listen, tls, further=shared)
        address = join_host_port(host_port(config.listen)[0], port)
        logger.info("OpenSLED: devices connect to %s", address)
        show_ready(address)
