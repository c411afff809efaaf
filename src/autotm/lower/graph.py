"""Calls of kernels -> the graph of one step: kernels in execution order and the tensors between them."""

from __future__ import annotations

from collections.abc import Mapping

from autotm.kernels.making import KernelFacts
from autotm.lower.calls import Call
from autotm.lower.order import early_updates
from autotm.model.step import Graph, Kernel, Operand, Role, Tensor
from autotm.zoo import Network


def build_graph(
    network: Network, scale: str, calls: list[Call], returned: list[str], made: Mapping[str, KernelFacts]
) -> Graph:
    """The graph of one step: updates as early as they may run, workspaces as tensors, results and aliases marked."""
    loss, *updated = returned
    aliases = dict(zip(updated, network.parameters, strict=True))
    ordered = early_updates(calls, aliases)
    names = _storage_names(ordered, {**aliases, loss: "loss"}, made)
    kernels = [_kernel(index, call, names, made[call.function]) for index, call in enumerate(ordered)]
    tensors = _tensors(network, kernels, {names[new]: old for new, old in aliases.items()})
    return Graph(network.name, scale, network.batch, tuple(kernels), tensors)


def _storage_names(calls: list[Call], results: Mapping[str, str], made: Mapping[str, KernelFacts]) -> dict[str, str]:
    """Relax variable -> tensor name: results by what they are, the rest by their kernel."""
    names: dict[str, str] = {}
    for index, call in enumerate(calls):
        for slot, output in enumerate(call.outputs):
            if output.tensor in results:
                final = results[output.tensor]
                names[output.tensor] = final if final == "loss" else f"{final}.new"
            else:
                suffix = f".{slot}" if len(call.outputs) > 1 else ""
                names[output.tensor] = _kernel_name(index, made[call.function]) + suffix
    return names


def _kernel_name(index: int, made: KernelFacts) -> str:
    return f"{index:04d}_{made.op}"


def _kernel(index: int, call: Call, names: Mapping[str, str], made: KernelFacts) -> Kernel:
    name = _kernel_name(index, made)

    def renamed(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(Operand(names.get(item.tensor, item.tensor), item.shape, item.dtype) for item in operands)

    return Kernel(
        name=name,
        function=made.symbol,
        identity=made.identity,
        op=made.op,
        op_class=made.op_class,
        flops=made.flops,
        inputs=renamed(call.inputs),
        outputs=renamed(call.outputs),
        workspaces=workspaces(name, made),
    )


def workspaces(owner: str, kernel: KernelFacts) -> tuple[Operand, ...]:
    """The workspaces of a kernel as slots of the call named `owner`."""
    slots = enumerate(kernel.workspaces)
    return tuple(Operand(f"{owner}.workspace{slot}", tuple(shape), dtype) for slot, (shape, dtype) in slots)


def _tensors(network: Network, kernels: list[Kernel], aliases: Mapping[str, str]) -> tuple[Tensor, ...]:
    """Every tensor that a slot names, with producer and readers."""
    first: dict[str, Operand] = {}
    producer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    workspaces = set()
    for index, kernel in enumerate(kernels):
        for operand in kernel.operands:
            first.setdefault(operand.tensor, operand)
            readers.setdefault(operand.tensor, [])
        for operand in kernel.inputs:
            if readers[operand.tensor][-1:] != [index]:
                readers[operand.tensor].append(index)
        for operand in kernel.outputs + kernel.workspaces:
            producer[operand.tensor] = index
        workspaces.update(operand.tensor for operand in kernel.workspaces)

    def role(name: str) -> Role:
        if name in network.inputs:
            return Role.INPUT
        if name in network.parameters:
            return Role.PARAMETER
        if name in workspaces:
            return Role.WORKSPACE
        return Role.RESULT if name in aliases or name == "loss" else Role.INTERMEDIATE

    fills = {**network.inputs, **network.parameters}
    return tuple(
        Tensor(
            name=name,
            role=role(name),
            shape=operand.shape,
            dtype=operand.dtype,
            size_bytes=operand.size_bytes,
            producer=producer.get(name),
            readers=tuple(readers[name]),
            alias_of=aliases.get(name),
            initial=fills.get(name),
        )
        for name, operand in first.items()
    )
