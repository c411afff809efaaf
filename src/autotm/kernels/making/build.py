"""Scheduled functions -> one shared library; and the identity by which equal kernels are recognised."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import tvm
import tvm_ffi
from tvm import tirx

from autotm.kernels.code import passes, share
from autotm.kernels.library import cores, in_processes, link
from autotm.kernels.making.objects import add_object, code_key, hash_of_sources, held_in, split
from autotm.model.machine import find_compiler

_CODE = hash_of_sources([Path(module.__file__) for module in (passes, share)])


def identity(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Hash of the scheduled TIR (shapes, loops, constants, but no names), target and passes: equal hash, equal code."""
    structure = tvm_ffi.structural_hash(func.without_attr("global_symbol"), map_free_vars=True)
    operands = [(tuple(int(extent) for extent in operand.shape), str(operand.dtype)) for operand in func.params]
    return hashlib.sha256(f"{tvm.__version__}\n{_CODE}\n{target}\n{structure}\n{operands}".encode()).hexdigest()


def build_library(
    kernels: Mapping[str, tirx.PrimFunc], target: tvm.target.Target, path: Path, objects: Path | None = None
) -> None:
    """Compile functions, each under its symbol, into one shared library at `path`, written whole or not at all.

    `objects` is a folder that keeps machine code for later libraries, which take from it what they need.

    Raises:
        AutotmError: there is no C compiler to link with, or linking failed.
    """
    find_compiler()
    keyed = {code_key(symbol, identity(func, target)): (symbol, func) for symbol, func in sorted(kernels.items())}
    with objects_in(objects) as folder:
        held = held_in(folder).code
        groups = split([key for key in keyed if key not in held], cores())
        in_processes(
            len(groups), lambda task: add_object(folder, {key: keyed[key] for key in groups[task]}, {}, target)
        )
        held = held_in(folder).code
        link(sorted({held[key] for key in keyed}), path)


@contextmanager
def objects_in(folder: Path | None) -> Iterator[Path]:
    """The folder that keeps objects, made if need be; without one, a folder that is gone afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        yield Path(temporary)
