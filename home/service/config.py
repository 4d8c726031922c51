"""Options of `opensled service install`, `remove` and `status`."""

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.core.errors import UsageError

SERVICES = ("serve", "edge", "relay")


def known_service(name: str) -> None:
    """Raises UsageError for an unknown service."""
    if name not in SERVICES:
        raise UsageError(f"unknown service {name!r}; choose from {', '.join(SERVICES)}")


@dataclass(frozen=True)
class InstallConfig:
    """The service to install, and its flags."""

    service: str = option("", "service: serve, edge or relay", positional=True, metavar="SERVICE")
    flags: tuple[str, ...] = option(
        (), "flags of the service, as for `opensled SERVICE`", rest=True, metavar="-- FLAG..."
    )
    dry_run: bool = option(False, "print the files and the commands without changing anything", often=True)
    system: bool = option(False, "install a service of the whole machine; needs root, except with --dry-run")
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class RemoveConfig:
    """The service to remove."""

    service: str = option("", "service: serve, edge or relay", positional=True, metavar="SERVICE")
    dry_run: bool = option(False, "print what would be removed without changing anything", often=True)
    json: bool = option(False, "print JSON")


@dataclass(frozen=True)
class StatusConfig:
    """How to show the services."""

    json: bool = option(False, "print JSON")
