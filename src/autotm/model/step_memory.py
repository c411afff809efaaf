"""What memory a training step of PyTorch takes: by cause, by module, and when it is most."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from autotm.model.errors import BadInputError
from autotm.model.limit import Limit


class Cause(StrEnum):
    """What memory is for."""

    PARAMETERS = "parameters"
    BUFFERS = "buffers"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer state"
    ACTIVATIONS = "activations"
    TEMPORARIES = "temporaries"
    WORKSPACES = "workspaces"
    BATCH = "batch"


class Phase(StrEnum):
    """A part of a training step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True)
class Peak:
    """When a step has most memory.

    Attributes:
        size_bytes: then.
        by_cause: the same by what it is for.
        phase: of the step.
        module: innermost one that computes then, by its name in the whole; empty outside of modules.
        operator: that was called last.
    """

    size_bytes: int
    by_cause: Mapping[Cause, int]
    phase: Phase
    module: str
    operator: str


@dataclass(frozen=True)
class ModuleMemory:
    """What a module takes, with all within it.

    Attributes:
        name: in the whole; empty for the whole.
        kind: its class.
        parameter_bytes: of its parameters.
        kept_bytes: that its forward pass leaves for the backward pass.
    """

    name: str
    kind: str
    parameter_bytes: int
    kept_bytes: int


@dataclass(frozen=True)
class LeastMemory:
    """The least that `autotm.offload` can do with, beside what operators other than convolutions take while they run.

    Attributes:
        size_bytes: of device memory; None if the step cannot be offloaded.
        where: what needs it: an operator of forward or backward, the gradients at the end, or the optimizer.
        failure: why the step cannot be offloaded.
    """

    size_bytes: int | None
    where: str
    failure: str = ""


@dataclass(frozen=True)
class ModelledTime:
    """The time of a step on a GPU, modelled from its published rates: all of them, or 0.4 of those of operators.

    Attributes:
        budget_bytes: of device memory; None where all is kept, and computed once.
        least_s, most_s: where operators reach all and 0.4 of the GPU's rates; None where there is no plan.
        moved_bytes: to the host in a step, if they reach all.
        recomputed: operators that run again, if they reach all.
        host_bytes: of pinned memory, if they reach all.
        failure: why there is no plan.
    """

    budget_bytes: int | None
    least_s: float | None = None
    most_s: float | None = None
    moved_bytes: int = 0
    recomputed: int = 0
    host_bytes: int = 0
    failure: str = ""


