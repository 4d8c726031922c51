"""Options of `opensled service install`, `remove` and `status`."""

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.core.errors import UsageError

SERVICES = ("serve", "edge", "relay")


def known_service(name: str) -> None:
    """Raises UsageError for a name that is no service."""
    if name not in SERVICES:
        raise UsageError(f"no service {name!r}; choose from {', '.join(SERVICES)}")


@dataclass(frozen=True)
class InstallConfig:
    """What to install, and how it is started."""

    service: str = option("", "serve, edge or relay", positional=True, metavar="SERVICE")
    flags: tuple[str, ...] = option(
        (), "flags of the service, as after `opensled SERVICE`", rest=True, metavar="-- FLAG..."
    )
    dry_run: bool = option(False, "print the files and the commands, and change nothing", often=True)
    system: bool = option(False, "a service of the machine, as root installs it; others with --dry-run")
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class RemoveConfig:
    """What to remove."""

    service: str = option("", "serve, edge or relay", positional=True, metavar="SERVICE")
    dry_run: bool = option(False, "print what would be removed, and change nothing", often=True)
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class StatusConfig:
    """How to show the services."""

    json: bool = option(False, "print JSON")
