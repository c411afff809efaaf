"""A program with control flow -> CUDA C++: its kernels, and a driver that runs on the host or within one kernel.

The driver is that of `driver.lower`, printed once. Its loops and branches are plain C; what it does to memory are
macros that have two meanings. On the host, a kernel is launched, and a condition is copied from the device before it is
tested. Within a kernel, all blocks of a grid run the driver together: they share the blocks of each kernel, and meet at
a barrier before anything is read that others have written.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad

from autotm.control.driver import Lowered, lower
from autotm.control.program import Array, Program
from autotm.control.regions import DESCRIPTOR_BYTES, Area, is_copied
from autotm.kernels.cuda.device import CudaDevice
from autotm.kernels.cuda.dispatch import cuda_kernel
from autotm.kernels.cuda.source import CudaKernel, find_nvcc, run_nvcc, translation_unit
from autotm.model.errors import AutotmError

Form = Literal["host", "persistent"]
"""Where the driver runs: on the host, or within one kernel, whose blocks all stay until it ends."""


@dataclass
class CudaKernels:
    """Kernels for a GPU that functions are scheduled as; equal functions share one.

    Attributes:
        by_symbol: in the order of their first use.
    """

    device: CudaDevice
    by_symbol: dict[str, CudaKernel] = field(default_factory=dict)
    may_copy_pieces: bool = False
    target: tvm.target.Target = field(default_factory=lambda: tvm.target.Target("llvm"))
    _scheduled: dict[int, CudaKernel] = field(default_factory=dict)

    def of(self, function: tirx.PrimFunc) -> tuple[str, CudaKernel]:
        """Return the symbol and the kernel of a function."""
        key = tvm_ffi.structural_hash(function, map_free_vars=True)
        if key not in self._scheduled:
            kernel = self._scheduled[key] = cuda_kernel(function, self.device)
            self.by_symbol.setdefault(kernel.symbol, kernel)
        kernel = self._scheduled[key]
        return kernel.symbol, kernel


@dataclass(frozen=True)
class CudaProgram:
    """A program as CUDA C++.

    Attributes:
        lowered: its places in the workspace, and what each address that `source` takes is.
        source: with functions of the host: `autotm_bind(addresses, count)`, `autotm_run()`, and others for memory.
        reads_on_host: whether the driver reads memory of the device, so that its launches cannot be captured.
    """

    lowered: Lowered
    source: str
    reads_on_host: bool


def lower_for_gpu(program: Program, device: CudaDevice, form: Form) -> CudaProgram:
    """Lower a program for a GPU.

    Raises:
        AutotmError: an operator has no kernel.
    """
    kernels = CudaKernels(device)
    lowered = lower(program, kernels)
    driver = _Printer(kernels.by_symbol)
    body = "\n".join(f"  {line}" for line in driver.statements(lowered.driver.body))
    parts = translation_unit(kernels.by_symbol.values())
    if form == "persistent":
        parts = _as_parts(parts)
        threads = max((one.block[0] for kernel in kernels.by_symbol.values() for one in kernel.launches), default=32)
        head, tail = _WITHIN_KERNEL, _KERNEL.replace("THREADS", str(threads)).replace("BODY", body)
    else:
        head, tail = _ON_HOST, _HOST.replace("BODY", body)
    return CudaProgram(lowered, f"{head}{_ADDRESS}{parts}{tail}", driver.reads)


def compiled_library(program: CudaProgram, architecture: str, folder: Path) -> Path:
    """Compile a program to a library for the host, with machine code for one architecture.

    Raises:
        AutotmError: there is no nvcc, or it failed.
    """
    library = folder / "program.so"
    _run_nvcc(program, f"-arch={architecture}", "-O3", "-Xcompiler", "-fPIC", "-shared", "-o", str(library))
    return library


def require_ptx(program: CudaProgram, architecture: str) -> None:
    """Compile what a program computes on a GPU as far as PTX, and keep nothing.

    It is not optimised (`-G`), which tells nothing of the program: optimised PTX of SkipNet takes 23 s, this 4 s.

    Raises:
        AutotmError: there is no nvcc, or it failed.
    """
    _run_nvcc(program, f"-arch={architecture}", "-G", "-ptx", "-o", os.devnull)


def _run_nvcc(program: CudaProgram, *options: str) -> None:
    compiler = find_nvcc()
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        source = Path(temporary) / "program.cu"
        source.write_text(program.source)
        run_nvcc([compiler, "--std=c++17", *options, str(source)], temporary)


class CudaFunction:
    """A program that a library holds, on this computer's GPU; one call at a time.

    Args:
        program: what it computes.
        made: its source.
        library: that `compiled_library` made of the source.
        is_graph: whether all launches are captured as a graph, which a call launches as one; none that data decide.

    Raises:
        AutotmError: there is no GPU, or too little memory.
    """

    def __init__(self, program: Program, made: CudaProgram, library: Path, *, is_graph: bool = False) -> None:
        self.program, self._lowered = program, made.lowered
        self._library = ctypes.CDLL(str(library))
        self._library.autotm_memory.restype = ctypes.c_void_p
        self._library.autotm_error.restype = ctypes.c_char_p
        self._require(self._library.autotm_open())
        lowered = made.lowered
        self._base = self._memory(lowered.workspace_bytes + lowered.scratch_bytes)
        for value, array in program.constants.items():
            self._put(self._base + lowered.places[value], array)
        self._arguments = [None if is_copied(value) else self._memory(value.size_bytes) for value in program.parameters]
        starts = {Area.WORKSPACE: 0, Area.SCRATCH: lowered.workspace_bytes}
        addresses = [
            self._arguments[at] if area is Area.ARGUMENT else self._base + starts[area] + at
            for area, at in lowered.slots
        ]
        self._require(self._library.autotm_bind((ctypes.c_void_p * len(addresses))(*addresses), len(addresses)))
        self._run = self._library.autotm_run
        if is_graph:
            self._require(self._library.autotm_capture())
            self._run = self._library.autotm_replay

    def bind(self, *arguments: Array) -> None:
        """Copy arguments to the GPU."""
        for value, array, address in zip(self.program.parameters, arguments, self._arguments, strict=True):
            place = self._lowered.places.get(value)
            if address is not None or place is not None:
                self._put(address if address is not None else self._base + (place or 0), array)

    def run(self) -> None:
        """Compute on the arguments, until the GPU has done it.

        Raises:
            AutotmError: CUDA says so, or the program.
        """
        code = self._run()
        if code > 0:
            raise AutotmError(self._lowered.errors[code - 1])
        self._require(-code)

    def results(self) -> tuple[Array, ...]:
        """Return what `run` has computed."""
        results = tuple(np.empty(value.shape, value.dtype) for value in self._lowered.results)
        for value, array in zip(self._lowered.results, results, strict=True):
            self._copy(array.ctypes.data, self._base + self._lowered.places[value], array.nbytes)
        return results

    def _put(self, address: int, array: Array) -> None:
        array = np.ascontiguousarray(array)
        self._copy(address, array.ctypes.data, array.nbytes)

    def _copy(self, to: int, source: int, size_bytes: int) -> None:
        self._require(
            self._library.autotm_copy(ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(size_bytes))
        )

    def _memory(self, size_bytes: int) -> int:
        address: int | None = self._library.autotm_memory(ctypes.c_size_t(max(size_bytes, 1)))
        if address is None:
            raise AutotmError(f"the GPU has no {size_bytes / 1e6:.0f} MB left")
        return address

    def _require(self, error: int) -> None:
        if error:
            raise AutotmError(f"CUDA: {self._library.autotm_error(error).decode()}")


# The driver printed.


class _Printer:
    """Statements of a driver as C.

    Attributes:
        reads: whether memory of the workspace was read.
    """

    def __init__(self, kernels: dict[str, CudaKernel]) -> None:
        self.kernels = kernels
        self.reads = False
        self.names: dict[tirx.Var, str] = {}
        self.tests = 0

    def statements(self, statement: tirx.Stmt) -> Iterator[str]:  # noqa: C901 - a case for each kind
        """Yield the lines of a statement."""
        match statement:
            case tirx.SeqStmt():
                for item in statement.seq:
                    yield from self.statements(item)
            case tirx.AllocBuffer():
                yield f"{_TYPES[str(statement.buffer.dtype)]} {self.name(statement.buffer)} = 0;"
            case tirx.DeclBuffer():
                self.names[statement.buffer] = statement.buffer.name
            case tirx.For():
                step = self.name(statement.loop_var)
                yield f"for (long long {step} = 0; {step} < {self.value(statement.extent)}; ++{step}) {{"
                yield from self.inner(statement.body)
                yield "}"
            case tirx.While():
                yield "for (;;) {"
                test, lines = self.read(statement.condition)
                yield from (f"  {line}" for line in [*lines, f"if (!({test})) break;"])
                yield from self.inner(statement.body)
                yield "}"
            case tirx.IfThenElse():
                test, lines = self.read(statement.condition)
                yield from lines
                yield f"if ({test}) {{"
                yield from self.inner(statement.then_case)
                if statement.else_case is not None:
                    yield "} else {"
                    yield from self.inner(statement.else_case)
                yield "}"
            case tirx.BufferStore():
                value, lines = self.read(statement.value)
                yield from lines
                place = self.value(statement.indices[0])
                is_local = statement.buffer.name not in _VIEWS
                yield f"{self.name(statement.buffer)} = {value};" if is_local else f"PUT({place}, {value});"
            case tirx.Return():
                yield f"END({self.value(statement.value)});"
            case tirx.Evaluate():
                yield from self.call(statement.value)
            case _:
                raise TypeError(statement)

    def inner(self, statement: tirx.Stmt) -> Iterator[str]:
        return (f"  {line}" for line in self.statements(statement))

    def name(self, variable: tirx.Var) -> str:
        return self.names.setdefault(variable, f"{variable.name}_{len(self.names)}")

    def read(self, expression: tirx.Expr) -> tuple[str, list[str]]:
        """Return an expression, and lines before it: what it reads of the workspace is read before others go on."""
        before, self.reads = self.reads, False
        value = self.value(expression)
        has_read, self.reads = self.reads, self.reads or before
        if not has_read:
            return value, []
        self.tests += 1
        return f"read{self.tests}", [f"const long long read{self.tests} = {value};", "MEET();"]

    def value(self, expression: tirx.Expr) -> str:
        match expression:
            case tirx.IntImm():
                return f"{int(expression)}"
            case tirx.Cast():
                return self.value(expression.value)
            case TensorLoad():
                if (view := expression.source.name) not in _VIEWS:
                    return self.name(expression.source)
                self.reads = True
                return f"{_VIEWS[view]}({self.value(expression.indices[0])})"
            case tirx.Var():
                return self.name(expression)
        if (sign := _SIGNS.get(type(expression))) is None:
            raise TypeError(expression)
        return f"({self.value(expression.a)} {sign} {self.value(expression.b)})"

    def call(self, call: tirx.Call) -> Iterator[str]:
        """Yield launches of a kernel, or a copy."""
        name, *arguments = call.args
        if (symbol := str(name.value)) == "memcpy":
            to, source = (self.value(argument.args[1]) for argument in arguments[:2])
            yield f"COPY({to}, {source}, {self.value(arguments[2])});"
            return
        kernel = self.kernels[symbol]
        slots = [int(argument.args[1]) // DESCRIPTOR_BYTES for argument in arguments]
        for launch in kernel.launches:
            given = [f"Address{{p[{slots[at]}]}}" for at in launch.arguments]
            grid = ", ".join(map(str, launch.grid))
            yield f"LAUNCH({launch.function}, {grid}, {launch.block[0]}, {', '.join(given)});"


_VIEWS = {"words": "WORD", "bytes": "BYTE"}
"""Views of the workspace, and what reads an element of each."""
_TYPES = {"int32": "int", "int64": "long long"}
"""Of the variables of a driver."""
_SIGNS = {
    tirx.Add: "+", tirx.Sub: "-", tirx.Mul: "*", tirx.FloorDiv: "/", tirx.LT: "<", tirx.LE: "<=", tirx.GT: ">",
    tirx.GE: ">=", tirx.EQ: "==", tirx.NE: "!=", tirx.And: "&&", tirx.Or: "||",
}  # fmt: skip
"""Operators of C; what is divided is never negative."""


# Kernels as parts of one kernel: functions of a block's index, that some threads of each block run.

_SIGNATURE = re.compile(r'extern "C" __global__ void (?:__launch_bounds__\((\d+)\) )?(\w+)\(([^)]*)\)( \{|;)\n')
_SHARED = re.compile(r"__shared__ alignas\((\d+)\) ([\w ]+) (\w+)\[(\d+)\];")
_BYTES = {"float": 4, "int": 4, "uint": 4, "double": 8, "int64_t": 8, "half": 2, "signed char": 1, "uchar": 1}


def _as_parts(text: str) -> str:
    """Return kernels as functions that the blocks of a grid call; their shared memory is the same."""
    pieces, most, start = [], 0, 0
    for signature in _SIGNATURE.finditer(text):
        pieces.append(text[start : signature.start()])
        bounds, name, parameters, ending = signature.groups()
        threads = bounds or "1"  # TVM states no bounds for a single one.
        start = signature.end()
        if ending == ";":
            continue
        start = text.index("\n}\n", signature.end()) + 3
        body, used = _with_common_memory(text[signature.end() : start])
        most = max(most, used)
        # A pointer that nothing else points to may be read from a cache that is not told of other blocks' writes.
        parameters = parameters.replace("__restrict__ ", "")
        # Where they are inlined at each launch, nvcc 13.0 took 22 s in place of 10 s for a network of LSTM cells.
        pieces.append(f"static __device__ __noinline__ void {name}_part(const uint3 block_index, {parameters}) {{\n")
        pieces.append(f"  if (threadIdx.x >= {threads}) return;\n")
        pieces.append(body.replace("blockIdx", "block_index").replace("__syncthreads()", f"barrier({threads})"))
    pieces.append(text[start:])
    return f"__shared__ alignas(128) char shared_memory[{max(most, 1)}];\n{''.join(pieces)}"


def _with_common_memory(body: str) -> tuple[str, int]:
    """Return code whose shared memory is a part of `shared_memory`, and how many bytes of it."""
    used = 0

    def placed(declared: re.Match[str]) -> str:
        nonlocal used
        _, kind, name, count = declared.groups()
        scalar = kind.rstrip("24")  # `float4` is a vector of four.
        size_bytes = int(count) * _BYTES[scalar] * int(kind.removeprefix(scalar) or 1)
        start, used = used, used + -(-size_bytes // 128) * 128
        return f"{kind}* {name} = ({kind}*)(shared_memory + {start});"

    return _SHARED.sub(placed, body), used


# What the driver's macros mean, and what a program of the host calls: CUDA C++ as nvcc takes it.

_ADDRESS = r"""
struct Address {
  void* at;
  template <class T> __host__ __device__ operator T*() const { return (T*)at; }
};
"""
_MEMORY = r"""
extern "C" void* autotm_memory(size_t bytes) {
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes) ? nullptr : memory;
}
extern "C" int autotm_copy(void* to, const void* from, size_t bytes) {
  return cudaMemcpy(to, from, bytes, cudaMemcpyDefault);
}
extern "C" const char* autotm_error(int code) { return cudaGetErrorString(cudaError_t(code)); }
// The driver's result, or a CUDA error as a negative number.
static int ended(int code) {
  cudaError_t error = cudaDeviceSynchronize();
  if (!error) error = cudaGetLastError();
  return error ? -int(error) : code;
}
"""

_ON_HOST = r"""#include <cstdint>
#include <vector>
#ifdef __CUDACC__
static cudaStream_t stream;
static cudaError_t failed;  // The first error of a read, with which the driver ends: a loop that tests it might not.
template <class T> static T on_host(const char* at) {
  T value{};
  if (!failed) failed = cudaMemcpyAsync(&value, at, sizeof(T), cudaMemcpyDeviceToHost, stream);
  if (!failed) failed = cudaStreamSynchronize(stream);
  return value;
}
#define MEET() if (failed) return -int(failed)
static __global__ void put_word(char* at, int value) { *(int*)at = value; }
#define LAUNCH(function, gx, gy, gz, threads, ...) function<<<dim3(gx, gy, gz), threads, 0, stream>>>(__VA_ARGS__)
#define COPY(to, from, bytes) cudaMemcpyAsync(w + (to), w + (from), bytes, cudaMemcpyDeviceToDevice, stream)
#define PUT(word, value) put_word<<<1, 1, 0, stream>>>(w + 4 * (word), int(value))
#else
#define MEET()
#endif
#define WORD(word) on_host<int>(w + 4 * (word))
#define BYTE(byte) on_host<signed char>(w + (byte))
#define END(code) return code
"""

_HOST = (
    r"""
