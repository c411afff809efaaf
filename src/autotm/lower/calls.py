"""The step as calls of fused kernels, in order: our own forms where schedules need them, Relax's for the rest."""

from __future__ import annotations

from dataclasses import dataclass, field

import tvm
from tvm import relax, te, tirx

from autotm.lower.operators import LEGALIZE
from autotm.model.graph import Operand


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


def fused_kernels(step: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """The step as a flat list of calls to unscheduled, fused TIR functions (and reshapes)."""
    passes = [
        relax.transform.CanonicalizeBindings(),
        relax.transform.LegalizeOps(LEGALIZE),
        # Tuples of what an operator became are taken apart, or their parts would count as used outside and not fuse.
        relax.transform.CanonicalizeBindings(),
        _numbers_filled,
        relax.transform.AnnotateTIROpPattern(),
        relax.transform.DeadCodeElimination(["main"]),
        relax.transform.FuseOps(),
        relax.transform.FuseTIR(),
        relax.transform.DeadCodeElimination(["main"]),
    ]
    with target, tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(passes)(step)


@tvm.ir.transform.module_pass(opt_level=0)
def _numbers_filled(module: tvm.IRModule, _context: tvm.ir.transform.PassContext) -> tvm.IRModule:
    """Let kernels write the numbers that others read as tensors, or that the step returns: only tensors have memory."""
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

    call_tir = tvm.ir.Op.get("relax.call_tir")
    for block in main.body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Tuple):
                value = relax.Tuple([filled(field) for field in value.fields])
            elif isinstance(value, relax.Call) and value.op == call_tir:
                operands = relax.Tuple([filled(field) for field in value.args[1].fields])
                value = relax.Call(value.op, [value.args[0], operands, *value.args[2:]], value.attrs, value.ty_args)
            elif isinstance(value, relax.Call) and value.op == tvm.ir.Op.get("relax.reshape"):
                value = relax.Call(value.op, [filled(value.args[0]), *value.args[1:]], value.attrs, value.ty_args)
            bindings.append(relax.VarBinding(binding.var, filled(value)))
    result = main.body.body
    if isinstance(result, relax.Tuple):
        result = relax.Tuple([filled(field) for field in result.fields])
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], filled(result))
    functions = {var: item for var, item in builder.get().functions.items() if var.name_hint != "main"}
    whole = relax.Function(main.params, body, main.ret_ty, attrs=main.attrs)
    return relax.transform.Normalize()(tvm.IRModule({**functions, tvm.ir.GlobalVar("main"): whole}))


def extract_calls(module: tvm.IRModule) -> tuple[list[Call], list[Operand]]:
    """Calls of `main` in order, and what it returns as it returns it; reshapes become views.

    Raises:
        NotImplementedError: an operator was left that is neither a kernel call nor a view.
    """
    main = module["main"]
    walk = _Walk({var: name_of(var) for var in main.params})
    for block in main.body.blocks:
        for binding in block.bindings:
            _read(walk, binding.var, binding.value)
    result = main.body.body
    names = walk.tuples[result] if isinstance(result, relax.Var) else [walk.storage[item] for item in result.fields]
    return walk.calls, [Operand(name, *_type(item)) for name, item in zip(names, result.ty.fields, strict=True)]


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


def argument_operand(var: relax.Var) -> Operand:
    """An argument as an operand of its own name and shape."""
    return Operand(name_of(var), *_type(var.ty))


def name_of(var: relax.Var) -> str:
    """Its name as Python's own string: TVM's cannot be read back where others pickle it (`torch.load`)."""
    return str(var.name)


def _type(item: relax.TensorType) -> tuple[tuple[int, ...], str]:
    dtype = item.dtype
    return tuple(int(extent) for extent in item.shape), str(getattr(dtype, "dtype", dtype))
