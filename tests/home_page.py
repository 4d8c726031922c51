"""The commands of docs/home.md: what stands in its code blocks, and on which machines it is typed."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs/home.md"
LANGUAGES, MACHINES = ("sh", "python"), ("pc", "pi")
MAX_WORDS = 1200
_BLOCK = re.compile(r"^```(\w*)([^\n]*)\n(.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class PageCommand:
    """A command line, or a whole program in Python."""

    text: str
    machine: str  # of MACHINES; pi = each of them
    language: str = "sh"

    @property
    def opensled(self) -> list[str]:
        """The words behind `opensled` if this is a command of ours, else []."""
        words = shlex.split(self.text) if self.language == "sh" else []
        return words[1:] if words and Path(words[0]).name == "opensled" else []


def commands(page: str) -> Iterator[PageCommand]:
    """All of them, in their order. Raises ValueError for a block that does not say where it is typed."""
    for language, info, text in _BLOCK.findall(page):
        machine = info.strip()
        if language not in LANGUAGES or machine not in MACHINES:
            raise ValueError(
                f"a block of `{language}{info}`, which is not `sh` or `python`, then `pc` or `pi`: {text}"
            )
        lines = [text] if language == "python" else text.replace("\\\n", " ").splitlines()
        yield from (PageCommand(line, machine, language) for line in lines if line.strip())


def inline(page: str) -> list[list[str]]:
    """The words behind `opensled` of commands within the text; those without a flag or a second word are names."""
    spans = re.findall(r"`(opensled [^`\n]+)`", _BLOCK.sub("", page))
    return [shlex.split(span)[1:] for span in spans]


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
