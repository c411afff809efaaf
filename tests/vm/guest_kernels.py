"""Kernels for the guest, compiled outside: there `import tvm` takes a minute. Call: guest_kernels.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

SIZES = {"small": (32, 64), "wide": (131072, 4)}
"""Batch and width of a step, by the name of its kernels; nearly all of the wide one is tensors of 2 MiB."""
_CPU = "x86-64-v2"
"""The instruction set to compile for: x86 CPUs since 2009 have it, and so has the one that QEMU emulates."""


def main(folder: Path) -> None:
    """Compile the kernels of each step into a file of its name."""
    import tvm
    from small_step_kernels import build_library

    folder.mkdir()
    for name, (batch, width) in SIZES.items():
        build_library(folder / f"{name}.so", batch, width, tvm.target.Target({"kind": "llvm", "mcpu": _CPU}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
