"""The metrics of a device and of its board, under the names of docs/operations.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from edge_client.device.device import Device
from hw_profiles.pmic import pmic_power_w
from hw_profiles.sysfs import BoardState, read_board
from opensled.metrics.registry import Metric, Reading, build_metric, draft_metrics, model_metric

ReadBoard = Callable[[], BoardState]

# name, help text, how to read it from a state; a value that the board does not tell has no sample
BOARD_FIGURES: tuple[tuple[str, str, Callable[[BoardState], float | None]], ...] = (
    ("board_throttled", "1 while the board slows itself down.", lambda state: state.throttled),
    (
        "board_throttled_since_boot",
        "1 if it has slowed itself down since it was started.",
        lambda state: state.throttled_since_boot,
    ),
    ("board_cpu_hertz", "Clock of the fastest core now.", lambda state: _times(1e6, state.cpu_mhz)),
    ("board_cpu_max_hertz", "Highest clock of the processor.", lambda state: _times(1e6, state.cpu_max_mhz)),
    ("board_battery_ratio", "Charge, from 0 to 1.", lambda state: _times(0.01, state.battery_percent)),
    (
        "board_discharging",
        "1 while it runs on its battery.",
        lambda state: None if state.battery_percent is None else state.discharging,
    ),
)


def metrics(device: Device) -> list[Metric]:
    """Everything that a device tells a scraper."""
    counts = device.telemetry
    return [
        model_metric(lambda: [device.info.model_id]),
        build_metric(),
        *draft_metrics(counts.drafts),
        Metric(
            "draft_tokens_wasted_total",
            "Tokens drafted ahead of verdicts, and in vain.",
            lambda: counts.wasted,
        ),
        Metric("draft_length", "Tokens of a block; 0 = it drafts nothing now.", lambda: device.status.length),
        Metric(
            "answer_rate_drafted",
            "Tokens/s of the latest answers with drafts; 0 = not known.",
            lambda: counts.rate_drafted.ratio,
        ),
        Metric(
            "answer_rate_plain",
            "Tokens/s of the latest answers without drafts; 0 = not known.",
            lambda: counts.rate_plain.ratio,
        ),
        Metric("tokens_committed_total", "Tokens of answers.", lambda: counts.tokens),
        Metric(
            "tokens_loose_total", "Of them, drafted ones that are not the target's own.", lambda: counts.loose
        ),
        Metric("tokens_unasked_total", "Of them, decoded without a draft.", lambda: counts.unasked),
        Metric("tokens_local_total", "Of them, written by the draft model alone.", lambda: counts.local),
        Metric(
            "request_success_total", "Answers by their end.", lambda: counts.answers, label="finished_reason"
        ),
        Metric("errors_total", "Answers that ended by an error.", lambda: counts.errors, label="code"),
        Metric(
            "time_to_first_token_seconds", "From the request to its first token.", lambda: counts.first_token
        ),
        Metric(
            "request_time_per_output_token_seconds",
            "Mean time per token of an answer after its first token.",
            lambda: counts.per_token,
        ),
        Metric(
            "streams_reopened_total",
            "Streams that were lost, or moved elsewhere, and found again.",
            lambda: counts.reopened,
        ),
        Metric("server_away", "1 while the server cannot be reached.", lambda: float(device.server_away)),
        Metric(
            "link_open_seconds",
            "Median time to open a sequence: a round trip of the link; 0 = not known.",
            lambda: counts.opening_s or 0,
        ),
        Metric("drafter_info", "1 for what drafts.", lambda: {device.drafter_name: 1}, "drafter"),
        Metric("drafters_busy", "Drafters at work.", lambda: device.drafters_busy),
        Metric("drafters", "Drafters that may work at the same time.", lambda: device.parallel),
        *board_metrics(),
    ]


def board_metrics(
    read: ReadBoard = read_board, pmic: Callable[[], float | None] = pmic_power_w
) -> list[Metric]:
    """Metrics of the board, read at each scrape; `read` looks at the board every two seconds at most."""
    return [
        Metric(
            "board_temperature_celsius",
            "Temperature by thermal zone.",
            lambda: read().zones_c,
            label="zone",
        ),
        Metric("board_power_watts", "Power that the board draws.", lambda: _power(read(), pmic)),
        *(Metric(name, about, partial(_figure, read, of)) for name, about, of in BOARD_FIGURES),
    ]


def _figure(read: ReadBoard, of: Callable[[BoardState], float | None]) -> Reading:
    value = of(read())
    return {} if value is None else float(value)


def _power(state: BoardState, pmic: Callable[[], float | None]) -> Reading:
    watts = pmic() if state.power_w is None else state.power_w
    return {} if watts is None else watts


def _times(unit: float, value: float | None) -> float | None:
    return None if value is None else unit * value
