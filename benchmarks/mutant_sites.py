"""Faults for `mutants.py`: where they are seeded, and probes that tell which tests reach these places.

A fault is a piece of a file as it is and as it becomes, so it can be put into another version of the file, too. Places
are ranked by a hash of the seed and of the line's own text: edits elsewhere leave them where they are.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

SOURCES = Path("src/autotm")
# What needs arguments, and what only makes `==` an `is`: equal small numbers and names are mostly one object.
LEFT_OUT = ("VariableReplacer", "VariableInserter", "_Eq_Is", "_NotEq_IsNot", "_Is_Eq", "_IsNot_NotEq")
KINDS = {
    "ReplaceBinaryOperator": ("operator",),
    "ReplaceComparisonOperator": ("comparison",),
    "ReplaceUnaryOperator": ("factor", "not_test"),
}
HITS = Path("src/autotm/mutant_hits.py")
HIT = '__import__("autotm.mutant_hits", fromlist=["hit"]).hit({})'
# Written beside the sources, as children may see neither our environment nor our path.
HITS_TEXT = '''"""Notes which test reached which place."""
import json
import os
FILE, SEEN, environ, write, opened = {file!r}, set(), os.environ, os.write, os.open
def hit(site):
    seen = (site, environ.get("PYTEST_CURRENT_TEST", ""), environ.get("AUTOTM_MUTANTS_AT", ""))
    if seen not in SEEN:
        SEEN.add(seen)
        try:
            file = opened(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            write(file, (json.dumps(seen) + "\\n").encode())
            os.close(file)
        except OSError:
            pass
    return True
'''


class NotThereError(Exception):
    """A version of a file without the lines that a fault changes."""


@dataclass(frozen=True)
class Fault:
    """One change of one place.

    Attributes:
        line: number of the first changed line, from one.
        column: where the operator found what it changes in `line_found`, from zero.
        line_found: where the operator found what it changes: within a statement of several lines another than `line`.
        was: the lines as they are.
        becomes: the lines as they become.
        nth: how often `was` comes before in this file.
        count: how often `was` is in this file.
    """

    package: str
    file: str
    operator: str
    line: int
    line_found: int
    column: int
    was: str
    becomes: str
    nth: int
    count: int

    @property
    def name(self) -> str:
        """The same for the same change, wherever other edits moved it."""
        return _hash(self.file, self.was, self.becomes, self.nth)[:10]

    def applied(self, root: Path) -> str:
        """Return the text of the file with this fault.

        Raises:
            NotThereError: the version below `root` has not these lines, or not as often.
        """
        path = root / self.file
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        was = self.was.splitlines(keepends=True)
        places = _places(lines, was)
        if len(places) != self.count:
            raise NotThereError(self.file, self.was)
        start = places[self.nth]
        return "".join([*lines[:start], self.becomes, *lines[start + len(was) :]])


def packages(root: Path) -> dict[str, int]:
    """Lines of each package."""
    folders = sorted(path for path in (root / SOURCES).iterdir() if path.is_dir() and any(path.rglob("*.py")))
    return {path.name: sum(len(file.read_text().splitlines()) for file in path.rglob("*.py")) for path in folders}


def shares(lines: Mapping[str, int], total: int) -> dict[str, int]:
    """Return the faults of each package: by its lines, largest remainder first, and one at least."""
    exact = {package: total * count / sum(lines.values()) for package, count in lines.items()}
    quotas = {package: max(1, int(share)) for package, share in exact.items()}
    ranked = sorted(exact, key=lambda package: quotas[package] - exact[package])
    for package in ranked[: max(0, total - sum(quotas.values()))]:
        quotas[package] += 1
    return quotas


def faults(root: Path, package: str, seed: int, versions: Sequence[Path]) -> Iterator[Fault]:
    """Faults of a package that every version has the lines for, one a line, in the order of the seed."""
    ranked = []
    for path in sorted((root / SOURCES / package).rglob("*.py")):
        file, seen = str(path.relative_to(root)), Counter[str]()
        for number, text in enumerate(path.read_text().splitlines(), start=1):
            key = text.strip()
            if key and not key.startswith(("#", "import ", "from ", '"""')):
                ranked.append((_hash(seed, file, key, seen[key]), file, number))
                seen[key] += 1
    for rank, file, number in sorted(ranked):
        fault = _fault(root, package, file, number, rank)
        if fault and all(_fits(fault, version) for version in versions):
            yield fault


