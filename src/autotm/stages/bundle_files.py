"""Files of a bundle: modules that an entry point imports, libraries, and the archive with its manifest.

Libraries are as installed here, or downloaded by pip; the manifest holds hashes.
"""

from __future__ import annotations

import ast
import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any

from autotm.model.errors import AutotmError, BadInputError
from autotm.model.files import write_atomically
from autotm.stages.bundle_launcher import FORMAT

# The modules that a module needs, by following imports: those of autotm from the sources, others from a process.

_IMPORT_BY_NAME = "import_module"
"""A module that calls this function loads modules of a package by name (`memory/opening.py`): all of them are taken."""


def modules_of(package: Path, entry: str) -> list[Path]:
    """Return the files of a package that one of its modules imports, at its top or later, directly or indirectly.

    Args:
        package: the folder of the package, such as `src/autotm`.
        entry: a dotted name below it, such as `autotm.profile.host_commands`.

    Raises:
        AutotmError: a module that is imported is not there.
    """
    modules: set[Path] = set()
    waiting = [entry]
    while waiting:
        for path in _module_files(package, waiting.pop()):
            if path not in modules:
                modules.add(path)
                waiting += _imported_modules(package, path)
    return sorted(modules)


def _module_files(package: Path, module: str) -> list[Path]:
    """Return the file of a module, and the `__init__` of each package around it."""
    parts = module.split(".")[1:]
    inits = [package.joinpath(*parts[:depth], "__init__.py") for depth in range(len(parts) + 1)]
    file = package.joinpath(*parts).with_suffix(".py") if parts else inits[0]
    if inits[-1].exists():
        return inits
    if not file.exists():
        raise AutotmError(f"bundle: {module} is imported and not there; is this autotm installed whole?")
    return [*inits[:-1], file]


def _imported_modules(package: Path, path: Path) -> Iterator[str]:
    top, subpackages = package.name, set()
    nodes = list(_nodes_at_run_time(ast.parse(path.read_text(encoding="utf-8"))))
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == top)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == top:
            yield node.module
            folder = package.joinpath(*node.module.split(".")[1:])
            for alias in node.names:
                if (folder / alias.name).is_dir() or (folder / f"{alias.name}.py").exists():
                    yield f"{node.module}.{alias.name}"
                    subpackages.add(folder / alias.name)
    if path.parent != package and any(
        isinstance(node, ast.Attribute) and node.attr == _IMPORT_BY_NAME for node in nodes
    ):
        for subpackage in sorted(subpackages):
            for file in sorted(subpackage.glob("*.py")):
                yield ".".join([top, *file.relative_to(package).with_suffix("").parts]).removesuffix(".__init__")


def _nodes_at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes below it, without the bodies of `if TYPE_CHECKING`."""
    yield node
    for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    for child in node.orelse if isinstance(node, ast.If) and for_types else ast.iter_child_nodes(node):
        yield from _nodes_at_run_time(child)


_PROGRAM = """
import importlib, json, sys
sys.path.insert(0, sys.argv[2])
before = set(sys.modules)
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def distributions_of(package: Path, modules: Sequence[Path]) -> list[str]:
    """Return the installed distributions that a new process loads with these modules of a package.

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


# Libraries for a bundle: as they are installed here, or, for another version of Python, as pip downloads them.

RUNTIME_OF_TVM = "apache-tvm"
"""The distribution whose shared library is opened by path; none of its modules is imported."""
NVIDIAS = ("cuda-bindings", "cuda-pathfinder", "nvidia-ml-py")
"""Further distributions that run a step on a GPU; they are loaded only if there is one."""
_UNUSED_FOLDERS = frozenset({"tests", "testing_data", "__pycache__", "3rdparty", "src", "include", "web", "f2py"})
_UNUSED_SUFFIXES = frozenset({".pyi", ".pyc", ".a", ".h", ".hpp", ".pxd", ".pyx"})
_COMPILERS = frozenset({"libtvm_compiler.so"})


def is_needed(name: str) -> bool:
    """Return whether a file of a distribution is of use where nothing is compiled or tested; licences always are."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return False
    if path.parts[0].endswith(".dist-info"):
        return path.name == "METADATA" or "licenses" in path.parts or _is_licence(path.name)
    if _is_licence(path.name):
        return True
    return (
        not _UNUSED_FOLDERS.intersection(path.parts[:-1])
        and path.suffix not in _UNUSED_SUFFIXES
        and path.name not in _COMPILERS
    )


