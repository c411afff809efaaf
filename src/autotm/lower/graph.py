"""Calls of kernels -> the graph of one step: kernels in execution order and the tensors between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from autotm.kernels.compiler import KernelFacts
from autotm.lower.calls import Call, argument_operand
from autotm.lower.results import Placed
from autotm.lower.step import Result, Step
from autotm.model.graph import Graph, Kernel, Operand, Role, Tensor
from autotm.zoo import Network


def build_graph(network: Network, scale: str, step: Step, placed: Placed, facts: Mapping[str, KernelFacts]) -> Graph:
    """Build the graph of one step: workspaces as tensors, results and aliases marked."""
    pairs = list(zip(placed.results, step.results, strict=True))
    # Relax variable -> tensor name: results have names of their own, other tensors that of their kernel.
    results_by_tensor = {operand.tensor: result.name for operand, result in pairs}
    kernel_names = [f"{index:04d}_{facts[call.function].op}" for index, call in enumerate(placed.calls)]
    names: dict[str, str] = {}
    for call, name in zip(placed.calls, kernel_names, strict=True):
        for slot, output in enumerate(call.outputs):
            own = f"{name}.{slot}" if len(call.outputs) > 1 else name
            names[output.tensor] = results_by_tensor.get(output.tensor, own)
    kernels = [
        _kernel(name, call, names, facts[call.function]) for name, call in zip(kernel_names, placed.calls, strict=True)
    ]
    results = {result.name: (result, operand) for operand, result in pairs}
    return Graph(network.name, scale, network.batch, tuple(kernels), _tensors(step, kernels, results))


def _kernel(name: str, call: Call, names: Mapping[str, str], facts: KernelFacts) -> Kernel:

    def renamed(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(Operand(names.get(item.tensor, item.tensor), item.shape, item.dtype) for item in operands)

    return kernel_call(name, facts, renamed(call.inputs), renamed(call.outputs))


def kernel_call(name: str, facts: KernelFacts, inputs: tuple[Operand, ...], outputs: tuple[Operand, ...]) -> Kernel:
    """Return a call of a compiled kernel on operands, with workspaces of its own."""
    return Kernel(
        name=name,
        function=facts.symbol,
        identity=facts.identity,
        op=facts.op,
        op_class=facts.op_class,
        flops=facts.flops,
        inputs=inputs,
        outputs=outputs,
        workspaces=workspaces(name, facts),
    )


def workspaces(owner: str, kernel: KernelFacts) -> tuple[Operand, ...]:
    """Return the workspaces of a kernel as slots of the call named `owner`."""
    slots = enumerate(kernel.workspaces)
    return tuple(Operand(f"{owner}.workspace{slot}", tuple(shape), dtype) for slot, (shape, dtype) in slots)


def _tensors(step: Step, kernels: list[Kernel], results: Mapping[str, tuple[Result, Operand]]) -> tuple[Tensor, ...]:
    """Return every tensor that a slot names, with producer and readers, and replaced arguments that nobody reads."""
    named = [(operand.tensor, operand) for kernel in kernels for operand in kernel.operands]
    named += [(result.replaces, operand) for result, operand in results.values() if result.replaces is not None]
    first: dict[str, Operand] = {}
    for name, operand in named:
        first.setdefault(name, operand)
    producer: dict[str, int] = {}
    readers: dict[str, dict[int, None]] = defaultdict(dict)
    for index, kernel in enumerate(kernels):
        producer |= dict.fromkeys((operand.tensor for operand in kernel.outputs + kernel.workspaces), index)
        for operand in kernel.inputs:
            readers[operand.tensor][index] = None
    workspaces = {operand.tensor for kernel in kernels for operand in kernel.workspaces}
    # A kernel may see an argument in another shape than it is filled in.
    arguments = {operand.tensor: operand for operand in map(argument_operand, step.module["main"].params)}

    def tensor(name: str, operand: Operand) -> Tensor:
        argument, alias = step.arguments.get(name), None
        if argument is not None:
            role, operand = argument.role, arguments[name]
        elif name in results:
            # A result is fetched in the shape that `main` returns, not in its kernel's.
            (result, operand), role = results[name], Role.RESULT
            alias = result.replaces
        else:
            role = Role.WORKSPACE if name in workspaces else Role.INTERMEDIATE
        return Tensor(
            name=name,
            role=role,
            shape=operand.shape,
            dtype=operand.dtype,
            size_bytes=operand.size_bytes,
            producer=producer.get(name),
            readers=tuple(readers[name]),
            alias_of=alias,
            initial=argument.initial if argument is not None else None,
        )

    return tuple(tensor(name, operand) for name, operand in first.items())
