"""Wheels that travel with a checkout, unpacked where they are newer than what the machine has.

python -m lab.benchmarks.gpu.wheels FOLDER TARGET

The generated code of opensled/v1 refuses a grpcio or protobuf older than those it was made with. A wheel is a zip
file, so this needs neither pip nor a package index.
"""

import re
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def unpack_newer(folder: Path, target: Path) -> list[str]:
    """Unpacks each wheel of `folder` that is newer than the installed distribution; returns their file names."""
    newer = [wheel for wheel in sorted(folder.glob("*.whl")) if _is_newer(wheel)]
    for wheel in newer:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return [wheel.name for wheel in newer]


def _is_newer(wheel: Path) -> bool:
    name, given = wheel.name.split("-")[:2]
    try:
        installed = version(name)
    except PackageNotFoundError:
        return True
    return _numbers(given) > _numbers(installed)


def _numbers(text: str) -> tuple[int, ...]:
    """The release of a version: (1, 85, 1) of "1.85.1" or "1.85.1.dev0"."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found.group().split("."))) if found else ()


if __name__ == "__main__":
    for each in unpack_newer(Path(sys.argv[1]), Path(sys.argv[2])):
        print(f"in front of what is installed: {each}", flush=True)
