"""The floors and rooms of the house: imports go down, rooms are entered by their faces, heavy libraries stay put."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "autotm"

FLOORS = {
    "model": 1,
    "zoo": 2, "lower": 2, "kernels": 2, "solve": 2, "layout": 2, "memory": 2, "check": 2,
    "runtime": 3, "profile": 4, "study": 5, "stages": 6, "cli": 7, "api": 7,
}  # fmt: skip
ROOT_FLOOR = 8
SIDEWAYS = {("lower", "zoo"), ("lower", "kernels"), ("zoo", "kernels"), ("solve", "layout")}
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
    "torch": {"zoo", "memory", "runtime", "api"},
}
INSIDE = {
    "api": {"offload": 1},
    "api/offload": {"graph": 1},
    "model": {"files": 1, "step": 2, "machine": 3, "plan": 3, "measurement": 4, "study": 4},
    "check": {"bound": 1},
    "lower": {"operators": 1, "updates": 2},
    "lower/operators": {"pointwise": 1, "products": 1, "moving": 1, "windows": 1, "norms": 1},
    "memory": {"native": 1, "linux": 1, "device": 1, "gpu": 1, "torch": 1, "kinds": 2, "calibration": 2},
    "memory/gpu": {"threads": 1, "cuda": 1},
    "zoo": {"network": 1, "paper": 2, "frontend": 2, "twin": 2},
    "zoo/frontend": {"torch": 1, "onnx": 1},
    "runtime": {"timing": 1, "streams": 2},
    "runtime/streams": {"framework": 1},
    "profile": {"gpu": 1, "store": 1, "copies": 1, "timing": 2, "step": 3, "tuning": 3, "host": 4},
    "study": {
        "setup": 1, "tables": 2, "noise": 2, "timing": 3, "kernel_report": 3, "drawing": 3, "figures": 4, "sweep": 4,
        "view": 4, "explain": 5, "doctor": 3, "report": 1,
    },
    "study/figures": {"comparisons": 1, "gpu": 2},
    "stages": {"jobs": 1, "exchange": 1},
    "stages/exchange": {"bundle": 1},
    "cli": {"process": 1, "pipeline": 1, "answers": 1, "pictures": 1, "records": 1, "machine": 1},
    "cli/machine": {"optane": 1},
    "solve": {
        "problem": 1, "paging": 2, "bounds": 2, "program": 3, "plans": 4, "search": 5, "bases": 6, "rivals": 7,
        "optimizers": 8,
    },
    "solve/optimizers": {"gpu_rivals": 1},
    "kernels": {"library": 1, "vendor": 1, "code": 1, "operators": 2, "schedules": 3, "making": 4, "cuda": 4},
    "kernels/cuda": {"contraction": 2},
    "kernels/operators": {"windows": 1, "moving": 1},
    "kernels/schedules": {"rows": 1, "generic": 1, "contraction": 1},
    "kernels/schedules/contraction": {"parts": 1, "forms": 2, "weights": 3, "winograd": 3},
}  # fmt: skip
"""Floors of rooms within a room."""
MAX_LINES, MEDIAN_LINES = 300, 90
MAX_ENTRIES, MAX_AT_ROOT = 13, 16

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


def module_at(parts: Sequence[str]) -> Path | None:
    """The file or folder of a module of ours; None where there is none."""
    path = SOURCE.joinpath(*parts)
    return path if path.is_dir() else path.with_suffix(".py") if path.with_suffix(".py").is_file() else None


def named(face: Path) -> set[str]:
    """What a room's `__init__` names for others."""
    for node in ast.parse((face / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            return set(ast.literal_eval(node.value))
    return set()


def trespasses(source: str, path: Path) -> list[str]:
    """Imports past a face, or from a room that is not below, within the packages that have rooms."""
    room, found = path.parent, []
    for node in ast.walk(ast.parse(source)):
        parts = (node.module or "").split(".") if isinstance(node, ast.ImportFrom) else []
        if len(parts) < 2 or parts[0] != "autotm" or parts[1] not in FLOORS:
            continue
        target = module_at(parts[1:])
        assert target is not None, f"{path}:{node.lineno}: no module {'.'.join(parts)}"
        home = target if target.is_dir() else target.parent
        where = f"{path.relative_to(SOURCE)}:{node.lineno}: {'.'.join(parts)}"
        if target.is_dir() and room.is_relative_to(target):
            own = {alias.name for alias in node.names if module_at([*parts[1:], alias.name]) is None}
            found += [f"{where}: {name} is asked of the face that it stands behind" for name in sorted(own)]
        if not room.is_relative_to(home):
            hidden = {alias.name for alias in node.names} - named(home) if target.is_dir() else {target.stem}
            found += [f"{where}: {name} is not in the face of its room" for name in sorted(hidden)]
        found += [f"{where}: {climb}" for climb in climbs(room, home)]
    return found


def climbs(room: Path, home: Path) -> Iterator[str]:
    """Where the ways to two rooms part, the one imported from must be on the lower floor."""
    for outer, floors in INSIDE.items():
        house = SOURCE / outer
        if room.is_relative_to(house) and home.is_relative_to(house) and house not in {room, home}:
            mine, theirs = (each.relative_to(house).parts[0] for each in (room, home))
            if mine != theirs and floors[theirs] >= floors[mine]:
                yield f"{theirs} is not below {mine}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_rooms_are_entered_by_their_faces(path: Path) -> None:
    assert trespasses(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("solve/bounds/x.py", "from autotm.solve.problem.flow import Flow"),
        ("solve/bounds/x.py", "from autotm.solve.problem import flags_that_nobody_names"),
        ("solve/problem/x.py", "from autotm.solve.bounds import Prices"),
        (
            "kernels/schedules/contraction/parts/x.py",
            "from autotm.kernels.schedules.contraction.forms import each_group",
        ),
        ("layout/x.py", "from autotm.model.step.graph import Graph"),
        ("solve/problem/x.py", "from autotm.solve import solve"),
        ("model/step/x.py", "from autotm.model.plan import Plan"),
    ],
)
def test_a_trespass_is_seen(path: str, source: str) -> None:
    assert len(trespasses(source, SOURCE / path)) >= 1


@pytest.mark.parametrize("package", FLOORS)
def test_every_room_has_a_floor_and_a_sentence(package: str) -> None:
    for face in (SOURCE / package).rglob("__init__.py"):
        assert ast.get_docstring(ast.parse(face.read_text(encoding="utf-8"))), f"{face}: what is this room for?"
        rooms = {inner.parent.name for inner in face.parent.glob("*/__init__.py")}
        assert rooms == set(INSIDE.get(str(face.parent.relative_to(SOURCE)), ()))
        entries = [entry for entry in face.parent.iterdir() if entry.name != "__pycache__"]
        assert len(entries) <= MAX_ENTRIES, f"{face.parent}: {len(entries)} entries"


def test_every_package_has_a_floor() -> None:
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages == set(FLOORS)
    entries = sorted(entry.name for entry in SOURCE.iterdir() if entry.name != "__pycache__")
    assert len(entries) <= MAX_AT_ROOT, entries


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path: Path) -> None:
    assert violations(path.read_text(encoding="utf-8"), path) == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("model/step/graph.py", "from autotm.solve import solve"),
        ("model/step/graph.py", "from autotm import solve"),
        ("check/plan.py", "import autotm.layout.pack"),
        ("runtime/x.py", "def f():\n    from autotm.profile.timing import cases"),
        ("solve/x.py", "import tvm"),
        ("study/x.py", "from pyomo.environ import Var"),
        ("zoo/x.py", "from autotm.lower.step import whole_step"),
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


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_test_file_says_what_it_holds(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_files_are_short() -> None:
    lines = sorted(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES)
    assert lines[len(lines) // 2] < MEDIAN_LINES


@pytest.mark.parametrize("path", sorted((ROOT / "workflow" / "scripts").glob("*.py")), ids=lambda path: path.name)
def test_scripts_only_hand_over(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 40
    assert trespasses(source, SOURCE / path.name) == []
