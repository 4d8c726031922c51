"""Whether a request came over a connection that was there before its server drained: such a one is still answered."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Connection:
    """The one of a request."""

    is_old: bool = False
    closes: bool = False  # with the answer that has begun


CONNECTION: ContextVar[Connection | None] = ContextVar("connection", default=None)


def over_old_connection() -> bool:
    """Whether the request that is being answered came over one."""
    connection = CONNECTION.get()
    return connection is not None and connection.is_old
