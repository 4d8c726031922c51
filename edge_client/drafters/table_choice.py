"""Which draft tables a device uses, and how drafters without a model of their own hear of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from edge_client.drafters import OFF
from edge_client.drafters.base import DrafterFactory
from opensled.errors import NotFound, UsageError
from opensled.store import model_file, model_path

PATTERN = "*.table"


class TableFiles(NamedTuple):
    """Files of tables as a user names them."""

    frozen: str = ""  # "" = the one beside the draft model, if there is one
    personal: str = OFF

    @property
    def named(self) -> bool:
        """Whether anything was asked for."""
        return self != TableFiles()


@runtime_checkable
class TableUser(Protocol):
    """A drafter factory that works with draft tables."""

    def use_tables(self, files: TableFiles) -> None:
        """Use these instead of what it has by itself; to be called before anything else."""


def beside(model: str) -> Path | None:
    """The draft table in a model's folder; None if there is none. Raises NotFound for several."""
    try:
        path = model_path(model)
        return model_file(str(path.parent if path.is_file() else path), PATTERN)
    except NotFound:
        return None


def hand_over(files: TableFiles, factories: Sequence[DrafterFactory]) -> None:
    """Tell the factories which tables a user named; raises UsageError where none of them uses any."""
    if not files.named:
        return
    users = [factory for factory in factories if isinstance(factory, TableUser)]
    if not users:
        raise UsageError(
            "--draft-table and --personal-table are for drafters with tables, such as --drafter cacheback"
        )
    for user in users:
        user.use_tables(files)
