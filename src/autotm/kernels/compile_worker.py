"""Compiles a share of a library's kernels in a process of its own: `python -m autotm.kernels.compile_worker JOB`."""

from __future__ import annotations

import sys
from pathlib import Path

import tvm

from autotm.kernels.build import compile_objects


def main(source: Path) -> None:
    """Compile the functions of the job in `source` (TVM JSON of functions, their keys, target and folder)."""
    job = tvm.ir.load_json(source.read_text(encoding="utf-8"))
    kernels = {variable.name_hint: function for variable, function in job["functions"].functions.items()}
    keys = {str(symbol): str(key) for symbol, key in job["keys"].items()}
    compile_objects(kernels, keys, job["target"], Path(str(job["folder"])))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
