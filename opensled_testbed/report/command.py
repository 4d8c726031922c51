"""`opensled bench report`: one self-contained HTML page over all results."""

from __future__ import annotations

from pathlib import Path

from opensled.errors import NotFound
from opensled_testbed.report.config import ReportConfig
from opensled_testbed.report.page import page
from opensled_testbed.report.results import read_results


def bench_report(config: ReportConfig) -> int:
    """Raises NotFound without the folder, UsageError for a file that holds no result."""
    folder, out = Path(config.folder), Path(config.out)
    if not folder.is_dir():
        raise NotFound(f"no folder {folder}; run `make bench`, or name it with --folder", "folder")
    text = page(read_results(folder), out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"written: {out} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0
