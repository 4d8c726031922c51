"""`opensled doctor`: what is wrong with this device, its draft model and its server, and how to mend it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import Awaitable

import opensled
from edge_client.checks.draft import LOAD_SECONDS, check_draft
from edge_client.checks.files import check_files, with_edge_section
from edge_client.checks.finding import Finding, guarded, in_thread
from edge_client.checks.install import check_install
from edge_client.checks.machine import check_machine
from edge_client.checks.server import ServerReport, check_server
from edge_client.colour import palette
from edge_client.config import DoctorConfig
from edge_client.doctor_view import show, summary
from opensled import logs
from opensled.cli import CONFIGS
from opensled.config import options
from opensled.errors import UsageError

LOCAL_SECONDS = 5.0  # for what needs neither server nor model
SERVER_SECONDS = 20.0


def doctor(config: DoctorConfig) -> int:
    """Print the findings; the exit code is 0 without a failure, else that of the first one."""
    with contextlib.suppress(UsageError):  # the check of the configuration files says why
        config = with_edge_section(config)
    with logs.redirected(logging.NullHandler()):  # what the device warns of, the findings say
        return asyncio.run(_examine(config))


async def _examine(config: DoctorConfig) -> int:
    """All groups run at the same time, and are shown in order."""
    server = asyncio.ensure_future(_server(config))
    groups = {
        "this installation": guarded("installation", in_thread(lambda: check_install(config)), LOCAL_SECONDS),
        "this machine": guarded("machine", in_thread(lambda: check_machine(config)), LOCAL_SECONDS),
        "files and ports": guarded(
            "files", in_thread(lambda: check_files(config, variables())), LOCAL_SECONDS
        ),
        f"server {config.server}": _findings_of(server),
        f"draft model {config.draft_model}": guarded(
            "draft model", check_draft(config, asyncio.shield(server)), SERVER_SECONDS + 2 * LOAD_SECONDS
        ),
    }
    tasks = {heading: asyncio.ensure_future(work) for heading, work in groups.items()}
    colours = palette(config.color, sys.stdout)
    findings: list[Finding] = []
    for heading, task in tasks.items():
        found = await task
        findings += found
        if not config.json:
            show(heading, found, colours)
    code = next((finding.exit_code for finding in findings if finding.status == "fail"), 0)
    if config.json:
        print(json.dumps(_document(findings, code), indent=2))
    else:
        print(summary(findings, colours))
    return code


async def _server(config: DoctorConfig) -> ServerReport:
    """The report; a check that breaks or hangs leaves what it found until then."""
    report = ServerReport()

    async def fill() -> list[Finding]:
        await check_server(config, report)
        return []

    report.findings += await guarded("server", fill(), SERVER_SECONDS)
    return report


async def _findings_of(server: Awaitable[ServerReport]) -> list[Finding]:
    return (await server).findings


def _document(findings: list[Finding], code: int) -> dict[str, object]:
    return {
        "version": opensled.__version__,
        "exit_code": code,
        "findings": [finding.as_json() for finding in findings],
    }


def variables() -> set[str]:
    """The environment variables of all options of all commands."""
    return {item.variable for name in CONFIGS.names() for item in options(CONFIGS.get(name))}
