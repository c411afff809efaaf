"""Rewrites of programs: each returns a program that computes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax

from autotm.control.levels import by_levels
from autotm.control.packing import pack_weights
from autotm.control.program import (
    Block,
    Branch,
    Check,
    Loop,
    Operator,
    Program,
    Recursion,
    Statement,
    Value,
    any_statement,
    copied,
    defined,
    operator,
    rewritten,
    without_dead,
)
from autotm.control.splitting import split_loops
from autotm.kernels.target import host_target, target_info

SMALL_ELEMENTS = 128
"""Tensors up to this size are cheaper to compute than to decide about, as in the original."""
LARGE_BYTES = 1 << 17
"""A smaller matrix is read so fast that a tree of calls is computed no faster by levels than with a stack."""

SPLIT_BYTES = 1 << 14
"""A smaller matrix is multiplied in less time than a row is copied."""


@dataclass(frozen=True)
class Rewrites:
    """Which rewrites a program goes through, in the order of the attributes.

    Attributes:
        hoist_from_branches: most elements of a tensor whose operator is computed before a branch; 0 for none.
        predicate: most elements of a tensor of a branch both sides of which are computed; 0 for none.
        hoist_invariants: whether what does not change in a loop or recursion is computed before it.
        by_levels: least bytes of a matrix by which calls of a recursion are joined, for it to be computed by levels; 0
            for none.
        split_loops: least bytes of a matrix for which a counted loop is split, so that the rows of all steps are
            multiplied with it at once; 0 for none.
        pack_weights: whether products, and convolutions of a few positions, read weights from panels of columns: what
            is known, and what does not change in a loop or recursion, of which panels are made before it.
        unroll: steps of a counted loop that are written one after the other.
    """

    hoist_from_branches: int = SMALL_ELEMENTS
    predicate: int = SMALL_ELEMENTS
    hoist_invariants: bool = True
    by_levels: int = LARGE_BYTES
    split_loops: int = SPLIT_BYTES
    pack_weights: bool = True
    unroll: int = 2

    def apply(self, program: Program) -> Program:
        """Return the program after all of them."""
        if self.hoist_from_branches:
            program = hoist_from_branches(program, self.hoist_from_branches)
        if self.predicate:
            program = predicate(program, self.predicate)
        if self.hoist_invariants:
            program = hoist_invariants(program)
        if self.by_levels:
            program = by_levels(program, self.by_levels)
        if self.split_loops:
            program = split_loops(program, self.split_loops)
        if self.pack_weights:
            program = hoist_invariants(pack_weights(program, target_info(host_target(1)).lanes))
        if self.unroll > 1:
            program = unroll(program, self.unroll)
        return program


NO_REWRITES = Rewrites(0, 0, hoist_invariants=False, by_levels=0, split_loops=0, pack_weights=False, unroll=1)


def _everywhere(program: Program, rewrite: Callable[[Statement], Iterable[Statement]]) -> Program:
    return replace(program, body=without_dead(rewritten(program.body, rewrite)))


# Operators moved to where they are computed less often, or without a decision.

_INDEXING = {
    "relax.take",
    "relax.gather_elements",
    "relax.gather_nd",
    "relax.index_tensor",
    "relax.dynamic_strided_slice",
    "relax.scatter_elements",
    "relax.scatter_nd",
    "relax.index_put",
}
_PACKING = {
    "relax.permute_dims",
    "relax.reshape",
    "relax.concat",
    "relax.split",
    "relax.strided_slice",
    "relax.astype",
    "relax.expand_dims",
}
"""Operators that put elements elsewhere, as weights are packed."""
_DIVIDING = {"relax.divide", "relax.floor_divide", "relax.mod", "relax.floor_mod"}


def may_fault(item: Operator) -> bool:
    """Whether an operator may read or write outside of its operands, or divide whole numbers by 0.

    Such an operator stays behind the condition that guards it.
    """
    if item.name in _DIVIDING:
        return any(np.dtype(value.dtype).kind in "iu" for value in item.operands)
    return item.name in _INDEXING


def hoist_invariants(program: Program) -> Program:
    """Compute before a loop or recursion what is the same in all its steps or calls.

        loop x = x0:  p = pack(w); x = p x   -->   p = pack(w); loop x = x0:  x = p x

    What may fault stays in a loop that may have no step or in which a check may end the program, and in a recursion. Of
    a branch in it, only what packs tensors is computed before: the rest may never be needed.
    """

    def hoist(statement: Statement) -> list[Statement]:
        match statement:
            case Loop():
                outside = {*statement.states}
                head, moved = _invariant(statement.head, outside, lambda _: True)
                is_checked = any_statement(statement.body.statements, lambda item: isinstance(item, Check))
                is_entered = statement.condition is None and bool(statement.steps) and not is_checked
                body, more = _invariant(
                    statement.body.statements, outside, lambda item: is_entered or not may_fault(item)
                )
                body, packed = _unpacked_sides(body, outside)
                return [*moved, *more, *packed, replace(statement, head=head, body=Block(body, statement.body.results))]
            case Recursion():
                outside = {*statement.parameters}
                kept, moved = _invariant(statement.body.statements, outside, lambda item: not may_fault(item))
                kept, packed = _unpacked_sides(kept, outside)
                return [*moved, *packed, replace(statement, body=Block(kept, statement.body.results))]
        return [statement]

    return _everywhere(program, hoist)


def _invariant(
    statements: Iterable[Statement], changing: set[Value], may_move: Callable[[Operator], bool]
) -> tuple[tuple[Statement, ...], list[Statement]]:
    """Split statements into those that stay and those that may be computed before; `changing` grows by what stays."""
    kept: list[Statement] = []
    moved: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Operator) and changing.isdisjoint(statement.operands) and may_move(statement):
            moved.append(statement)
        else:
            changing.update(defined(statement))
            kept.append(statement)
    return tuple(kept), moved


def _unpacked_sides(
    statements: Iterable[Statement], changing: set[Value]
) -> tuple[tuple[Statement, ...], list[Statement]]:
    """Split statements as `_invariant`: of them stays all but what packs tensors in sides of branches."""
    kept: list[Statement] = []
    moved: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Branch):
            sides = []
            for side in (statement.then, statement.otherwise):
                within, packed = _invariant(side.statements, {*changing}, lambda item: item.name in _PACKING)
                within, more = _unpacked_sides(within, {*changing})
                moved += [*packed, *more]
                sides.append(Block(within, side.results))
            statement = replace(statement, then=sides[0], otherwise=sides[1])  # noqa: PLW2901
        changing.update(defined(statement))
        kept.append(statement)
    return tuple(kept), moved


def hoist_from_branches(program: Program, most_elements: int) -> Program:
    """Compute small operators of a branch before it, so that its sides, or the branch itself, get fewer.

        if c: a = x + 1; y = f(a) else: y = x   -->   a = x + 1; if c: y = f(a) else: y = x

    What may fault stays.
    """

    def hoist(statement: Statement) -> list[Statement]:
        if not isinstance(statement, Branch):
            return [statement]
        before: list[Statement] = []
        sides = []
        for side in (statement.then, statement.otherwise):
            kept, moved = _invariant(side.statements, set(), lambda item: _is_small(item, most_elements))
            before += moved
            sides.append(Block(kept, side.results))
        return [*before, replace(statement, then=sides[0], otherwise=sides[1])]

    return _everywhere(program, hoist)


def predicate(program: Program, most_elements: int) -> Program:
    """Compute both sides of a branch and select, where all that they compute is small.

        if c: y = f(x) else: y = g(x)   -->   a = f(x); b = g(x); y = where(c, a, b)

    A branch stays in which something may fault.
    """

    def select(statement: Statement) -> list[Statement]:
        if not isinstance(statement, Branch):
            return [statement]
        inside = [*statement.then.statements, *statement.otherwise.statements]
        if not all(isinstance(item, Operator) and _is_small(item, most_elements) for item in inside):
            return [statement]
        if any(value.elements > most_elements for value in statement.results):
            return [statement]
        pairs = zip(statement.then.results, statement.otherwise.results, statement.results, strict=True)
        return [*inside, *(_where(statement.condition, *each) for each in pairs)]

    return _everywhere(program, select)


def _is_small(item: Operator, most_elements: int) -> bool:
    values = (*item.operands, *item.results)
    return not may_fault(item) and all(value.elements <= most_elements for value in values)


def _where(condition: Value, then: Value, otherwise: Value, result: Value) -> Operator:
    return replace(operator(relax.op.where, condition, then, otherwise), results=(result,))


# Loops unrolled.


def unroll(program: Program, factor: int) -> Program:
    """Write `factor` steps of a counted loop one after the other, and the steps that remain as a loop of their own.

        repeat 7: x = f(x)   -->   repeat 3: a = f(x); x = f(a)
                                   repeat 1: x = f(x)

    A state is then copied, or must be computed in place, once for each `factor` steps. Loops in loops are unrolled
    alone, the innermost, or code would grow by a power of the factor.
    """

    def repeat(statement: Statement) -> list[Statement]:
        is_counted = isinstance(statement, Loop) and statement.condition is None
        if not is_counted or statement.steps < factor or _has_loop(statement.body):
            return [statement]
        whole, rest = divmod(statement.steps, factor)
        if not rest:
            return [replace(statement, body=_repeated(statement, factor), steps=whole)]
        (first,) = copied([replace(statement, body=_repeated(statement, factor), steps=whole)], {})
        return [first, replace(statement, initial=first.states, steps=rest)]

    return _everywhere(program, repeat)


def _has_loop(block: Block) -> bool:
    return any_statement(block.statements, lambda item: isinstance(item, Loop | Recursion))


def _repeated(loop: Loop, factor: int) -> Block:
    statements = list(loop.body.statements)
    results = loop.body.results
    for _ in range(factor - 1):
        new = dict(zip(loop.states, results, strict=True))
        statements += copied(loop.body.statements, new)
        results = tuple(new.get(value, value) for value in loop.body.results)
    return Block(tuple(statements), results)
