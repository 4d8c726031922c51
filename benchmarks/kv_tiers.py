"""Sessions held at a pace with and without a second tier of KV memory, where memory is what is short.

    python -m benchmarks.kv_tiers [--simulated] [--real] [--quick] [--out FOLDER]

Simulated: a GPU server by its profile. Real: `opensled serve` and devices over gRPC on this machine, whose copies are
made as slow, beside what it takes to compute, as a GPU's bus would make them. Each part replaces its own figures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks import kv_tiers_real, kv_tiers_simulated, kv_tiers_view
from benchmarks.program import add_quick_and_out, exit_code, folder_of, parser_of, write_json
from benchmarks.readme import write_readme
from opensled_testbed.provenance import provenance

PARTS = {"simulated": kv_tiers_simulated.measure, "real": kv_tiers_real.measure}


def main(words: list[str] | None = None) -> int:
    parser = parser_of("kv_tiers", __doc__)
    for part in PARTS:
        parser.add_argument(f"--{part}", action="store_true", help=f"the {part} part alone")
    add_quick_and_out(parser)
    arguments = parser.parse_args(words)
    chosen = [part for part in PARTS if getattr(arguments, part)] or list(PARTS)
    return exit_code(lambda: _run(chosen, arguments.quick, folder_of(arguments)))


def _run(parts: list[str], quick: bool, folder: Path | None) -> int:
    path = folder / "kv_tiers.json" if folder else None
    document: dict[str, Any] = {"figure": "kv_tiers", "title": "KV in two tiers", "label": "real / simulated"}
    if path and path.is_file():
        document |= json.loads(path.read_text())
    for part in parts:
        origin = provenance(f"python -m benchmarks.kv_tiers --{part}")
        document[part] = {**PARTS[part](quick), "provenance": origin}
    print("\n".join(kv_tiers_view.section(document)))
    if path and folder:
        write_json(path, document)
        write_readme(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
