"""Generated CUDA source run on this CPU: compiled with `emulated_cuda.h`, the threads of a block as fibers."""

from __future__ import annotations

import ctypes
import functools
import re
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from autotm.control.cuda import CudaProgram
from autotm.kernels.cuda.source import CudaKernel, translation_unit

_HEADER = Path(__file__).with_name("emulated_cuda.h")
_OPTIONS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-w", "-ftrivial-auto-var-init=pattern", "-ffp-contract=off")
_SIGNATURE = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\(\d+\) )?(\w+)\(([^)]*)\) \{')
_ASSEMBLY = re.compile(r'asm(?: volatile)?\(((?:\s*"[^"]*")+)\s*:([^:;]*):([^:;]*)\);')
_MEETINGS = ("__syncthreads", "add_product")
"""Calls at which threads of a block wait for each other."""
GUARD = 64
"""Elements before and behind every operand: NaN, or a pattern, that a kernel must neither use nor change."""


class EmulatedDevice:
    """Kernels compiled for this CPU.

    Args:
        kernels: to compile together.
        folder: for the library.
        replaced: what of the source is made wrong, and by what.
    """

    def __init__(self, kernels: Iterable[CudaKernel], folder: Path, replaced: tuple[str, str] = ("", "")) -> None:
        text = translation_unit(kernels)
        assert replaced[0] in text
        text = text.replace(*replaced) if replaced[0] else text
        calls = []
        for signature in _SIGNATURE.finditer(text):
            name, parameters = signature.groups()
            code = text[signature.end() : text.index("\n}\n", signature.end())]
            meets = "true" if any(name in code for name in _MEETINGS) else "false"
            types = [parameter.rsplit("__restrict__", 1)[0].strip() for parameter in parameters.split(",")]
            arguments = ", ".join(f"({type_})a[{index}]" for index, type_ in enumerate(types))
            calls.append(f"static void call_{name}(void** a) {{ {name}({arguments}); }}")
            calls.append(
                f'extern "C" int run_{name}(void** a, const unsigned* g, const unsigned* b, int order) '
                f"{{ return emulation::run({meets}, call_{name}, a, g, b, order); }}"
            )
        self._library = _compiled(text, "\n".join(calls), folder)

    def run(
        self, kernel: CudaKernel, operands: Sequence[np.ndarray], shared: dict[int, int] | None = None, order: int = 0
    ) -> list[np.ndarray]:
        """What inputs, outputs and workspaces hold after one call.

        Args:
            kernel: one of those compiled.
            operands: of inputs; outputs and workspaces follow from the kernel, filled with NaN.
            shared: positions of operands that lie in the memory of others, by position of theirs.
            order: of the threads: 0 forward, 1 backward, other numbers mix them.
        """
        memory, views = [], []
        for position, (dtype, shape) in enumerate(kernel.operands):
            if shared and position in shared:
                memory.append(memory[shared[position]])
                views.append(views[shared[position]])
                continue
            elements = int(np.prod(shape, dtype=np.int64))
            whole = _poisoned(elements + 2 * GUARD, np.dtype(dtype))
            if position < len(operands):
                whole[GUARD : GUARD + elements] = operands[position].ravel()
            memory.append(whole)
            views.append(whole[GUARD : GUARD + elements].reshape(shape))
        for launch in kernel.launches:
            pointers = [views[argument].ctypes.data for argument in launch.arguments]
            addresses = (ctypes.c_void_p * len(pointers))(*pointers)
            grid, block = ((ctypes.c_uint * 3)(*extents) for extents in (launch.grid, launch.block))
            fault = self._library[f"run_{launch.function}"](addresses, grid, block, order)
            assert not fault, f"{launch.function}: threads of a block parted at a barrier"
        for (dtype, _), whole in zip(kernel.operands, memory, strict=True):
            guard = _poisoned(GUARD, np.dtype(dtype)).tobytes()
            assert whole[:GUARD].tobytes() == guard == whole[-GUARD:].tobytes(), "written outside of an operand"
        return views


def emulated_functions(kernels: Iterable[CudaKernel], folder: Path) -> dict[str, Callable[..., None]]:
    """Device functions of kernels, run by this processor on addresses, as `PlayedDriver` takes them."""
    kernels = list(kernels)
    compiled = EmulatedDevice(kernels, folder)._library

    def call(name: str, extents: list[int], addresses: tuple[int, ...]) -> None:
        grid, block = ((ctypes.c_uint * 3)(*each) for each in (extents[:3], extents[3:]))
        assert not compiled[f"run_{name}"]((ctypes.c_void_p * len(addresses))(*addresses), grid, block, 0)

    names = [launch.function for kernel in kernels for launch in kernel.launches]
    return {name: functools.partial(call, name) for name in names}


def emulated_driver(program: CudaProgram, folder: Path, order: int = 0) -> Callable[..., int]:
    """A program with control flow, which takes the addresses that it is bound to and returns what its driver does.

    Within one kernel, a single block runs it: that threads part at a barrier is an error, that blocks do is not seen.
    """
    if (bounds := re.search(r"__launch_bounds__\((\d+)\) autotm_driver", program.source)) is None:
        library = _compiled(program.source, 'extern "C" int run(void** p) { return driver(p); }', folder, _OF_HOST)
        return library.run
    library = _compiled(program.source, _RUN.format(threads=bounds[1], order=order), folder, _OF_GRID)

    def run(addresses: ctypes.Array) -> int:
        result = ctypes.c_int(-1)
        assert not library.run(addresses, ctypes.byref(result)), "threads of a block parted at a barrier"
        return result.value

    return run


_OF_HOST = """
template <class T> static T on_host(const char* at) { return *(const T*)at; }
#define LAUNCH(function, gx, gy, gz, threads, ...) \\
  emulation::launch([=] { function(__VA_ARGS__); }, gx, gy, gz, threads)
#define COPY(to, from, bytes) memcpy(w + (to), w + (from), bytes)
#define PUT(word, value) (*(int*)(w + 4 * (word)) = int(value))
"""
_OF_GRID = "static void meet() { __syncthreads(); }  // The grid has one block."
_RUN = """
static void call_driver(void** a) {{ autotm_driver((void* const*)a[0], (int*)a[1]); }}
extern "C" int run(void** p, int* result) {{
  void* arguments[] = {{p, result}};
  unsigned grid[] = {{1, 1, 1}}, block[] = {{{threads}, 1, 1}};
  return emulation::run(true, call_driver, arguments, grid, block, {order});
}}
"""


def _compiled(text: str, behind: str, folder: Path, before: str = "") -> ctypes.CDLL:
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    text = "\n".join(line for line in text.splitlines() if not line.startswith("#include"))
    text = _ASSEMBLY.sub(_called, text)
    source.write_text(f'#include "{_HEADER}"\n{before}\n{text}\n{behind}')
    done = subprocess.run(
        ["g++", *_OPTIONS, "-o", str(library), str(source)], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-3000:]
    return ctypes.CDLL(str(library))


def _called(assembly: re.Match[str]) -> str:
    """A PTX instruction as a call of its namesake in `emulated_cuda.h`, with operands in the order of its text."""
    text = "".join(re.findall(r'"([^"]*)"', assembly[1]))
    expressions = re.findall(r'"[^"]*"\(([^()]*)\)', f"{assembly[2]},{assembly[3]}")
    name, operands = text.split(" ", 1)
    arguments = [expressions[int(number)] for number in re.findall(r"%(\d+)", operands)]
    return f"ptx_{name.replace('.', '_')}({', '.join(arguments)});"


def _poisoned(elements: int, dtype: np.dtype) -> np.ndarray:
    """Memory of 0xff bytes, NaN as a floating-point number, that starts at a multiple of 64 bytes."""
    raw = np.full(elements * dtype.itemsize + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + elements * dtype.itemsize].view(dtype)
