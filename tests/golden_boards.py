"""Sample trees of four boards, each in one text file: names such as `soc:firmware` cannot be checked out everywhere.

`python -m tests.golden_boards pi-5 FOLDER` plants one, to be looked at with `opensled doctor --root FOLDER`.
"""

import sys
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"
BOARDS = tuple(sorted(path.stem for path in GOLDEN.glob("*.tree")))


def plant(board: str, folder: Path) -> Path:
    """Write the tree of `board` below `folder`; returns the folder, a root for every reader.

    In the file "@ PATH = TEXT" is a file of one line, "@ PATH" one whose lines follow; \\0 stands for a zero byte. The
    first paragraph of "@ PATH of N cores" is that of each {core}.
    """
    for path, content in read_tree((GOLDEN / f"{board}.tree").read_text("utf-8")).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return folder


def read_tree(text: str) -> dict[str, bytes]:
    """Contents by path."""
    files: dict[str, bytes] = {}
    for block in f"\n{text}".split("\n@ ")[1:]:
        head, _, lines = block.partition("\n")
        path, _, line = head.partition(" = ")
        path, _, cores = path.partition(" of ")
        if cores:
            one, _, rest = lines.partition("\n\n")
            each = [one.rstrip().format(core=core) for core in range(int(cores.split()[0]))]
            lines = "\n\n".join([*each, rest])
        content = f"{line}\n" if line else f"{lines.rstrip()}\n"
        zeros = content.replace("\\0", "\0")
        files[path] = (zeros if zeros == content else zeros.rstrip("\n")).encode()
    return files


if __name__ == "__main__":
    print(plant(sys.argv[1], Path(sys.argv[2])))
