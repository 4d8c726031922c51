"""Links by the kernel: `tc netem` from a profile, for hosts that have it. Real packets, real TCP, no relay.

The delays are those of link_model.py: netem reads them from a table that `table` writes, since its own tables need
negative delays, which it cuts at 0 (the median of wifi-mesh would be 40 % off). Two things differ from the relay.
Losses are repaired by the kernel's own TCP, whose timeouts know no dilation, so netem is for real time only. And it
delays packets one by one, so that a late one may be overtaken.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from hw_profiles.profiles import LinkProfile
from lab.testbed.link_model import CORRELATION, RAREST, Way, way
from opensled.core.errors import OpenSledError

TABLE = "opensled"  # name of the distribution; tc reads TABLE.dist
_ENTRIES = 4096
_UNIT = 8192  # what netem counts as one standard deviation
_LARGEST = 32767  # its entries have 16 bits
_QUEUE_PACKETS = 10_000  # netem's own 1000 would drop packets on fast links with long delays


def commands(profile: LinkProfile, interface: str, up: bool) -> list[str]:
    """Arguments of `tc` that give `interface`, whose packets leave in direction `up`, the profile's link."""
    rate = (profile.up_mbit_s if up else profile.down_mbit_s).typical
    shape = way(profile.rtt_s, profile.rtt_p99_ms.typical / 1000)
    line = ["qdisc", "replace", "dev", interface, "root", "netem", "limit", str(_QUEUE_PACKETS)]
    line += ["delay", _milliseconds(shape.fixed)]
    if shape.scale:
        line += [_milliseconds(_deviation(shape)), f"{CORRELATION:.0%}", "distribution", TABLE]
    return [*line, *_losses(profile), "rate", f"{rate:g}mbit"]


def _losses(profile: LinkProfile) -> list[str]:
    """Gilbert-Elliott: chance to turn bad, and to turn good again; in the bad state every packet is lost."""
    loss = profile.loss.typical
    if not loss:
        return []
    turns_bad = loss / (1 - loss) / profile.burst
    return ["loss", "gemodel", f"{turns_bad:.4%}", f"{1 / profile.burst:.4%}"]


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.6f}ms"


def _deviation(shape: Way) -> float:
    """Seconds that netem shall call one deviation, so that the longest delay fits into an entry."""
    return shape.scale * _tail(RAREST, shape) * _UNIT / _LARGEST


def _tail(slower: float, shape: Way) -> float:
    return max(slower, RAREST) ** (-1 / shape.exponent) - 1


def table(profile: LinkProfile) -> str:
    """The tail of the profile's delays as netem's table: quantiles in 1/8192 of a deviation, ascending."""
    shape = way(profile.rtt_s, profile.rtt_p99_ms.typical / 1000)
    longest = _tail(RAREST, shape)
    shares = (1 - (number + 0.5) / _ENTRIES for number in range(_ENTRIES))
    values = [str(round(_LARGEST * _tail(share, shape) / longest)) for share in shares]
    rows = (" ".join(values[start : start + 8]) for start in range(0, _ENTRIES, 8))
    return "\n".join((f"# delays of link {profile.id}", *rows, ""))


def missing() -> str:
    """Why netem cannot be used here; "" if it can. Tried in a network namespace that is gone at once."""
    for tool in ("tc", "unshare"):
        if not shutil.which(tool):
            return f"there is no {tool} (Debian: apt-get install iproute2 util-linux)"
    attempt = ["unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"]
    run = subprocess.run(attempt, capture_output=True, text=True, check=False)
    return "" if run.returncode == 0 else f"tc says: {run.stderr.strip() or run.returncode}"


def apply(profile: LinkProfile, interface: str, up: bool) -> None:
    """Shape what leaves `interface`, in the network namespace of this thread; raises OpenSledError if tc refuses."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"{TABLE}.dist").write_text(table(profile))
        run = subprocess.run(
            ["tc", *commands(profile, interface, up)],
            env={**os.environ, "TC_LIB_DIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    if run.returncode:
        raise OpenSledError(f"tc could not make link {profile.id} of {interface}: {run.stderr.strip()}")