def _is_licence(name: str) -> bool:
    return name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE"))


def require_installed(names: Sequence[str]) -> None:
    """Refuse before anything is compiled.

    Raises:
        AutotmError: a distribution is not installed here, so that its version is not known.
    """
    for name in names:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            extra = "autotm[cuda]" if name in NVIDIAS else name
            raise AutotmError(f"bundle: {name} is not installed here: pip install '{extra}'") from None


def installed_files(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the needed files of installed distributions, by their paths below a folder for modules.

    Raises:
        AutotmError: it is not known which files a distribution has, or one is gone.
    """
    for name in names:
        distribution = metadata.distribution(name)
        if distribution.files is None:
            raise AutotmError(f"bundle: {name} does not say which files it has; install it anew with pip")
        for file in distribution.files:
            if is_needed(file.as_posix()):
                try:
                    yield file.as_posix(), Path(str(file.locate())).read_bytes()
                except OSError as error:
                    raise AutotmError(
                        f"bundle: {name}: {file} cannot be read ({error.strerror}); install it anew: "
                        f"pip install --force-reinstall {name}=={distribution.version}"
                    ) from None


def downloaded_files(names: Sequence[str], python: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what `installed_files` yields, in the same versions for CPython `python`; wheels go to `folder`.

    Raises:
        BadInputError: there are no such wheels, or no network.
    """
    wanted = [f"{name}=={metadata.version(name)}" for name in names]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--python-version", python, "--dest", str(folder), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
        raise BadInputError(
            f"--python {python}: pip could not download {', '.join(wanted)} for CPython {python} ({reason}). That "
            f"needs a network and pip; a bundle for CPython {this_python()}, which runs here, needs neither"
        )
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if not name.endswith("/") and is_needed(name):
                    yield name, archive.read(name)


def this_python() -> str:
    """Return the version of Python that runs this, as in `--python`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


# A bundle as one archive: a folder with its launcher, every file, and a manifest with the hash of each.

_LAUNCHER = Path(__file__).with_name("bundle_launcher.py")
_PRESET = 0
"""Preset of xz. The archive is a tenth larger than with 1, and takes less than two thirds of the time.

Measured: 21.5 and 20.0 MB, 7.9 and 13.5 s of a core.
"""
_EXECUTABLE = 0o755
_GLIBC = re.compile(rb"GLIBC_(\d+)\.(\d+)")
_ELF = b"\x7fELF"


def write_bundle(file: Path, folder: str, files: Mapping[str, bytes], facts: Mapping[str, Any]) -> None:
    """Write `folder` with its files as a .tar.xz, whole or not at all; the same bytes give the same archive.

    Args:
        file: the archive.
        folder: name of the folder in the archive.
        files: contents by path within the folder.
        facts: further entries of the manifest: the launcher's requirements, and their purpose.
    """
    files = {**files, "__main__.py": _LAUNCHER.read_bytes()}
    manifest = {
        "kind": "bundle",
        "format": FORMAT,
        **facts,
        "glibc": ".".join(map(str, newest_glibc(files))),
        "files": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(files.items())},
    }
    listed = {**files, "manifest.json": json.dumps(manifest, indent=1).encode() + b"\n"}

    def write(temporary: Path) -> None:
        with tarfile.open(temporary, "w:xz", preset=_PRESET) as archive:
            for name, content in sorted(listed.items()):
                entry = tarfile.TarInfo(f"{folder}/{name}")
                entry.size, entry.mode = len(content), _EXECUTABLE if content.startswith(_ELF) else 0o644
                archive.addfile(entry, io.BytesIO(content))

    write_atomically(file, write)


def newest_glibc(files: Mapping[str, bytes]) -> tuple[int, int]:
    """Return the newest version of the GNU C library whose symbols the shared libraries among `files` name."""
    versions = (pair for content in files.values() if content.startswith(_ELF) for pair in _GLIBC.findall(content))
    return max(((int(major), int(minor)) for major, minor in versions), default=(2, 17))
