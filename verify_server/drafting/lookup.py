"""Prompt lookup beside the target: each session's draft is copied from its own text (opensled/drafting/ngrams.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opensled.drafting.ngrams import NgramIndex
from verify_server.round.drafter import Ask, Proposal, ServerDrafter


class ServerLookup(ServerDrafter):
    """`opensled serve --server-drafter lookup`: needs no model, and takes microseconds a session."""

    def __init__(self, config: Any = None, target: Any = None) -> None:
        """Needs neither."""
        self._indices: dict[int, NgramIndex] = {}  # by session

    def propose(self, asks: Sequence[Ask]) -> list[Proposal]:
        return [ask.chain(self._read(ask).propose()) for ask in asks]

    def forget(self, session: int) -> None:
        self._indices.pop(session, None)

    def _read(self, ask: Ask) -> NgramIndex:
        """The index of a session's text as it is now."""
        index = self._indices.get(ask.session)
        if index is None:
            index = self._indices[ask.session] = NgramIndex(ask.tokens)
        index.extend(ask.tokens[len(index.text) :])
        return index
