"""General plug-in of vLLM: adds `--opensled` to the options of `vllm serve`.

vLLM runs `register` in each of its processes. Options of `opensled serve` that have a meaning here (tokens, TLS,
limits, policy) are set as there: by the environment (OPENSLED_NAME) or by opensled.toml.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

from opensled.cli import config
from opensled.core.errors import UsageError
from vllm_plugin import versions
from verify_server.options.serve_config import ServeConfig

LISTEN = "127.0.0.1:7411"
SETTINGS = "opensled"  # key in vLLM's `additional_config`


def serve_config(**given: Any) -> ServeConfig:
    """The configuration of `opensled serve` by environment and files, with values `given` above them. Raises
    UsageError."""
    return ServeConfig(**config.merge_layers(ServeConfig, "serve", given).values)


def settings_of(vllm_config: Any) -> dict[str, Any]:
    """What the processes of vLLM's engine are told of that configuration."""
    found: dict[str, Any] = vllm_config.additional_config[SETTINGS]
    return found


class Switch(argparse.Action):
    """`--opensled`: chooses scheduler, worker and model runner; options of vLLM that follow it hold over them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, nargs=0, **kwargs)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        """Raises SystemExit, with one line, for a vLLM of another version or a wrong configuration."""
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
    plain = EngineArgs.add_cli_args

    def add_cli_args(parser: Any) -> Any:
        parser = plain(parser)
        group = parser.add_argument_group("OpenSLED", "Devices draft, and this server verifies.")
        group.add_argument(
            "--opensled",
            action=Switch,
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
