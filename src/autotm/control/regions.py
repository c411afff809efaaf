"""Runs of operators -> calls of fused kernels, whose operands have places in one workspace.

Every value that outlives the operators around it has a place, which is allocated once, outside. A kernel takes its
operands as descriptors (`DLTensor`), which are made once; so a call costs some nanoseconds, and every kernel keeps its
own function, in which no two buffers share memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import tvm
import tvm_ffi
from tvm import relax, tirx

from autotm.control.program import (
    Operator,
    Program,
    Value,
    all_reads,
    filled,
    is_unset,
    statements_of,
)
from autotm.kernels import tir
from autotm.kernels.schedules.dispatch import ScheduledKernel, schedule
from autotm.lower.calls import extract_calls, fused_kernels
from autotm.lower.operators import fold_transposes
from autotm.lower.results import place_results
from autotm.lower.step import Result
from autotm.model.errors import AutotmError
from autotm.model.graph import ALIGNMENT_BYTES, ScheduleKind

DESCRIPTOR_BYTES = 48
"""Size of a `DLTensor`."""
Targets = Sequence[tuple[Value, Value]]
"""Values, and the value whose place each is to be written to."""


class Area(Enum):
    """Where a descriptor points to."""

    ARGUMENT = "an argument of the program, by its position"
    WORKSPACE = "the workspace, by bytes from its start"
    SCRATCH = "the part of the workspace for what lives within one run of operators, by bytes from its start"


class Kernels(Protocol):
    """Kernels of some processor.

    Attributes:
        target: that operators are brought to loops for.
        may_copy_pieces: whether many small copies by the driver cost less than a kernel.
    """

    target: tvm.target.Target
    may_copy_pieces: bool

    def of(self, function: tirx.PrimFunc) -> tuple[str, Any]:
        """Return the symbol of a function's kernel, and what has its `workspaces` and `flops`."""


@dataclass
class KernelSet:
    """Kernels that functions are scheduled as; equal functions share one.

    Attributes:
        functions: scheduled, by symbol.
        kinds: where the schedule of each comes from.
        may_copy_pieces: as in `Kernels`.
    """

    target: tvm.target.Target
    threads: int
    functions: dict[str, tirx.PrimFunc] = field(default_factory=dict)
    kinds: dict[str, ScheduleKind] = field(default_factory=dict)
    may_copy_pieces: bool = True
    _scheduled: dict[int, tuple[str, ScheduledKernel]] = field(default_factory=dict)

    def of(self, function: tirx.PrimFunc) -> tuple[str, ScheduledKernel]:
        """Return the symbol and the schedule of a function."""
        key = tvm_ffi.structural_hash(function, map_free_vars=True)
        if key not in self._scheduled:
            kernel = schedule(function, self.target, self.threads)
            self._scheduled[key] = symbol, _ = f"{kernel.op}_{len(self._scheduled)}", kernel
            self.functions[symbol] = _as_plain_loops(kernel.func, self.threads)
            self.kinds[symbol] = kernel.kind
        return self._scheduled[key]


@dataclass
class Part:
    """A part of a program whose code is under the same control flow.

    Attributes:
        kind: `program`, `loop`, `branch` or `recursion`.
        name: of the function that a loop or recursion was; else empty.
        times: how often a loop runs; None where its data decide.
        level: of how many other parts it is a part.
        kernels: that are called each time, those of its own parts left out.
        flops: floating-point operations of these.
    """

    kind: str
    name: str
    times: int | None
    level: int
    kernels: int = 0
    flops: int = 0


