"""Which board this is: from its device tree, NVIDIA's release file, cpuinfo and meminfo; and how many of its cores this
process may use. Nothing is executed.

Readers of a board take the root folder, so that copies of other boards' files can be read as well.
"""

import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hw_profiles.sysfs import read_text
from opensled.core.errors import NotFound

# `compatible` of the device tree -> packaged profile; the first that matches counts. A Jetson's module, not the carrier
# board it sits on, decides: p3767 0003 to 0005 are Orin Nano, 0000 to 0002 Orin NX.
PROFILES = (
    (r"brcm,bcm2711", "pi-4"),
    (r"brcm,bcm2712", "pi-5"),
    (r"p3767-000[345]-super", "orin-nano-super"),
    (r"p3767-000[345]", "orin-nano"),
    (r"p3767-000[012]", "orin-nx"),
    (r"p3701-\d{4}", "agx-orin"),
    (r"p3834-\d{4}", "agx-thor"),
)
# "CPU part" of Arm's own cores (implementer 0x41)
CORES = {
    "0xd03": "Cortex-A53",
    "0xd05": "Cortex-A55",
    "0xd07": "Cortex-A57",
    "0xd08": "Cortex-A72",
    "0xd0b": "Cortex-A76",
    "0xd0c": "Neoverse N1",
    "0xd41": "Cortex-A78",
    "0xd42": "Cortex-A78AE",
    "0xd46": "Cortex-A510",
    "0xd47": "Cortex-A710",
    "0xd83": "Neoverse V3AE",
}
# Instructions that make a draft model several times faster, by their names in cpuinfo
FEATURES = {
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "sve": "sve",
    "avx2": "avx2",
    "avx512f": "avx512",
    "avx_vnni": "avx-vnni",
    "avx512_vnni": "avx512-vnni",
    "amx_int8": "amx",
}
HERE = Path("/")
CGROUP = Path("/sys/fs/cgroup")
# Placeholders that makers leave in place of a name
NAMELESS = ("", "to be filled by o.e.m.", "system product name", "system manufacturer", "default string")


@dataclass(frozen=True)
class Board:
    """A machine as it describes itself."""

    name: str
    profile: str  # id of the packaged profile that fits it, "" = none does
    system: str  # operating system, "" = it does not say
    processor: str  # kind of its cores
    cores: int  # physical ones
    features: tuple[str, ...]  # values of FEATURES that it has
    memory_gib: float  # as the kernel counts it, which is less than what is soldered on
    power_mode: str = ""  # of a Jetson, such as 25W


def require_board(root: Path | str) -> None:
    """Raises NotFound unless the files of a board lie below `root`; this machine is one, whatever its system."""
    if Path(root) != HERE and not (Path(root) / "proc").is_dir():
        raise NotFound(
            f"{root} holds no proc folder; give the folder that a board's /proc and /sys lie in", "root"
        )


def detect(root: Path | str = "/") -> Board:
    """The board whose files lie below `root`. Never raises; a PC without a device tree is named by its maker."""
    root = Path(root)
    tree = root / "proc/device-tree"
    cpuinfo = read_text(root / "proc/cpuinfo")
    if root == HERE and not cpuinfo:
        return _as_python_tells()
    processor = _processor(cpuinfo)
    return Board(
        name=_strings(tree / "model") or _product(root / "sys/class/dmi/id") or processor,
        profile=_profile(_strings(tree / "compatible")),
        system=_system(root / "etc"),
        processor=processor,
        cores=_physical_cores(cpuinfo),
        features=_features(cpuinfo),
        memory_gib=round(_memory_kib(read_text(root / "proc/meminfo")) / 2**20, 1),
        power_mode=_power_mode(root),
    )


def _as_python_tells() -> Board:
    """This machine where there is no /proc, as on macOS."""
    kind = platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = os.cpu_count() or 1
    return Board(kind, "", platform.platform(terse=True), kind, cores, (), round(memory / 2**30, 1))


def _profile(compatible: str) -> str:
    return next((profile for pattern, profile in PROFILES if re.search(pattern, compatible)), "")


