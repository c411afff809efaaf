"""A module of Relax -> a program: calls become loops, recursions, or the statements of what they call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import tvm
from tvm import relax

from autotm.control.program import (
    Array,
    Block,
    Branch,
    Check,
    Loop,
    Operator,
    Program,
    Recursion,
    SelfCall,
    Statement,
    Value,
    copied,
    operator,
    without_dead,
)
from autotm.lower.step import with_gradients
from autotm.model.errors import AutotmError

Tree = Value | tuple["Tree", ...]
"""What an expression of Relax stands for: a tensor, or a tuple."""


@dataclass(frozen=True)
class Limits:
    """Bounds of what has none in Relax.

    Attributes:
        steps: of a while loop, by the name of its function: more are an error. Loops that are not named have no bound.
        depth: calls of a recursive function that may be active at once; their memory is set aside.
    """

    steps: Mapping[str, int] = field(default_factory=dict)
    depth: int = 1024


def read_program(module: tvm.IRModule, limits: Limits | None = None) -> Program:
    """Return the function `main` of a module as a program.

    A call of a function that does not call itself is replaced by its statements. A function that ends in one branch,
    one side of which ends in a call of the function itself, is a loop. Any other function that calls itself is a
    recursion.

    Raises:
        AutotmError: a shape is not static, or differs between the sides of a branch, the steps of a loop, or the calls
            of a recursion; two functions call each other; an expression is of no kind that has a place here.
    """
    transforms = [relax.transform.Normalize(), relax.transform.CanonicalizeBindings()]
    module = with_gradients(module, lambda name: AutotmError(f"{name} has no gradient here; write it with others"))
    try:
        module = tvm.transform.Sequential(transforms)(module)
    except (TypeError, ValueError) as error:
        # Calls whose arguments have other shapes or types than the parameters, with the code around the first one.
        raise AutotmError(f"the module has no consistent types: {error}") from None
    return _Reader(module, limits or Limits()).program()


@dataclass
class _Active:
    """A function that is being read.

    Attributes:
        name: of the function.
        changing: for a recursion, the positions of its arguments that its calls of itself may change; else None.
        results: values that a call of itself returns.
    """

    name: str
    changing: tuple[int, ...] | None = None
    results: Tree = ()


class _Reader:
    def __init__(self, module: tvm.IRModule, limits: Limits) -> None:
        self.module = module
        self.limits = limits
        self.constants: dict[Value, Array] = {}
        self.trees: dict[relax.Var, Tree] = {}
        self.statements: list[Statement] = []
        self.makers: dict[Value, Operator] = {}
        self.active = [_Active("main")]

    def program(self) -> Program:
        main = self.module["main"]
        parameters = [self._declare(var, f"argument '{var.name}' of main") for var in main.params]
        result = self._read(main.body)
        values = tuple(value for tree in parameters for value in _leaves(tree))
        body = without_dead(Block(tuple(self.statements), tuple(_leaves(result))))
        functions = {own: item for own, item in self.module.functions.items() if isinstance(item, tvm.tirx.PrimFunc)}
        return Program(values, body, self.constants, functions, isinstance(result, tuple))

    # Expressions.

    def _read(self, expression: relax.Expr) -> Tree:
        """Append the statements of an expression, and return what stands for its result."""
        match expression:
            case relax.SeqExpr():
                for binding in _bindings(expression):
                    self.trees[binding.var] = self._bound(binding.var, binding.value)
                return self._read(expression.body)
            case relax.If():
                return self._branch(expression)
            case relax.Tuple():
                return tuple(self._read(item) for item in expression.fields)
            case relax.TupleGetItem():
                return self._read(expression.tuple_value)[expression.index]
            case tvm.ir.Constant():
                return self._constant(expression)
            case relax.Var() if expression in self.trees:
                return self.trees[expression]
        raise AutotmError(
            f"{self._where}: cannot read {expression}; write it with operators of Relax on tensors, branches and calls"
        )

    def _bound(self, var: relax.Var, value: relax.Expr) -> Tree:
        if not isinstance(value, relax.Call):
            return self._read(value)
        if isinstance(value.op, tvm.ir.GlobalVar):
            return self._call(value)
        if value.op.name == "relax.assert_op":
            return self._assertion(value)
        holes: dict[Value, relax.Var] = {}
        call = relax.Call(value.op, [self._with_holes(item, holes) for item in value.args], value.attrs, value.ty_args)
        result = self._typed(var.name, var.ty, f"'{var.name}'")
        made = Operator(call, tuple(holes.values()), tuple(holes), tuple(_leaves(result)))
        self.statements.append(made)
        self.makers.update(dict.fromkeys(made.results, made))
        return result

    def _assertion(self, call: relax.Call) -> Tree:
        condition, message, *_ = call.args
        fails = self._emit(relax.op.logical_not, self._read(condition))
        self.statements.append(Check(self._emit(lambda x: relax.op.astype(x, "int32"), fails), str(message.value)))
        return ()

    def _with_holes(self, argument: relax.Expr, holes: dict[Value, relax.Var]) -> relax.Expr:
        """Return an argument of an operator with variables of its own for all values that it reads."""
        match argument:
            case tvm.ir.Constant() if not getattr(argument.value, "shape", ()):
                return argument  # A number in the code.
            case relax.Tuple():
                return relax.Tuple([self._with_holes(item, holes) for item in argument.fields])
            case tvm.ir.Constant() | relax.TupleGetItem() | relax.Var():
                return _as_expression(self._read(argument), holes)
        return argument

    def _constant(self, constant: tvm.ir.Constant) -> Value:
        array = constant.value.numpy()
        value = Value("constant", tuple(array.shape), str(array.dtype))
        self.constants[value] = array
        return value

    def _declare(self, var: relax.Var, what: str) -> Tree:
        self.trees[var] = self._typed(var.name, var.ty, what)
        return self.trees[var]

    def _typed(self, name: str, ty: tvm.ir.Type, what: str) -> Tree:
        """Return fresh values of a type.

        Raises:
            AutotmError: it is no tensor of static shape, nor a tuple of these.
        """
        if isinstance(ty, relax.TupleType):
            return tuple(self._typed(f"{name}.{index}", item, what) for index, item in enumerate(ty.fields))
        shape = getattr(ty, "shape", None)
        if not isinstance(shape, relax.ShapeExpr) or not all(isinstance(extent, tvm.tirx.IntImm) for extent in shape):
            raise AutotmError(f"{self._where}: {what} has no static shape ({ty}); give every tensor a known shape")
        dtype = ty.dtype
        return Value(str(name), tuple(int(extent) for extent in shape), str(getattr(dtype, "dtype", dtype)))

    @property
    def _where(self) -> str:
        return f"function '{self.active[-1].name}'"

    # Branches, and conditions.

    def _branch(self, branch: relax.If) -> Tree:
        condition = self._condition(branch.cond)
        then, then_tree = self._side(branch.true_branch)
        otherwise, otherwise_tree = self._side(branch.false_branch)
        self._match(then_tree, otherwise_tree, "one side of a branch returns", "the other side", _SIDES_REMEDY)
        results = _fresh(then_tree)
        self.statements.append(Branch(condition, then, otherwise, tuple(_leaves(results))))
        return results

    def _side(self, side: relax.Expr) -> tuple[Block, Tree]:
        with self._nested() as statements:
            tree = self._read(side)
        return Block(tuple(statements), tuple(_leaves(tree))), tree

    @contextmanager
    def _nested(self) -> Iterator[list[Statement]]:
        """Collect statements apart from those around."""
        outer, self.statements = self.statements, []
        try:
            yield self.statements
        finally:
            self.statements = outer

    def _condition(self, expression: relax.Expr) -> Value:
        """Return the value of a condition, after a check that no comparison in it meets a NaN."""
        condition = self._read(expression)
        if not isinstance(condition, Value) or condition.shape or condition.dtype != "bool":
            kind = condition.kind if isinstance(condition, Value) else "a tuple"
            raise AutotmError(f"{self._where}: a condition is {kind}; reduce it to a bool without axes")
        flag: Value | None = None
        for compared in self._compared(condition):
            nan = self._emit(relax.op.isnan, compared)
            counted = self._emit(lambda x: relax.op.astype(x, "int32"), nan)
            largest = self._emit(relax.op.max, counted) if counted.shape else counted
            flag = largest if flag is None else self._emit(relax.op.maximum, flag, largest)
        if flag is not None:
            self.statements.append(
                Check(flag, f"{self._where}: a condition compares NaN ('{condition.name}'); find where it first occurs")
            )
        return condition

    def _compared(self, condition: Value) -> list[Value]:
        """Return the floating-point values from which operators that return no floats computed a condition."""
        found: dict[Value, None] = {}
        waiting, seen = [condition], {condition}
        while waiting:
            maker = self.makers.get(waiting.pop())
            for operand in () if maker is None else maker.operands:
                if operand.dtype.startswith(("float", "bfloat")):
                    found[operand] = None
                elif operand not in seen:
                    seen.add(operand)
                    waiting.append(operand)
        return list(found)

    def _emit(self, function: Callable[..., relax.Expr], *operands: Value) -> Value:
        """Append a call of an operator on values."""
        made = operator(function, *operands, name="check")
        (result,) = made.results
        self.statements.append(made)
        self.makers[result] = made
        return result

    # Calls of functions.

    def _call(self, call: relax.Call) -> Tree:
        name, function = call.op.name_hint, self.module[call.op]
        arguments = [self._read(item) for item in call.args]
        names = [item.name for item in self.active]
        if name in names:
            recursions = [item for item in self.active if item.changing is not None]
            if recursions and recursions[-1].name == name:
                return self._self_call(recursions[-1], arguments)
            raise AutotmError(
                f"{self._where}: calls '{name}', which is being called ({' -> '.join([*names, name])}); a function may "
                "call itself, but not one that calls it: make them one function, which is told what to do"
            )
        if not isinstance(function, relax.Function):
            raise AutotmError(f"{self._where}: calls '{name}', which is no function of Relax; use operators instead")
        self.active.append(_Active(name))
        try:
            if not self._reaches(function, name):
                self.trees.update(zip(function.params, arguments, strict=True))
                return self._read(function.body)
            tail = _tail_of(function, call.op)
            return self._loop(function, tail, arguments) if tail else self._recursion(function, call.op, arguments)
        finally:
            self.active.pop()

    def _reaches(self, function: relax.Function, name: str) -> bool:
        """Whether a function calls the one of that name, directly or through others."""
        seen: set[str] = set()
        waiting = _callees(function)
        while waiting:
            callee = waiting.pop()
            if callee == name:
                return True
            if callee not in seen:
                seen.add(callee)
                waiting += _callees(self.module[callee])
        return False

    def _loop(self, function: relax.Function, tail: _Tail, arguments: Sequence[Tree]) -> Tree:
        name = self.active[-1].name
        changing = [
            index
            for index, (var, item) in enumerate(zip(function.params, tail.call.args, strict=True))
            if not item.same_as(var)
        ]
        self.trees.update(zip(function.params, arguments, strict=True))
        initial = [value for index in changing for value in _leaves(arguments[index])]
        for index in changing:
            self._declare(function.params[index], f"argument '{function.params[index].name}'")
        states = [value for index in changing for value in _leaves(self.trees[function.params[index]])]
        with self._nested() as head:
            for binding in tail.head:
                self.trees[binding.var] = self._bound(binding.var, binding.value)
            condition = self._condition(tail.branch.cond)
            if not tail.then_repeats:
                condition = self._emit(relax.op.logical_not, condition)
        with self._nested() as body:
            for binding in tail.body:
                self.trees[binding.var] = self._bound(binding.var, binding.value)
            following: list[Value] = []
            for index in changing:
                following += _leaves(self._read(tail.call.args[index]))
        block = Block(tuple(body), tuple(following))
        bound = self.limits.steps.get(name)
        loop = Loop(name, tuple(states), tuple(initial), tuple(head), condition, block, bound)
        steps = self._count(loop)
        if steps is None or (bound is not None and steps > bound):
            self.statements.append(loop)
        else:
            # The head is computed in every step, and once more for what is read after the loop.
            new: dict[Value, Value] = {}
            statements = copied((*head, *body), new)
            whole = Block(statements, tuple(new.get(value, value) for value in following))
            self.statements.append(replace(loop, head=(), condition=None, body=whole, steps=steps))
            self.statements += head
        return self._read(tail.exit)

    def _count(self, loop: Loop) -> int | None:
        """Return how many steps a loop takes if it counts from a constant to a constant by a constant."""
        test = self.makers.get(loop.condition)
        is_negated = test is not None and test.name == "relax.logical_not"
        if is_negated:
            test = self.makers.get(test.operands[0])
        comparison = None if test is None else _NEGATED.get(test.name) if is_negated else test.name
        if comparison not in _COMPARISONS:
            return None
        left, right = (self._number(test, index) for index in range(2))
        is_limit_first = not isinstance(left, Value)
        if is_limit_first:
            left, right = right, left
        if left not in loop.states or not isinstance(right, int):
            return None
        index = loop.states.index(left)
        start, step = self.constants.get(loop.initial[index]), self.makers.get(loop.body.results[index])
        if start is None or start.dtype.kind != "i" or step is None or step.name != "relax.add":
            return None
        terms = {self._number(step, 0), self._number(step, 1)}
        by = next((term for term in terms if isinstance(term, int)), 0)
        if left not in terms or by <= 0:
            return None
        ends_after = _COMPARISONS[comparison][is_limit_first]
        return None if ends_after is None else len(range(int(start), right + ends_after, by))

    def _number(self, made: Operator, index: int) -> Value | int | None:
        """Return an argument of a call: a value, or a whole number that is known."""
        argument = made.call.args[index]
        if isinstance(argument, tvm.ir.Constant):
            array = argument.value.numpy()
            return int(array) if array.dtype.kind == "i" else None
        for hole, operand in zip(made.holes, made.operands, strict=True):
            if argument.same_as(hole):
                return operand
        return None

    def _recursion(self, function: relax.Function, own: tvm.ir.GlobalVar, arguments: Sequence[Tree]) -> Tree:
        name, calls = self.active[-1].name, _calls_of(function, own)
        others = {*_callees(function)} - {name}
        is_direct = not any(self._reaches(self.module[other], name) for other in others)
        changing = tuple(
            index
            for index, var in enumerate(function.params)
            if not is_direct or any(not call.args[index].same_as(var) for call in calls)
        )
        self.trees.update(zip(function.params, arguments, strict=True))
        given = tuple(value for index in changing for value in _leaves(arguments[index]))
        for index in changing:
            self._declare(function.params[index], f"argument '{function.params[index].name}'")
        parameters = tuple(value for index in changing for value in _leaves(self.trees[function.params[index]]))
        results = self._typed(name, function.ret_ty, "its result")
        self.active[-1] = _Active(name, changing, results)
        with self._nested() as statements:
            tree = self._read(function.body)
        self._match(
            results, tree, "it is said to return", "it returns", "let all ways through it return the same shape"
        )
        body = Block(tuple(statements), tuple(_leaves(tree)))
        self.statements.append(Recursion(name, parameters, given, body, tuple(_leaves(results)), self.limits.depth))
        return results

    def _self_call(self, recursion: _Active, arguments: Sequence[Tree]) -> Tree:
        given: list[Value] = []
        for index in recursion.changing or ():
            given += _leaves(arguments[index])
        results = _fresh(recursion.results)
        self.statements.append(SelfCall(tuple(given), tuple(_leaves(results))))
        return results

    def _match(self, first: Tree, second: Tree, what: str, other: str, remedy: str) -> None:
        """Refuse two things that should be alike.

        Raises:
            AutotmError: they differ in shape or type.
        """
        kinds = _kinds(first), _kinds(second)
        if kinds[0] != kinds[1]:
            raise AutotmError(f"{self._where}: {what} {kinds[0]}, {other}: {kinds[1]}; {remedy}")


_SIDES_REMEDY = "let both sides return tensors of the same shapes and types: pad, reshape or cast one of them"
_COMPARISONS = {
    "relax.less": (0, None),
    "relax.less_equal": (1, None),
    "relax.greater": (None, 0),
    "relax.greater_equal": (None, 1),
}
"""What is added to the limit of a counter to get the first number that is not reached: by whether the counter is the
first operand, or the limit is."""
_NEGATED = {
    "relax.less": "relax.greater_equal",
    "relax.less_equal": "relax.greater",
    "relax.greater": "relax.less_equal",
    "relax.greater_equal": "relax.less",
}


# Expressions of Relax taken apart.


@dataclass(frozen=True)
class _Tail:
    """A function that is a loop.

    Attributes:
        head: bindings before its branch.
        branch: which ends it.
        then_repeats: whether the side that calls the function again is the one for a condition that holds.
        body: bindings of that side before the call.
        call: of the function itself.
        exit: the other side.
    """

    head: list[relax.Binding]
    branch: relax.If
    then_repeats: bool
    body: list[relax.Binding]
    call: relax.Call
    exit: relax.Expr


def _tail_of(function: relax.Function, own: tvm.ir.GlobalVar) -> _Tail | None:
    """Return the parts of a function that is a loop; None if it is none."""
    bindings = _bindings(function.body)
    if not bindings or not isinstance(branch := bindings[-1].value, relax.If):
        return None
    if not function.body.body.same_as(bindings[-1].var) or len(_calls_of(function, own)) != 1:
        return None
    sides = branch.true_branch, branch.false_branch
    for then_repeats, side, other in ((True, *sides), (False, *sides[::-1])):
        inner = _bindings(side)
        if inner and side.body.same_as(inner[-1].var) and _is_call_of(call := inner[-1].value, own):
            return _Tail(bindings[:-1], branch, then_repeats, inner[:-1], call, other)
    return None


def _bindings(sequence: relax.SeqExpr) -> list[relax.VarBinding]:
    return [binding for block in sequence.blocks for binding in block.bindings]


def _is_call_of(expression: relax.Expr, function: tvm.ir.GlobalVar) -> bool:
    if not isinstance(expression, relax.Call) or not isinstance(expression.op, tvm.ir.GlobalVar):
        return False
    return expression.op.name_hint == function.name_hint


def _calls_of(function: relax.Function, own: tvm.ir.GlobalVar) -> list[relax.Call]:
    found: list[relax.Call] = []
    relax.analysis.post_order_visit(function.body, lambda item: found.append(item) if _is_call_of(item, own) else None)
    return found


def _callees(function: relax.Function) -> list[str]:
    found: list[str] = []

    def visit(item: relax.Expr) -> None:
        if isinstance(item, tvm.ir.GlobalVar):
            found.append(item.name_hint)

    if isinstance(function, relax.Function):
        relax.analysis.post_order_visit(function.body, visit)
    return found


# Trees of values.


def _leaves(tree: Tree) -> list[Value]:
    return [tree] if isinstance(tree, Value) else [value for item in tree for value in _leaves(item)]


def _fresh(tree: Tree) -> Tree:
    return tree.fresh() if isinstance(tree, Value) else tuple(map(_fresh, tree))


def _kinds(tree: Tree) -> str:
    return tree.kind if isinstance(tree, Value) else f"({', '.join(map(_kinds, tree))})"


def _as_expression(tree: Tree, holes: dict[Value, relax.Var]) -> relax.Expr:
    """Return a tree as an expression of variables, which `holes` keeps by value."""
    if not isinstance(tree, Value):
        return relax.Tuple([_as_expression(item, holes) for item in tree])
    if tree not in holes:
        holes[tree] = relax.Var(tree.name, relax.TensorType(tree.shape, tree.dtype))
    return holes[tree]
