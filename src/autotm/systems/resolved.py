"""What is known before a program runs: operators of weights alone, and control flow that certain inputs decide."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch.nn import functional

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
    all_reads,
    without_dead,
)
from autotm.control.rewrites import hoist_invariants
from autotm.systems.source import operator_source
from autotm.systems.torch_systems import TORCH


def computed(operator: Operator, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results of an operator, as PyTorch computes them."""
    names = {value: f"v{index}" for index, value in enumerate((*operator.operands, *operator.results))}
    (line,) = operator_source([operator], names.__getitem__, TORCH)
    scope = {"torch": torch, "functional": functional}
    scope.update((names[value], tensor) for value, tensor in zip(operator.operands, operands, strict=True))
    exec(line, scope)  # noqa: S102 - The expression is ours.
    return [scope[names[value]] for value in operator.results]


def with_weights(program: Program, weights: Mapping[int, Array]) -> Program:
    """Return a program that has some arguments, by position, as constants, and what depends on these alone.

    What does not change in a loop is computed before it, here or in the program.
    """
    constants = {program.parameters[position]: array for position, array in weights.items()}
    parameters = tuple(value for position, value in enumerate(program.parameters) if position not in weights)
    program = hoist_invariants(replace(program, parameters=parameters, constants={**program.constants, **constants}))
    constants, kept = dict(program.constants), []
    for statement in program.body.statements:
        if isinstance(statement, Operator) and constants.keys() >= {*statement.operands}:
            results = computed(statement, [torch.from_numpy(constants[value]) for value in statement.operands])
            arrays = (result.contiguous().numpy() for result in results)
            constants.update(zip(statement.results, arrays, strict=True))
        else:
            kept.append(statement)
    return _with_used_constants(replace(program, body=Block(tuple(kept), program.body.results), constants=constants))


def resolved(program: Program, arguments: Sequence[Array], deciding: Collection[int]) -> Program:
    """Return the operators that a program computes for some arguments, one after the other, without control flow.

    Args:
        program: to be resolved.
        arguments: that decide how often a loop runs and which sides of branches are taken.
        deciding: positions of those that are known beforehand: what depends on them alone, or on nothing, becomes a
            constant.
    """
    tracer = _Tracer(program, arguments, deciding)
    tracer.block(program.body)
    results = tuple(map(tracer.value, program.body.results))
    body = without_dead(Block(tuple(tracer.operators), results))
    kept = tuple(tracer.values[value] for position, value in enumerate(program.parameters) if position not in deciding)
    return _with_used_constants(replace(program, parameters=kept, body=body, constants=tracer.constants))


def _with_used_constants(program: Program) -> Program:
    used = {*all_reads(program.body)}
    return replace(program, constants={value: array for value, array in program.constants.items() if value in used})


class _Tracer:
    """Computes a program, and notes the operators whose results are not known beforehand.

    Attributes:
        tensors: what each value of the program is now.
        values: what stands for it in the resolved program; nothing yet for what is known.
    """

    def __init__(self, program: Program, arguments: Sequence[Array], deciding: Collection[int]) -> None:
        self.tensors: dict[Value, torch.Tensor] = {}
        self.values: dict[Value, Value] = {}
        self.constants: dict[Value, Array] = {}
        self.operators: list[Operator] = []
        self.recursions: list[Recursion] = []
        self.known: dict[int, tuple[torch.Tensor, Value]] = {}
        for position, (value, array) in enumerate(zip(program.parameters, arguments, strict=True)):
            self.tensors[value] = torch.from_numpy(array)
            if position not in deciding:
                self.values[value] = value
        for value, array in program.constants.items():
            self.tensors[value] = torch.from_numpy(array)

    def value(self, value: Value) -> Value:
        """Return what stands for a value in the resolved program: a constant, if it is known."""
        if value in self.values:
            return self.values[value]
        tensor = self.tensors[value]
        if id(tensor) not in self.known:  # It is kept there, or another one could get its number.
            own = value.fresh()
            self.known[id(tensor)] = tensor, own
            self.constants[own] = tensor.contiguous().numpy()
        return self.known[id(tensor)][1]

    def assign(self, targets: Sequence[Value], sources: Sequence[Value]) -> None:
        """Let values be what others are, all at once."""
        tensors = [self.tensors[value] for value in sources]
        values = [self.values.get(value) for value in sources]
        self.tensors.update(zip(targets, tensors, strict=True))
        for target, value in zip(targets, values, strict=True):
            if value is None:
                self.values.pop(target, None)
            else:
                self.values[target] = value

    def block(self, block: Block) -> None:
        for statement in block.statements:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Operator():
                self.operator(statement)
            case Branch():
                side = statement.then if self.tensors[statement.condition] else statement.otherwise
                self.block(side)
                self.assign(statement.results, side.results)
            case Loop():
                self.loop(statement)
            case Recursion():
                self.recursions.append(statement)
                self.call(statement, statement.arguments, statement.results)
                self.recursions.pop()
            case SelfCall():
                own = self.recursions[-1]
                kept = (dict(self.tensors), dict(self.values))
                self.call(own, statement.arguments, statement.results)
                results = [(self.tensors[value], self.values.get(value)) for value in statement.results]
                self.tensors, self.values = kept
                for value, (tensor, stands) in zip(statement.results, results, strict=True):
                    self.tensors[value] = tensor
                    if stands is not None:
                        self.values[value] = stands
            case Check():
                pass

    def loop(self, loop: Loop) -> None:
        self.assign(loop.states, loop.initial)
        step = 0
        while loop.condition is not None or step < (loop.steps or 0):
            self.block(Block(loop.head, ()))
            if loop.condition is not None and not self.tensors[loop.condition]:
                break
            self.block(loop.body)
            self.assign(loop.states, loop.body.results)
            step += 1

    def call(self, recursion: Recursion, arguments: Sequence[Value], results: Sequence[Value]) -> None:
        self.assign(recursion.parameters, arguments)
        self.block(recursion.body)
        self.assign(results, recursion.body.results)

    def operator(self, operator: Operator) -> None:
        tensors = computed(operator, [self.tensors[value] for value in operator.operands])
        self.tensors.update(zip(operator.results, tensors, strict=True))
        if not any(value in self.values for value in operator.operands):
            for value in operator.results:
                self.values.pop(value, None)
            return
        operands = tuple(map(self.value, operator.operands))
        results = tuple(value.fresh() for value in operator.results)
        self.values.update(zip(operator.results, results, strict=True))
        self.operators.append(replace(operator, operands=operands, results=results))