def _fault(root: Path, package: str, file: str, number: int, rank: str) -> Fault | None:
    source = (root / file).read_text()
    mutations = _positions(root / file).get(number, [])
    families: dict[str, list[tuple[str, int, int]]] = {}
    for name, occurrence, column in mutations:
        families.setdefault(name.partition("_")[0], []).append((name, occurrence, column))
    for family in sorted(families, key=lambda family: _hash(rank, family)):
        for name, occurrence, column in sorted(families[family], key=lambda each: _hash(rank, *each)):
            changed = mutate_code(source, cosmic_ray.plugins.get_operator(name)(), occurrence)
            if changed and changed != source and _compiles(changed):
                return _between(package, file, (name, number, column), source, changed)
    return None


def _between(package: str, file: str, site: tuple[str, int, int], source: str, changed: str) -> Fault:
    before, after = source.splitlines(keepends=True), changed.splitlines(keepends=True)
    codes = [
        code
        for code in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
        if code[0] != "equal"
    ]
    start, end, new_start, new_end = codes[0][1], codes[-1][2], codes[0][3], codes[-1][4]
    places = _places(before, before[start:end])
    operator, line_found, column = site
    return Fault(
        package, file, operator.removeprefix("core/"), start + 1, line_found, column,
        "".join(before[start:end]), "".join(after[new_start:new_end]), places.index(start), len(places),
    )  # fmt: skip


@cache
def _operators() -> dict[str, dict[str, Operator]]:
    """Operators by what nodes they change, as asking all two hundred at each node takes minutes; "" stands for any."""
    by_kind: dict[str, dict[str, Operator]] = {}
    for name in sorted(cosmic_ray.plugins.operator_names()):
        if not any(part in name for part in LEFT_OUT):
            for kind in next((kinds for family, kinds in KINDS.items() if family in name), ("",)):
                by_kind.setdefault(kind, {})[name] = cosmic_ray.plugins.get_operator(name)()
    return by_kind


@cache
def _positions(path: Path) -> dict[int, list[tuple[str, int, int]]]:
    """Return the operators of each line: name, which occurrence in the file, column."""
    source = path.read_text()
    annotations = list(_annotations(ast.parse(source)))
    counts, positions = Counter[str](), dict[int, list[tuple[str, int, int]]]()
    for node in ast_nodes(get_ast(source)):
        if node.parent is not None and node.parent.type == "parameters":
            continue  # of `*` and `/` between parameters
        for name, operator in (_operators()[""] | _operators().get(node.type, {})).items():
            for start, _ in operator.mutation_positions(node):
                if not any(first <= start < last for first, last in annotations):
                    positions.setdefault(start[0], []).append((name, counts[name], start[1]))
                counts[name] += 1
    return positions


