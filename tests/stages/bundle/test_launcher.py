"""What the launcher refuses before anything of a bundle is loaded: each with what is wrong and the remedy."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from autotm.stages.bundle_launcher import (
    UnfitError,
    is_standard,
    own_modules_only,
    require_computer,
    require_driver,
    require_python,
)

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
FITS = {
    "python": HERE, "machine": platform.machine(), "glibc": "2.17", "cpu_flags": [], "compiled_for": "znver9",
    "target": "cpu",
}  # fmt: skip


def test_this_computer_fits() -> None:
    for require in (require_python, require_computer, require_driver):
        require(FITS)


@pytest.mark.parametrize(
    ("require", "change", "message"),
    [
        (require_python, {"python": "3.8"}, "for CPython 3.8, this is CPython"),
        (require_python, {"python": "3.8"}, f"autotm bundle ... --python {HERE}"),
        (require_computer, {"machine": "riscv64"}, "for Linux on riscv64, this is Linux on"),
        (require_computer, {"glibc": "9.1"}, "needs glibc 9.1 or newer, this computer has glibc 2."),
        (require_computer, {"cpu_flags": ["avx99"]}, "compiled for znver9; this processor lacks avx99: name it as"),
        (require_driver, {"target": "cuda"}, "no driver of NVIDIA's is here (libcuda.so.1): install it"),
    ],
)
def test_what_does_not_fit_is_refused(require: Callable[..., None], change: dict[str, object], message: str) -> None:
    given = {"library": "libcuda_of_no_one.so.1"} if require is require_driver else {}
    with pytest.raises(UnfitError) as refused:
        require({**FITS, **change}, **given)
    assert message in str(refused.value)


def test_modules_come_from_the_bundle_and_from_python_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    library = next(path for path in sys.path if path.endswith(f"python{HERE}"))
    others = ["", str(tmp_path), f"{library}/site-packages", "/usr/lib/python3/dist-packages"]
    monkeypatch.setattr(sys, "path", [*others, library, f"{library}/lib-dynload"])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    own_modules_only(tmp_path)
    assert sys.path == [str(tmp_path / "site"), library, f"{library}/lib-dynload"]
    assert not is_standard("", set())
