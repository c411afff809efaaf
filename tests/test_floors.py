"""The house's floors: each package imports only from floors below it, and heavy libraries stay in their rooms."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "autotm"

FLOORS = {
    "model": 1,
    "zoo": 2, "lower": 2, "kernels": 2, "solve": 2, "layout": 2, "memory": 2, "check": 2,
    "profile": 3, "runtime": 3,
    "study": 4,
}  # fmt: skip
ROOT_FLOOR = 5
SIDEWAYS = {("lower", "zoo"), ("lower", "kernels"), ("zoo", "kernels"), ("layout", "solve")}
"""(importer, imported) pairs allowed on one floor, within its groups: zoo-lower-kernels and solve-layout."""
ROOMS = {
    "tvm": {"zoo", "lower", "kernels", "runtime"},
    "tvm_ffi": {"zoo", "lower", "kernels", "runtime"},
    "pyomo": {"solve"},
    "highspy": {"solve"},
    "omnimalloc": {"layout"},
    "matplotlib": {"study"},
    "seaborn": {"study"},
    "snakemake": set(),
}
MAX_LINES = 300

FILES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    """The room a file is in; files directly in the package root are the roof."""
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else ""


def floor_of(package: str) -> int:
    return FLOORS[package] if package else ROOT_FLOOR


def imports(source: str, path: Path) -> Iterator[tuple[str, int]]:
    """Every module that the file imports, anywhere in it, as an absolute dotted name with its line."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative import; the house uses absolute ones"
            assert node.module
            yield node.module, node.lineno
            if node.module == "autotm":
                yield from ((f"autotm.{alias.name}", node.lineno) for alias in node.names)


def violations(source: str, path: Path) -> list[str]:
    """What a file imports against the rules, as readable lines."""
    package, found = package_of(path), []
    for module, line in imports(source, path):
        parts = module.split(".")
        where = f"{path.relative_to(SOURCE)}:{line}"
        if parts[0] == "autotm" and len(parts) > 1:
            target = parts[1] if parts[1] in FLOORS else ""
            allowed = target == package or floor_of(target) < floor_of(package) or (package, target) in SIDEWAYS
            if not allowed:
                found.append(f"{where}: {package or 'root'} (floor {floor_of(package)}) imports {module}")
        elif package not in ROOMS.get(parts[0], {package}):
            found.append(f"{where}: {parts[0]} belongs in {', '.join(sorted(ROOMS[parts[0]])) or 'no package'} only")
    return found


def test_every_package_has_a_floor() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == set(FLOORS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("model/graph.py", "from autotm.solve import solve"),
        ("model/graph.py", "from autotm import solve"),
        ("check/plan.py", "import autotm.layout.pack"),
        ("profile/x.py", "def f():\n    from autotm.runtime.run import run"),
        ("solve/x.py", "import tvm"),
        ("study/x.py", "from pyomo.environ import Var"),
        ("zoo/x.py", "from autotm.lower.step import training_step"),
        ("model/x.py", "from autotm.cli import main"),
    ],
)
def test_a_broken_rule_is_seen(path: str, source: str) -> None:
    assert len(violations(source, SOURCE / path)) >= 1


@pytest.mark.parametrize(
    "path",
    [*FILES, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "benchmarks").glob("*.py"))],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_file_holds_one_idea(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MAX_LINES, f"{lines} lines; {MAX_LINES} are the most that reads in one go"


@pytest.mark.parametrize("path", sorted((ROOT / "workflow" / "scripts").glob("*.py")), ids=lambda path: path.name)
def test_scripts_only_hand_over(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40