def _product(dmi: Path) -> str:
    """Maker and product of a PC, each unless it is a placeholder."""
    words = [read_text(dmi / name).strip() for name in ("sys_vendor", "product_name")]
    return " ".join(word for word in words if word.lower() not in NAMELESS)


def _system(etc: Path) -> str:
    """Jetson Linux by its release, else what os-release calls itself."""
    jetson = re.search(r"# R(\d+) \(release\), REVISION: ([\d.]+)", read_text(etc / "nv_tegra_release"))
    if jetson:
        return f"Jetson Linux {jetson[1]}.{jetson[2]}"
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]+)', read_text(etc / "os-release"), re.MULTILINE)
    return pretty[1] if pretty else ""


def _power_mode(root: Path) -> str:
    """What nvpmodel.conf calls the mode that nvpmodel set, its number where the file does not."""
    mode = re.search(r"pmode:(\d+)", read_text(root / "var/lib/nvpmodel/status"))
    if not mode:
        return ""
    named = re.search(rf"POWER_MODEL\s+ID={int(mode[1])}\s+NAME=(\S+)", read_text(root / "etc/nvpmodel.conf"))
    return named[1] if named else f"mode {int(mode[1])}"


def _processor(cpuinfo: str) -> str:
    """Name of a PC's processor, or of the kinds of Arm cores, the last kind (the fastest) first."""
    model = _field(cpuinfo, "model name")
    if model:
        return model[0]
    kinds = dict.fromkeys(reversed(_field(cpuinfo, "CPU part")))
    return " + ".join(CORES.get(part, f"Arm core {part}") for part in kinds) or "unknown processor"


def _physical_cores(cpuinfo: str) -> int:
    """Distinct (package, core) pairs where they are told, else logical processors; at least 1."""
    blocks = [_fields(block) for block in cpuinfo.split("\n\n") if "processor" in block]
    cores = {(block.get("physical id"), block.get("core id")) for block in blocks if "core id" in block}
    return max(1, len(cores) or len(blocks))


def _features(cpuinfo: str) -> tuple[str, ...]:
    """Those that every core has."""
    lines = _field(cpuinfo, "Features") or _field(cpuinfo, "flags")
    common = set.intersection(*(set(line.split()) for line in lines)) if lines else set()
    return tuple(name for flag, name in FEATURES.items() if flag in common)


def _memory_kib(meminfo: str) -> int:
    total = re.search(r"^MemTotal:\s+(\d+) kB", meminfo, re.MULTILINE)
    return int(total[1]) if total else 0


def _field(cpuinfo: str, name: str) -> list[str]:
    """Every value of one field."""
    return re.findall(rf"^{name}\s*: *(.*\S)", cpuinfo, re.MULTILINE)


def _fields(block: str) -> Mapping[str, str]:
    pairs = (line.partition(":") for line in block.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _strings(path: Path) -> str:
    """Zero-terminated strings of a device tree, with spaces between."""
    return " ".join(read_text(path).replace("\0", " ").split())


def allowed_cpus() -> set[int]:
    """Logical processors that this process may use; all of them where the system has no affinity, as macOS."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def usable_cores() -> int:
    """Physical cores within the process's affinity, and within a container's CPU limit."""
    cores = {_siblings(cpu) for cpu in allowed_cpus()}
    share = container_share()
    return max(1, len(cores) if share is None else min(len(cores), int(share)))


def container_share(folder: Path = CGROUP) -> float | None:
    """CPUs that the cgroup (v2, or v1) may use; None without a limit."""
    words = read_text(folder / "cpu.max").split()  # microseconds of each period, such as "200000 100000"
    if not words:
        words = [read_text(folder / "cpu" / f"cpu.cfs_{name}_us") for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or words[1] == "0":
        return None
    return int(words[0]) / int(words[1])


def _siblings(cpu: int) -> str:
    """Names the physical core of a logical CPU by its hardware threads ("0,8"); each its own if unknown."""
    text = read_text(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    return text or str(cpu)
