"""Unscheduled functions -> machine code kept in a folder: identities, object files, facts."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from pydantic import TypeAdapter
from tvm import tirx
from tvm.s_tir import SBlock

from autotm.kernels import passes, share
from autotm.kernels.library import link
from autotm.kernels.passes import machine_code
from autotm.kernels.schedules.dispatch import ScheduledKernel, schedule
from autotm.kernels.target import target_info
from autotm.kernels.tir import Workspace
from autotm.model.errors import AutotmError
from autotm.model.files import write_atomically
from autotm.model.graph import DEFAULT_IMPLEMENTATION, OpClass, ScheduleKind
from autotm.model.system import find_compiler

# Work shared among processes: TVM's passes hold Python's lock, so threads would take turns.


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0))


def in_processes(tasks: int, work: Callable[[int], None]) -> None:
    """Call `work` with each number below `tasks` once; whoever is done takes the next.

    The others are forks of this process, which works too: sending them TVM's functions would take half as long as
    compiling them. So `work` must leave what it did in files or in shared memory.

    Raises:
        AutotmError: one of the other processes failed; what it said is on standard error.
    """
    fork = multiprocessing.get_context("fork")
    taken = fork.Value("q", 0)

    def take() -> int:
        with taken.get_lock():
            taken.value += 1
            return int(taken.value) - 1

    def work_on() -> None:
        while (task := take()) < tasks:
            work(task)

    def help_out() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal sends it to all processes; the first tells others.
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        work_on()

    others = [fork.Process(target=help_out) for _ in range(min(cores(), tasks) - 1)]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        try:
            for process in others:
                process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        work_on()
    finally:
        with taken.get_lock():
            taken.value = tasks  # After a failure the other processes end after their task.
        for process in others:
            if process.pid is not None:
                process.join()
    failed = [process.exitcode for process in others if process.exitcode]
    if failed:
        raise AutotmError(
            f"compiling kernels failed in {len(failed)} of {len(others) + 1} processes (exit {failed[0]}); see above"
        )


# A folder of object files, and what is known of the kernels in them: compiled once, used by every later library.

_LEAST_PER_OBJECT, _MOST_PER_OBJECT = 4, 48
"""Kernels compiled as one module: many share code, few keep all processes busy to the end."""
_TASKS_PER_PROCESS = 2  # so that a process that has the quicker ones takes another


def hash_of_sources(files: Sequence[Path]) -> str:
    """Hash the lines of modules, except imports from autotm, so that moving other modules of autotm keeps the hash."""
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return hashlib.sha256("\n".join(line for line in lines if not line.startswith("from autotm")).encode()).hexdigest()


def code_key(symbol: str, identity: str) -> str:
    """Return the name of one kernel's machine code."""
    return f"{symbol}-{identity[:32]}"


_HELD: dict[Path, tuple[frozenset[str], Mapping[str, Path], Mapping[str, Any]]] = {}
"""The names of the files in a folder, and what `held_in` returned of them; a name is a hash of the file's content."""


def held_in(folder: Path) -> tuple[Mapping[str, Path], Mapping[str, Any]]:
    """Read the lists in `folder`: skip one that cannot be read, and take no code from one whose object file is gone.

    Returns the object file of each kernel by `code_key`, and what was found out about kernels when they were made, by
    whatever key the maker chose.
    """
    names = frozenset(entry.name for entry in os.scandir(folder))
    # A study's folder has hundreds of lists with thousands of kernels, and is asked for them a few times each variant.
    if folder in _HELD and _HELD[folder][0] == names:
        return _HELD[folder][1:]
    code: dict[str, Path] = {}
    facts: dict[str, Any] = {}
    are_all_read = True
    for listing in (name for name in names if name.endswith(".json")):
        try:
            content = _listed(folder / listing)
        except (OSError, ValueError):
            are_all_read = False  # It may be written anew, under the same name.
            continue
        facts.update(content["facts"])
        if (file := f"{listing.removesuffix('.json')}.o") in names:
            code.update(dict.fromkeys(content["code"], folder / file))
    if are_all_read:
        _HELD[folder] = names, code, facts
    return code, facts


