"""General plug-in of vLLM: adds `--opensled` to the options of `vllm serve`.

vLLM runs `register` in each of its processes. Options of `opensled serve` that have a meaning here (tokens, TLS,
limits, policy) are set as there: by the environment (OPENSLED_NAME) or by opensled.toml.
"""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify_server.options.serve_config import ServeConfig

LISTEN = "127.0.0.1:7411"
SETTINGS = "opensled"  # key in vLLM's `additional_config`


def serve_config(**given: Any) -> ServeConfig:
    """The configuration of `opensled serve` by environment and files, with values `given` above them. Raises
    UsageError."""
    from opensled.cli.config_layers import merge_layers
    from verify_server.options.serve_config import ServeConfig

    return ServeConfig(**merge_layers(ServeConfig, "serve", given)[0])


def settings_of(vllm_config: Any) -> dict[str, Any]:
    """The part of that configuration that the processes of vLLM's engine get."""
    found: dict[str, Any] = vllm_config.additional_config[SETTINGS]
    return found


class _Switch(argparse.Action):
    """`--opensled`: chooses scheduler, worker and model runner; options of vLLM that follow it hold over them."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Raises SystemExit, with one line, for a vLLM of another version or a wrong configuration."""
        from opensled.core.errors import UsageError
        from vllm_plugin import versions

        try:
            versions.require()
            ours = serve_config(engine="vllm")
        except UsageError as error:
            parser.error(str(error))
        namespace.opensled = True
        namespace.scheduler_cls = "vllm_plugin.scheduler.make_scheduler"
        namespace.worker_cls = "vllm_plugin.worker.DeviceWorker"
        settings = {"policy": ours.policy, "draft_wait": ours.draft_wait}
        namespace.additional_config = {**(namespace.additional_config or {}), SETTINGS: settings}
        # worker.py is written for the first model runner
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")


def register() -> None:
    """Add the options to vLLM's parser, which is built after this."""
    from vllm.engine.arg_utils import EngineArgs

    if hasattr(EngineArgs.add_cli_args, "plain"):
        return  # vLLM may load plug-ins more than once
    plain, plain_config = EngineArgs.add_cli_args, EngineArgs.create_engine_config

    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = plain_config(self, *args, **kwargs)
        if SETTINGS in (found.additional_config or {}) and (problem := _problem(found)):
            raise SystemExit(f"opensled: {problem}")
        return found

    def add_cli_args(parser: Any) -> Any:
        parser = plain(parser)
        group = parser.add_argument_group("OpenSLED", "Devices draft, and this server verifies.")
        group.add_argument(
            "--opensled",
            action=_Switch,
            nargs=0,
            default=False,
            help="Serve devices (opensled edge) beside all other users. Further settings as of opensled serve, by "
            "OPENSLED_NAME or opensled.toml.",
        )
        group.add_argument(
            "--opensled-listen",
            default=LISTEN,
            metavar="HOST:PORT",
            help=f"Address that devices connect to (default: {LISTEN}).",
        )
        return parser

    add_cli_args.plain = plain  # type: ignore[attr-defined]
    EngineArgs.add_cli_args = staticmethod(add_cli_args)
    EngineArgs.create_engine_config = create_engine_config


def _problem(vllm_config: Any) -> str:
    """Why devices' drafts cannot be verified with a configuration of vLLM; "" = they can."""
    drafter = vllm_config.speculative_config is not None
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return "vLLM verifies no drafts over a pipeline: use --tensor-parallel-size instead"
    if drafter and vllm_config.scheduler_config.async_scheduling:
        return "a drafter of vLLM and drafts of devices share a step only with --no-async-scheduling: add it"
    if vllm_config.model_config.runner_type != "generate":
        return "this model writes no text, so that devices have nothing to draft: leave out --opensled"
    if vllm_config.model_config.is_hybrid and not drafter:
        return (
            "this target keeps states beside KV (Mamba, linear attention), and vLLM can take a wrong draft back there "
            "only with a drafter of its own: add --speculative-config"
        )
    return ""
