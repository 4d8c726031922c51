"""`opensled profile list | show | detect`: the profiles, one of them with its sources, and the board of
this machine. `opensled profile calibrate` needs a drafter and lives with the devices (edge_client/doctor/)."""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hw_profiles import catalog
from hw_profiles.describe import board_lines, contradictions, facts, predicted, summary
from hw_profiles.detect import detect, require_board
from hw_profiles.profiles import AcceleratorProfile
from hw_profiles.sysfs import read_board
from opensled.cli.config import option
from opensled.core.errors import NotFound, UsageError
from opensled.core.suggestion import did_you_mean

KINDS = tuple(catalog.KINDS)
WIDEST = 110  # columns; longer lines are hard to read


@dataclass(frozen=True)
class ProfileListConfig:
    kind: str = option("", "show only profiles of this kind", choices=KINDS)
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class ShowConfig:
    name: str = option("", "id of a profile, or a TOML file", positional=True, metavar="NAME")
    kind: str = option("", "kind of the profile; required for a file", choices=KINDS)
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class DetectConfig:
    root: str = option(
        "/", "folder with a copy of /proc, /sys and /etc of the board to examine", metavar="FOLDER"
    )
    json: bool = option(False, "print JSON")


def detect_board(config: DetectConfig) -> int:
    """Print which board this is, and its present state."""
    require_board(config.root)
    board, state = detect(config.root), read_board(config.root)
    if config.json:
        print(json.dumps({**asdict(board), "state": asdict(state)}, indent=2))
    else:
        print("\n".join(board_lines(board, state)))
    return 0


def list_profiles(config: ProfileListConfig) -> int:
    kinds = (config.kind,) if config.kind else KINDS
    profiles = {kind: [catalog.load(kind, name) for name in catalog.names(kind)] for kind in kinds}
    if config.json:
        brief = {
            kind: [{"id": each.id, "name": each.name} for each in found] for kind, found in profiles.items()
        }
        print(json.dumps(brief, indent=2))
        return 0
    for kind, found in profiles.items():
        print(kind)
        for each in found:
            print(f"  {each.id:16} {each.name:44} {summary(each)}".rstrip())
    return 0


def show_profile(config: ShowConfig) -> int:
    profiles = {kind: catalog.load(kind, config.name) for kind in _kinds_of(config)}
    if config.json:
        print(json.dumps({kind: _whole(profile) for kind, profile in profiles.items()}, indent=2))
        return 0
    width = min(shutil.get_terminal_size().columns, WIDEST)
    pages = [_page(kind, profile, width) for kind, profile in profiles.items()]
    print("\n\n".join(pages))
    return 0


def _kinds_of(config: ShowConfig) -> list[str]:
    """A name may stand for profiles of several kinds: a board that drafts, and the same board as a hub."""
    if config.kind:
        return [config.kind]
    found = [kind for kind in KINDS if _is_profile(kind, config.name)]
    if not found and Path(config.name).is_file():
        raise UsageError(f"{config.name} is a file; give its kind with --kind: {', '.join(KINDS)}")
    if not found:
        known = [name for kind in KINDS for name in catalog.names(kind)]
        hint = did_you_mean(config.name, known) or "; `opensled profile list` shows them all"
        raise NotFound(f"no profile {config.name!r}{hint}", "profile")
    return found


def _is_profile(kind: str, name: str) -> bool:
    try:
        return catalog.find(kind, name) in catalog.names(kind)
    except NotFound:
        return False


def _whole(profile: Any) -> dict[str, Any]:
    """Everything in the file, and what the law says of an accelerator's published speeds."""
    told = asdict(profile)
    if isinstance(profile, AcceleratorProfile):
        told["predicted"] = {name: predicted(profile, name) for name in profile.speeds}
    return told


def _page(kind: str, profile: Any, width: int) -> str:
    head = f"{profile.id} ({kind}): {profile.name}"
    return "\n".join([head, *contradictions(profile), "", *facts(profile, width)])
