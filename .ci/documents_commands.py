"""Print the commands of documents that are marked as checked, one script for a shell.

A block counts when the line before it is `<!-- checked by .ci/run -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

MARKED = re.compile(r"<!-- checked by \.ci/run -->\n```(?:bash|sh|console)\n(.*?)```", re.DOTALL)


def commands(text: str) -> list[str]:
    """Every command line of the marked blocks, in order."""
    lines = "".join(MARKED.findall(text)).splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


if __name__ == "__main__":
    for document in sys.argv[1:]:
        found = commands(Path(document).read_text(encoding="utf-8"))
        if not found:
            sys.exit(f"{document}: no block is marked as checked")
        print("\n".join(found))
