"""Texts that a server keeps, and servers that keep them."""

import threading
from pathlib import Path

import numpy as np

from adapt.kept.keeper import TextKeeper
from adapt.kept.kept_store import TOP, KeptStore, KeptText
from verify_server.access.security import TenantLimits, Tenants
from verify_server.admission.session_manager import SessionManager

WORDS = "vocabulary"


def text(tenant: str = "a", opened: float = 0.0, written: int = 3) -> KeptText:
    ids = tuple(range(5 + written))
    rows = np.zeros((written, TOP), np.uint32), np.zeros((written, TOP), np.float16)
    return KeptText(tenant, opened, ids, 5, *rows)


AGREED = Tenants(
    (("token-a", "a"), ("token-b", "b")), limits={"a": TenantLimits(keep=1), "b": TenantLimits(keep=0)}
)


def keeping(store: KeptStore):
    """Of `serving`: its `manager_of`."""
    return lambda loop, target, limits: SessionManager(
        loop, target, limits, keeper=TextKeeper(store, target.text.fingerprint)
    )


class StuckStore(KeptStore):
    """A disk that does not answer until `free` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.free = threading.Event()

    def write(self, text: KeptText, vocabulary: str) -> bool:
        self.free.wait(60)
        return super().write(text, vocabulary)
