"""Replayed drafts: the target's own recorded answer, each token right with a given probability.

Which tokens are wrong is drawn once for each drafter, text and place, so a draft depends on what it follows alone, as
drafts do. A text that has departed from its recording (a flip) drafts on from the recording: the shared noise decides
nearly every token by its position, so later ones are those of the recording again.
"""

import asyncio
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from edge_client.round.draft_job import BlockBudget, Drafted
from edge_client.round.drafting import JobDrafting
from lab.testbed.emulation.replay import ReplayDrafts
from lab.testbed.traces import WHOLE, ItemTrace, Proposal
from opensled.core.protocol import Truth
from verify_server.options.serve_config import ServeConfig
from verify_server.round.drafter import Ask, ServerDrafter
from verify_server.round.drafter import Proposal as ServerProposal
from verify_server.round.loaded_model import ServedModel

TEXTS = "LAB_REPLAYED_TEXTS"  # environment variable: the file of `write_texts`
FIRST_ID = 3  # of a user's prompt: the ids below it have a meaning
NO_ID = 2  # of a wrong draft token: the target writes it once in as many tokens as it knows


def prompt_of(user: int, context: int, share: float, vocabulary: int) -> tuple[int, ...]:
    """`context` ids that begin with the user's own one. The last one tells a server's drafter how often to be right;
    all before it are the same in every cell, so their KV is shared from cell to cell."""
    draw = random.Random(f"prompt {user} {context}")
    middle = [draw.randrange(FIRST_ID, vocabulary) for _ in range(context - 2)]
    return (FIRST_ID + user, *middle, FIRST_ID + round(100 * share))


class Recording(NamedTuple):
    """What one user's answer is at one length of prompt."""

    user: int
    context: int
    text: tuple[int, ...]

    def drafted(self, share: float, drafter: str) -> tuple[int, ...]:
        """The text with wrong tokens; `drafter`: each draws its own."""
        draw = random.Random(f"{drafter} {self.user} {self.context} {share}")
        return tuple([token if draw.random() < share else NO_ID for token in self.text])

    def trace(self, share: float, vocabulary: int) -> ItemTrace:
        """What a device drafts at each place of the text."""
        ids = self.drafted(share, "device")
        proposals = [_proposal(ids[place : place + WHOLE], share) for place in range(len(ids))]
        prompt = prompt_of(self.user, self.context, share, vocabulary)
        return ItemTrace(f"user {self.user}", prompt, self.text, "length", tuple(proposals))


def _proposal(ids: Sequence[int], share: float) -> Proposal:
    return Proposal(tuple(ids), (share,) * len(ids))


class DeviceReplay(ReplayDrafts):
    """A device's drafts in the device's time; a flip of the target does not end them."""

    def draft(self, truth: Truth, budget: BlockBudget) -> asyncio.Future[Drafted]:
        """See `Drafting`."""
        return JobDrafting.draft(self, truth, budget)


def write_texts(path: Path, recordings: Sequence[Recording]) -> None:
    """For the server's drafter, which reads the file at its first draft after each change."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(recordings))
    unfinished.replace(path)


def load(config: ServeConfig, target: ServedModel) -> ServerDrafter:
    """`opensled serve --server-drafter lab.benchmarks.gpu.replay:load`."""
    return ServerReplay(Path(os.environ[TEXTS]))


class ServerReplay(ServerDrafter):
    """Drafts beside the target at no cost: what a perfect lookup of that acceptance would bring."""

    def __init__(self, path: Path) -> None:
        self._path, self._read_at = path, 0
        self._texts: dict[int, list[Recording]] = {}  # by the first id of the prompt
        self._drafts: dict[
            int, tuple[int, tuple[int, ...]]
        ] = {}  # by session: prompt's length, and all of its draft

    def propose(self, asks: Sequence[Ask]) -> list[ServerProposal]:
        """See `ServerDrafter`; nothing for a text without a recording."""
        self._read()
        return [ask.chain(self._following(ask)) for ask in asks]

    def forget(self, session: int) -> None:
        """See `ServerDrafter`."""
        self._drafts.pop(session, None)

    def _following(self, ask: Ask) -> list[tuple[int, float]]:
        if ask.session not in self._drafts:
            self._drafts[ask.session] = self._found(ask)
        prompt, ids = self._drafts[ask.session]
        place = ask.length - prompt
        return [(each, 1.0) for each in ids[place : place + ask.most]] if place >= 0 else []

    def _found(self, ask: Ask) -> tuple[int, tuple[int, ...]]:
        """By the prompt's first id and its length, which no other session's text begins with."""
        for each in self._texts.get(ask.tokens[0], []):
            if each.context <= ask.length <= each.context + len(each.text):
                share = (ask.tokens[each.context - 1] - FIRST_ID) / 100
                return each.context, each.drafted(share, "server")
        return ask.length, ()

    def _read(self) -> None:
        """The file, if it is new."""
        changed = self._path.stat().st_mtime_ns if self._path.exists() else 0
        if changed == self._read_at:
            return
        self._read_at, self._texts = changed, {}
        for user, context, text in json.loads(self._path.read_bytes()):
            self._texts.setdefault(FIRST_ID + user, []).append(Recording(user, context, tuple(text)))