static std::vector<void*> addresses;

static int driver(void* const* p) {
  char* w = (char*)p[0];
BODY
}
#ifdef __CUDACC__
"""
    + _MEMORY
    + r"""
extern "C" int autotm_open() { return cudaStreamCreate(&stream); }
extern "C" int autotm_bind(void* const* p, int count) { addresses.assign(p, p + count); return 0; }
extern "C" int autotm_run() {
  failed = cudaSuccess;
  return ended(driver(addresses.data()));
}

// All launches as one graph, which one call launches again: where the driver reads nothing.
static cudaGraphExec_t graph;
extern "C" int autotm_capture() {
  cudaGraph_t captured;
  if (int error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)) return error;
  driver(addresses.data());
  if (int error = cudaStreamEndCapture(stream, &captured)) return error;
  if (int error = cudaGraphInstantiate(&graph, captured, 0)) return error;
  return cudaGraphDestroy(captured);
}
extern "C" int autotm_replay() { cudaGraphLaunch(graph, stream); return ended(0); }
#endif
"""
)

_WITHIN_KERNEL = r"""#include <cstdint>
#ifdef __CUDACC__
#include <cooperative_groups.h>
static __device__ void meet() { cooperative_groups::this_grid().sync(); }
// Threads of a block that have a part in a kernel: a barrier of their own, as the others do not come.
static __device__ void barrier(int threads) { asm volatile("bar.sync 1, %0;" : : "r"(threads) : "memory"); }
#endif
static __device__ void copy_bytes(char* to, const char* from, long long bytes) {
  const long long first = blockIdx.x * (long long)blockDim.x + threadIdx.x, all = gridDim.x * (long long)blockDim.x;
  const long long words = ((size_t)to | (size_t)from) % 4 ? 0 : bytes / 4;  // Words lie at multiples of 4.
  for (long long i = first; i < words; i += all) ((int*)to)[i] = ((const int*)from)[i];
  for (long long i = words * 4 + first; i < bytes; i += all) to[i] = from[i];
}
#define IS_FIRST (blockIdx.x == 0 && threadIdx.x == 0)
#define WORD(word) (*(volatile const int*)(w + 4 * (word)))
#define BYTE(byte) (*(volatile const signed char*)(w + (byte)))
#define MEET() meet()
#define LAUNCH(function, gx, gy, gz, threads, ...) \
  do { \
    for (unsigned at = blockIdx.x; at < unsigned(gx) * (gy) * (gz); at += gridDim.x) { \
      function##_part(uint3{at % (gx), at / (gx) % (gy), at / (gx) / (gy)}, __VA_ARGS__); \
      __syncthreads(); \
    } \
    meet(); \
  } while (0)
