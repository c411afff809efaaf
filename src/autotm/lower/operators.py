"""All operators: importing this registers every family's rules; and transpositions folded into products."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import tvm
from tvm import relax

from autotm.kernels.contractions import Subscripts
from autotm.lower import indexing, movement, norms, pointwise, products, windows  # noqa: F401 - each registers its rules
from autotm.lower.rules import Ints, ints, is_call, number, shape_of

# Products that read operands and write results where they lie, instead of after a transposition.
#
# A network may turn a matrix, or move attention heads to the front, before it multiplies. The kernels need neither:
# `matmul(x, permute_dims(w))` becomes an `einsum` of `x` and `w`, and so does a product whose result is only permuted.

_BATCH = "abcdefgh"
_MATRIX = 2


def fold_transposes(module: tvm.IRModule) -> tvm.IRModule:
    """Let kernels of products read operands and write results as they lie, and drop the transpositions."""
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    uses: Counter = Counter()
    for expression in (*(binding.value for binding in bindings), main.body.body):
        relax.analysis.post_order_visit(
            expression, lambda item: uses.update([item] if isinstance(item, relax.Var) else [])
        )
    folding = _Folding(uses)
    for binding in bindings:
        folding.take(binding)
    if not folding.is_changed:
        return module
    body = relax.SeqExpr([relax.DataflowBlock(folding.bindings)], main.body.body)
    function = relax.Function(main.params, body, main.ret_ty, attrs=main.attrs)
    folded = tvm.IRModule({**dict(module.functions), module.get_global_var("main"): function})
    return relax.transform.DeadCodeElimination(["main"])(relax.transform.Normalize()(folded))


@dataclass(frozen=True)
class _Operand:
    """An operand as the value that it is made of: `source`, with its axes in `order`, times `factor`."""

    source: relax.Expr
    order: Ints
    factor: float = 1.0

    def letters(self, letters: str) -> str:
        """Return the letters of the source's axes, from those of the operand's."""
        source_letters = [""] * len(letters)
        for axis, letter in zip(self.order, letters, strict=True):
            source_letters[axis] = letter
        return "".join(source_letters)

    @property
    def is_turned(self) -> bool:
        return self.order != tuple(range(len(self.order)))


@dataclass
class _Folding:
    uses: Counter
    bindings: list[relax.VarBinding] = field(default_factory=list)
    values: dict[relax.Var, relax.Expr] = field(default_factory=dict)
    is_changed: bool = False
    builder: relax.BlockBuilder = field(default_factory=relax.BlockBuilder)

    def take(self, binding: relax.VarBinding) -> None:
        """Keep the next binding, or put others in its place; dead code is removed later."""
        value = binding.value
        folded = None
        if is_call(value, "relax.matmul"):
            folded = self._product(value, range(len(shape_of(value))))
        elif is_call(value, "relax.permute_dims"):
            folded = self._permuted_product(value)
        elif is_call(value, "relax.broadcast_to") and shape_of(value) == shape_of(value.args[0]):
            folded = value.args[0]
        self.is_changed |= folded is not None
        self.values[binding.var] = value
        self.bindings.append(binding if folded is None else relax.VarBinding(binding.var, folded))

    def _permuted_product(self, call: relax.Call) -> relax.Expr | None:
        product = self.values.get(call.args[0])
        if product is None or not is_call(product, "relax.matmul") or self.uses[call.args[0]] > 1:
            return None
        return self._product(product, _order(call))

    def _product(self, call: relax.Call, order: range | Ints) -> relax.Expr | None:
        """Return a product with its axes in an order; None if it is that already, or no kernel computes it."""
        shapes = [shape_of(argument) for argument in call.args]
        left, right = (self._operand(argument) for argument in call.args)
        is_permuted = tuple(order) != tuple(range(len(order)))
        if len(shapes[0]) > _MATRIX and len(shapes[1]) == _MATRIX and right.is_turned and not is_permuted:
            return self._dense(call, right)
        if shapes[0][:-2] != shapes[1][:-2] or min(map(len, shapes)) < _MATRIX:
            return None
        batch = _BATCH[: len(shapes[0]) - _MATRIX]
        result = f"{batch}ik"
        letters = Subscripts(
            left.letters(f"{batch}ij"), right.letters(f"{batch}jk"), "".join(result[axis] for axis in order)
        )
        every = (letters, letters.left_gradient, letters.right_gradient)
        if not (left.is_turned or right.is_turned or is_permuted) or not all(each.is_product for each in every):
            return None
        product = relax.op.einsum((left.source, right.source), str(letters))
        return self._scaled(product, left.factor * right.factor)

    def _dense(self, call: relax.Call, right: _Operand) -> relax.Expr:
        """Multiply rows of more than one axis by one transposed matrix."""
        x, shape = call.args[0], shape_of(call.args[0])
        rows = self._emit(relax.op.reshape(x, (math.prod(shape[:-1]), shape[-1])))
        product = self._emit(relax.op.einsum((rows, right.source), "ij,kj->ik"))
        return self._scaled(relax.op.reshape(product, shape_of(call)), right.factor)

    def _scaled(self, product: relax.Expr, factor: float) -> relax.Expr:
        return product if factor == 1.0 else relax.op.multiply(self._emit(product), relax.const(factor, "float32"))

    def _operand(self, operand: relax.Expr) -> _Operand:
        """Follow an operand through permutations and multiplications by numbers to its source."""
        rank, factor = len(shape_of(operand)), 1.0
        order, source, whole = tuple(range(rank)), operand, _Operand(operand, tuple(range(rank)))
        while isinstance(source, relax.Var) and source in self.values:
            value = self.values[source]
            if isinstance(value, relax.Var):
                source = value
            elif is_call(value, "relax.broadcast_to") and shape_of(value) == shape_of(value.args[0]):
                source = value.args[0]
            elif is_call(value, "relax.multiply") and (times := number(value.args[1])) is not None:
                source, factor = value.args[0], factor * times
            elif is_call(value, "relax.permute_dims"):
                own = _order(value)
                source, order = value.args[0], tuple(own[axis] for axis in order)
                whole = _Operand(source, order, factor)
            else:
                break
        return whole

    def _emit(self, value: relax.Expr) -> relax.Var:
        value = self.builder.normalize(value)
        var = relax.DataflowVar("folded", value.ty)
        self.bindings.append(relax.VarBinding(var, value))
        self.values[var] = value
        return var


def _order(call: relax.Call) -> Ints:
    rank = len(shape_of(call.args[0]))
    axes = call.attrs.axes
    return tuple(axis % rank for axis in ints(axes)) if axes is not None else tuple(reversed(range(rank)))
