"""The operators of a step before any are fused, which reads what, and the step with given ones fused."""

from __future__ import annotations

import heapq
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import tvm
import tvm_ffi
from tvm import relax, tirx
from tvm.relax.utils import copy_with_new_vars

from autotm.kernels.tir import loads_of
from autotm.lower.calls import (
    MOST_EXPANDED,
    MOST_REPEATED,
    expanded_reads,
    fused_as_marked,
    operator_kernels,
    with_bindings,
)
from autotm.lower.rules import is_call

_PATTERN = "op_pattern"
_INJECTIVE, _OPAQUE = 2, 8
"""Values of TVM's `OpPatternKind`: up to the first, an operator's expression can stand where others load its value;
the code of the last is joined with no other."""


class CircleError(ValueError):
    """Kernels read one another's values, so that none of them can run first."""


@dataclass(frozen=True)
class Node:
    """An operator of a step, or a view or tuple of what operators compute.

    Attributes:
        name: of an operator, what it computes and its place in the step, such as `matmul.12`; else empty.
        bindings: of the step, those that take an operator's tuple apart behind the operator.
        function: of an operator.
        reads: nodes whose values it reads, each once.
    """

    name: str
    bindings: tuple[relax.VarBinding, ...]
    function: tirx.PrimFunc | None
    reads: tuple[int, ...]

    @property
    def values(self) -> list[relax.Var]:
        """The variables of what it computes."""
        return [item.var for item in self.bindings[1:] or self.bindings]


@dataclass(frozen=True)
class Grouping:
    """The nodes of a step by the kernel that computes them. A view has a group of its own, which is no kernel.

    Attributes:
        groups: places of nodes, in the order of the step. A node in several groups is computed in each.
        home: by node, the index of the group whose value of it is read elsewhere.
    """

    groups: tuple[tuple[int, ...], ...]
    home: Mapping[int, int]

    @classmethod
    def of(cls, groups: Iterable[Iterable[int]]) -> Grouping:
        """Return groups of which each node is in one."""
        ordered = tuple(tuple(sorted(group)) for group in groups)
        return cls(ordered, {node: index for index, group in enumerate(ordered) for node in group})


@dataclass(frozen=True)
class Live:
    """What of a group is needed.

    Attributes:
        nodes: that are computed.
        results: those of them that are read elsewhere.
    """

    nodes: tuple[int, ...]
    results: tuple[int, ...]


