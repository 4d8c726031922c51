"""What `opensled bench report` can be told; defaults are here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from opensled.config import option


@dataclass(frozen=True)
class ReportConfig:
    """Where results are read and where the page is written."""

    folder: str = option("docs/benchmarks", "folder with the results as JSON", metavar="FOLDER")
    out: str = option("docs/benchmarks/report.html", "file to write", metavar="FILE")
