"""Print the commands of documents that are marked as checked, one script for a shell; what is said again is run once.

The line before a block of commands is `<!-- checked by .ci/run -->`, or says why it is not:
`<!-- not run by .ci/run: WHY -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

_BLOCK = re.compile(r"^([^\n]*)\n```(?:bash|sh|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CHECKED = "<!-- checked by .ci/run -->"
_NOT_RUN = re.compile(r"<!-- not run by \.ci/run: .+ -->")


def commands(text: str) -> list[str]:
    """Every command line of the marked blocks, in order.

    Raises:
        ValueError: a block is neither marked as checked, nor says why it is not.
    """
    lines: list[str] = []
    for mark, block in _BLOCK.findall(text):
        if mark == _CHECKED:
            lines += block.splitlines()
        elif not _NOT_RUN.fullmatch(mark):
            raise ValueError(f"say of these commands whether .ci/run runs them:\n{block}")
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def once(lines: list[str]) -> list[str]:
    """Without a command of one line that came before: with its files there, it shows nothing new."""
    kept: dict[tuple[str | int, ...], str] = {}
    for number, line in enumerate(lines):
        words = line.split()
        kept.setdefault((*words,) if words[0] in {"autotm", "make"} else (number,), line)
    return list(kept.values())


if __name__ == "__main__":
    every: list[str] = []
    for document in sys.argv[1:]:
        try:
            every += commands(Path(document).read_text(encoding="utf-8"))
        except ValueError as error:
            sys.exit(f"{document}: {error}")
    print("\n".join(once(every)))