class Dataflow:
    """A step as a flat list of operators, each of which calls a function of its own, and of views.

    Attributes:
        nodes: in the order of the step; they are known by their places in it.
    """

    def __init__(self, step: tvm.IRModule, target: tvm.target.Target) -> None:
        """Bring the operators of a step to loops.

        Raises:
            NotImplementedError: an operator has no kernel.
        """
        self._target = target
        self._primitives: dict[Live, tirx.PrimFunc] = {}
        self._module = _numbered(operator_kernels(step, target))
        bindings = _bindings(self._module["main"])
        parts = defaultdict(list)
        calls = {item.var for item in bindings if _is_operator(item)}
        for item in bindings:
            if isinstance(item.value, relax.TupleGetItem) and item.value.tuple_value in calls:
                parts[item.value.tuple_value].append(item)
        taken = {item.var for several in parts.values() for item in several}
        whole = [(item, *parts[item.var]) for item in bindings if item.var not in taken]
        self._maker = {item.var: place for place, several in enumerate(whole) for item in several}
        self.nodes = [self._node(several) for several in whole]

    @cached_property
    def operators(self) -> list[int]:
        """The nodes that are operators."""
        return [place for place, node in enumerate(self.nodes) if node.function is not None]

    @cached_property
    def by_name(self) -> dict[str, int]:
        """The places of operators by their names."""
        return {self.nodes[place].name: place for place in self.operators}

    @cached_property
    def readers(self) -> list[list[int]]:
        """By node, those that read its value."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for place, node in enumerate(self.nodes):
            for read in node.reads:
                found[read].append(place)
        return found

    @cached_property
    def returned(self) -> set[int]:
        """Nodes whose values the step returns."""
        return self._read_by(self._module["main"].body.body)

    @cached_property
    def compared(self) -> set[int]:
        """Operators whose values others compare for equality, such as the operand of a maximum in its gradient.

        A second computation may differ in the last bit.
        """
        found: set[int] = set()
        for place in self.operators:
            makers = self._operands(place)

            def compare(test: tirx.EQ, makers: Mapping[tirx.Buffer, int] = makers) -> None:
                if str(test.a.ty).startswith("float"):
                    found.update(makers[load.source] for load in loads_of(test) if load.source in makers)

            tvm_ffi.structural_walk(self.nodes[place].function.body, (tirx.EQ, compare))
        return found

    @cached_property
    def identity(self) -> str:
        """A hash of the operators, their shapes, and which reads what."""
        return f"{tvm_ffi.structural_hash(self._module, map_free_vars=True) % 2**64:016x}"

    @cached_property
    def default(self) -> Grouping:
        """The groups of TVM's `FuseOps`."""
        groups = self._fused_by_tvm(self._module)
        views = [[place] for place, node in enumerate(self.nodes) if node.function is None]
        return Grouping.of([*groups, *views])

    def split(self, group: Live) -> list[tuple[int, ...]]:
        """Return the groups that `FuseOps` makes of the operators of a group alone."""
        return self._fused_by_tvm(self.module_of(group))

    def module_of(self, group: Live) -> tvm.IRModule:
        """Return the operators of a group alone: `main` takes what they read, and returns its results."""
        function, _ = self._function(group)
        main = function.with_attr("global_symbol", "main")
        return with_bindings(main, _bindings(main), main.body.body, self._called(group))

    def _called(self, group: Live) -> dict[tvm.ir.GlobalVar, tirx.PrimFunc]:
        """Return the functions that the operators of a group call."""
        return {self.nodes[place].bindings[0].value.args[0]: self.nodes[place].function for place in group.nodes}

    def primitive(self, group: Live) -> tirx.PrimFunc:
        """Return the unscheduled TIR function of a group."""
        if group not in self._primitives:
            self._primitives[group] = self._primitive(group)
        return self._primitives[group]

    def _primitive(self, group: Live) -> tirx.PrimFunc:
        if len(group.nodes) == 1:
            return self.nodes[group.nodes[0]].function.without_attr(_NAME)
        function, _ = self._function(group)
        builder = relax.BlockBuilder(tvm.IRModule(self._called(group)))  # Of the step's functions each would be hashed.
        own = builder.add_func(copy_with_new_vars(function).with_attr("Primitive", 1), "group")
        call = relax.VarBinding(relax.Var("results", function.ret_ty), relax.Call(own, list(function.params)))
        main = function.with_attr("global_symbol", "main")
        with self._target:
            fused = fused_as_marked(with_bindings(main, [call], call.var, builder.get().functions))
        return fused[_bindings(fused["main"])[0].value.args[0]]

    def computed_apart(self, group: Sequence[int]) -> Live:
        """Return a group whose operators are computed nowhere else: what others read of it are its results."""
        inside = {*group}
        results = (place for place in group if place in self.returned or not inside.issuperset(self.readers[place]))
        return Live(tuple(group), tuple(results))

    def expands(self, group: Sequence[int]) -> bool:
        """Return whether a group as one expression would load much more often than its operators do, or very often.

        One that loads its operand twice doubles the expression that takes the operand's place.
        """
        loads, expanded = dict[int | None, int](), dict[int | None, int]()
        alone = longest = largest = 0
        for place in group:
            read, read_expanded = self._loads[place]
            whole, size = (
                sum(count * inner.get(other, 1) for other, count in counts.items())
                for counts, inner in ((read, loads), (read_expanded, expanded))
            )
            alone, longest, largest = alone + read.total(), max(longest, whole), max(largest, size)
            if self.pattern(place) <= _INJECTIVE:
                loads[place], expanded[place] = whole, size
        return longest > MOST_REPEATED * alone or largest > MOST_EXPANDED

    def is_opaque(self, group: Sequence[int]) -> bool:
        """Return whether the code of one of some operators cannot be joined with that of others."""
        return any(self.pattern(place) == _OPAQUE for place in group)

    def pattern(self, operator: int) -> int:
        """Return the kind of an operator for fusion, of TVM's `OpPatternKind`."""
        return int(self.nodes[operator].function.attrs[_PATTERN])

    def order(self, grouping: Grouping) -> list[int]:
        """Return the indices of groups, each after those that it reads, otherwise by their first nodes as TVM's.

        Raises:
            CircleError: there is no such order.
        """
        before: list[set[int]] = []
        after = defaultdict(list)
        for index, group in enumerate(grouping.groups):
            inside = {*group}
            read = {grouping.home[read] for place in group for read in self.nodes[place].reads if read not in inside}
            before.append(read)
            for other in read:
                after[other].append(index)
        ready = [(min(group), index) for index, group in enumerate(grouping.groups) if not before[index]]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, index = heapq.heappop(ready)
            ordered.append(index)
            for later in after[index]:
                before[later].remove(index)
                if not before[later]:
                    heapq.heappush(ready, (min(grouping.groups[later]), later))
        if len(ordered) < len(before):
            stuck = next(index for index, left in enumerate(before) if left)
            names = ", ".join(self.nodes[place].name for place in grouping.groups[stuck])
            raise CircleError(f"the kernel of {names} reads values that are computed from its own")
        return ordered

    def fused(self, grouping: Grouping) -> tvm.IRModule:
        """Return the step as calls of one unscheduled TIR function for each group, and views.

        Raises:
            CircleError: as `order`.
        """
        main, builder = self._module["main"], relax.BlockBuilder(self._module)
        bindings: list[relax.VarBinding] = []
        for index, group in self.live(grouping).items():
            if len(group.nodes) == 1:
                bindings += self.nodes[group.nodes[0]].bindings
                continue
            function, variables = self._function(group)
            own = builder.add_func(copy_with_new_vars(function).with_attr("Primitive", 1), f"group_{index}")
            whole = relax.Var("results", function.ret_ty)
            bindings.append(relax.VarBinding(whole, relax.Call(own, list(function.params))))
            bindings += [relax.VarBinding(var, relax.TupleGetItem(whole, place)) for place, var in enumerate(variables)]
        with self._target:
            fused = fused_as_marked(with_bindings(main, bindings, main.body.body, builder.get().functions))
        for name, function in fused.functions.items():
            if isinstance(function, tirx.PrimFunc):  # Operators that are alike have the same code.
                fused.update_func(name, function.without_attr(_NAME))
        return fused

    def live(self, grouping: Grouping) -> dict[int, Live]:
        """Return by index, in an order in which they can run, what of the groups is needed.

        Raises:
            CircleError: as `order`.
        """
        needed = {*self.returned}
        found = {}
        for index in reversed(self.order(grouping)):
            group = grouping.groups[index]
            results = tuple(place for place in group if place in needed and grouping.home[place] == index)
            inner = {*results}
            for place in reversed(group):
                if place in inner:
                    inner.update(set(self.nodes[place].reads).intersection(group))
            needed.update(read for place in inner for read in self.nodes[place].reads if read not in inner)
            if inner:
                found[index] = Live(tuple(sorted(inner)), results)
        return dict(reversed(found.items()))

    def _function(self, group: Live) -> tuple[relax.Function, list[relax.Var]]:
        """Return a function of the variables that nodes read, and the variables of the step that it returns."""
        bindings = [item for place in group.nodes for item in self.nodes[place].bindings]
        made = {item.var for item in bindings}
        inputs = [*dict.fromkeys(var for item in bindings for var in _variables(item.value) if var not in made)]
        returned = relax.Tuple([var for place in group.results for var in self.nodes[place].values])
        kind = relax.TupleType([var.ty for var in returned.fields])
        whole = relax.Var("results", kind)
        block = relax.DataflowBlock([*bindings, relax.VarBinding(whole, returned)])
        return relax.Function(inputs, relax.SeqExpr([block], whole), kind), list(returned.fields)

    def _node(self, bindings: tuple[relax.VarBinding, ...]) -> Node:
        value = bindings[0].value
        read = tuple(sorted(self._read_by(value)))
        if not _is_operator(bindings[0]):
            return Node("", bindings, None, read)
        function = self._module[value.args[0]]
        return Node(str(function.attrs[_NAME]), bindings, function, read)

    def _read_by(self, value: relax.Expr) -> set[int]:
        return {self._maker[var] for var in _variables(value) if var in self._maker}

    def _fused_by_tvm(self, module: tvm.IRModule) -> list[tuple[int, ...]]:
        """Return the operators of each kernel that `FuseOps` makes of a module that calls functions of this one."""
        with self._target:
            fused = relax.transform.FuseOps()(module)
        groups = []
        for item in _bindings(fused["main"]):
            called = item.value.op if isinstance(item.value, relax.Call) else None
            within = _bindings(fused[called]) if isinstance(called, tvm.ir.GlobalVar) else [item]
            if operators := [one.value.args[0] for one in within if _is_operator(one)]:
                groups.append(tuple(int(str(one.name_hint).removeprefix(_NUMBERED)) for one in operators))
        return groups

    def _operands(self, operator: int) -> dict[tirx.Buffer, int]:
        """Return the nodes whose values the parameters of an operator's function are."""
        node = self.nodes[operator]
        # Parameters of results come after those of operands.
        pairs = zip(node.function.params, node.bindings[0].value.args[1].fields, strict=False)
        return {parameter: self._maker[var] for parameter, var in pairs if var in self._maker}

    @cached_property
    def _loads(self) -> dict[int, tuple[Counter[int | None], Counter[int | None]]]:
        """How often each operator's code loads the value of each that it reads, and how often where it is expanded.

        None stands for all other values.
        """
        found = {}
        for place in self.operators:
            makers, function = self._operands(place), self.nodes[place].function
            read, expanded = Counter[int | None](), Counter[int | None]()
            for load in loads_of(function.body):
                read[makers.get(load.source)] += 1
            for source, count in expanded_reads(function).items():
                expanded[makers.get(source)] += count
            found[place] = read, expanded
        return found


