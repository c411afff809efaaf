"""One piece of machine code for all kernels that differ in nothing but numbers.

A deep network has hundreds of copies, sums and elementwise kernels that differ only in how many channels there are, and
where they begin. Here such kernels become one function that takes those numbers as arguments, and a small entry for
each kernel, which calls it with its own. What a kernel computes, and in which order, stays the same, whoever it was
compiled with; only whether a number stands in the code or is handed over depends on that.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm_ffi import StructuralMutator

SHARED = "autotm.shared"
"""Attribute of functions that lose nothing if numbers are handed over: memory limits them, not addresses."""

_SCOPE = "compute_scope"
_DATA = ir.Op.get("tirx.buffer_data")


def share(module: tvm.IRModule) -> tvm.IRModule:
    """Functions ready for code generation, those marked `SHARED` made of common ones where they can be."""
    functions = dict(module.functions.items())
    alike: dict[int, list[_Blank]] = {}
    for entry, func in module.functions.items():
        if SHARED in func.attrs:
            blank = _Blank.of(entry, func)
            alike.setdefault(tvm_ffi.structural_hash(blank.function, map_free_vars=True), []).append(blank)
    for number, group in enumerate(alike.values()):
        if len(group) > 1 and not tirx.analysis.undefined_vars(group[0].function.body, group[0].function.params):
            functions.update(_join(f"shared_{number}", group))
    return tvm.IRModule(functions)


@dataclass
class _Blank:
    """The work of one kernel, with a parameter for every number in it that others may have otherwise.

    Attributes:
        entry: the kernel's name.
        func: the kernel: it unpacks its arguments, then works.
        work: what it does, in these parameters.
        pointers: the first parameters, and where the entry finds them.
        numbers: the others.
    """

    entry: ir.GlobalVar
    func: tirx.PrimFunc
    work: tirx.Stmt | None = None
    pointers: dict[tirx.Var, tirx.Expr] = field(default_factory=dict)
    numbers: dict[tirx.Var, tirx.IntImm] = field(default_factory=dict)
    _arguments: dict[tirx.Var, tirx.Expr] = field(default_factory=dict)

    @classmethod
    def of(cls, entry: ir.GlobalVar, func: tirx.PrimFunc) -> _Blank:
        """With its blanks."""
        blank = cls(entry, func)
        tvm_ffi.structural_mutate(func.body, [(tirx.DeclBuffer, blank._argument), (tirx.AttrStmt, blank._scope)])
        return blank

    @property
    def function(self) -> tirx.PrimFunc:
        """The work as a function of its parameters."""
        return tirx.PrimFunc([*self.pointers, *self.numbers], self.work)

    def calling(self, common: ir.GlobalVar, numbers: Sequence[tirx.IntImm]) -> tirx.PrimFunc:
        """The kernel with a call in place of its work."""
        unpacked = itertools.takewhile(lambda statement: isinstance(statement, tirx.Bind), self.func.body.seq)
        call = ir.Call(common, [*self.pointers.values(), *numbers], ret_ty="int32")
        failed = tirx.AssertStmt(call == 0, ir.StringImm("RuntimeError"), [ir.StringImm("a thread failed")])
        return self.func.with_body(tirx.SeqStmt([*unpacked, failed, tirx.Return(tirx.IntImm("int32", 0))]))

    def _argument(self, declared: tirx.DeclBuffer, _mutator: StructuralMutator) -> tirx.DeclBuffer:
        self._arguments[declared.buffer] = declared.data
        return declared

    def _scope(self, node: tirx.AttrStmt, mutator: StructuralMutator) -> tirx.AttrStmt:
        if node.attr_key != _SCOPE:
            return mutator.default_mutate(node)
        # Widths of vectors and the buffers of sums are part of the code, as are constants that tell what to call.
        rules = [
            (tirx.IntImm, self._number),
            (tirx.Ramp, lambda ramp, mutator: tirx.Ramp(mutator.mutate(ramp.base), ramp.stride, ramp.lanes)),
            (tirx.Broadcast, lambda value, mutator: tirx.Broadcast(mutator.mutate(value.value), value.lanes)),
            (tirx.AllocBuffer, lambda allocation, _mutator: allocation),
            (ir.Call, self._call),
        ]
        self.work = tvm_ffi.structural_mutate(node.body, rules)
        return node

    def _number(self, value: tirx.IntImm, _mutator: StructuralMutator) -> tirx.Var:
        blank = tirx.Var("number", value.ty)
        self.numbers[blank] = value
        return blank

    def _call(self, call: ir.Call, mutator: StructuralMutator) -> tirx.Expr:
        if call.op.same_as(_DATA):
            if call.args[0] not in self._arguments:
                return call
            blank = tirx.Var("data", call.ty)
            self.pointers[blank] = self._arguments[call.args[0]]
            return blank
        arguments = [item if isinstance(item, tirx.IntImm) else mutator.mutate(item) for item in call.args]
        return ir.Call(call.op, arguments, call.attrs, call.ty_args, call.span, call.ty)


def _join(name: str, group: Sequence[_Blank]) -> dict[ir.GlobalVar, tirx.PrimFunc]:
    """The common function of kernels that are alike, and their entries."""
    parameters: dict[tuple[str | int, ...], tirx.Var] = {}
    filled: dict[tirx.Var, tirx.Expr] = {}
    for blank, *values in zip(group[0].numbers, *(other.numbers.values() for other in group), strict=True):
        found = tuple(int(value) for value in values)
        if len(set(found)) == 1:
            filled[blank] = values[0]
        else:
            filled[blank] = parameters.setdefault((str(blank.ty.dtype), *found), blank)

    def fill(var: tirx.Var, mutator: StructuralMutator) -> tirx.Expr:
        return filled[var] if var in filled else mutator.default_mutate(var)

    first, common = group[0], ir.GlobalVar(name)
    work = tvm_ffi.structural_mutate(first.work, [(tirx.Var, fill)])
    function = tirx.PrimFunc(
        [*first.pointers, *parameters.values()],
        tirx.SeqStmt([work, tirx.Return(tirx.IntImm("int32", 0))]),
        first.func.ret_type,
    )
    functions = {common: function.with_attr({"target": first.func.attrs["target"], "tirx.noalias": True})}
    for number, blank in enumerate(group):
        own = [tirx.IntImm(dtype, values[number]) for dtype, *values in parameters]
        functions[blank.entry] = blank.calling(common, own)
    return functions
