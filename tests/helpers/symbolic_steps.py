"""Steps on symbols in place of numbers: what a kernel writes is named after its function and all that it read."""

from __future__ import annotations

from autotm.model.graph import Graph, Kernel
from autotm.model.limit import storage_of
from autotm.model.program import Address, KernelStep, Program

Symbols = dict[str, object]


def after_plain_steps(graph: Graph, steps: int = 2) -> Symbols:
    """The symbol in every argument's memory after some plain steps."""
    own = _first(graph)
    for _ in range(steps):
        values: Symbols = {}
        for kernel in graph.kernels:
            places = [
                (values if graph.by_name[one.tensor].role.is_movable else own, storage_of(graph, one.tensor))
                for one in kernel.inputs + kernel.outputs
            ]
            read = [place[name] for place, name in places[: len(kernel.inputs)]]
            for slot, (place, name) in enumerate(places[len(kernel.inputs) :]):
                place[name] = _written(kernel, slot, read)
    return own


def after_steps(graph: Graph, program: Program, steps: int = 2) -> Symbols:
    """The same of a program without moves, whose tensors share addresses."""
    pool = _Pool(program.step_of(graph), program)
    for _ in range(steps):
        for step in program.steps:
            assert isinstance(step, KernelStep)
            pool.run(step)
    return pool.own


class _Pool:
    """Symbols by first byte, with the byte after their last; and those of arguments by name."""

    def __init__(self, step: Graph, program: Program) -> None:
        self._step, self.own = step, _first(step)
        self._symbols: dict[int, tuple[int, object]] = {}
        for one in program.steps:
            assert isinstance(one, KernelStep)
            for operand, address in zip(step.kernels[one.kernel].operands, one.addresses, strict=True):
                if step.by_name[operand.tensor].held:
                    self._put(operand.tensor, address, self.own[operand.tensor])

    def run(self, step: KernelStep) -> None:
        kernel = self._step.kernels[step.kernel]
        addresses = dict(zip(range(len(step.addresses)), step.addresses, strict=True))
        read = [self._get(one.tensor, addresses[slot]) for slot, one in enumerate(kernel.inputs)]
        for slot, one in enumerate(kernel.outputs):
            symbol = _written(kernel, slot, read)
            self._put(one.tensor, addresses[len(kernel.inputs) + slot], symbol)
            if not self._step.by_name[one.tensor].role.is_movable:
                self.own[storage_of(self._step, one.tensor)] = symbol
        for slot, one in enumerate(kernel.workspaces):
            self._put(one.tensor, addresses[len(kernel.inputs) + len(kernel.outputs) + slot], "scratch")

    def _get(self, tensor: str, address: Address) -> object:
        if address.offset is None:
            return self.own[storage_of(self._step, tensor)]
        end, symbol = self._symbols.get(address.offset, (0, None))
        return symbol if end == address.offset + self._step.by_name[tensor].allocated_bytes else "nothing whole"

    def _put(self, tensor: str, address: Address, symbol: object) -> None:
        start = address.offset
        if start is not None:
            end = start + self._step.by_name[tensor].allocated_bytes
            known = self._symbols.items()
            self._symbols = {at: one for at, one in known if one[0] <= start or end <= at} | {start: (end, symbol)}


def _first(graph: Graph) -> Symbols:
    return {tensor.name: f"first {tensor.name}" for tensor in graph.tensors if not tensor.role.is_movable}


def _written(kernel: Kernel, slot: int, read: list[object]) -> object:
    return hash((kernel.function, slot, *read))
