"""What one tenant, one client or one draft may take of a server: table [limits] of the configuration files.

A tenant's line of the token file may say otherwise for that tenant (docs/security.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from opensled.cli.config import option
from verify_server.access.client_limits import CALLS, IDLE_MESSAGES
from verify_server.engine.base import MAX_TREE

limit = partial(option, table="limits", metavar="N")


@dataclass(frozen=True)
class LimitsConfig:
    """Limits of all tenants and clients of a server or a relay."""

    tenant_sessions: int = limit(
        0,
        "most sequences of one tenant at the same time; 0 = no limit",
        low=0,
        group="each tenant, where the token file says nothing else",
    )
    tenant_prompt: int = limit(0, "most tokens of a tenant's prompt; 0 = no limit", low=0)
    tenant_kv_tokens: int = limit(
        0, "most KV cache of all of a tenant's sequences, in tokens; 0 = no limit", low=0
    )
    tenant_positions: int = limit(
        0,
        "most draft tokens per second that the target verifies for a tenant, accepted or not; 0 = no limit",
        low=0,
    )
    tenant_max_pace: int = limit(
        0,
        "highest pace that is promised to one sequence of a tenant, in tokens/s; 0 = max-pace of [serve]",
        low=0,
    )
    client_streams: int = limit(
        0,
        "most streams on one connection at the same time; 0 = as many as --max-sessions, and 128 that wait",
        low=0,
        group="each client",
    )
    client_calls: int = limit(
        int(CALLS.per_second),
        "calls per second that a tenant, a connection or an address may make on average; others wait",
        low=1,
    )
    client_messages: int = limit(
        int(IDLE_MESSAGES.per_second),
        "messages per second that gain nothing (late, empty and repeated drafts) that a tenant, a connection or an "
        "address may send on average; others wait",
        low=1,
    )
    shared_address: bool = limit(
        False, "clients come through a proxy: do not count them by their address", metavar=None
    )
    max_draft: int = limit(16, "longest draft chain, in tokens", low=1, group="each draft")
    max_tree: int = limit(
        MAX_TREE,
        "largest draft tree, in tokens, if the engine computes trees; 0 = chains only",
        low=0,
        high=MAX_TREE,
    )