@cache
def _listed(path: Path) -> dict[str, Any]:
    """Read a list; that it has changed is not seen."""
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def add_object(
    folder: Path, kernels: Mapping[str, tuple[str, tirx.PrimFunc]], facts: Mapping[str, Any], target: tvm.target.Target
) -> None:
    """Compile kernels (symbol and function by `code_key`) into one object file, and list it with `facts`.

    The list is written last: an object without one is not used.
    """
    listed = json.dumps({"code": sorted(kernels), "facts": facts})
    name = hashlib.sha256(listed.encode()).hexdigest()[:32]
    if kernels:
        module = machine_code(dict(kernels.values()), target)
        write_atomically(folder / f"{name}.o", lambda path: module.write_to_file(str(path), "o"))
    write_atomically(folder / f"{name}.json", lambda path: path.write_text(listed, encoding="utf-8"))


def split(names: list[str]) -> list[list[str]]:
    """Return the names of kernels in groups that each become one object."""
    wanted = -(-len(names) // (_TASKS_PER_PROCESS * cores()))
    size = min(max(wanted, _LEAST_PER_OBJECT), _MOST_PER_OBJECT)
    return [names[start : start + size] for start in range(0, len(names), size)]


# Scheduled functions -> one shared library; and the identity by which equal kernels are recognised.

_PASSES_HASH = hash_of_sources([Path(module.__file__) for module in (passes, share)])


def identity(func: tirx.PrimFunc, target: tvm.target.Target) -> str:
    """Hash the scheduled TIR (shapes, loops, constants, no names), target and passes: equal hash, equal code."""
    return hashlib.sha256(f"{tvm.__version__}\n{_PASSES_HASH}\n{target}\n{_structure(func)}".encode()).hexdigest()


def _structure(func: tirx.PrimFunc) -> str:
    structure = tvm_ffi.structural_hash(func.without_attr("global_symbol"), map_free_vars=True)
    operands = [(tuple(int(extent) for extent in operand.shape), str(operand.dtype)) for operand in func.params]
    return f"{structure}\n{operands}"


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
        code, _ = held_in(folder)
        groups = split([key for key in keyed if key not in code])
        in_processes(
            len(groups), lambda task: add_object(folder, {key: keyed[key] for key in groups[task]}, {}, target)
        )
        code, _ = held_in(folder)
        link(sorted({code[key] for key in keyed}), path)


@contextmanager
def objects_in(folder: Path | None) -> Iterator[Path]:
    """Yield the folder that keeps objects, made if need be; without one, a folder that is gone afterwards."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="autotm-") as temporary:
        yield Path(temporary)


# What a step needs to know of a kernel besides its code: small, and kept where the code is.


@dataclass(frozen=True)
class KernelFacts:
    """A scheduled kernel without its code.

    Attributes:
        symbol: name of its function in a library.
        identity: hash of its code.
        op, op_class, flops, workspaces, others, kind: as in `ScheduledKernel`.
    """

    symbol: str
    identity: str
    op: str
    op_class: OpClass
    flops: int
    workspaces: tuple[Workspace, ...]
    others: tuple[str, ...]
    kind: ScheduleKind

    @classmethod
    def of(cls, kernel: ScheduledKernel, target: tvm.target.Target) -> KernelFacts:
        """Return the facts of a kernel, whose symbol names its operation and a hash of its code."""
        digest = identity(kernel.func, target)
        shared = {name: value for name, value in vars(kernel).items() if name != "func"}
        return cls(symbol=f"{kernel.op}_{digest[:12]}", identity=digest, **shared)

    @property
    def code_key(self) -> str:
        """The name of its machine code in a folder of objects."""
        return code_key(self.symbol, self.identity)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of all its workspaces."""
        return sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in self.workspaces)


_FACTS = TypeAdapter(KernelFacts)
"""Facts as JSON has them, and back."""


# Unscheduled functions -> kernels: scheduled and compiled in one go by several processes, each kernel once.
#
# What a function became is kept with its machine code, under a hash of all that decides it; so a later step that has
# the same function neither schedules nor compiles it.

_SOURCES_HASH = hash_of_sources(sorted(Path(__file__).parent.rglob("*.py")))
"""Hash of this package, with which schedules change."""


def function_hash(func: tirx.PrimFunc) -> str:
    """Hash an unscheduled function: shapes, dtypes, strides, padding, constants, and the names of its blocks.

    Functions with equal hashes get the same kernel. Names count because schedules find blocks by them.
    """
    names: list[str] = []
    tvm_ffi.structural_walk(func.body, (SBlock, lambda block: names.append(str(block.name_hint))))
    return hashlib.sha256(f"{_structure(func)}\n{names}".encode()).hexdigest()


