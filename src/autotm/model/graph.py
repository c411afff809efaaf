"""The training step as data: tensors and their roles, and kernels in execution order with their operands.

And the memory tier of each operand, and the bytes of slow memory that a kernel moves.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from sys import intern
from typing import Any, Literal, NewType

import numpy as np
import numpy.typing as npt

from autotm.model.errors import DamagedFileError, unknown_name
from autotm.model.files import write_atomically


class Role(StrEnum):
    """The role of a tensor in the step.

    A state is read and replaced, as a parameter is, but training does not differentiate by it: running averages,
    counters, what an update rule keeps. A fetched tensor is in slow memory when the step begins, a stored one when it
    ends: what waits there from step to step is one before it is replaced, and the other afterwards.
    """

    PARAMETER = "parameter"
    STATE = "state"
    INPUT = "input"
    CONSTANT = "constant"
    INTERMEDIATE = "intermediate"
    WORKSPACE = "workspace"
    FETCHED = "fetched"
    STORED = "stored"
    RESULT = "result"

    @property
    def is_movable(self) -> bool:
        """Whether a plan always decides where the tensor lives; the other roles are the step's arguments."""
        return self in _MOVABLE


_MOVABLE = (Role.INTERMEDIATE, Role.WORKSPACE, Role.FETCHED, Role.STORED)
"""No set: the hash of a member of an enumeration is computed in Python, and a large step asks a million times."""


@dataclass(frozen=True, slots=True)
class Initial:
    """How an argument is filled before the first step, from the run's seed and the tensor's name.

    Attributes:
        kind: `normal` draws N(0, scale^2), `uniform` draws [0, scale), `integers` draws whole numbers in [0, scale)
            (indices into a table, say), `one_hot` puts a one at a random column of each row. Not drawn: `zeros`,
            `ones`; `sinusoids`, the positions of Vaswani et al. (arXiv:1706.03762, 3.5), a row each; `future`, which
            has `scale` above the diagonal, zero elsewhere.
        scale: as `kind` says; the others need none.
    """

    kind: Literal["zeros", "ones", "normal", "uniform", "one_hot", "integers", "sinusoids", "future"]
    scale: float = 1.0


Array = npt.NDArray[Any]
_DIGITS = 16  # hexadecimal ones of a hash, as in `model/files.py`


