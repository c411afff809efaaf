"""Running a step: the copies before each operator, in the order that `Move` states, and the operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from autotm.api.offload.planning import Run
from autotm.joint_graph import Step, Values, call_of, keep, tensors_of
from autotm.memory.torch_device import Copies
from autotm.model.graph import Tier
from autotm.model.plan import Plan
from autotm.model.program import Layout


class Kind(IntEnum):
    """Kinds of actions, in the order in which they are done before an operator."""

    WAIT = 0
    """Wait for a copy that runs during operators."""
    EMPTY = 1
    """Give up bytes on the host that are read no more."""
    WRITE = 2
    """Copy to the host, and wait for that."""
    FREE = 3
    """Free the device memory of a storage."""
    READ = 4
    """Copy from the host, and wait for that."""
    START_OUT = 5
    """Start a copy to the host, which runs during operators."""
    START_IN = 6
    """Start a copy from the host, which runs during operators."""


class Action(NamedTuple):
    """Something done before an operator, with the number of its copy, its storage, and the offset on the host."""

    kind: Kind
    copy: int = -1
    place: int = -1
    offset: int = -1


def schedule(plan: Plan, layout: Layout, places: dict[str, int], kernels: int) -> list[list[Action]]:
    """List the actions before each kernel, and at the end.

    Args:
        plan: a plan with every operand in fast memory.
        layout: the plan's layout.
        places: the storage of each tensor that moves or is freed; workspaces and arguments have none.
        kernels: how many the plan's graph has.
    """
    before: list[list[Action]] = [[] for _ in range(kernels + 1)]
    slow: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for stay, offset in zip(layout.stays, layout.offsets, strict=True):
        if stay.tensor not in places:
            continue
        if stay.tier is Tier.FAST:
            before[stay.end].append(Action(Kind.FREE, place=places[stay.tensor]))
        else:
            slow[stay.tensor].append((stay.start, stay.end, offset))
            before[stay.end].append(Action(Kind.EMPTY, place=places[stay.tensor], offset=offset))
    for number, move in enumerate(plan.moves):
        (offset,) = [offset for start, end, offset in slow[move.tensor] if start <= move.start < end]
        copy, is_out = (number, places[move.tensor], offset), move.destination is Tier.SLOW
        if move.since is None:
            before[move.before].append(Action(Kind.WRITE if is_out else Kind.READ, *copy))
        else:
            before[move.since].append(Action(Kind.START_OUT if is_out else Kind.START_IN, *copy))
            before[move.before].append(Action(Kind.WAIT, number))
    return [sorted(actions, key=lambda action: action.kind) for actions in before]


_POISON_BYTE = 0xFF
"""Byte whose repetition is a NaN in every floating-point type."""


@dataclass
class Executor:
    """A planned step, bound to PyTorch's operators and a pool of host memory.

    Attributes:
        step: what runs.
        runs: its operators in order; one that draws random numbers draws the same ones again.
        before: actions before each of them, before the results are taken, and at the end.
        pool: bytes of host memory.
        copies: the streams.
        sizes: of each storage in bytes, as measured.
        poison: overwrite memory when it is given back and when it is taken, on both sides: a read too early or too
            late gives NaN.
        moved_bytes: that the last step copied into each memory.
    """

    step: Step
    runs: Sequence[Run]
    before: list[list[Action]]
    pool: torch.Tensor
    copies: Copies
    sizes: tuple[int, ...]
    poison: bool = False
    moved_bytes: dict[Tier, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._calls = [call_of(operator.node) for operator in self.step.operators]
        again = {run.operator for run in self.runs if run.wanted is not None}
        self._drawing = {index for index in again if self.step.operators[index].is_random}

    def run(self, values: Values) -> None:
        """Run the step on `values`, which hold its arguments, then its results too; all other memory is given up.

        Raises:
            AutotmError: a copy failed.
        """
        self.moved_bytes = dict.fromkeys(Tier, 0)
        for view in self.step.argument_views:
            values[view] = call_of(view)(values)
        device_bytes: dict[int, torch.Tensor] = {}
        active: dict[int, object] = {}
        drawn: dict[int, npt.NDArray[np.uint8]] = {}
        try:
            for actions, run in zip(self.before, self.runs, strict=False):
                self._prepare(actions, device_bytes, active)
                result = self._called(run, values, drawn)
                device_bytes.update(keep(self.step, values, self.step.operators[run.operator], result, run.wanted))
            self._prepare(self.before[len(self.runs)], device_bytes, active)
        except BaseException:
            self.copies.drain()  # The memory of a copy in progress must not be freed.
            raise

    def _called(self, run: Run, values: Values, drawn: dict[int, npt.NDArray[np.uint8]]) -> object:
        """Call an operator; `drawn` has the generator's states before those that draw again."""
        call = self._calls[run.operator]
        if run.operator not in self._drawing:
            return call(values)
        device = next(tensors_of(self.step.operators[run.operator].node.meta["val"])).device
        is_cuda = device.type == "cuda"
        if run.wanted is None:
            state = torch.cuda.get_rng_state(device) if is_cuda else torch.get_rng_state()
            drawn[run.operator] = state.numpy().copy()  # On a CPU a tensor would count.
            return call(values)
        state = torch.from_numpy(drawn[run.operator])
        with torch.random.fork_rng([device] if is_cuda else []):
            if is_cuda:
                torch.cuda.set_rng_state(state, device)
            else:
                torch.set_rng_state(state)
            return call(values)

    def _prepare(self, actions: list[Action], device_bytes: dict[int, torch.Tensor], active: dict[int, object]) -> None:
        """Do what comes before an operator; `device_bytes` has the bytes of storages, `active` the running copies."""
        for kind, copy, place, offset in actions:
            host = slice(offset, offset + self.sizes[place])  # Actions without a place do not use it.
            match kind:
                case Kind.EMPTY if self.poison:
                    if self.pool.is_pinned():  # The device is behind, and may still have to read them.
                        torch.cuda.synchronize()
                    self.pool[host].fill_(_POISON_BYTE)
                case Kind.WRITE | Kind.START_OUT:
                    self.moved_bytes[Tier.SLOW] += self.sizes[place]
                    active[copy] = self.copies.start(Tier.SLOW, self.pool[host], device_bytes[place])
                case Kind.FREE:
                    if self.poison:
                        device_bytes[place].fill_(_POISON_BYTE)
                    device_bytes[place].untyped_storage().resize_(0)
                case Kind.READ | Kind.START_IN:
                    self.moved_bytes[Tier.FAST] += self.sizes[place]
                    device_bytes[place].untyped_storage().resize_(self.sizes[place])
                    if self.poison:
                        device_bytes[place].fill_(_POISON_BYTE)
                    active[copy] = self.copies.start(Tier.FAST, device_bytes[place], self.pool[host])
            if kind in {Kind.WAIT, Kind.WRITE, Kind.READ}:
                self.copies.wait(active.pop(copy))
