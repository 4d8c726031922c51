"""`opensled drafts pull`: fetch the draft that the server hands out, or go back to the one before."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from adapt.shelf.config import DraftPullConfig
from edge_client.link.located import locate_server
from opensled.cli import paired
from opensled.core.errors import UsageError, VocabularyMismatch
from opensled.core.printable import visible_line
from opensled.models.download import keeping, locked_folder
from opensled.models.store import ADAPTED, adapted_folder
from opensled.process.logs import tell
from opensled.process.progress_bar import ProgressBar

if TYPE_CHECKING:
    from adapt.shelf.shelf import Kept
    from adapt.shelf.signature import Signer
    from edge_client.link.link import Link


def pull_draft(config: DraftPullConfig) -> int:
    """Fetch the draft that is handed out to this device, unless it is here, or go back to the one before.

    Raises DraftRefused, VocabularyMismatch, NotFound, Unauthorized, Unreachable, Overloaded, ModelError, UsageError.
    """
    if config.previous:
        kept, fetched = _back(config), False
    else:
        signer = _signer(config)
        kept, fetched = asyncio.run(_pull(locate_server(config), signer))
    if config.json:
        print(json.dumps({"path": str(kept.path), "fetched": fetched, **asdict(kept.draft)}))
        return 0
    verb = "fetched" if fetched else "now" if config.previous else "was here already:"
    print(visible_line(f"{verb} {kept.draft.title()}: {kept.path}"))
    tell(f"next, or if it runs, once more: opensled edge --draft-model {ADAPTED}")
    return 0


def _back(config: DraftPullConfig) -> Kept:
    from adapt.shelf.shelf import DraftShelf, known_signer
    from adapt.shelf.signature import read_signer

    known = config.signer or known_signer(adapted_folder())
    if not known:
        raise UsageError("this device has no adapted draft; fetch one: opensled drafts pull")
    shelf = DraftShelf(adapted_folder(), read_signer(known))
    with locked_folder(shelf.folder, "opensled drafts pull"):
        return shelf.back()


def _signer(config: DraftPullConfig) -> Signer:
    """Never what a server says: a flag, what came with the pairing, or what was given before."""
    from adapt.shelf.shelf import known_signer
    from adapt.shelf.signature import read_signer

    known = config.signer or paired.signer_of(config.server) or known_signer(adapted_folder())
    if not known:
        raise UsageError(
            "--signer TENANT:KEY is missing: the tenant of this device, and the public key that signs its drafts. Ask "
            "the operator, not the server: opensled drafts publish prints both"
        )
    return read_signer(known)


async def _pull(config: DraftPullConfig, signer: Signer) -> tuple[Kept, bool]:
    from edge_client.link.link import Link, endpoint_at

    link = Link(endpoint_at(config))
    try:
        return await fetch_draft(link, signer)
    finally:
        await link.close()


async def fetch_draft(link: Link, signer: Signer) -> tuple[Kept, bool]:
    """The draft that is handed out, here and selected now; whether it had to be fetched."""
    from adapt.shelf.draft_fetch import fetch_files, fetch_manifest
    from adapt.shelf.shelf import DraftShelf

    info, signed = await link.describe(), await fetch_manifest(link)
    draft = signer.verify(signed)
    if draft.fingerprint != info.fingerprint:
        raise VocabularyMismatch(
            f"the draft {draft.name!r} has another vocabulary than {info.model_id!r}, which {link.server} serves now; "
            "its operator adapts a draft to that target. Nothing was replaced"
        )
    root = adapted_folder()
    shelf = DraftShelf(root, signer)
    with locked_folder(shelf.folder, "opensled drafts pull"):
        if not shelf.is_new(draft, signed):
            kept = shelf.latest()
            assert kept is not None
            shelf.select(kept)
            return kept, False
        tell(f"fetching {draft.title()} from {link.server}")
        with keeping(shelf.folder, draft.total):
            with ProgressBar("fetching", draft.total) as bar:
                await fetch_files(link, shelf, draft, bar.show)
            return shelf.put(draft, signed), True
