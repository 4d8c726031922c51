"""Whether the request under way is the last one of its connection, which a server that drains still answers."""

from contextvars import ContextVar

IS_LAST: ContextVar[bool] = ContextVar("is_last", default=False)
