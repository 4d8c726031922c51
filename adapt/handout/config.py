"""Options of `opensled drafts`."""

from __future__ import annotations

from dataclasses import dataclass

from adapt.shelf.draft_manifest import MAX_SERIAL
from opensled.cli.config import option

STORE_HELP = "folder of adapted drafts that `opensled serve --drafts` hands out"
KEY_HELP = "private key for signing drafts (PEM), file mode 600, made by `opensled drafts keygen`; not for the server"


@dataclass(frozen=True)
class KeygenConfig:
    """The file for the key."""

    sign_key: str = option("", "file for the new private key", metavar="FILE", often=True)
    json: bool = option(False, "print the public key as JSON")


@dataclass(frozen=True)
class PublishConfig:
    """The draft, and the tenant whose devices get it."""

    draft: str = option(
        "",
        "output of `opensled adapt`: its folder (GGUF file, ONNX graph), or one GGUF file",
        positional=True,
        metavar="DRAFT",
    )
    store: str = option("", STORE_HELP, metavar="FOLDER", often=True)
    tenant: str = option(
        "", "tenant (in the token file) whose devices get the draft", metavar="NAME", often=True
    )
    sign_key: str = option("", KEY_HELP, metavar="FILE", often=True)
    name: str = option(
        "", "name of the draft on devices; default: the name of the folder or file", metavar="NAME"
    )
    ungated: bool = option(
        False,
        "publish the draft although it has not passed the gate of `opensled adapt`, or was changed later; devices show "
        "this",
    )
    serial: int = option(
        0,
        "serial number; needed only after the store was lost, if devices have higher ones; 0 = the next number",
        low=0,
        high=MAX_SERIAL,
        metavar="N",
    )
    json: bool = option(False, "print the result as JSON")


@dataclass(frozen=True)
class DraftListConfig:
    """The store whose drafts to list."""

    store: str = option("", STORE_HELP, metavar="FOLDER", often=True)
    json: bool = option(False, "print the list as JSON")


@dataclass(frozen=True)
class RollbackConfig:
    """The tenant whose devices go back to an earlier draft."""

    tenant: str = option("", "tenant, as `opensled drafts list` shows it", positional=True, metavar="TENANT")
    store: str = option("", STORE_HELP, metavar="FOLDER", often=True)
    sign_key: str = option("", KEY_HELP, metavar="FILE", often=True)
    to: int = option(
        0,
        "serial number of the draft to hand out again; 0 = the newest one that differs from the present draft",
        low=0,
        high=MAX_SERIAL,
        metavar="SERIAL",
    )
    json: bool = option(False, "print the result as JSON")


@dataclass(frozen=True)
class DraftDeleteConfig:
    """The tenant whose drafts to delete."""

    tenant: str = option("", "tenant, as `opensled drafts list` shows it", positional=True, metavar="TENANT")
    store: str = option("", STORE_HELP, metavar="FOLDER", often=True)
    json: bool = option(False, "print the result as JSON")