@cache
def _common_key(target: tvm.target.Target, threads: int) -> tuple[str, ...]:
    """Return what decides what any kernel becomes."""
    return tvm.__version__, _SOURCES_HASH, str(target), str(target_info(target)), str(threads)


@dataclass(frozen=True)
class Request:
    """A kernel that a step wants.

    Attributes:
        func: the unscheduled function.
        implementation: which way to compute it.
        most_workspace_bytes: with more than that its code is not wanted, only what is known of it.
        family: what functions are called that do the same to other shapes: they may share code if made together.
    """

    func: tirx.PrimFunc
    implementation: str = DEFAULT_IMPLEMENTATION
    most_workspace_bytes: int | None = None
    family: str = ""

    @property
    def place(self) -> tuple[str, list[tuple[int, ...]]]:
        """Sort key that puts similar functions together: first those of a family, among them those of like shapes."""
        return self.family, [tuple(int(extent) for extent in operand.shape) for operand in self.func.params]

    def key(self, target: tvm.target.Target, threads: int) -> str:
        """Return the hash of all that decides what the kernel becomes."""
        parts = (*_common_key(target, threads), self.implementation, function_hash(self.func))
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def scheduled(self, target: tvm.target.Target, threads: int) -> tuple[ScheduledKernel, KernelFacts]:
        """Return the kernel, scheduled here and now."""
        kernel = schedule(self.func, target, threads, self.implementation)
        return kernel, KernelFacts.of(kernel, target)

    def wants_code(self, facts: KernelFacts) -> bool:
        """Return whether the kernel is worth compiling."""
        return self.most_workspace_bytes is None or facts.workspace_bytes <= self.most_workspace_bytes


Make = Callable[[Sequence[Request]], list[KernelFacts]]
"""Makes kernels and returns their facts, in the order of the requests."""


@dataclass(frozen=True)
class KernelCompiler:
    """Makes kernels whose machine code a folder keeps.

    Raises:
        AutotmError: there is no C compiler to link with.
    """

    folder: Path
    target: tvm.target.Target
    threads: int

    def __post_init__(self) -> None:
        """Fail before the work, not after it."""
        find_compiler()

    def make(self, requests: Sequence[Request]) -> list[KernelFacts]:
        """Schedule and compile what the folder does not hold.

        Raises:
            AutotmError: a process failed.
        """
        keys = self.keys(requests)
        missing = self.missing(keys, requests)
        groups = split(sorted(missing, key=lambda key: missing[key].place))

        def make_group(task: int) -> None:
            kernels, facts = {}, {}
            for key in groups[task]:
                kernel, kernel_facts = missing[key].scheduled(self.target, self.threads)
                facts[key] = _FACTS.dump_python(kernel_facts, mode="json")
                if missing[key].wants_code(kernel_facts):
                    kernels[kernel_facts.code_key] = (kernel_facts.symbol, kernel.func)
            add_object(self.folder, kernels, facts, self.target)

        in_processes(len(groups), make_group)
        _, known = held_in(self.folder)
        return [_FACTS.validate_python(known[key]) for key in keys]

    def keys(self, requests: Iterable[Request]) -> list[str]:
        """Return the names by which the folder holds kernels."""
        return [request.key(self.target, self.threads) for request in requests]

    def kinds(self) -> dict[str, ScheduleKind]:
        """Return where the schedule of each kernel that the folder knows comes from, by the key of its request."""
        _, known = held_in(self.folder)
        return {key: _FACTS.validate_python(facts).kind for key, facts in known.items()}

    def missing(self, keys: Iterable[str], requests: Iterable[Request]) -> dict[str, Request]:
        """Return what the folder does not hold of the requests with these keys, each kernel once."""
        code, known = held_in(self.folder)

        def is_made(key: str, request: Request) -> bool:
            if key not in known:
                return False
            facts = _FACTS.validate_python(known[key])
            return facts.code_key in code or not request.wants_code(facts)

        asked = zip(keys, requests, strict=True)
        return {key: request for key, request in asked if not is_made(key, request)}

    def link(self, kernels: Iterable[KernelFacts], path: Path) -> None:
        """Link compiled kernels to a library, which is written whole or not at all.

        Raises:
            AutotmError: linking failed.
        """
        code, _ = held_in(self.folder)
        link(sorted({code[kernel.code_key] for kernel in kernels}), path, self.threads)
