"""Sessions as policies see them, for tests that give only what matters to them."""

from scheduler.plan import NO_OFFER, OfferView, SessionView

DEVICE = {"draft": "tokens", **{name: name for name in OfferView.__slots__}}
SERVER = {"own": "tokens", **{f"own_{name}": name for name in OfferView.__slots__}}


def viewed(
    id: int,
    uncomputed: int = 1,
    draft: int | None = None,
    server_drives: bool = False,
    waiting_since: float = 0.0,
    **fields: object,
) -> SessionView:
    """Fields of the view; of its device's offer (`draft`: its tokens), and with `own_` before them of the server's
    (`own`: its tokens)."""
    device = {DEVICE[name]: fields.pop(name) for name in DEVICE if name in fields}
    server = {SERVER[name]: fields.pop(name) for name in SERVER if name in fields}
    own = OfferView(**server) if server else NO_OFFER  # type: ignore[arg-type]
    return SessionView(
        id,
        uncomputed,
        server_drives,
        waiting_since,
        OfferView(draft, **device),  # type: ignore[arg-type]
        own,
        (own,) if server else (),
        **fields,  # type: ignore[arg-type]
    )
