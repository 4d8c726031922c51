"""`opensled doctor`: what is wrong with this device, its draft model and its server, and how to fix it."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import opensled
from edge_client.device.config import DoctorConfig
from edge_client.device.known_drafts import choose_drafter
from edge_client.doctor.edge_section import with_edge_section
from edge_client.doctor.finding import Finding, Status, report_error
from edge_client.doctor.machine import HERE, check_board, check_install, check_machine
from edge_client.drafters import AUTO, asks_server
from edge_client.link.located import locate_server
from hw_profiles.detect import require_board
from opensled.cli.colour import Palette, palette
from opensled.core.files import user_path
from opensled.process import logs

if TYPE_CHECKING:
    from edge_client.doctor.drafting_gain import Prediction

PACKAGED = "tiny"  # the target whose draft model is tried where no server tells of its own
NO_DRAFTS = "none"  # the --drafter that proposes nothing


def doctor(config: DoctorConfig) -> int:
    """Print the findings; the exit code is 0 without a failure, else that of the first failure.

    Raises NotFound for a --root without a board's files, and UsageError for configuration that no command takes.
    """
    require_board(config.root)
    config = locate_server(with_edge_section(config, "doctor"))
    report = _Report(config)
    with logs.redirect(logging.NullHandler()):  # the findings report it instead
        if config.root != HERE:
            with report.group(f"the board below {config.root}") as found:
                found += check_board(config)
        elif _examine_machine(config, report):
            asyncio.run(_examine_drafting(config, report))
    return report.end()


def _examine_machine(config: DoctorConfig, report: _Report) -> bool:
    """Whether the installation lets a device run at all."""
    is_whole = False
    with report.group("this installation") as found:
        is_whole = check_install(found)
    with report.group("this machine") as found:
        found += check_board(config) + check_machine(user_path(config.cache_dir))
    return is_whole


async def _examine_drafting(asked: DoctorConfig, report: _Report) -> None:
    """The server, what drafts, and what that brings. Each is timed alone."""
    # Imported here: of a broken library the check of the installation tells
    from edge_client.doctor.draft import check_draft
    from edge_client.doctor.draft_server import check_draft_server
    from edge_client.doctor.drafting_gain import check_gain
    from edge_client.doctor.server_checks import check_server

    info, drafts = None, False
    with report.group(f"server {asked.server}") as found:
        info = await check_server(asked, found)
    config = choose_drafter(asked, info.model_id if info else PACKAGED)
    with report.group(_draft_heading(config)) as found:
        if asks_server(config.drafter):
            found += await check_draft_server(config)
        else:
            found += await check_draft(config, stands_in=asked.drafter == AUTO and not asked.draft_model)
        drafts = config.drafter != NO_DRAFTS and all(finding.status != "fail" for finding in found)
    if info and drafts:
        report.say("asking for short answers, with drafts and without")
        with report.group("what drafting brings here") as found:
            report.prediction = await check_gain(asked, found)


def _draft_heading(config: DoctorConfig) -> str:
    return (
        f"draft server {config.draft_url}"
        if config.draft_url
        else f"draft model {config.draft_model}".rstrip()
    )


class _Report:
    """The findings so far. A group of them is shown as soon as it is complete; nothing is told twice."""

    def __init__(self, config: DoctorConfig) -> None:
        self.findings: list[Finding] = []
        self.prediction: Prediction | None = None
        self._json, self._colours = config.json, palette(config.color, sys.stdout)

    @contextmanager
    def group(self, heading: str) -> Iterator[list[Finding]]:
        """Takes the findings of checks; one that raises becomes a finding too."""
        found: list[Finding] = []
        try:
            yield found
        except Exception as error:
            fix = "read the cause; if it makes no sense, report it as a bug of opensled doctor"
            found.append(report_error("doctor", error, fix))
        told = {finding.detail for finding in self.findings}
        found = [finding for finding in found if finding.status == "ok" or finding.detail not in told]
        self.findings += found
        if found and not self._json:
            show(heading, found, self._colours)

    def say(self, words: str) -> None:
        """Announce a long step to people."""
        if sys.stdout.isatty() and not self._json:
            print(words, flush=True)

    def end(self) -> int:
        """Print the last line, or all as JSON; the exit code."""
        code = next((finding.exit_code for finding in self.findings if finding.status == "fail"), 0)
        document = {
            "version": opensled.__version__,
            "exit_code": code,
            "findings": [finding.as_json() for finding in self.findings],
            "prediction": self.prediction.as_json() if self.prediction else None,
        }
        print(json.dumps(document, indent=2) if self._json else summary(self.findings, self._colours))
        return code


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
