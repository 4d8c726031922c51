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
from opensled.drafting.tables import LruTable, TableShape
from verify_server.round.drafter import Ask, Proposal, ServerDrafter

# Tenants with tables, and leaders in all tables together: 16 full tables of 35 MB. Those of the tenant that drafted
# longest ago go first. Chosen.
MAX_TENANTS, MAX_LEADERS = 256, 16 * TableShape.leaders


@dataclass
class _OfTenant:
    """What all texts of one tenant have shown."""

    table: LruTable = field(default_factory=LruTable)
    calibration: Calibration = field(default_factory=Calibration)


@dataclass
class _Text:
    """One session's text, as far as its tenant's tables have read it."""

    tenant: str
    followers: Followers
    read: int


class ServerTables(ServerDrafter):
    """`opensled serve --server-drafter cacheback`: needs no model; tables begin empty."""

    def __init__(self, config: Any, target: Any) -> None:
        """`target`: a `ServedModel`, whose ends nothing follows."""
        self._ends = frozenset(target.info.eos_ids)
        self._tenants: OrderedDict[str, _OfTenant] = OrderedDict()
        self._texts: dict[int, _Text] = {}  # by session

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        while len(self._tenants) > 1 and self._is_full():
            self._drop_oldest()
        return [ask.chain(self._read(ask).chain()) for ask in asks]

    def forget(self, session: int) -> None:
        self._texts.pop(session, None)

    def _read(self, ask: Ask) -> Followers:
        """What follows a session's text as it is now."""
        text = self._texts.get(ask.session)
        if text is None:
            text = self._texts[ask.session] = self._begin(ask)
        self._tenants.move_to_end(ask.tenant)
        text.followers.extend(ask.tokens[text.read :])
        text.read = ask.length
        return text.followers

    def _begin(self, ask: Ask) -> _Text:
        known = self._tenants.setdefault(ask.tenant, _OfTenant())
        followers = Followers(known.table, None, self._ends, known.calibration.another())
        followers.read(ask.tokens)
        return _Text(ask.tenant, followers, len(ask.tokens))

    def _is_full(self) -> bool:
        leaders = sum([len(known.table) for known in self._tenants.values()])
        return len(self._tenants) > MAX_TENANTS or leaders > MAX_LEADERS

    def _drop_oldest(self) -> None:
        """Its sessions hold its tables, too: they begin anew when they ask again."""
        gone, _ = self._tenants.popitem(last=False)
        self._texts = {session: text for session, text in self._texts.items() if text.tenant != gone}
