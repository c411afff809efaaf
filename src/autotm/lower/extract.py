"""The fused step -> kernels in execution order and the tensors between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm
from tvm import relax

from autotm.kernels.making import KernelFacts
from autotm.lower.order import early_updates
from autotm.model.step import Graph, Kernel, Operand, Role, Tensor
from autotm.zoo import Network


@dataclass(frozen=True)
class Call:
    """One call of a fused function, in Relax's words."""

    function: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


@dataclass
class _Walk:
    """What is known of each variable while the bindings are read in order."""

    storage: dict[relax.Var, str] = field(default_factory=dict)
    tuples: dict[relax.Var, tuple[str, ...]] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)

    def fresh(self, var: relax.Var) -> str:
        """A name of its own for a variable: Relax lets several share one."""
        return f"{var.name}#{len(self.calls)}"

    def operand(self, expression: relax.Expr) -> Operand:
        return Operand(self.storage[expression], *_type(expression.ty))


def extract_calls(module: tvm.IRModule) -> tuple[list[Call], list[str]]:
    """Calls of `main` in order, and the names of the tensors it returns; reshapes become views.

    Raises:
        NotImplementedError: an operator was left that is neither a kernel call nor a view.
    """
    main = module["main"]
    walk = _Walk({var: var.name for var in main.params})
    for block in main.body.blocks:
        for binding in block.bindings:
            _read(walk, binding.var, binding.value)
    result = main.body.body
    names = (
        walk.tuples[result] if isinstance(result, relax.Var) else tuple(walk.storage[item] for item in result.fields)
    )
    return walk.calls, list(names)


def _read(walk: _Walk, var: relax.Var, value: relax.Expr) -> None:
    if isinstance(value, relax.Var):
        walk.storage[var] = walk.storage[value]
    elif isinstance(value, relax.Tuple):
        walk.tuples[var] = tuple(walk.storage[item] for item in value.fields)
    elif isinstance(value, relax.TupleGetItem):
        walk.storage[var] = walk.tuples[value.tuple_value][value.index]
    elif isinstance(value, tvm.ir.Call) and value.op == tvm.ir.Op.get("relax.reshape"):
        walk.storage[var] = walk.storage[value.args[0]]
    elif isinstance(value, tvm.ir.Call) and value.op == tvm.ir.Op.get("relax.call_tir"):
        _read_call(walk, var, value)
    else:
        raise NotImplementedError(f"cannot lower {value}: not a kernel call; give the operator a legalization")


def _read_call(walk: _Walk, var: relax.Var, value: tvm.ir.Call) -> None:
    function, arguments = value.args[0].name_hint, value.args[1]
    inputs = tuple(walk.operand(argument) for argument in arguments.fields)
    if isinstance(var.ty, relax.TupleType):
        types = list(var.ty.fields)
        walk.tuples[var] = tuple(f"{walk.fresh(var)}.{index}" for index in range(len(types)))
        names = walk.tuples[var]
    else:
        types, names = [var.ty], (walk.fresh(var),)
        walk.storage[var] = names[0]
    outputs = tuple(Operand(name, *_type(item)) for name, item in zip(names, types, strict=True))
    walk.calls.append(Call(function, inputs, outputs))


def _type(item: relax.TensorType) -> tuple[tuple[int, ...], str]:
    dtype = item.dtype
    return tuple(int(extent) for extent in item.shape), str(getattr(dtype, "dtype", dtype))


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