def _annotations(tree: ast.AST) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Where types are written: no operator changes these, as a program that starts does not heed them."""
    for node in ast.walk(tree):
        for hint in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(hint, ast.expr):
                yield (hint.lineno, hint.col_offset), (hint.end_lineno or 0, hint.end_col_offset or 0)


def _compiles(source: str) -> bool:
    try:
        compile(source, "<fault>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _fits(fault: Fault, root: Path) -> bool:
    try:
        return _compiles(fault.applied(root))
    except NotThereError:
        return False


def _places(lines: Sequence[str], wanted: Sequence[str]) -> list[int]:
    return [at for at in range(len(lines) - len(wanted) + 1) if list(lines[at : at + len(wanted)]) == list(wanted)]


def _hash(*parts: object) -> str:
    return hashlib.sha256("|".join(map(str, parts)).encode()).hexdigest()


# --- probes ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Place:
    """The statement that a fault changes.

    Attributes:
        names: what it defines where it runs at import; none if it is a function's head, whose body tells who calls it.
    """

    file: str
    line: int
    names: tuple[str, ...]
    at_import: bool


def place(root: Path, fault: Fault) -> Place:
    """Where the fault is in this version of its file."""
    lines = (root / fault.file).read_text().splitlines(keepends=True)
    start = _places(lines, fault.was.splitlines(keepends=True))[fault.nth]
    line = start + 1 + fault.line_found - fault.line
    tree = ast.parse("".join(lines))
    around = _around(tree, line, fault.column)
    if any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) for node in around[:-1]):
        return Place(fault.file, line, (), at_import=False)
    # How a function is decorated, and what it takes if nothing is given, matters to those who call it.
    of_function = isinstance(around[-1], ast.FunctionDef | ast.AsyncFunctionDef)
    names = [] if of_function else [name for node in around for name in _defined(node)]
    return Place(fault.file, line, tuple(dict.fromkeys(names)), at_import=True)


def _around(node: ast.AST, line: int, column: int) -> list[ast.stmt]:
    """Return the statements around a position, the innermost last; what is above `def` is part of what is around."""
    statements = [child for child in ast.walk(node) if isinstance(child, ast.stmt)]
    enclosing = [each for each in statements if _first(each) <= (line, column) < _last(each)]
    return sorted(enclosing, key=lambda each: (_first(each), [-number for number in _last(each)]))


def _first(node: ast.stmt) -> tuple[int, int]:
    decorators = getattr(node, "decorator_list", [])
    return min([(node.lineno, node.col_offset), *((each.lineno, each.col_offset - 1) for each in decorators)])


def _last(node: ast.stmt) -> tuple[int, int]:
    return node.end_lineno or 0, node.end_col_offset or 0


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [name.id for target in targets if target for name in ast.walk(target) if isinstance(name, ast.Name)]


def insert_probes(root: Path, sites: Mapping[int, Fault]) -> None:
    """Make the version below `root` note which test reaches which site.

    A site is the fault's statement itself; the body of the function whose head it is; or, where it runs at import,
    every function that uses the name it defines.
    """
    edits: dict[Path, list[tuple[int, int, str]]] = {}
    imported: dict[int, Place] = {}
    for site, fault in sites.items():
        at = place(root, fault)
        if at.names:
            imported[site] = at
        else:
            edits.setdefault(root / fault.file, []).extend(_statement_probe(root, at, fault.column, site))
    if imported:
        for path in sorted((root / SOURCES).rglob("*.py")):
            edits.setdefault(path, []).extend(_function_probes(path, str(path.relative_to(root)), imported))
    for path, inserted in edits.items():
        lines = path.read_bytes().splitlines(keepends=True)
        for line, column, text in sorted(inserted, reverse=True):
            lines[line - 1] = lines[line - 1][:column] + text.encode() + lines[line - 1][column:]
        if inserted:
            path.write_bytes(b"".join(lines))
            compile(path.read_text(), path, "exec")


def _statement_probe(root: Path, at: Place, column: int, site: int) -> Iterator[tuple[int, int, str]]:
    source = (root / at.file).read_bytes()
    statement = _around(ast.parse(source), at.line, column)[-1]
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and at.at_import:
        statement = next((each for each in statement.body if not _is_docstring(each)), statement)
    line, indent = _first(statement)
    before = source.splitlines()[line - 1][indent:]
    if isinstance(statement, ast.If) and before.startswith(b"elif"):
        test = statement.test
        yield test.lineno, test.col_offset, f"{HIT.format(site)} and ("
        yield test.end_lineno or 0, test.end_col_offset or 0, ")"
        return
    yield line, indent, _before(statement, site, indent)


def _before(statement: ast.stmt, site: int, indent: int) -> str:
    simple = not hasattr(statement, "body") and not isinstance(statement, ast.Match)
    return f"{HIT.format(site)}; " if simple else f"{HIT.format(site)}\n{' ' * indent}"


def _function_probes(path: Path, file: str, imported: Mapping[int, Place]) -> Iterator[tuple[int, int, str]]:
    source = path.read_text()
    candidates = {site: at for site, at in imported.items() if any(name in source for name in at.names)}
    if not candidates:
        return
    tree = ast.parse(source)
    inside = {
        id(each): node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for each in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        used = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        used |= {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
        used |= {
            node.name,
            *([inside[id(node)]] if id(node) in inside and any(at.file == file for at in candidates.values()) else []),
        }
        body = [each for each in node.body if not _is_docstring(each)]
        for site, at in candidates.items():
            if body and used & set(at.names):
                line, indent = _first(body[0])
                yield line, indent, _before(body[0], site, indent)


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
