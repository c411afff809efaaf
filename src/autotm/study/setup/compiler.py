"""The compiler that kernels are linked with."""

from __future__ import annotations

import os
import shutil

from autotm.model.files import AutotmError

_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")


def compiler_path() -> str | None:
    """The compiler that kernels are linked with: $CXX, or the first that is on the path; None where there is none."""
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else []
    return next(filter(None, map(shutil.which, (*wanted, *_COMPILERS))), None)


def require_compiler() -> None:
    """Raise when no compiler that can link a kernel library is on the path.

    Raises:
        AutotmError: none of the compilers that TVM looks for is there.
    """
    if compiler_path() is None:
        raise AutotmError(
            f"no C compiler found (looked for $CXX, {', '.join(_COMPILERS)}); kernels are linked with one. "
            "Install one: sudo apt-get install g++"
        )
