"""Whether a request came over a connection that was there before its server drained: such a one is still answered."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Connection:
    """The one of a request."""

    is_old: bool = False


CONNECTION: ContextVar[Connection] = ContextVar("connection", default=Connection())
