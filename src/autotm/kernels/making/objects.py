"""A folder of object files, and what is known of the kernels in them: compiled once, used by every later library."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tvm
from tvm import tirx

from autotm.kernels.code import machine_code
from autotm.model.files import write_atomically

_LEAST_PER_OBJECT, _MOST_PER_OBJECT = 4, 48
"""Kernels compiled as one module: many share code, and few let all processes work to the end."""
_TASKS_PER_PROCESS = 2


@dataclass(frozen=True)
class Held:
    """What a folder of objects holds.

    Attributes:
        code: the object file of each kernel, by symbol and identity (`code_key`).
        facts: what was found out about kernels when they were made, by whatever key the maker chose.
    """

    code: dict[str, Path] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)


def hash_of_sources(files: Sequence[Path]) -> str:
    """Of what modules do, wherever other modules of ours are: their lines but for imports of those."""
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return hashlib.sha256("\n".join(line for line in lines if not line.startswith("from autotm")).encode()).hexdigest()


def code_key(symbol: str, identity: str) -> str:
    """The name of one kernel's machine code."""
    return f"{symbol}-{identity[:32]}"


def held_in(folder: Path) -> Held:
    """What the lists in `folder` say; a list that cannot be read, or whose object is gone, holds no code."""
    found = Held()
    for listing in folder.glob("*.json"):
        try:
            content = json.loads(listing.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        found.facts.update(content["facts"])
        if (file := listing.with_suffix(".o")).exists():
            found.code.update(dict.fromkeys(content["code"], file))
    return found


def add_object(
    folder: Path, kernels: Mapping[str, tuple[str, tirx.PrimFunc]], facts: Mapping[str, Any], target: tvm.target.Target
) -> None:
    """Compile kernels (symbol and function by `code_key`) into one object file, and list it with `facts`.

    The list is written last: an object without one is not used.
    """
    listed = json.dumps({"code": sorted(kernels), "facts": facts})
    name = hashlib.sha256(listed.encode()).hexdigest()[:32]
    if kernels:
        made = machine_code(dict(kernels.values()), target)
        write_atomically(folder / f"{name}.o", lambda path: made.write_to_file(str(path), "o"))
    write_atomically(folder / f"{name}.json", lambda path: path.write_text(listed, encoding="utf-8"))


def split(names: list[str], processes: int) -> list[list[str]]:
    """Names of kernels in groups that each become one object."""
    wanted = -(-len(names) // (_TASKS_PER_PROCESS * processes))
    size = min(max(wanted, _LEAST_PER_OBJECT), _MOST_PER_OBJECT)
    return [names[start : start + size] for start in range(0, len(names), size)]