@dataclass(frozen=True)
class StepMemory:
    """Memory of a training step, predicted: what PyTorch's operators allocate, in PyTorch's own order.

    What other operators than convolutions on a CPU take while they run, and what an allocator loses, comes on top.

    Attributes:
        module: class of the module.
        parameters: numbers that it has.
        optimizer: class of the optimizer; empty where there is none.
        first: of the first step, in which the optimizer makes its state.
        steady: of every later step.
        resting_bytes: between two steps, gradients included.
        least: that the step can do with if tensors are moved to the host.
        modules: the whole first, then those within, in the order in which they are called.
        untold: recurrent layers, which keep memory that PyTorch does not tell of: the step needs more by that.
        budget_bytes: that was asked about, or of the device.
        device: that times are modelled of; empty where there is none.
        times: of a step in which all is kept, first, and of plans of `autotm.offload`.
    """

    module: str
    parameters: int
    optimizer: str
    first: Peak
    steady: Peak
    resting_bytes: int
    least: LeastMemory
    modules: tuple[ModuleMemory, ...]
    untold: tuple[str, ...] = ()
    budget_bytes: int | None = None
    device: str = ""
    times: tuple[ModelledTime, ...] = ()

    @property
    def peak(self) -> Peak:
        """The larger of the two peaks."""
        return max(self.first, self.steady, key=lambda peak: peak.size_bytes)

    @property
    def fits(self) -> bool | None:
        """Whether the budget holds every step; None without a budget."""
        return None if self.budget_bytes is None else self.peak.size_bytes <= self.budget_bytes

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        peak = self.peak
        kind = f"trained by {self.optimizer}" if self.optimizer else "forward and backward"
        yield f"{self.module}, {self.parameters / 1e6:.4g} million parameters, {kind}: needs {_size(peak.size_bytes)}"
        where = f" of {peak.module}" if peak.module else ""
        yield f"most in the {peak.phase}{where}, after {peak.operator}:"
        for cause, size_bytes in sorted(peak.by_cause.items(), key=lambda item: -item[1]):
            if size_bytes:
                yield f"  {cause:<16} {_size(size_bytes):>10}  {size_bytes / peak.size_bytes:4.0%}"
        yield (
            f"first step {_size(self.first.size_bytes)}, later ones {_size(self.steady.size_bytes)}, between steps "
            f"{_size(self.resting_bytes)}"
        )
        yield from self._kept()
        least = self.least
        if least.size_bytes is None:
            yield f"autotm.offload cannot move tensors of this step to the host: {least.failure}"
        else:
            yield f"with autotm.offload at least {_size(least.size_bytes)}, for {least.where}"
        if self.budget_bytes is not None:
            yield f"budget {_size(self.budget_bytes)}: {self._verdict(self.budget_bytes)}"
        yield from self._modelled()
        if self.untold:
            yield f"{', '.join(self.untold)}: what these recurrent layers keep is not told by PyTorch, and is left out"
        yield f"predicted; what {self._others} take while they run, and what an allocator loses, comes on top"

    @property
    def _others(self) -> str:
        """The operators whose workspaces are not counted."""
        return "other operators" if self.peak.by_cause.get(Cause.WORKSPACES) else "operators"

    def _verdict(self, budget_bytes: int) -> str:
        spare, least = budget_bytes - self.peak.size_bytes, self.least.size_bytes
        if spare >= 0:
            return f"it fits, {_size(spare)} are left"
        missing = f"it does not fit, {_size(-spare)} are missing"
        if least is None:
            return missing
        return f"{missing}; autotm.offload {'may keep it' if least <= budget_bytes else 'cannot keep it either'}"

    def _modelled(self) -> Iterator[str]:
        """Yield the times of steps."""
        if self.times:
            yield f"a step on {self.device}, modelled from its published rates, all and 0.4 of those of operators:"
        for one in self.times:
            name = "all kept" if one.budget_bytes is None else f"within {_size(one.budget_bytes)}"
            if one.least_s is None or one.most_s is None:
                yield f"  {name}: {one.failure}"
                continue
            line = f"  {name}: {one.least_s:.4g} to {one.most_s:.4g} s"
            plain = self.times[0]
            if one.budget_bytes is not None and plain.least_s and plain.most_s:
                shares = one.most_s / plain.most_s - 1, one.least_s / plain.least_s - 1
                line += f", {min(shares):.1%} to {max(shares):.1%} more: {_size(one.moved_bytes)} moved out, "
                line += f"{one.recomputed} operators again"
            yield line

    def _kept(self) -> Iterator[str]:
        """Yield what modules keep for the backward pass; those that are numbered alike are one line."""
        whole = self.modules[0].kept_bytes if self.modules else 0
        alike: dict[tuple[str, str], list[int]] = {}
        for one in self.modules[1:]:
            alike.setdefault((re.sub(r"(?<![^.])\d+(?![^.])", "*", one.name), one.kind), []).append(one.kept_bytes)
        largest = {key: kept for key, kept in alike.items() if sum(kept) >= max(_SHOWN * whole, 1)}
        if largest:
            yield f"kept for the backward pass: {_size(whole)}; modules with a tenth of it and more:"
        for (name, kind), kept in largest.items():
            count = f"{len(kept)} " if len(kept) > 1 else ""
            yield f"{'  ' * len(name.split('.'))}{name} ({count}{kind}): {_size(sum(kept))}"


def budget_of(text: str | float) -> int:
    """Return the bytes of a budget; BadInputError if it is none."""
    try:
        size_bytes = Limit.parse(text).size_bytes
    except BadInputError:
        size_bytes = None
    if not size_bytes:
        raise BadInputError(f"fits: '{text}' is no budget; give bytes, as 8GB or 4GiB")
    return size_bytes


_SHOWN = 0.1
"""Share of what is kept, below which a module is not printed."""


def _size(size_bytes: float) -> str:
    """Return bytes for people, four digits."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(size_bytes) >= scale:
            return f"{size_bytes / scale:.4g} {unit}"
    return f"{size_bytes:.0f} B"
