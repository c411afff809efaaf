"""Compiles a share of a library's kernels in a process of its own: `python -m autotm.kernels.compile_worker IN OUT`."""

from __future__ import annotations

import sys
from pathlib import Path

import tvm

from autotm.kernels.build import compile_objects


def main(source: Path, output: Path) -> None:
    """Compile the functions of `source` (TVM JSON of functions and target) into the object file `output`."""
    job = tvm.ir.load_json(source.read_text(encoding="utf-8"))
    kernels = {variable.name_hint: function for variable, function in job["functions"].functions.items()}
    compile_objects(kernels, job["target"], output)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
