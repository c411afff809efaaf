"""Imports are followed wherever they stand, but for those that only type checkers read."""

from __future__ import annotations

from pathlib import Path

import pytest

import autotm
from autotm.model.errors import AutotmError, BadInputError
from autotm.stages.bundle_files import downloaded_files, is_needed, modules_of, newest_glibc, require_installed

FILES = {
    "__init__.py": "from importlib import import_module\n",
    "entry.py": "from own.near import thing\ndef f():\n    from own.far.late import x\n",
    "near/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from own.never import y\n",
    "far/__init__.py": "",
    "far/late.py": "import importlib\nfrom own.far import kinds\nimportlib.import_module('own.far.kinds.one')\n",
    "far/kinds/__init__.py": "",
    "far/kinds/one.py": "import own.far.other\n",
    "far/other.py": "",
    "never.py": "",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own"


def test_imports_are_followed(package: Path) -> None:
    found = {path.relative_to(package).as_posix() for path in modules_of(package, "own.entry")}
    assert found == FILES.keys() - {"never.py"}


def test_a_module_that_is_gone_is_told(package: Path) -> None:
    (package / "far" / "other.py").unlink()
    with pytest.raises(AutotmError, match=r"own\.far\.other is imported and not there"):
        modules_of(package, "own.entry")


def test_running_needs_every_kind_of_memory_and_nothing_that_plans() -> None:
    package = Path(autotm.__file__).parent
    found = {path.relative_to(package).as_posix() for path in modules_of(package, "autotm.runtime.run")}
    assert {f"memory/kinds/{path.name}" for path in (package / "memory" / "kinds").glob("*.py")} <= found
    assert {name.partition("/")[0] for name in found} <= {
        "__init__.py", "kernels", "layout", "memory", "model", "runtime"
    }  # fmt: skip
    kernels = {name.removeprefix("kernels/") for name in found if name.startswith("kernels/")}
    assert kernels <= {"__init__.py", "library.py", "yardsticks.py"}


@pytest.mark.parametrize(
    ("name", "needed"),
    [
        ("numpy/linalg/_umath.so", True),
        ("numpy/tests/test_all.py", False),
        ("tvm/lib/libtvm_compiler.so", False),
        ("tvm/lib/libtvm_runtime.so", True),
        ("tvm/3rdparty/x/LICENSE", True),
        ("numpy-2.0.dist-info/METADATA", True),
        ("numpy-2.0.dist-info/licenses/LICENSE.txt", True),
        ("numpy-2.0.dist-info/RECORD", False),
        ("../../bin/f2py", False),
    ],
)
def test_what_runs_nothing_is_left_out(name: str, needed: bool) -> None:
    assert is_needed(name) == needed


def test_the_newest_version_of_the_c_library_counts() -> None:
    files = {"a.so": b"\x7fELF GLIBC_2.9 GLIBC_2.34", "b.so": b"\x7fELF GLIBC_2.17", "text": b"GLIBC_9.9"}
    assert newest_glibc(files) == (2, 34)


def test_libraries_that_are_not_to_be_had_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(BadInputError, match=r"--python 3\.12: pip could not download numpy==.* for CPython 3\.12"):
        list(downloaded_files(["numpy"], "3.12", tmp_path))


def test_a_library_that_is_missing_is_told_before_anything_is_made() -> None:
    with pytest.raises(AutotmError, match="bundle: autotm-of-no-one is not installed here: pip install"):
        require_installed(["numpy", "autotm-of-no-one"])