_NUMBERED = "operator_"
"""Functions of the operators are called so, with their place behind: FuseOps keeps these names."""
_NAME = "autotm.operator"
"""Attribute of such a function: the name of its node."""


def _numbered(module: tvm.IRModule) -> tvm.IRModule:
    """Give each call a function of its own, named by the place of its node."""
    main, builder, bindings = module["main"], relax.BlockBuilder(module), []
    calls, place = set(), -1
    for item in _bindings(main):
        value = item.value
        place += not (isinstance(value, relax.TupleGetItem) and value.tuple_value in calls)
        if _is_operator(item):
            calls.add(item.var)
            name = re.sub(r"_?\d+$", "", str(value.args[0].name_hint))
            own = builder.add_func(module[value.args[0]].with_attr(_NAME, f"{name}.{place}"), f"{_NUMBERED}{place}")
            value = relax.Call(value.op, [own, *value.args[1:]], value.attrs, value.ty_args)
        bindings.append(relax.VarBinding(item.var, value))
    return with_bindings(main, bindings, main.body.body, builder.get().functions)


def _bindings(function: relax.Function) -> list[relax.VarBinding]:
    return [item for block in function.body.blocks for item in block.bindings]


def _is_operator(binding: relax.VarBinding) -> bool:
    return is_call(binding.value, "relax.call_tir")


def _variables(value: relax.Expr) -> list[relax.Var]:
    """Return the variables that an expression reads."""
    found: list[relax.Var] = []
    relax.analysis.post_order_visit(value, lambda item: found.append(item) if isinstance(item, relax.Var) else None)
    return found
