"""A program in the virtual machine of Relax: with its control flow, or as pieces; on autotm's kernels."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from autotm.control.program import (
    Array,
    Block,
    Branch,
    Loop,
    Operator,
    Program,
    Recursion,
    SelfCall,
    Statement,
    Value,
    all_reads,
    free,
    operator,
    rewritten,
)
from autotm.control.regions import KernelSet, fused_module
from autotm.kernels.passes import machine_code
from autotm.kernels.target import host_target
from autotm.lower.rules import is_call
from autotm.systems.source import Piece, Prepared, Ready, piece_of, python_source
from autotm.zoo.functions import FunctionWriter, integer

_PASSES = [
    relax.transform.RewriteDataflowReshape(),
    relax.transform.ToNonDataflow(),
    relax.transform.RemovePurityChecking(),
    relax.transform.CallTIRRewrite(),
    relax.transform.LowerAllocTensor(),
    relax.transform.KillAfterLastUse(),
    relax.transform.LowerRuntimeBuiltin(),
    relax.transform.ComputePrimValue(),
    relax.transform.VMShapeLower(),
    relax.transform.AttachGlobalSymbol(),
]
"""As TVM's own, but memory is not planned: TVM 0.27 plans it wrongly where a branch has a call of its own function."""
Scope = dict[Value, relax.Expr]
Compiled = tuple[relax.VirtualMachine, set[str]]
"""A machine, and the names of its kernels."""


def machine_of(program: Program, target: tvm.target.Target, threads: int) -> Compiled:
    """Return a machine with `main(*parameters, *constants)`: branches of Relax, and functions that call themselves.

    Every loop of the program has a condition (`with_conditions`).
    """
    writer = _Writer(target, threads)
    writer.whole(program)
    return writer.machine()


def machine_of_pieces(pieces: Sequence[Piece], target: tvm.target.Target, threads: int) -> Compiled:
    """Return a machine with one function for each piece."""
    writer = _Writer(target, threads)
    for piece in pieces:
        writer.piece(piece)
    return writer.machine()


def with_conditions(program: Program) -> Program:
    """Return a program whose counted loops count themselves."""

    def counting(statement: Statement) -> list[Statement]:
        if not isinstance(statement, Loop) or statement.condition is not None:
            return [statement]
        counter, start = (Value("counter", (), "int64") for _ in range(2))
        constants[start] = integer(0).value.numpy()
        test = operator(lambda value: relax.op.less(value, integer(statement.steps or 0)), counter, name="goes_on")
        count = operator(lambda value: relax.op.add(value, integer(1)), counter, name="counter")
        body = Block((*statement.body.statements, count), (*statement.body.results, *count.results))
        states, initial = (*statement.states, counter), (*statement.initial, start)
        return [Loop(statement.name, states, initial, (test,), test.results[0], body, None)]

    constants = dict(program.constants)
    body = rewritten(program.body, counting)
    return replace(program, body=body, constants=constants)


