"""The command of deploy/kubernetes, as vLLM reads it."""

from __future__ import annotations

from tests.manifests import container
from vllm_plugin import option


def test_vllm_takes_the_manifests_command() -> None:
    option.register()
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    given = make_arg_parser(FlexibleArgumentParser()).parse_args(container()["args"])
    assert given.opensled and given.opensled_listen == "0.0.0.0:7411" and given.port == 8411
    assert given.scheduler_cls and given.worker_cls and given.shutdown_timeout == 120
