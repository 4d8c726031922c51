"""Cacheback beside the target (arXiv 2511.21699): tables of what follows what, which learn from all texts of a tenant.

No table is shared between tenants: what one of them reads shows in no draft, and so in no timing, of another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opensled.drafting.followers import Followers
from opensled.drafting.growth import Calibration
from opensled.drafting.tables import LruTable
from verify_server.drafting.base import Ask, Proposal, ServerDrafter

# Tenants with tables, some MB each: those of the tenant that drafted longest ago go first. Chosen.
MOST_TENANTS = 256


@dataclass
class _OfTenant:
    """What all texts of one tenant have shown."""

    table: LruTable = field(default_factory=LruTable)
    calibration: Calibration = field(default_factory=Calibration)


@dataclass
class _Text:
    """One session's text, as far as its tenant's tables have read it."""

    followers: Followers
    read: int = 0


class ServerTables(ServerDrafter):
    """`opensled serve --drafter cacheback`: needs no model; tables begin empty."""

    def __init__(self, config: Any, target: Any) -> None:
        """`target`: a `Target`, whose ends nothing follows."""
        self._ends = frozenset(target.engine.info.eos_ids)
        self._tenants: OrderedDict[str, _OfTenant] = OrderedDict()
        self._texts: dict[int, _Text] = {}  # by session

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [ask.chain(self._read(ask).chain()) for ask in asks]

    def forget(self, session: int) -> None:
        self._texts.pop(session, None)

    def _read(self, ask: Ask) -> Followers:
        """What follows a session's text as it is after this step."""
        text = self._texts.get(ask.session)
        if text is None:
            text = self._texts[ask.session] = self._begun(ask)
        text.followers.extend(ask.since(text.read))
        text.read = ask.length
        return text.followers

    def _begun(self, ask: Ask) -> _Text:
        known = self._of(ask.tenant)
        followers = Followers(known.table, None, self._ends, known.calibration.another())
        followers.read(ask.tokens)
        return _Text(followers, len(ask.tokens))

    def _of(self, tenant: str) -> _OfTenant:
        found = self._tenants.setdefault(tenant, _OfTenant())
        self._tenants.move_to_end(tenant)
        if len(self._tenants) > MOST_TENANTS:
            self._tenants.popitem(last=False)
        return found
