"""Makes those files of this checkout that are not there or are of another version, and prints the path of each."""

from pathlib import Path

from lab.shipped.recipes import make_all

print(*make_all(Path(__file__).resolve().parents[2] / "models"), sep="\n")
