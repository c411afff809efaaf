"""Unscheduled functions -> kernels: scheduled and compiled in one go by several processes, each kernel once.

What a function became is kept with its machine code, under a hash of all that decides it; so a later step that has the
same function neither schedules nor compiles it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import tvm
from tvm import tirx

from autotm.kernels.code import target_info
from autotm.kernels.library import cores, in_processes, link
from autotm.kernels.making.facts import KernelFacts
from autotm.kernels.making.objects import Held, add_object, hash_of_sources, held_in, split
from autotm.kernels.making.tuned import choose, workload
from autotm.kernels.schedules import ScheduledKernel, schedule, schedule_as
from autotm.model.machine import find_compiler
from autotm.model.measurement import TunedSchedule
from autotm.model.step import DEFAULT_IMPLEMENTATION

_CODE = hash_of_sources(sorted(Path(__file__).parents[1].rglob("*.py")))
"""Schedules change with this package."""


@dataclass(frozen=True)
class Request:
    """A kernel that a step wants.

    Attributes:
        func: the unscheduled function.
        implementation: which way to compute it.
        tuned: a schedule that a search found for it.
        most_workspace_bytes: with more than that its code is not wanted, only what is known of it.
        family: what functions are called that do the same to other shapes: they may share code if made together.
    """

    func: tirx.PrimFunc
    implementation: str = DEFAULT_IMPLEMENTATION
    tuned: TunedSchedule | None = None
    most_workspace_bytes: int | None = None
    family: str = ""

    @property
    def place(self) -> tuple[str, list[tuple[int, ...]]]:
        """Brings functions that are alike together: first those of a family, among them those of like shapes."""
        return self.family, [tuple(int(extent) for extent in operand.shape) for operand in self.func.params]

    def key(self, target: tvm.target.Target, threads: int) -> str:
        """Hash of all that decides what the kernel becomes."""
        found = "" if self.tuned is None else f"{self.tuned.own_identity} {self.tuned.trace}"
        parts = (tvm.__version__, _CODE, target, target_info(target), threads, self.implementation, found)
        return hashlib.sha256("\n".join([*map(str, parts), workload(self.func)]).encode()).hexdigest()

    def scheduled(self, target: tvm.target.Target, threads: int) -> tuple[ScheduledKernel, KernelFacts]:
        """The kernel, scheduled here and now."""
        if self.implementation != DEFAULT_IMPLEMENTATION:
            other = schedule_as(self.func, self.implementation, target, threads)
            return other, KernelFacts.of(other, target)
        own = schedule(self.func, target, threads)
        kernel = choose(self.func, own, self.tuned, target)
        return kernel, KernelFacts.of(kernel, target)

    def wants_code(self, facts: KernelFacts) -> bool:
        """Whether the kernel is worth compiling."""
        return self.most_workspace_bytes is None or facts.workspace_bytes <= self.most_workspace_bytes


Make = Callable[[Sequence[Request]], list[KernelFacts]]
"""Makes kernels, and tells what they are, in the order of the requests."""


@dataclass
class KernelScheduler:
    """Schedules kernels in this process and keeps them; compiles nothing."""

    target: tvm.target.Target
    threads: int
    kernels: dict[str, ScheduledKernel] = field(default_factory=dict)
    """By symbol."""

    def make(self, requests: Sequence[Request]) -> list[KernelFacts]:
        """Schedule every request."""
        found = []
        for request in requests:
            kernel, facts = request.scheduled(self.target, self.threads)
            self.kernels.setdefault(facts.symbol, kernel)
            found.append(facts)
        return found


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
        keys = [request.key(self.target, self.threads) for request in requests]
        held = held_in(self.folder)
        asked = zip(keys, requests, strict=True)
        missing = {key: request for key, request in asked if not _is_made(key, request, held)}
        groups = split(sorted(missing, key=lambda key: missing[key].place), cores())
        in_processes(len(groups), lambda task: self._make({key: missing[key] for key in groups[task]}))
        facts = (held_in(self.folder) if missing else held).facts
        return [KernelFacts.from_json(facts[key]) for key in keys]

    def _make(self, requests: dict[str, Request]) -> None:
        kernels, facts = {}, {}
        for key, request in requests.items():
            kernel, made = request.scheduled(self.target, self.threads)
            facts[key] = made.to_json()
            if request.wants_code(made):
                kernels[made.code_key] = (made.symbol, kernel.func)
        add_object(self.folder, kernels, facts, self.target)

    def link(self, kernels: Iterable[KernelFacts], path: Path) -> None:
        """A library of kernels that were made, written whole or not at all.

        Raises:
            AutotmError: linking failed.
        """
        code = held_in(self.folder).code
        link(sorted({code[kernel.code_key] for kernel in kernels}), path, self.threads)


def _is_made(key: str, request: Request, held: Held) -> bool:
    if key not in held.facts:
        return False
    facts = KernelFacts.from_json(held.facts[key])
    return facts.code_key in held.code or not request.wants_code(facts)