@dataclass
class Regions:
    """The kernels of a program's operators, and the places of its values.

    Attributes:
        kernels: that are called.
        slots: numbers of descriptors, by what they point to.
        workspace_bytes: without scratch.
        scratch_bytes: of what lives within one region.
        places: offsets in the workspace.
        parts: in the order of the program, the whole first.
        fused: what `fused_module` returned, by hash.
        reads: how often each value is read.
    """

    program: Program
    kernels: Kernels
    slots: dict[tuple[Area, int], int] = field(default_factory=dict)
    workspace_bytes: int = 0
    scratch_bytes: int = 0
    places: dict[Value, int] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=lambda: [Part("program", "", 1, 0)])
    fused: dict[int, tvm.IRModule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.arguments = {value: index for index, value in enumerate(self.program.parameters)}
        self.reads = Counter(all_reads(self.program.body))
        made = (item.results for item in statements_of(self.program.body) if is_unset(item))
        self.unset = {value for results in made for value in results}
        self.around = self.parts[:1]
        self.descriptors = tirx.Var("descriptors", "handle")
        self.slots[Area.WORKSPACE, 0] = 0  # The driver itself finds the workspace by the first descriptor.

    def place(self, value: Value) -> int:
        """Return the offset of a value in the workspace."""
        if value not in self.places:
            self.places[value] = self.allocate(value.size_bytes)
        return self.places[value]

    def allocate(self, size_bytes: int) -> int:
        """Return the offset of new memory."""
        offset = self.workspace_bytes
        self.workspace_bytes += aligned(size_bytes)
        return offset

    def operand(self, value: Value) -> tuple[Area, int]:
        """Return where kernels find a value."""
        if value in self.arguments and not is_copied(value):
            return Area.ARGUMENT, self.arguments[value]
        return Area.WORKSPACE, self.place(value)

    def region(self, operators: Sequence[Operator], targets: Targets) -> tirx.Stmt:
        """Return calls of the fused kernels of some operators.

        They write the targets, and of what the operators compute all that is read elsewhere.
        """
        operators = [item for item in operators if not is_unset(item)]
        targets = [(source, target) for source, target in targets if source not in self.unset]
        inner = Counter([value for item in operators for value in item.operands] + [source for source, _ in targets])
        made = dict.fromkeys(value for item in operators for value in item.results)
        kept = [(value, value) for value in made if self.reads[value] > inner[value]]
        targets = [*kept, *((source, target) for source, target in targets if source is not target)]
        if not targets:
            return tir.sequence([])
        inputs = [value for value in inner if value not in made]
        names = {value: f"input{index}" for index, value in enumerate(inputs)}
        sources = [source for source, _ in targets]
        try:
            module = fused_module(operators, names, sources, self.program.functions, self.kernels.target, self.fused)
            calls, returned = extract_calls(module)
        except NotImplementedError as error:
            raise AutotmError(f"{error}; write it with operators that have a kernel") from None
        functions = {call.function: module[call.function].without_attr("global_symbol") for call in calls}
        results = [Result(f"target{index}", names.get(target)) for index, (_, target) in enumerate(targets)]
        placed = place_results(calls, returned, results, functions)
        operands = {names[value]: self.operand(value) for value in inputs}
        pairs = zip(placed.results, targets, strict=True)
        operands.update((operand.tensor, self.operand(target)) for operand, (_, target) in pairs)
        scratch = 0
        code = []
        for call in placed.calls:
            for output in call.outputs:
                if output.tensor not in operands:
                    operands[output.tensor] = Area.SCRATCH, scratch
                    scratch += aligned(output.size_bytes)
        for call in placed.calls:
            symbol, kernel = self.kernels.of(placed.functions[call.function])
            slots = [operands[item.tensor] for item in (*call.inputs, *call.outputs)]
            end = scratch
            for shape, dtype in kernel.workspaces:
                slots.append((Area.SCRATCH, end))
                end += aligned(Value("workspace", shape, dtype).size_bytes)
            self.scratch_bytes = max(self.scratch_bytes, end)
            self.around[-1].kernels += 1
            self.around[-1].flops += kernel.flops
            code.append(tirx.Evaluate(tirx.call_packed(symbol, *map(self._descriptor, slots))))
        return tir.sequence(code)

    def _descriptor(self, slot: tuple[Area, int]) -> tirx.Expr:
        index = self.slots.setdefault(slot, len(self.slots))
        return tirx.handle_add_byte_offset(self.descriptors, tir.number(index * DESCRIPTOR_BYTES))


def is_copied(argument: Value) -> bool:
    """Whether an argument is copied to the workspace for each call: small ones are, as they may be conditions."""
    return argument.size_bytes <= ALIGNMENT_BYTES


def aligned(size_bytes: int) -> int:
    """Return the next multiple of the alignment of tensors, of at least one byte."""
    return -(-max(size_bytes, 1) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def fused_module(
    operators: Sequence[Operator],
    names: dict[Value, str],
    results: Sequence[Value],
    functions: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc],
    target: tvm.target.Target,
    known: dict[int, tvm.IRModule],
) -> tvm.IRModule:
    """Return operators as one function that calls fused kernels, from the named values to the results.

    Args:
        operators: in order.
        names: of the values that they read.
        results: what the function returns.
        functions: that operators may call.
        target: of the kernels.
        known: what was returned before, by hash, as blocks of a network often are alike; it is added to.
    """
    module = _as_module(operators, names, results, functions)
    key = tvm_ffi.structural_hash(module, map_free_vars=True)
    if key not in known:
        known[key] = fused_kernels(fold_transposes(module), target)
    return known[key]


def _as_module(
    operators: Sequence[Operator],
    names: dict[Value, str],
    results: Sequence[Value],
    functions: Mapping[tvm.ir.GlobalVar, tirx.PrimFunc],
) -> tvm.IRModule:
    """Return operators as a module of one function, from the named values to the results, beside those it calls."""
    called = [argument for item in operators for argument in item.call.args if isinstance(argument, tvm.ir.GlobalVar)]
    builder = relax.BlockBuilder(tvm.IRModule({own: functions[own] for own in called}))
    variables = {value: relax.Var(name, relax.TensorType(value.shape, value.dtype)) for value, name in names.items()}
    with builder.function("main", list(variables.values())):
        with builder.dataflow():
            for item in operators:
                own = dict(zip(item.holes, item.operands, strict=True))
                emitted = builder.emit(filled(item.call, {hole: variables[value] for hole, value in own.items()}))
                if isinstance(emitted.ty, relax.TupleType):
                    fields = [builder.emit(relax.TupleGetItem(emitted, index)) for index in range(len(item.results))]
                    variables.update(zip(item.results, fields, strict=True))
                else:
                    variables[item.results[0]] = emitted
            returned = builder.emit_output(relax.Tuple([variables[value] for value in results]))
        builder.emit_func_output(returned)
    return builder.finalize()


def _as_plain_loops(function: tirx.PrimFunc, threads: int) -> tirx.PrimFunc:
    """Return a kernel whose loops are not written out, nor given to a thread pool where there is one thread."""
    # LLVM takes seconds for the activations of a cell four times in a row, and they get no faster.
    kinds = [tirx.ForKind.UNROLLED, *([tirx.ForKind.PARALLEL] if threads == 1 else [])]

    def serial(loop: tirx.For) -> tirx.For:
        if loop.kind not in kinds:
            return loop
        return tirx.For(
            loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body, None, loop.annotations, loop.step
        )

    return function.with_body(tvm_ffi.structural_map(function.body, (tirx.For, serial)))