class _Writer:
    """Functions of Relax, and the kernels that they call.

    Attributes:
        functions: by what wrote them.
        kernels: that they call.
    """

    def __init__(self, target: tvm.target.Target, threads: int) -> None:
        self.target = target
        self.functions: dict[FunctionWriter, relax.Function] = {}
        self.kernels = KernelSet(target, threads)
        self.reads: Counter[Value] = Counter()
        self._fused: dict[int, tvm.IRModule] = {}
        self._recursions: list[tuple[FunctionWriter, tuple[Value, ...]]] = []

    def machine(self) -> Compiled:
        """Compile all of it."""
        named = {own.own: func.with_attr("global_symbol", own.own.name_hint) for own, func in self.functions.items()}
        module = relax.transform.Normalize()(tvm.IRModule(named))
        built = relax.build(module, self.target, relax_pipeline=tvm.transform.Sequential(_PASSES))
        built.mod.import_module(machine_code(self.kernels.functions, self.target))
        return relax.VirtualMachine(built, tvm.cpu()), {*self.kernels.functions}

    def whole(self, program: Program) -> None:
        self.reads = Counter(all_reads(program.body))
        values = (*program.parameters, *program.constants)
        main, scope = self._function("main", values, program.body.results)
        self._block(main, scope, program.body.statements)
        self._finish(main, scope, program.body.results)

    def piece(self, piece: Piece) -> None:
        function, scope = self._function(piece.name, piece.inputs, piece.outputs)
        self._operators(function, scope, piece)
        self._finish(function, scope, piece.outputs)

    def _function(self, name: str, values: Sequence[Value], results: Sequence[Value]) -> tuple[FunctionWriter, Scope]:
        """Begin a function of some values, and return it with its variables for them."""
        kinds = {f"p{index}": (value.shape, value.dtype) for index, value in enumerate(values)}
        types = [(value.shape, value.dtype) for value in results]
        function = FunctionWriter(name, kinds, types[0] if len(types) == 1 else types)
        return function, dict(zip(values, function.params.values(), strict=True))

    def _finish(self, function: FunctionWriter, scope: Scope, results: Sequence[Value]) -> None:
        self.functions[function] = function.function(_together(scope, results))

    def _call(self, writer: FunctionWriter, scope: Scope, function: FunctionWriter, arguments: Sequence[Value],
              results: Sequence[Value]) -> None:  # fmt: skip
        self._apart(writer, scope, writer.call(function, *(scope[value] for value in arguments)), results)

    def _apart(self, writer: FunctionWriter, scope: Scope, whole: relax.Var, results: Sequence[Value]) -> None:
        """Name the results of a call or branch."""
        if len(results) == 1:
            scope[results[0]] = whole
            return
        for index, value in enumerate(results):
            scope[value] = writer.emit(relax.TupleGetItem(whole, index))

    def _block(self, writer: FunctionWriter, scope: Scope, statements: Sequence[Statement]) -> None:
        run: list[Operator] = []
        for statement in statements:
            if isinstance(statement, Operator):
                run.append(statement)
                continue
            self._run(writer, scope, run)
            run = []
            self._statement(writer, scope, statement)
        self._run(writer, scope, run)

    def _run(self, writer: FunctionWriter, scope: Scope, run: list[Operator]) -> None:
        if run:
            self._operators(writer, scope, piece_of(run, self.reads, "run"))

    def _statement(self, writer: FunctionWriter, scope: Scope, statement: Statement) -> None:
        match statement:
            case Branch():
                sides = [
                    lambda side=side: self._side(writer, dict(scope), side)
                    for side in (statement.then, statement.otherwise)
                ]
                whole = writer.branch(scope[statement.condition], *sides)
                self._apart(writer, scope, whole, statement.results)
            case Loop():
                self._loop(writer, scope, statement)
            case Recursion():
                self._recursion(writer, scope, statement)
            case SelfCall():
                function, fixed = self._recursions[-1]
                self._call(writer, scope, function, (*statement.arguments, *fixed), statement.results)

    def _side(self, writer: FunctionWriter, scope: Scope, block: Block) -> relax.Expr:
        self._block(writer, scope, block.statements)
        return _together(scope, block.results)

    def _loop(self, writer: FunctionWriter, scope: Scope, loop: Loop) -> None:
        """Write a loop as a function that calls itself with the next states."""
        fixed = tuple(free(_inside(loop)) - {*loop.states})
        function, own = self._function(f"loop{len(self.functions)}_{loop.name}", (*loop.states, *fixed), loop.states)
        self.functions[function] = relax.Function([], relax.Tuple([]))  # Its number is taken.
        self._block(function, own, loop.head)

        def again() -> relax.Expr:
            inner = dict(own)
            self._block(function, inner, loop.body.statements)
            arguments = [inner[value] for value in (*loop.body.results, *fixed)]
            return function.call(function, *arguments)

        last = function.branch(own[loop.condition], again, lambda: _together(own, loop.states))
        self.functions[function] = function.function(last)
        self._call(writer, scope, function, (*loop.initial, *fixed), loop.states)
        # What the last run of the head computed can be read afterwards.
        self._block(writer, scope, loop.head)

    def _recursion(self, writer: FunctionWriter, scope: Scope, recursion: Recursion) -> None:
        fixed = tuple(free(recursion.body) - {*recursion.parameters})
        values = (*recursion.parameters, *fixed)
        function, own = self._function(f"recursion{len(self.functions)}", values, recursion.body.results)
        self.functions[function] = relax.Function([], relax.Tuple([]))
        self._recursions.append((function, fixed))
        self._block(function, own, recursion.body.statements)
        self._recursions.pop()
        self._finish(function, own, recursion.body.results)
        self._call(writer, scope, function, (*recursion.arguments, *fixed), recursion.results)

    def _operators(self, writer: FunctionWriter, scope: Scope, piece: Piece) -> None:
        """Write calls of the fused kernels of a piece."""
        names = {value: f"input{index}" for index, value in enumerate(piece.inputs)}
        module = fused_module(piece.operators, names, piece.outputs, {}, self.target, self._fused)
        main = module["main"]
        own: Mapping[relax.Var, relax.Expr] = dict(
            zip(main.params, (scope[value] for value in piece.inputs), strict=True)
        )
        for block in main.body.blocks:
            for binding in block.bindings:
                own[binding.var] = self._bound(writer, own, module, binding)
        returned = main.body.body
        fields = own[returned].fields if isinstance(returned, relax.Var) else [own[item] for item in returned.fields]
        scope.update(zip(piece.outputs, fields, strict=True))

    def _bound(
        self, writer: FunctionWriter, own: Mapping[relax.Var, relax.Expr], module: tvm.IRModule, binding: relax.Binding
    ) -> relax.Expr:
        value = binding.value
        match value:
            case relax.Var():
                return own[value]
            case relax.Tuple():
                return relax.Tuple([own[item] for item in value.fields])
            case relax.TupleGetItem():
                whole = own[value.tuple_value]
                is_apart = isinstance(whole, relax.Tuple)
                return whole.fields[value.index] if is_apart else writer.emit(relax.TupleGetItem(whole, value.index))
        if is_call(value, "relax.reshape"):
            return writer.emit(relax.op.reshape(own[value.args[0]], value.args[1]))
        arguments = relax.Tuple([own[item] for item in value.args[1].fields])
        return self._called(writer, module[value.args[0]], arguments, binding.var.ty)

    def _called(
        self, writer: FunctionWriter, function: tirx.PrimFunc, arguments: relax.Tuple, result: tvm.ir.Type
    ) -> relax.Var:
        """Call a kernel; its workspaces are results that nobody reads."""
        symbol, kernel = self.kernels.of(function.without_attr("global_symbol"))
        outputs = list(result.fields) if isinstance(result, relax.TupleType) else [result]
        types = [*outputs, *(relax.TensorType(*workspace) for workspace in kernel.workspaces)]
        whole = writer.emit(relax.call_dps_packed(symbol, arguments, types if len(types) > 1 else types[0]))
        if len(types) == 1 or isinstance(result, relax.TupleType):
            return whole
        return writer.emit(relax.TupleGetItem(whole, 0))


