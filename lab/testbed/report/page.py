"""The page: its head, its sections in order, and where everything comes from."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from lab.testbed.config import ReportConfig
from lab.testbed.report import (
    agreement,
    best_mode,
    cell_capacity,
    claims,
    components,
    emulated_cells,
    grid_maps,
    losses,
    more_results,
    summary,
)
from lab.testbed.report.html import (
    LABELS,
    Html,
    Section,
    badge,
    bullets,
    code,
    loss,
    origin,
    paragraph,
    table,
    text,
)
from lab.testbed.report.results import MADE_BY, Result, Results, read_results
from opensled.core.errors import INTERRUPTED, NotFound
from opensled.process.work_progress import Part, WorkProgress

STYLE = Path(__file__).with_name("page.css")
TITLE = "OpenSLED benchmarks"
SIGNS = {
    str(loss("red")): "OpenSLED is behind; without the colour the 95 % intervals of the few repeats overlap",
    "C, S, F, E": "modes on the map: centralized, server-sd (the draft beside the target), sled-static (fixed "
    "batches), sled-continuous (the devices draft)",
    "K": "KV memory is full, so speed does not help",
    "new": "serves users where centralized serves none",
    "0": "serves no user",
    "–": "not measured, or nothing to compare with",
    "×, ◇": "the simulator; a run with the real drafters",
    "□": "emulated and simulated differ by more than 15 %",
}


def page(results: Results, page_folder: Path, progress: WorkProgress) -> tuple[str, str]:
    """The whole file; `page_folder` is where it will lie, so that links to the JSON files are right.

    Ctrl-C ends it with the sections that are made by then. Returns the page, and how far it came, "" = it is complete.
    """
    sections, gap = list[Section](), ""
    try:
        for section in _made(_makers(results, page_folder), page_folder, progress):
            sections.append(section)
    except KeyboardInterrupt:
        gap = f"{progress.parts} parts were made before Ctrl-C"
    return _whole(sections, results, gap), gap


def _whole(sections: list[Section], results: Results, gap: str) -> str:
    body = "\n".join(
        f'<section id="{anchor}">\n<h2>{text(title)}</h2>\n{content}\n</section>'
        for anchor, title, content in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{TITLE}</title>
<style>
{STYLE.read_text("utf-8")}</style>
</head>
<body>
{_head(sections, results, gap)}
{body}
</body>
</html>
"""


class Maker(NamedTuple):
    """What makes a section."""

    make: partial[Section] | partial[Section | None]
    result: Result | None = None  # that the section is made from; None: of several

    @property
    def part(self) -> Part:
        """Sections of one module take about as long as each other."""
        return (self.make.func.__module__,)


def _made(makers: Sequence[Maker], page_folder: Path, progress: WorkProgress) -> Iterator[Section]:
    """Those for which there are results, with where they come from."""
    progress.expect(maker.part for maker in makers)
    for maker in makers:
        section = maker.make()
        progress.finish(maker.part)
        if section and maker.result:
            section = section._replace(body=origin(maker.result, page_folder) + section.body)
        if section:
            yield section


def _makers(results: Results, page_folder: Path) -> list[Maker]:
    """Of all sections, in the order of the page."""
    makers = [Maker(partial(summary.section, results)), Maker(partial(_legend))]
    if cells := results.named.get("regimes"):
        grids = [results.named[name] for name in grid_maps.TITLES if name in results.named]
        makers.append(Maker(partial(claims.section, cells, grids), cells))
    if results.all:
        makers.append(Maker(partial(losses.section, results)))
    made: dict[str, list[Callable[[Result], Section | None]]] = {
        "regimes": [emulated_cells.section, cell_capacity.section, agreement.section],
        **{name: [grid_maps.section] for name in grid_maps.TITLES},
        "map": [best_mode.section],
    }
    for name, drawn in made.items():
        if result := results.named.get(name):
            makers += [Maker(partial(make, result), result) for make in drawn]
    if peer := results.named.get("peer"):
        makers.append(Maker(partial(_peer, peer, page_folder)))
    if results.components:
        makers.append(Maker(partial(components.section, results.components, page_folder)))
    if results.others:
        makers.append(Maker(partial(more_results.section, results.others, page_folder)))
    if results.all:
        makers.append(Maker(partial(_origins, results, page_folder)))
    return makers


def _peer(result: Result, page_folder: Path) -> Section:
    return Section("peer", "A peer from outside", components.figure(result, page_folder))


def _legend() -> Section:
    labels = [Html(f"{badge(name)} {text(meaning)}") for name, meaning in LABELS.items()]
    signs = [Html(f"{sign}: {text(meaning)}") for sign, meaning in SIGNS.items()]
    body = bullets(labels) + paragraph("A sign means the same everywhere:") + bullets(signs)
    return Section("legend", "Labels and signs", body)


def _head(sections: list[Section], results: Results, gap: str) -> str:
    links = [Html(f'<a href="#{each.anchor}">{text(each.title)}</a>') for each in sections]
    return "\n".join(
        [
            f"<h1>{TITLE}</h1>",
            *([paragraph(f"This page is PARTIAL: {gap}.", kind="note")] if gap else []),
            paragraph(
                "Speculative decoding from the edge: devices draft, one server verifies. These pages show where that "
                "serves more users than a server that decodes alone, and where it does not. Everything below is made "
                "from the JSON files it links to, and carries a label: what was measured, and how."
            ),
            f"<nav>{bullets(links)}</nav>",
            *(
                paragraph(f"{name}.json is not there yet:", code(MADE_BY[name]), "makes it.", kind="note")
                for name in results.missing
            ),
        ]
    )


def _origins(results: Results, page_folder: Path) -> Section:
    head = ["figure", "label", "machine", "load at the start", "version", "seed"]
    rows = [_origin(result, title, told) for result in results.all for title, told in _runs(result)]
    made = paragraph("This page:", code("opensled bench report"), kind="note")
    return Section("origins", "Where the figures come from", made + table(head, rows, words=(0, 1, 2)))


def _runs(result: Result) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The run that made a file, and those that added to it later."""
    yield result.title, result.origin
    for addition in result.content.get("additions", ()):
        yield f"{result.title}: {', '.join(addition['baselines'])}", addition["provenance"]


def _origin(result: Result, title: str, told: Mapping[str, Any]) -> list[object]:
    machine = told.get("machine", {})
    load = machine.get("load_average", ["–"])[0]
    system = f"{machine.get('cpu', 'unknown')}, {machine.get('cores', '?')} cores, Python {told.get('python', '?')}"
    label = badge(result.label) if result.label in LABELS else "–"
    return [title, label, system, load, told.get("version", "–"), told.get("seed", "–")]


def bench_report(config: ReportConfig) -> int:
    """Raises NotFound without the folder, UsageError for a file that holds no result.

    Ctrl-C ends it with a page of what is drawn by then, which says so.
    """
    folder, out = Path(config.folder), Path(config.out)
    if not folder.is_dir():
        raise NotFound(f"no folder {folder}; run `make bench`, or name it with --folder", "folder")
    with WorkProgress("drawing") as progress:
        text, gap = page(read_results(folder), out.parent, progress)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"written: {out} ({len(text.encode()) / 1e6:.1f} MB){f', PARTIAL: {gap}' if gap else ''}")
    return INTERRUPTED if gap else 0
