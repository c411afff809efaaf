"""The step as calls of fused kernels, in order: our own forms where schedules need them, Relax's for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import tvm
import tvm_ffi
from tvm import relax, te, tirx

from autotm.kernels.schedules.memory_bound import WRITTEN_OUT
from autotm.kernels.tir import loads_of
from autotm.lower import operators  # noqa: F401 - registers the rules
from autotm.lower.rules import LEGALIZE, is_call
from autotm.model.graph import Operand
from autotm.zoo.network import shape_and_dtype


@dataclass(frozen=True)
class Call:
    """One call of a fused function; operands are named by Relax's variables."""

    function: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]


def fused_kernels(step: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the step as a flat list of calls to unscheduled TIR functions (and reshapes), fused as TVM does."""
    with target:
        return fused_as_marked(relax.transform.FuseOps()(operator_kernels(step, target)))


def fused_as_marked(step: tvm.IRModule) -> tvm.IRModule:
    """Return a step whose functions that are marked `Primitive` have become one TIR function each."""
    return relax.transform.DeadCodeElimination(["main"])(relax.transform.FuseTIR()(step))


def operator_kernels(step: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the step as a flat list of calls to TIR functions (and reshapes), one for each operator."""
    passes = [
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(LEGALIZE),
        # Tuples that legalization makes are taken apart, or their parts would count as used outside and not fuse.
        relax.transform.CanonicalizeBindings(),
        _numbers_filled,
        relax.transform.AnnotateTIROpPattern(),
        _chains_cut,
        relax.transform.DeadCodeElimination(["main"]),
    ]
    with target:
        return tvm.transform.Sequential(passes)(step)


@tvm.ir.transform.module_pass(opt_level=0)
def _numbers_filled(module: tvm.IRModule, _context: tvm.ir.transform.PassContext) -> tvm.IRModule:
    """Let kernels write constants that others read as tensors, or that the step returns: only tensors have memory."""
    main, builder = module["main"], relax.BlockBuilder(module)
    bindings: list[relax.Binding] = []
    held: dict[tuple[str, str], relax.Var] = {}

    def filled(expression: relax.Expr) -> relax.Expr:
        if not isinstance(expression, tvm.ir.Constant):
            return expression
        array = expression.value.numpy()
        key = (str(array.dtype), array.tobytes())
        if key not in held:
            number = tirx.const(array.item(), str(array.dtype))
            func = te.create_prim_func([te.compute((), lambda: number, name="number")])
            held[key] = relax.Var("number", expression.ty)
            call = relax.call_tir(builder.add_func(func, "number"), relax.Tuple([]), out_ty=expression.ty)
            bindings.append(relax.VarBinding(held[key], call))
        return held[key]

    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Tuple):
                value = relax.Tuple([filled(field) for field in value.fields])
            elif is_call(value, "relax.call_tir"):
                operands = relax.Tuple([filled(field) for field in value.args[1].fields])
                value = relax.Call(value.op, [value.args[0], operands, *value.args[2:]], value.attrs, value.ty_args)
            elif is_call(value, "relax.reshape"):
                value = relax.Call(value.op, [filled(value.args[0]), *value.args[1:]], value.attrs, value.ty_args)
            bindings.append(relax.VarBinding(binding.var, filled(value)))
    result = main.body.body
    if isinstance(result, relax.Tuple):
        result = relax.Tuple([filled(field) for field in result.fields])
    return with_bindings(main, bindings, filled(result), builder.get().functions)


def with_bindings(
    main: relax.Function,
    bindings: Sequence[relax.Binding],
    result: relax.Expr,
    functions: Mapping[tvm.ir.GlobalVar, tvm.ir.BaseFunc],
) -> tvm.IRModule:
    """Return a module whose `main` has the parameters of another and these bindings, beside functions that it calls."""
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    whole = relax.Function(main.params, body, main.ret_ty, attrs=main.attrs)
    called = {var: item for var, item in functions.items() if var.name_hint != "main"}
    return relax.transform.Normalize()(tvm.IRModule({**called, tvm.ir.GlobalVar("main"): whole}))


MOST_REPEATED = 4
"""Loads of a kernel's expression over those of its operators: `relu` reads its operand twice, so 24 calls one after the
other, with 48 loads, would be an expression of 16 million."""
_ARGUMENT_READS = 28
"""How often the arithmetic of `exp`, `sigmoid`, `tanh` or `erf` (`memory_bound.py`) reads its argument, at most."""
MOST_EXPANDED = 1 << 22
"""Loads of a kernel's expression where each argument is put in the place of each of its reads.

TVM's generator of code does that, though an argument has a name, and takes 1.5 us for a load: five calls of `tanh`, one
upon the other, took 30 s, and six would take 28 times as long.
"""
_MOST_FUSED = 256
"""Operators that TVM fuses at most."""
_PATTERN = "op_pattern"
_INJECTIVE, _REDUCING, _OPAQUE = 2, 3, 8
"""Values of TVM's `OpPatternKind`. What is at most injective is put into its readers, if they are at most reducing."""