@dataclass(frozen=True, slots=True)
class InitialValue:
    """A tensor's value before the first step, in a file named after its content.

    Attributes:
        file: in NumPy's format; relative to the folder that autotm runs in, or absolute.
    """

    file: str

    @classmethod
    def stored(cls, value: Array, folder: Path) -> InitialValue:
        """Return the value in a file of `folder`, which is written unless it is there."""
        value = np.asarray(value, order="C")
        digest = hashlib.sha256(f"{value.dtype}{value.shape}".encode())
        digest.update(value.data)
        path = folder / f"{digest.hexdigest()[:_DIGITS]}.npy"
        if not path.exists():
            write_atomically(path, lambda temporary: np.save(temporary, value))
        return cls(str(path))

    def read(self, tensor: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return the value, mapped from its file.

        Raises:
            DamagedFileError: the file is gone or cut, or holds another shape or type.
        """
        remedy = "lower the network again: remove its graph.json, or call autotm.prepare again"
        try:
            value: Array = np.load(self.file, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise DamagedFileError(
                f"{self.file}: value of tensor '{tensor}' cannot be read ({error}); {remedy}"
            ) from None
        if value.shape != shape or value.dtype != np.dtype(dtype):
            raise DamagedFileError(
                f"{self.file}: value of tensor '{tensor}' is {value.dtype}{list(value.shape)}, not "
                f"{dtype}{list(shape)}; {remedy}"
            )
        return value


ALIGNMENT_BYTES = 64
"""Every allocation starts at and is padded to a multiple of this: TVM kernels need 64-byte-aligned operands."""

DEFAULT_IMPLEMENTATION = "default"

_COMPUTED = 8
"""Choices of implementations whose step is kept: those of the plans that are timed in turn, and the default one."""


class OpClass(StrEnum):
    """The class of a kernel by its use of memory. The emulated tier's delays and the schedules depend on it."""

    CONV_FORWARD = "conv_forward"
    CONV_DATA_GRADIENT = "conv_data_gradient"
    CONV_WEIGHT_GRADIENT = "conv_weight_gradient"
    MATMUL = "matmul"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    WINDOW = "window"
    WINDOW_GRADIENT = "window_gradient"
    NORMALIZATION = "normalization"
    NORMALIZATION_GRADIENT = "normalization_gradient"
    DATA_MOVEMENT = "data_movement"


_one_tuple = cache(tuple[int, ...])
"""One object for equal slots: a step has hundreds of thousands of them, few of them different."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One slot of a kernel.

    Attributes:
        tensor: name of what is bound to it.
        shape: that the kernel sees; a view may have another than its tensor.
        dtype: that the kernel sees, by NumPy's name.
    """

    tensor: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the values, without padding."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Implementation:
    """One way to compute a kernel: another function on the same inputs and outputs.

    Attributes:
        name: of the way, e.g. `lean`.
        function: its symbol in the library.
        identity: as of a kernel.
        workspaces: its own slots behind inputs and outputs.
    """

    name: str
    function: str
    identity: str
    workspaces: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """One call of one compiled function.

    Attributes:
        name: of this call.
        function: its symbol in the library.
        identity: hash of the scheduled TIR: kernels with equal identity run the same code on the same shapes.
        op: what it computes, by the name of its main block.
        op_class: what it does to memory.
        flops: floating-point operations of one call; of a contraction, those of its products and sums only.
        inputs, outputs, workspaces: slots, in the order in which the function takes its buffers.
        implementation: the way it is computed.
        alternatives: other ways that a plan may choose instead.
    """

    name: str
    function: str
    identity: str
    op: str
    op_class: OpClass
    flops: int
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    workspaces: tuple[Operand, ...] = ()
    implementation: str = DEFAULT_IMPLEMENTATION
    alternatives: tuple[Implementation, ...] = ()

    @property
    def operands(self) -> tuple[Operand, ...]:
        """All slots in calling order."""
        return self.inputs + self.outputs + self.workspaces

    @property
    def implementations(self) -> tuple[str, ...]:
        """Names of all ways to compute it, the present one first."""
        return (self.implementation, *(other.name for other in self.alternatives))

    def computed_by(self, implementation: str) -> Kernel:
        """Return the same kernel with that implementation and no other.

        Raises:
            BadInputError: it has no such implementation.
        """
        if implementation == self.implementation:
            return replace(self, alternatives=())
        for other in self.alternatives:
            if other.name == implementation:
                return replace(
                    self,
                    function=other.function,
                    identity=other.identity,
                    workspaces=other.workspaces,
                    implementation=other.name,
                    alternatives=(),
                )
        raise unknown_name(f"implementation of kernel '{self.name}'", implementation, self.implementations)


@dataclass(frozen=True)
class Launch:
    """One launch of a kernel's device function on a GPU. Shapes are known, so grids are numbers.

    Attributes:
        function: its name in the fatbin (`extern "C"`); its parameters are pointers to device memory.
        arguments: which operand each parameter is: positions among the kernel's inputs, outputs, then workspaces.
        grid: thread blocks, (x, y, z).
        block: threads of a block, (x, y, z).
    """

    function: str
    arguments: tuple[int, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value in memory.

    Attributes:
        name: unique in the step.
        role: what it is to the step.
        shape: its axes.
        dtype: by NumPy's name.
        size_bytes: of its values, without padding.
        producer: index of the kernel that writes it; None for parameters, states, inputs, constants and what is
            fetched.
        readers: indices of the other kernels that use it, ascending and distinct; of a fetched tensor the first, of a
            stored one the last has no slot for it: it is the kernel during which the tensor is in slow memory.
        alias_of: the tensor whose memory this one takes over (an updated parameter is written over the old one); an
            alias has no storage of its own.
        initial: fills a tensor that no kernel produces.
        held: of arguments where the limit counts them too (`model/limit.py`), the kernel indices [start, end)
            during which it holds memory in one tier, never moved.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    producer: int | None
    readers: tuple[int, ...]
    alias_of: str | None = None
    initial: Initial | InitialValue | None = None
    held: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.role.is_movable and self.producer is None and self.role is not Role.FETCHED:
            raise ValueError(f"tensor '{self.name}' has role {self.role} but no producer")
        if list(self.readers) != sorted(set(self.readers)):
            raise ValueError(f"tensor '{self.name}': readers must ascend and be distinct, got {self.readers}")
        if self.producer is not None and self.readers and self.readers[0] <= self.producer:
            raise ValueError(f"tensor '{self.name}' is read by kernel {self.readers[0]}, not after its producer")

    @property
    def is_movable(self) -> bool:
        """Whether a plan decides where it lives; all else stays in fast memory, outside the pools and the limit."""
        return self.role.is_movable or self.held is not None

    @property
    def allocated_bytes(self) -> int:
        """Bytes that an allocation of the tensor takes: its size rounded up to the alignment."""
        return math.ceil(max(self.size_bytes, 1) / ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    @property
    def users(self) -> tuple[int, ...]:
        """Producer first, then the readers: the kernels at which the tensor must be somewhere."""
        return self.readers if self.producer is None else (self.producer, *self.readers)

    @property
    def slow_at(self) -> int | None:
        """The user during which the tensor has to be in slow memory, and cannot be in fast memory too."""
        if self.role is Role.FETCHED and self.users:
            return self.users[0]
        return self.users[-1] if self.role is Role.STORED and self.users else None

    @property
    def live(self) -> range:
        """Kernel indices during which a movable tensor holds memory: [producer, last reader + 1), or as `held`."""
        return range(*self.held) if self.held is not None else range(self.users[0], self.users[-1] + 1)


@dataclass(frozen=True)
class Graph:
    """One training step of one network.

    Attributes:
        network: registered name of the network.
        scale: `tiny`, `laptop`, `paper` or a user's own.
        batch: samples per step.
        kernels: in execution order.
        tensors: every tensor any slot names, each with its own storage unless it is an alias.
    """

    network: str
    scale: str
    batch: int
    kernels: tuple[Kernel, ...]
    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        seen: dict[str, Tensor] = {}
        for tensor in self.tensors:
            if tensor.name in seen:
                raise ValueError(f"tensor '{tensor.name}' appears twice")
            seen[tensor.name] = tensor
        for index, kernel in enumerate(self.kernels):
            for operand in kernel.operands:
                used = seen.get(operand.tensor)
                if used is None:
                    raise ValueError(f"kernel '{kernel.name}' names unknown tensor '{operand.tensor}'")
                if index not in used.users:
                    raise ValueError(f"tensor '{used.name}' does not list its user, kernel {index} '{kernel.name}'")

    @cached_property
    def by_name(self) -> dict[str, Tensor]:
        """Tensor by its name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def movable(self) -> tuple[Tensor, ...]:
        """The tensors that a plan places: intermediates, workspaces, and arguments if the limit counts them."""
        return tuple(tensor for tensor in self.tensors if tensor.is_movable)

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Allocated bytes of movable tensors live during each kernel, wherever they are."""
        change = [0] * (len(self.kernels) + 1)
        for tensor in self.movable:
            change[tensor.live.start] += tensor.allocated_bytes
            change[tensor.live.stop] -= tensor.allocated_bytes
        return tuple(accumulate(change[:-1]))

    @property
    def peak_live_bytes(self) -> int:
        """Fast memory that the step needs when nothing is ever slow: what ratios divide."""
        return max(self.live_bytes, default=0)

    def computed_by(self, implementations: Sequence[str]) -> ChosenGraph:
        """Return the step with one implementation for each kernel: what runs once a plan has chosen.

        Workspaces of implementations that are not chosen are no tensors of it. With `()` every kernel keeps the
        implementation it has.

        Raises:
            BadInputError: a kernel has no such implementation.
        """
        if not implementations and not any(kernel.alternatives for kernel in self.kernels):
            return ChosenGraph(self)
        names = tuple(implementations or [kernel.implementation for kernel in self.kernels])
        # Checks, prices and records of one plan ask for the same step in turn.
        computed = self._computed.get(names)
        if computed is None:
            kernels = tuple(kernel.computed_by(name) for kernel, name in zip(self.kernels, names, strict=True))
            others = tuple(tensor for tensor in self.tensors if tensor.role is not Role.WORKSPACE)
            spaces = [workspace(operand, index) for index, one in enumerate(kernels) for operand in one.workspaces]
            same = kernels == self.kernels
            computed = ChosenGraph(self if same else replace(self, kernels=kernels, tensors=(*others, *spaces)))
            if len(self._computed) >= _COMPUTED:
                self._computed.clear()
            self._computed[names] = computed
        return computed

    @cached_property
    def _computed(self) -> dict[tuple[str, ...], ChosenGraph]:
        return {}

    def slots_of(self, kernel: Kernel) -> dict[str, tuple[int, ...]]:
        """Return a kernel's movable tensors, by first appearance, each with the slots it fills (all share one tier)."""
        return self._slots.get(id(kernel)) or self._find_slots(kernel)

    @cached_property
    def _slots(self) -> dict[int, dict[str, tuple[int, ...]]]:
        """`slots_of` for the step's own kernels, by identity: prices are asked for by the hundred thousand."""
        return {id(kernel): self._find_slots(kernel) for kernel in self.kernels}

    def _find_slots(self, kernel: Kernel) -> dict[str, tuple[int, ...]]:
        slots: dict[str, tuple[int, ...]] = {}
        for slot, operand in enumerate(kernel.operands):
            if self.by_name[operand.tensor].is_movable:
                slots[operand.tensor] = _one_tuple((*slots.get(operand.tensor, ()), slot))
        return slots


# A step as lowered is a plain `Graph`. What plans and runs need is told apart by these types, which mypy checks.

CountedGraph = NewType("CountedGraph", Graph)
"""The step as plans see it (`model.limit.counting`): its movable tensors are those that the limit counts."""

ChosenGraph = NewType("ChosenGraph", Graph)
"""The step as it runs: each kernel has one implementation, and, in `Plan.step_of`, is there once for each call."""


def workspace(operand: Operand, kernel: int) -> Tensor:
    """Return the tensor behind a workspace of kernel number `kernel`."""
    return Tensor(operand.tensor, Role.WORKSPACE, operand.shape, operand.dtype, operand.size_bytes, kernel, ())


SCHEDULES_KEY = "schedules"
"""Under which key a graph file's provenance holds the kind of every symbol; it is no part of the step itself."""


class ScheduleKind(StrEnum):
    """Where a schedule comes from; it shows which kernels fell back to unscheduled code."""

    GENERATED = "generated"
    """Code written for its operator."""
    GENERAL = "general"
    """The rules for maps and reductions of any shape."""
    FRAMEWORK = "framework"
    """None of ours: an operator of PyTorch."""
    LOOP = "loop"
    """A loop or branch, whose own kernels have schedules of their own."""
    AS_WRITTEN = "as written"
    """None of these worked: compiled nearly as written, on one thread."""


def schedules_in(provenance: Mapping[str, Any]) -> dict[str, ScheduleKind]:
    """Return the schedule kind by kernel symbol, from a graph file's provenance; empty where older files lack it."""
    return {symbol: ScheduleKind(kind) for symbol, kind in provenance.get(SCHEDULES_KEY, {}).items()}


class Tier(StrEnum):
    """Fast (`dram`) and slow (`pmem`) memory under the names that records have always used, also for GPU and CXL."""

    FAST = "dram"
    SLOW = "pmem"

    @property
    def letter(self) -> str:
        """D or P, as configurations are written."""
        return "D" if self is Tier.FAST else "P"


Configuration = str
"""One letter per slot (inputs, outputs, workspaces): D = fast, P = slow; slots that cannot move are always D."""


def all_fast(kernel: Kernel) -> Configuration:
    """Return the configuration with every operand in fast memory."""
    return intern("D" * len(kernel.operands))


def configuration(graph: Graph, kernel: Kernel, slow: Collection[str]) -> Configuration:
    """Return the configuration of `kernel` when exactly the movable tensors in `slow` are in slow memory."""
    letters = list(all_fast(kernel))
    for tensor, slots in graph.slots_of(kernel).items():
        if tensor in slow:
            for slot in slots:
                letters[slot] = "P"
    return intern("".join(letters))


_LOOKUPS = ("embedding", "embedding_concat", "embedding_update")
"""Operations that touch no more rows of a table than they have indices."""
_KEPT = {Role.PARAMETER, Role.STATE}
"""Roles that a table of an embedding can have."""


def slow_traffic(graph: Graph, kernel: Kernel, config: Configuration) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the bytes of each slow tensor that `kernel` reads, and of each that it writes.

    A tensor counts once a direction, whatever number of slots it fills; a workspace is written and read. Of a table
    that is looked up in, the rows that are looked up count, as many as there are indices.
    """
    touched = _looked_up_rows(graph, kernel)
    inputs, outputs = len(kernel.inputs), len(kernel.inputs) + len(kernel.outputs)
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    for slot, (operand, letter) in enumerate(zip(kernel.operands, config, strict=True)):
        if letter == "D":
            continue
        size = graph.by_name[operand.tensor].size_bytes
        if touched is not None:
            size = min(size, touched * (operand.shape or (1,))[-1] * np.dtype(operand.dtype).itemsize)
        if slot < inputs or slot >= outputs:
            read[operand.tensor] = size
        if slot >= inputs:
            written[operand.tensor] = size
    return tuple(read.values()), tuple(written.values())


def _looked_up_rows(graph: Graph, kernel: Kernel) -> int | None:
    """Return the most rows of a table that a lookup touches, the mean of several tables; None for other kernels."""
    if kernel.op not in _LOOKUPS:
        return None
    indices = [operand for operand in kernel.inputs if np.dtype(operand.dtype).kind in "iu"]
    tables = [operand for operand in kernel.inputs if graph.by_name[operand.tensor].role in _KEPT]
    return -(-sum(math.prod(operand.shape) for operand in indices) // max(len(tables), 1))