#define COPY(to, from, bytes) do { copy_bytes(w + (to), w + (from), bytes); meet(); } while (0)
#define PUT(word, value) do { if (IS_FIRST) *(int*)(w + 4 * (word)) = int(value); meet(); } while (0)
#define END(code) do { if (IS_FIRST) *result = code; return; } while (0)
"""

_KERNEL = (
    r"""
extern "C" __global__ void __launch_bounds__(THREADS) autotm_driver(void* const* p, int* result) {
  char* w = (char*)p[0];
BODY
}
#ifdef __CUDACC__
"""
    + _MEMORY
    + r"""
static void** addresses;
static int* result;
static int blocks;
extern "C" int autotm_open() {
  int device, multiprocessors, resident;
  if (int error = cudaGetDevice(&device)) return error;
  if (int error = cudaMalloc(&result, sizeof(int))) return error;
  if (int error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device)) return error;
  if (int error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, autotm_driver, THREADS, 0)) return error;
  blocks = multiprocessors * resident;  // All must be there at once to meet.
  return 0;
}
extern "C" int autotm_bind(void* const* p, int count) {
  if (!addresses)
    if (int error = cudaMalloc(&addresses, count * sizeof(void*))) return error;
  return cudaMemcpy(addresses, p, count * sizeof(void*), cudaMemcpyHostToDevice);
}
extern "C" int autotm_run() {
  void* arguments[] = {&addresses, &result};
  int code = 0;
  if (int error = cudaLaunchCooperativeKernel((void*)autotm_driver, blocks, THREADS, arguments, 0, 0)) return -error;
  cudaMemcpy(&code, result, sizeof(int), cudaMemcpyDeviceToHost);
  return ended(code);
}
#endif
"""
)
