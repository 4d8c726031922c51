"""`opensled doctor`: what is wrong with this device, its draft model and its server, and how to fix it."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import opensled
from edge_client.device.config import DoctorConfig
from edge_client.device.known_drafts import choose_drafter
from edge_client.doctor.board import HERE, check_board
from edge_client.doctor.draft import LOAD_SECONDS, check_draft
from edge_client.doctor.edge_section import with_edge_section
from edge_client.doctor.finding import Finding, Status, guard, in_thread
from edge_client.doctor.install import can_run, check_install
from edge_client.doctor.machine import check_machine
from edge_client.doctor.server_checks import ServerReport, check_server
from edge_client.doctor.trial import TRIAL_SECONDS, GainReport
from edge_client.drafters import AUTO
from edge_client.link.located import locate_server
from hw_profiles.detect import require_board
from opensled.cli.colour import Palette, palette
from opensled.core.errors import OpenSledError
from opensled.process import logs

Report = TypeVar("Report", ServerReport, GainReport)
LOCAL_SECONDS = 5.0  # for checks that need neither server nor model
SERVER_SECONDS = 20.0
# It needs both reports, and then measures
GAIN_SECONDS = SERVER_SECONDS * 2 + LOAD_SECONDS * 2 + TRIAL_SECONDS + LOCAL_SECONDS
PACKAGED = "tiny"
GAIN = "what drafting brings here"


def doctor(config: DoctorConfig) -> int:
    """Print the findings; the exit code is 0 without a failure, else that of the first failure.

    Raises NotFound for a --root without a board's files, and UsageError for configuration that no command takes.
    """
    require_board(config.root)
    config = locate_server(with_edge_section(config, "doctor"))
    with logs.redirect(logging.NullHandler()):  # the findings report it instead
        return asyncio.run(_examine(config))


def _groups(
    asked: DoctorConfig, config: DoctorConfig, gain: GainReport
) -> dict[str, Awaitable[list[Finding]]]:
    """The checks by heading. For a copy of another board's files only the checks of that board.

    `asked`: as the user said; `config`: with the drafter that belongs to the target.
    """
    board = _locally("board", lambda: check_board(config))
    if config.root != HERE:
        return {f"the board below {config.root}": board}
    found = ServerReport()
    server = asyncio.ensure_future(_fill("server", found, check_server(config, found), SERVER_SECONDS))
    draft_check = check_draft(config, asyncio.shield(server))
    draft = asyncio.ensure_future(guard("draft model", draft_check, SERVER_SECONDS + 2 * LOAD_SECONDS))
    compared = _gain(asked, config, server, draft, gain)
    return {
        "this installation": _locally("installation", lambda: check_install(config)),
        "this machine": _both(board, _locally("machine", lambda: check_machine(config))),
        f"server {config.server}": _findings_of(server),
        _draft_heading(config): draft,
        GAIN: _findings_of(_fill("drafting", gain, compared, GAIN_SECONDS)),
    }


def _draft_heading(config: DoctorConfig) -> str:
    return (
        f"draft server {config.draft_url}"
        if config.draft_url
        else f"draft model {config.draft_model}".rstrip()
    )


async def _examine(asked: DoctorConfig) -> int:
    """Run all groups at the same time and show them in order."""
    config, gain = _choose_drafter(asked, "" if asked.draft_model else await _target_of(asked)), GainReport()
    tasks = {heading: asyncio.ensure_future(work) for heading, work in _groups(asked, config, gain).items()}
    colours = palette(config.color, sys.stdout)
    findings: list[Finding] = []
    for heading, task in tasks.items():
        if heading == GAIN and not task.done() and sys.stdout.isatty() and not config.json:
            print("asking for short answers, with drafts and without", flush=True)
        found = await task
        findings += found
        if found and not config.json:
            show(heading, found, colours)
    code = next((finding.exit_code for finding in findings if finding.status == "fail"), 0)
    if config.json:
        print(json.dumps(_document(findings, code, gain), indent=2))
    else:
        print(summary(findings, colours))
    return code


def _choose_drafter(asked: DoctorConfig, target: str) -> DoctorConfig:
    """`asked` as a device would take it before that target."""
    config = choose_drafter(asked, target)
    return can_run(config) if asked.drafter == AUTO and not asked.draft_model else config


async def _target_of(config: DoctorConfig) -> str:
    """The name of the server's target, which decides on the draft model; the packaged one's without a server."""
    try:
        # Imported here: a check reports a broken gRPC
        from edge_client.device.device import endpoint_of
        from edge_client.link.link import Link

        link = Link(replace(endpoint_of(config), timeout=LOCAL_SECONDS))
    except (OpenSledError, ImportError):
        return PACKAGED
    try:
        return (await link.describe()).model_id
    except OpenSledError:
        return PACKAGED
    finally:
        await link.close()


async def _fill(name: str, report: Report, check: Awaitable[None], seconds: float) -> Report:
    """`report`, which `check` fills; a check that fails or hangs leaves what it has found."""

    async def findings() -> list[Finding]:
        await check
        return []

    report.findings += await guard(name, findings(), seconds)
    return report


def _locally(name: str, check: Callable[[], list[Finding]]) -> Awaitable[list[Finding]]:
    return guard(name, in_thread(check), LOCAL_SECONDS)


async def _both(*groups: Awaitable[list[Finding]]) -> list[Finding]:
    return [finding for group in await asyncio.gather(*groups) for finding in group]


async def _findings_of(report: Awaitable[ServerReport | GainReport]) -> list[Finding]:
    return (await report).findings


async def _gain(
    asked: DoctorConfig,
    config: DoctorConfig,
    server: Awaitable[ServerReport],
    draft: asyncio.Future[list[Finding]],
    report: GainReport,
) -> None:
    # Imported here: it needs numpy, and another check reports a broken one
    from edge_client.doctor.drafting_gain import check_gain

    found = await server
    await asyncio.wait({draft})  # which is timed alone
    await check_gain(asked, config, found, report)


def _document(findings: list[Finding], code: int, gain: GainReport) -> dict[str, object]:
    return {
        "version": opensled.__version__,
        "exit_code": code,
        "findings": [finding.as_json() for finding in findings],
        "prediction": gain.prediction.as_json() if gain.prediction else None,
    }


COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
CHECK_WIDTH = 20  # columns of the widest name of a check
NARROWEST = 60  # columns; narrower lines would break words


def show(heading: str, findings: Sequence[Finding], palette: Palette) -> None:
    """One group of findings."""
    print(palette(heading, "bold"))
    for finding in findings:
        status = palette(f"{finding.status:4}", COLOURS[finding.status])
        name, *rest = _wrap(f"{finding.check:{CHECK_WIDTH}} {finding.detail}")
        print(f"  {status}  {name}")
        for line in rest:
            print(f"        {line}")
        if finding.fix:
            print(f"        {'':{CHECK_WIDTH}} {palette('fix: ', 'bold')}{finding.fix}")
    print(flush=True)


def _wrap(text: str) -> list[str]:
    """The lines of a finding, the later ones under its detail; one long line for a pipe."""
    if not sys.stdout.isatty():
        return [text]
    width = max(NARROWEST, shutil.get_terminal_size().columns) - 8
    indent = " " * (CHECK_WIDTH + 1)
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False) or [text]


def summary(findings: Sequence[Finding], palette: Palette) -> str:
    """The last line: the number of findings of each status."""
    counts = Counter(finding.status for finding in findings)
    names: dict[Status, str] = {"ok": "ok", "warn": "warning", "fail": "failure"}
    parts = []
    for status, name in names.items():
        plural = "s" * (status != "ok" and counts[status] != 1)
        parts.append(palette(f"{counts[status]} {name}{plural}", COLOURS[status] if counts[status] else ""))
    return ", ".join(parts)
