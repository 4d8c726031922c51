"""Limits of each tenant, client and draft: table [limits] of the configuration files.

A tenant's line in the token file overrides them for that tenant (docs/security.md).
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
        "maximum number of concurrent sequences of one tenant; 0 = no limit",
        low=0,
        group="limits of each tenant; its line in the token file overrides them",
    )
    tenant_prompt: int = limit(0, "maximum length of a tenant's prompts, in tokens; 0 = no limit", low=0)
    tenant_kv_tokens: int = limit(
        0, "maximum KV cache of all sequences of one tenant, in tokens; 0 = no limit", low=0
    )
    tenant_positions: int = limit(
        0,
        "maximum draft tokens per second that the target verifies for one tenant, accepted or not; 0 = no limit",
        low=0,
    )
    tenant_max_pace: int = limit(
        0,
        "maximum pace guaranteed to one sequence of a tenant, in tokens/s; 0 = max-pace of [serve]",
        low=0,
    )
    client_streams: int = limit(
        0,
        "maximum number of concurrent streams on one connection; 0 = --max-sessions, plus 128 that wait",
        low=0,
        group="limits of each client",
    )
    client_calls: int = limit(
        int(CALLS.per_second),
        "average calls per second allowed to a tenant, a connection or an address; further calls wait",
        low=1,
    )
    client_messages: int = limit(
        int(IDLE_MESSAGES.per_second),
        "average useless messages per second (late, empty and repeated drafts) allowed to a tenant, a connection or an "
        "address; further ones wait",
        low=1,
    )
    shared_address: bool = limit(
        False, "do not limit clients by address, since they all connect through a proxy", metavar=""
    )
    max_draft: int = limit(
        16, "maximum length of a draft chain, in tokens", low=1, group="limits of each draft"
    )
    max_tree: int = limit(
        MAX_TREE,
        "maximum size of a draft tree, in tokens, if the engine supports trees; 0 = chains only",
        low=0,
        high=MAX_TREE,
    )
