"""Text that a target of a soak keeps of its fleet: it is the truth's, within its quota, and gone once it is deleted."""

import asyncio
import sys
import time
from pathlib import Path

import numpy as np

from adapt.kept.command import MB
from adapt.kept.kept_store import KeptStore
from lab.testbed.soak.account import Account
from lab.testbed.soak.questions import Course
from lab.testbed.soak.target import FLEET, KEPT_MB, SoakTarget
from opensled.core.errors import NotFound, OpenSledError

HOLD_S = 4.0  # after a deletion, in which no older text may come


async def delete_kept(target: SoakTarget) -> None:
    """The operator deletes all that is kept of the fleet, while the server writes.

    Raises OpenSledError where a text is there afterwards that was kept before.
    """
    began = time.time()
    command = [sys.executable, "-m", "opensled", "kept", "delete", FLEET, "--keep-text", str(target.kept)]
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    if await process.wait() not in (0, NotFound.exit_code):
        raise OpenSledError(f"`opensled kept delete` ended with {process.returncode}")
    until = time.monotonic() + HOLD_S
    while time.monotonic() < until:
        await asyncio.sleep(0.2)  # what was just being written goes at once
        for held in KeptStore(target.kept).summarize():
            if held.texts and held.oldest < began:
                raise OpenSledError(f"a text of {held.tenant} outlived its deletion")


def check_kept(target: SoakTarget, course: Course, account: Account) -> None:
    """What is there in the end; a text that breaks off is the beginning of a truth."""
    truths = [(*truth.prompt_ids, *truth.ids) for truth in course.truths]
    store = KeptStore(target.kept)
    for held in store.summarize():
        account.notes["texts kept in the end"] += held.texts
        account.notes["bytes of them"] += held.bytes
        if held.tenant != FLEET:
            account.wrong(f"text of {held.tenant} is kept, which did not agree")
        if held.bytes > KEPT_MB * MB:
            account.wrong(f"{held.bytes} bytes of text are kept, of {KEPT_MB} MB")
        for path in sorted(Path(held.folder).glob("*.npz")):
            with np.load(path) as file:
                ids, rows = tuple(file["ids"].tolist()), len(file["top_ids"])
                written = int((file["roles"] != 0).sum())
            if not any(ids == truth[: len(ids)] for truth in truths) or rows != written:
                account.wrong(f"the kept text {path.name} is no truth")
