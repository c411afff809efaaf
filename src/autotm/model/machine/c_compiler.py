"""The C compiler of this computer."""

from __future__ import annotations

import os
import shutil

from autotm.model.files import AutotmError


def find_compiler() -> str:
    """The C compiler that links kernels and compiles copies: $CC, or the first of the usual ones.

    Raises:
        AutotmError: there is none.
    """
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        found = shutil.which(name) if name else None
        if found:
            return found
    raise AutotmError(
        "no C compiler found to link kernels with (looked for $CC, cc, gcc, clang); install one: "
        "apt-get install gcc, or conda install c-compiler"
    )