def _inside(loop: Loop) -> Block:
    """Return head and body of a loop as one block."""
    tested = () if loop.condition is None else (loop.condition,)
    return Block((*loop.head, *loop.body.statements), (*tested, *loop.body.results))


def _together(scope: Scope, values: Sequence[Value]) -> relax.Expr:
    """Return values as what a function or a side of a branch returns."""
    return scope[values[0]] if len(values) == 1 else relax.Tuple([scope[value] for value in values])


def _ready(program: Program, main: Any, machine: Any, kernels: Any) -> Ready:
    def on(arguments: Sequence[Array]) -> Prepared:
        values = [tvm.runtime.tensor(np.array(each, order="C")) for each in (*arguments, *program.constants.values())]
        return Prepared(lambda: main(*values), lambda: _vm_kernel_ms(machine, kernels, lambda: main(*values)))

    return on


def whole(program: Program, threads: int) -> Ready:
    """Compile a program for the machine, with its control flow."""
    program = with_conditions(program)
    machine, kernels = machine_of(program, host_target(threads), threads)
    return _ready(program, machine["main"], machine, kernels)


def in_pieces(program: Program, threads: int) -> Ready:
    """Compile the pieces of a program for the machine; Python calls them."""
    source, pieces = python_source(program, None)
    machine, kernels = machine_of_pieces(pieces, host_target(threads), threads)
    scope = {piece.name: machine[piece.name] for piece in pieces}
    exec(source, {"holds": lambda flag: bool(flag.numpy()), **scope}, scope)  # noqa: S102 - The source is ours.
    return _ready(program, scope["main"], machine, kernels)


def _vm_kernel_ms(machine: Any, kernels: Collection[str], call: Callable[[], object]) -> float:
    """Return the time within kernels, as TVM tells an instrument; it has what the telling takes in it."""
    spent, begun = [0.0], [0.0]

    def told(_function: object, name: str, is_before: bool, *_: object) -> None:
        if name not in kernels:
            return
        if is_before:
            begun[0] = time.perf_counter()
        else:
            spent[0] += time.perf_counter() - begun[0]

    machine.set_instrument(told)
    call()
    spent[0] = 0.0
    call()
    return spent[0] * 1e3
