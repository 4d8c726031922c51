"""Who may have hidden states of the target: the devices of tenants that the operator allows it, of their own texts."""

from __future__ import annotations

from opensled.errors import InvalidRequest, Unsupported, UnsupportedModel
from opensled.messages import Open
from verify_server.feature_log import FeatureLog
from verify_server.loop import VerifyLoop
from verify_server.security import Tenants
from verify_server.session import Session


class FeatureAccess:
    """Of one server."""

    def __init__(self, loop: VerifyLoop, tenants: Tenants, for_all: bool, never: str = "") -> None:
        """`for_all`: every tenant may have them; `never`: the reason why no tenant may; "" = there is none."""
        self._loop, self._tenants, self._for_all, self._never = loop, tenants, for_all, never

    async def require(self, message: Open, tenant: str) -> None:
        """Raises Unsupported or InvalidRequest, naming the field, for hidden states that this sequence cannot have."""
        if not message.features:
            return
        if self._never:
            raise Unsupported(self._never, "features")
        if not (self._for_all or self._tenants.limits_of(tenant).features):
            raise Unsupported(
                "this server sends no hidden states to this device; its operator can allow it with --features, or "
                "with features=1 in the token file",
                "features",
            )
        try:
            last = await self._loop.tap()
        except UnsupportedModel as error:
            raise Unsupported(str(error), "features") from error
        if max(message.features) > last:
            raise InvalidRequest(
                f"the target's last hidden state is {last}; {max(message.features)} was asked for", "features"
            )

    def give(self, session: Session, layers: tuple[int, ...], rows: int) -> None:
        """From now on the session gathers these hidden states; none = none any more. `rows`: as Open.feature_rows."""
        log = session.features
        if not layers:
            session.features = None
        elif log is None or (log.layers, log.asked) != (layers, rows):
            size = self._loop.engine.info.hidden_size
            session.features = FeatureLog(layers, size, len(session.sequence), rows)
