"""A real training step, small and hand-made: two layers, squared error, SGD; `small_step_kernels` compiles it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autotm.model.cores import usable_cpus
from autotm.model.files import hash_of, save
from autotm.model.graph import Graph, Initial, Kernel, OpClass, Operand, Role, Tensor, Tier, all_fast, configuration
from autotm.model.links import AsynchronousLinks, Contention, Link, Links
from autotm.model.machine import EmulatedTier, Machine
from autotm.model.paths import MachinePaths
from autotm.model.profile import Profile, Timing
from autotm.model.provenance import provenance

RATE = 0.01
BASE_NS, SLOW_NS_PER_BYTE = 1_000_000, 1
DEVICES = Path(__file__).parents[2] / "config" / "devices"


@dataclass(frozen=True)
class _Call:
    function: str
    op_class: OpClass
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    workspaces: tuple[str, ...] = ()


CALLS = (
    _Call("hidden", OpClass.MATMUL, ("x", "w"), ("hidden",)),
    _Call("relu", OpClass.ELEMENTWISE, ("hidden",), ("act",)),
    _Call("relu", OpClass.ELEMENTWISE, ("act",), ("act2",)),
    _Call("out", OpClass.MATMUL, ("act2", "v"), ("out",)),
    _Call("loss", OpClass.REDUCTION, ("out", "target"), ("error", "loss")),
    _Call("grad_act", OpClass.MATMUL, ("error", "v", "hidden"), ("gact",), ("vt",)),
    _Call("grad_v", OpClass.MATMUL, ("act2", "error"), ("gv",)),
    _Call("sgd_v", OpClass.ELEMENTWISE, ("v", "gv"), ("v_new",)),
    _Call("grad_w", OpClass.MATMUL, ("x", "gact"), ("gw",)),
    _Call("sgd_w", OpClass.ELEMENTWISE, ("w", "gw"), ("w_new",)),
)
ROLES = {
    "x": Role.INPUT, "target": Role.INPUT, "w": Role.PARAMETER, "v": Role.PARAMETER,
    "loss": Role.RESULT, "v_new": Role.RESULT, "w_new": Role.RESULT, "vt": Role.WORKSPACE,
}  # fmt: skip
ALIASES = {"v_new": "v", "w_new": "w"}
INITIAL = {
    "x": Initial("normal"), "target": Initial("uniform"), "w": Initial("normal", 0.1), "v": Initial("normal", 0.1)
}  # fmt: skip


def shapes(batch: int, width: int) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor for a batch and a layer width."""
    rows, square = (batch, width), (width, width)
    return {
        **dict.fromkeys(("x", "hidden", "act", "act2", "out", "target", "error", "gact"), rows),
        **dict.fromkeys(("w", "v", "vt", "gw", "gv", "w_new", "v_new"), square),
        "loss": (1,),
    }


def graph(batch: int = 32, width: int = 64) -> Graph:
    """The step as a graph; the two `relu` kernels share one identity."""
    shape = shapes(batch, width)
    producers = {name: i for i, call in enumerate(CALLS) for name in (*call.outputs, *call.workspaces)}
    readers = {name: tuple(i for i, call in enumerate(CALLS) if name in call.inputs) for name in shape}

    def operands(names: tuple[str, ...]) -> tuple[Operand, ...]:
        return tuple(Operand(name, shape[name], "float32") for name in names)

    kernels = tuple(
        Kernel(
            f"{call.function}_{i}", call.function, f"{call.function}:{batch}x{width}", call.function, call.op_class,
            2 * batch * width * width if call.op_class is OpClass.MATMUL else 0,
            operands(call.inputs), operands(call.outputs), operands(call.workspaces),
        )
        for i, call in enumerate(CALLS)
    )  # fmt: skip
    tensors = tuple(
        Tensor(
            name, ROLES.get(name, Role.INTERMEDIATE), shape[name], "float32", int(np.prod(shape[name])) * 4,
            producers.get(name), readers[name], ALIASES.get(name), INITIAL.get(name),
        )
        for name in shape
    )  # fmt: skip
    return Graph("small", "test", batch, kernels, tensors)


def machine(threads: int = 1) -> Machine:
    """This machine with an emulated slow tier whose delays are not stretched."""
    tier = EmulatedTier(kind="emulated", device="optane-dcpmm", share="whole")
    return Machine("test", threads, usable_cpus()[:threads], "host", tier, "hash")


def links() -> Links:
    """Copies at 2 GB/s to fast and 1 GB/s to slow memory; no stretch."""
    to_fast = Link(Tier.FAST, ((1_000, 500), (1_000_000, 500_000)))
    to_slow = Link(Tier.SLOW, ((1_000, 1_000), (1_000_000, 1_000_000)))
    return Links(to_fast, to_slow, 2.5e12, 1.0)


def write_links(results: Path, of: Machine | None = None) -> None:
    """Put those copies where steps on `of`, or on `machine()`, find what was timed.

    No bit depends on how long copies take. Asynchronous ones take as long, and nothing from kernels.
    """
    blocking, none = links(), dict.fromkeys(OpClass, Contention(0.0, 0.0))
    all_links = replace(blocking, asynchronous=AsynchronousLinks(blocking.to_fast, blocking.to_slow, none, none, 0.0))
    save(MachinePaths(results, of or machine()).links, "links", all_links, provenance(machine(), 0))


def profile(step: Graph | None = None) -> Profile:
    """`BASE_NS` a kernel of `step`, else of `graph()`, and `SLOW_NS_PER_BYTE` for each byte of a slow operand."""
    step, times = step or graph(), {}
    for kernel in step.kernels:
        times[kernel.identity, kernel.implementation, all_fast(kernel)] = BASE_NS
        for tensor in step.slots_of(kernel):
            config = configuration(step, kernel, {tensor})
            size_bytes = step.by_name[tensor].size_bytes
            times[kernel.identity, kernel.implementation, config] = BASE_NS + SLOW_NS_PER_BYTE * size_bytes
    return Profile(hash_of(step), {key: Timing(ns, ns, ns, ns, 7) for key, ns in times.items()}, {})
