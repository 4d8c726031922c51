"""The text of a calibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from edge_client.calibration.draft_speed import SpeedReading, quantity
from hw_profiles.detect import usable_cores
from hw_profiles.profiles import MeasuredLink

LABEL = 22  # columns
AGAIN = "calibrate again when nothing else runs"


def speed_lines(speed: SpeedReading, load: float) -> Iterator[str]:
    """Every number with the range of its repetitions; a last line if they are not reliable."""
    for count, rates in speed.decode_per_s.items():
        label = "draft speed" if count == min(speed.decode_per_s) else ""
        chosen = ", the fastest: used" if count == speed.threads and len(speed.decode_per_s) > 1 else ""
        yield _line(label, f"{count} thread{'s' * (count > 1)}: {_rate(rates)}{chosen}")
    yield _line(f"after {speed.prompt} tokens", _rate(speed.long_decode_per_s))
    blocks = (f"{length}: {_milliseconds(seconds)}" for length, seconds in speed.block_s.items())
    yield _line("a block of k tokens", f"{', '.join(blocks)} ms")
    yield _line("reading a prompt", _rate(speed.prefill_per_s))
    if load > usable_cores() + 0.5:
        yield _line(
            "note",
            f"load {load:.1f} on {usable_cores()} cores: these are the numbers of a busy machine; {AGAIN}",
        )
    elif speed.unsettled:
        yield _line("note", f"the repetitions differ by {speed.spread:.0%}, as on a busy machine; {AGAIN}")


def link_lines(server: str, link: MeasuredLink | None, complaint: str) -> Iterator[str]:
    """The link to the server, or why it is not measured."""
    if link is None:
        yield _line("link", f"not measured: {complaint}")
        return
    rtt = link.rtt_ms
    yield _line(
        "link",
        f"{rtt.typical:.1f} ms round trip to {server} ({rtt.min:.1f} to {rtt.max:.1f}), jitter {link.jitter_ms:.1f} ms",
    )


def _line(label: str, text: str) -> str:
    return f"  {label:{LABEL}}{text}"


def _rate(rates: Sequence[float]) -> str:
    rate = quantity(rates, "")
    low, typical, high = (
        f"{each:,.0f}" if each >= 100 else f"{each:.3g}" for each in (rate.min, rate.typical, rate.max)
    )
    return f"{typical} tokens/s ({low} to {high})"


def _milliseconds(seconds: Sequence[float]) -> str:
    return f"{1000 * quantity(seconds, '').typical:.3g}"
