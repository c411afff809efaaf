"""Where a network comes from: a name of the zoo, or a function in a person's own Python file."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotm.model.errors import BadInputError, unknown_name


@dataclass(frozen=True)
class NetworkSource:
    """A network to be built.

    Attributes:
        name: as paths and records call it.
        sizes: arguments of the function that builds it, e.g. `{"batch": 8, "image": 139}`.
        file: a Python file; None for a network of the zoo.
        function: the function in `file` that returns the network; or `package.module:function`.
        root: of the latter, the folder that packages are looked for in besides those installed.
    """

    name: str
    sizes: Mapping[str, int]
    file: str | None = None
    function: str = ""
    root: str | None = None

    @classmethod
    def imported(cls, name: str, sizes: Mapping[str, int], address: str, root: Path) -> NetworkSource:
        """Return a network that `package.module:function` returns, whose package lies in `root` or is installed.

        Raises:
            BadInputError: not such an address, or no such module; nothing is imported to find out.
        """
        module, colon, function = address.partition(":")
        if not (colon and function.isidentifier() and all(part.isidentifier() for part in module.split("."))):
            raise BadInputError(f"network {name}: torch: '{address}' is not package.module:function")
        return cls(name, sizes, str(_file_of(name, module, root)), address, str(root))

    @property
    def provenance(self) -> dict[str, Any]:
        """Description of the source for files made from it: sizes; path, function and hash of the user's own file."""
        source: dict[str, Any] = {"sizes": dict(self.sizes)}
        if self.file is not None:
            digest = hashlib.sha256(Path(self.file).read_bytes()).hexdigest()[:16]
            source |= {"network_file": self.file, "network_function": self.function, "network_file_hash": digest}
        return source

    def require(self) -> None:
        """Raise where one's own file shows, without being run, that it cannot give the network.

        Raises:
            BadInputError: no such file, not Python, or no such function; names the nearest.
        """
        if self.file is None:
            return
        try:
            tree = ast.parse(Path(self.file).read_bytes(), self.file)
        except OSError as error:
            raise BadInputError(f"network {self.name}: {self.file}: cannot be read ({error.strerror})") from None
        except (SyntaxError, ValueError) as error:
            where = f" line {error.lineno}:" if isinstance(error, SyntaxError) else ""
            raise BadInputError(f"network {self.name}: {self.file}:{where} not Python: {error}") from None
        names, function = set(_top_level(tree.body)), self.function.rpartition(":")[2]
        if function not in names and "*" not in names:
            raise BadInputError(f"network {self.name}: {self.file}: {unknown_name('function', function, names)}")


def _file_of(name: str, module: str, root: Path) -> Path:
    """Return the file of a module, found without importing the packages that it is in."""
    top, *parts = module.split(".")
    spec = importlib.util.find_spec(top) if not (root / top).exists() and not (root / f"{top}.py").exists() else None
    folders = [root]
    if spec is not None and spec.origin:
        folders.append(Path(spec.origin).parents[0 if spec.submodule_search_locations is None else 1])
    for folder in folders:
        for path in (f"{'/'.join([top, *parts])}.py", f"{'/'.join([top, *parts])}/__init__.py"):
            if (folder / path).is_file():
                return folder / path
    raise BadInputError(f"network {name}: torch: no module {module} in {root}, nor installed")


def _top_level(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that a module defines or imports; `*` where it imports all of another one."""
    for statement in statements:
        match statement:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield statement.name
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in statement.names)
            case _:
                yield from (
                    node.id
                    for node in ast.walk(statement)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                )
                for part in ("body", "orelse", "finalbody"):
                    inner = getattr(statement, part, [])
                    yield from _top_level(inner if isinstance(inner, list) else [])
