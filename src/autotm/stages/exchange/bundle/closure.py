"""Which modules a module needs, by following imports: those of autotm from the sources, others from a process."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from autotm.model.files import AutotmError

_FOUND_BY_NAME = "import_module"
"""Who calls this finds what it loads by name, in a room that it imports (`memory/tiers.py`): all of it is taken."""


def modules_of(package: Path, entry: str) -> list[Path]:
    """The files of a package that a module of it imports, at its top or later, and those that these import.

    Args:
        package: the folder of the package, such as `src/autotm`.
        entry: a dotted name below it, such as `autotm.profile.host`.

    Raises:
        AutotmError: a module that is imported is not there.
    """
    found: set[Path] = set()
    waiting = [entry]
    while waiting:
        for path in _files(package, waiting.pop()):
            if path not in found:
                found.add(path)
                waiting += _imported(package, path)
    return sorted(found)


def _files(package: Path, module: str) -> list[Path]:
    """The file of a module, and the `__init__` of each package on the way to it."""
    parts = module.split(".")[1:]
    inits = [package.joinpath(*parts[:depth], "__init__.py") for depth in range(len(parts) + 1)]
    file = package.joinpath(*parts).with_suffix(".py") if parts else inits[0]
    if inits[-1].exists():
        return inits
    if not file.exists():
        raise AutotmError(f"bundle: {module} is imported and not there; is this autotm installed whole?")
    return [*inits[:-1], file]


def _imported(package: Path, path: Path) -> Iterator[str]:
    top, rooms = package.name, set()
    nodes = list(_run(ast.parse(path.read_text(encoding="utf-8"))))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == top)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == top:
            yield node.module
            folder = package.joinpath(*node.module.split(".")[1:])
            for alias in node.names:
                if (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").exists():
                    yield f"{node.module}.{alias.name}"
                    rooms.add(folder / alias.name)
    if path.parent != package and any(
        isinstance(node, ast.Attribute) and node.attr == _FOUND_BY_NAME for node in nodes
    ):
        for room in sorted(rooms):
            for file in sorted(room.glob("*.py")):
                yield ".".join([top, *file.relative_to(package).with_suffix("").parts]).removesuffix(".__init__")


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """What is under a node, without what only type checkers read."""
    yield node
    for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in node.orelse if isinstance(node, ast.If) and for_types else ast.iter_child_nodes(node):
        yield from _run(child)


_PROGRAM = """
import importlib, json, sys
sys.path.insert(0, sys.argv[2])
before = set(sys.modules)
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def distributions_of(package: Path, modules: Sequence[Path]) -> list[str]:
    """The installed distributions that a new process loads with these modules of a package.

    What a module imports only in a function of its own is not among them: it does without.

    Raises:
        AutotmError: a module cannot be imported.
    """
    names = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in modules]
    command = [sys.executable, "-c", _PROGRAM, json.dumps([name.removesuffix(".__init__") for name in names])]
    command.append(str(package.parent))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise AutotmError(f"bundle: what autotm needs to run cannot be imported here:\n{done.stderr.strip()}")
    owners = metadata.packages_distributions()
    tops = [top for top in json.loads(done.stdout) if top not in sys.stdlib_module_names and top != package.name]
    return sorted({owner for top in tops for owner in owners.get(top, ())})
