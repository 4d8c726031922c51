"""What a device shows on its page: its server, its drafts and what they gain, and its board."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from edge_client.device.config import EdgeConfig
from edge_client.device.device import Device
from edge_client.device.telemetry import Telemetry
from edge_client.lengths.board_watch import board_watch
from http_api.page.views import conversation
from hw_profiles.sysfs import BoardState
from opensled.core.errors import Unsupported
from opensled.metrics.registry import DraftCounts

BOARD = ("temperature_c", "throttled", "reasons", "power_w", "battery_percent", "discharging")


class DeviceView:
    """The page of one device (`http_api.page.views.PageView`)."""

    def __init__(
        self, device: Device, config: EdgeConfig, board: Callable[[], BoardState] | None = None
    ) -> None:
        """`board`: returns the board's state at once."""
        self._device, self._config, self._board = device, config, board or board_watch()

    def watcher(self) -> Callable[[], dict[str, Any]]:
        """Nothing here is a rate since the last look."""
        return self.look

    def switch(self, tenant: str, device: str, drafting: bool) -> None:
        """A device has no other ones; whether it drafts is said with each question."""
        raise Unsupported(
            "drafting is switched with each question here; the server's page has a switch for each device"
        )

    def look(self) -> dict[str, Any]:
        """Everything, as JSON. Rates in tokens/s, times in seconds, shares in [0, 1]; null: not known."""
        device = self._device
        info, counts = device.info, device.telemetry
        return {
            "kind": "device",
            "name": self._config.device_name,
            "model": info.model_id,
            "version": info.version,
            "numerics": info.numerics,
            "rule": device.rule,
            "context": info.limits.context_length,
            "images": info.images is not None,
            "server": {
                "address": self._config.server,
                "away": device.server_away,
                "refusal": device.refusal,
                "tls": bool(self._config.tls or self._config.tls_ca or self._config.client_cert),
                "opening_s": counts.opening_s,
                "reopened": counts.reopened,
            },
            **conversation(info.model_id, device.origins),
            "offline": self._config.offline,
            "drafter": device.drafter_name,
            "drafters": {"busy": device.drafters_busy, "all": device.parallel},
            "draft": device.status.figures(),
            "counts": {**draft_figures(counts.drafts), **_totals(counts)},
            "board": {name: value for name, value in asdict(self._board()).items() if name in BOARD},
        }


def draft_figures(counts: DraftCounts) -> dict[str, Any]:
    """Of all drafts so far: how many, and for each position how many had an accepted token there."""
    return {
        "drafts": counts.drafts,
        "drafted": counts.tokens,
        "accepted": counts.accepted,
        "accepted_per_position": list(counts.accepted_per_position),
    }


def _totals(counts: Telemetry) -> dict[str, Any]:
    return {
        "tokens": counts.tokens,
        "unasked": counts.unasked,
        "wasted": counts.wasted,
        "loose": counts.loose,
        "local": counts.local,
        "answers": sum(counts.answers.values()),
        "errors": sum(counts.errors.values()),
    }
