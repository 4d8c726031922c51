"""Options of `opensled drafts`."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.cli.config import option
from opensled.wire.draft_manifest import MAX_SERIAL

STORE_HELP = "folder of the drafts that serve --drafts hands out"
KEY_HELP = (
    "private key that signs drafts (PEM), file mode 600, see opensled drafts keygen; no server needs it"
)


@dataclass(frozen=True)
class KeygenConfig:
    """Where the key goes."""

    sign_key: str = option("", "file for the new private key", metavar="FILE", often=True)
    json: bool = option(False, "print the public key as JSON")


@dataclass(frozen=True)
class PublishConfig:
    """The draft, and the tenant that may have it."""

    draft: str = option(
        "",
        "what opensled adapt wrote: its folder (GGUF file, ONNX graph), or one GGUF file",
        positional=True,
        metavar="DRAFT",
    )
    store: str = option("", STORE_HELP, metavar="FOLDER", often=True)
    tenant: str = option(
        "", "whose devices may have it: a tenant of the token file", metavar="NAME", often=True
    )
    sign_key: str = option("", KEY_HELP, metavar="FILE", often=True)
    name: str = option("", "name to show on devices; default: that of the folder or file", metavar="NAME")
    ungated: bool = option(
        False, "publish also what passed no gate of opensled adapt, or changed since; devices are told"
    )
    serial: int = option(
        0,
        "serial number; only where the store was lost, and devices know higher ones; 0 = the next one",
        low=0,
        high=MAX_SERIAL,
        metavar="N",
    )
    json: bool = option(False, "print what was published as JSON")


@dataclass(frozen=True)
class DraftListConfig:
    """Which drafts to list."""

    store: str = option("", STORE_HELP, metavar="FOLDER", often=True)
    json: bool = option(False, "print them as JSON")


@dataclass(frozen=True)
class RollbackConfig:
    """Whose draft goes back to an earlier one."""

    tenant: str = option(
        "", "the tenant, as opensled drafts list shows it", positional=True, metavar="TENANT"
    )
    store: str = option("", STORE_HELP, metavar="FOLDER", often=True)
    sign_key: str = option("", KEY_HELP, metavar="FILE", often=True)
    to: int = option(
        0,
        "serial number of the draft to hand out again; 0 = the newest one that is another draft",
        low=0,
        high=MAX_SERIAL,
        metavar="SERIAL",
    )
    json: bool = option(False, "print what is handed out now as JSON")


@dataclass(frozen=True)
class DraftDeleteConfig:
    """Whose drafts to delete."""

    tenant: str = option(
        "", "the tenant, as opensled drafts list shows it", positional=True, metavar="TENANT"
    )
    store: str = option("", STORE_HELP, metavar="FOLDER", often=True)
    json: bool = option(False, "print what was deleted as JSON")