@tvm.ir.transform.module_pass(opt_level=0)
def _chains_cut(module: tvm.IRModule, _context: tvm.ir.transform.PassContext) -> tvm.IRModule:
    """Let an operator be a kernel of its own that, with all that could be put in place of its operands, is too long."""
    main, builder = module["main"], relax.BlockBuilder(module)
    has_memory = _read_by_others(module)
    loads: dict[relax.Var, int] = {}
    within: dict[relax.Var, dict[relax.Var, int]] = {}  # The loads of each operator that is put into its readers.
    expanded: dict[relax.Var, int] = {}
    reads: dict[tvm.ir.GlobalVar, tuple[Counter[tirx.Var], Counter[tirx.Var]]] = {}
    alone: dict[tvm.ir.GlobalVar, tvm.ir.GlobalVar] = {}

    def cut(value: relax.Expr, var: relax.Var) -> relax.Expr:
        if not is_call(value, "relax.call_tir"):
            return value
        name, operands = value.args[:2]
        func = module[name]
        if (pattern := int(func.attrs[_PATTERN])) == _OPAQUE:
            return value
        if name not in reads:
            reads[name] = Counter(load.source for load in loads_of(func.body)), expanded_reads(func)
        read, read_expanded = reads[name]
        own = {var: read.total()}
        whole, size = read.total(), read_expanded.total()
        for parameter, operand in zip(func.params, operands.fields, strict=False):  # Results come after operands.
            whole += read[parameter] * (loads.get(operand, 1) - 1)
            size += read_expanded[parameter] * (expanded.get(operand, 1) - 1)
            own.update(within.get(operand, {}))
        if whole <= MOST_REPEATED * sum(own.values()) and size <= MOST_EXPANDED:
            if pattern <= _INJECTIVE and var not in has_memory and len(own) < _MOST_FUSED:
                loads[var], expanded[var], within[var] = whole, size, own
            return value
        if name not in alone:
            alone[name] = builder.add_func(func.with_attr(_PATTERN, _OPAQUE), f"{name.name_hint}_alone")
        return relax.Call(value.op, [alone[name], *value.args[1:]], value.attrs, value.ty_args)

    bindings = [
        relax.VarBinding(item.var, cut(item.value, item.var)) for block in main.body.blocks for item in block.bindings
    ]
    return with_bindings(main, bindings, main.body.body, builder.get().functions) if alone else module


def expanded_reads(func: tirx.PrimFunc) -> Counter[tirx.Var]:
    """Count the loads of each parameter where elementary functions are written out, and have no names for arguments."""
    every: list[tvm.ir.Call] = []
    tvm_ffi.structural_walk(func.body, (tvm.ir.Call, every.append))
    calls = {call for call in every if getattr(call.op, "name", "") in WRITTEN_OUT}
    depths = Counter(load for call in calls for load in {*loads_of(call.args[0])})
    reads: Counter[tirx.Var] = Counter()
    for load in loads_of(func.body):
        reads[load.source] += _ARGUMENT_READS ** depths[load]
    return reads


def _read_by_others(module: tvm.IRModule) -> set[relax.Var]:
    """Return what is read by something that nothing is put into: a product, a tuple or a reshape, say."""
    read: set[relax.Var] = set()
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if not is_call(value, "relax.call_tir"):
                relax.analysis.post_order_visit(
                    value, lambda item: read.add(item) if isinstance(item, relax.Var) else None
                )
            elif int(module[value.args[0]].attrs[_PATTERN]) > _REDUCING:
                read.update(value.args[1].fields)
    return read


def extract_calls(module: tvm.IRModule) -> tuple[list[Call], list[Operand]]:
    """Return the calls of `main` in order, and its results in the shapes that it returns; reshapes become views.

    Raises:
        NotImplementedError: an operator was left that is neither a kernel call nor a view.
    """
    main = module["main"]
    storage: dict[relax.Var, str] = {var: argument_operand(var).tensor for var in main.params}
    tuples: dict[relax.Var, tuple[str, ...]] = {}
    calls: list[Call] = []
    for block in main.body.blocks:
        for binding in block.bindings:
            var, value = binding.var, binding.value
            if isinstance(value, relax.Var):
                storage[var] = storage[value]
            elif isinstance(value, relax.Tuple):
                tuples[var] = tuple(storage[item] for item in value.fields)
            elif isinstance(value, relax.TupleGetItem):
                storage[var] = tuples[value.tuple_value][value.index]
            elif is_call(value, "relax.reshape"):
                storage[var] = storage[value.args[0]]
            elif is_call(value, "relax.call_tir"):
                inputs = tuple(Operand(storage[item], *shape_and_dtype(item.ty)) for item in value.args[1].fields)
                own = f"{var.name}#{len(calls)}"  # Relax lets several variables share a name.
                if isinstance(var.ty, relax.TupleType):
                    types = list(var.ty.fields)
                    names = tuples[var] = tuple(f"{own}.{index}" for index in range(len(types)))
                else:
                    types, names = [var.ty], (own,)
                    storage[var] = own
                outputs = tuple(Operand(name, *shape_and_dtype(kind)) for name, kind in zip(names, types, strict=True))
                calls.append(Call(value.args[0].name_hint, inputs, outputs))
            else:
                raise NotImplementedError(f"cannot lower {value}: not a kernel call; give the operator a legalization")
    result = main.body.body
    names = tuples[result] if isinstance(result, relax.Var) else tuple(storage[item] for item in result.fields)
    kinds = map(shape_and_dtype, result.ty.fields)
    return calls, [Operand(name, *kind) for name, kind in zip(names, kinds, strict=True)]


def argument_operand(var: relax.Var) -> Operand:
    """Return an argument as an operand of its own name and shape.

    The name is Python's own string: TVM's cannot be read back where others pickle it (`torch.load`).
    """
    return Operand(str(var.name), *shape_and_dtype(var.ty))
