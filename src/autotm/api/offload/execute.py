"""Running a step: the copies before each operator, in the order that `Move` states, and the operators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import fx, nn
from torch.fx import Node

from autotm.api.offload.planning import Planned
from autotm.api.offload.step_graph import Run
from autotm.joint_graph import Step, Values, bytes_of
from autotm.memory.torch_arena import Arena
from autotm.memory.torch_device import Copies
from autotm.model.graph import Role, Tier
from autotm.optimizer_updates import Copied, Update


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
    """Something done before an operator.

    Attributes:
        kind: what.
        copy: its number.
        place: the storage; of an optimizer's state the operator that updates it.
        offset: on the host.
        is_state: whether it is done to an optimizer's state.
    """

    kind: Kind
    copy: int = -1
    place: int = -1
    offset: int = -1
    is_state: bool = False


def schedule(planned: Planned) -> list[list[Action]]:
    """List the actions before each kernel of a plan, and at the end.

    Workspaces, and arguments that stay on the device, have none.
    """
    plan, layout, places, states = planned.plan, planned.layout, planned.places, planned.state_tensors
    kernels = len(planned.graph.kernels)
    before: list[list[Action]] = [[] for _ in range(kernels + 1)]
    slow: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for stay, offset in zip(layout.stays, layout.offsets, strict=True):
        slow[stay.tensor] += [(stay.start, stay.end, offset)] if stay.tier is Tier.SLOW else []
        if stay.tensor in places:
            kind = Kind.FREE if stay.tier is Tier.FAST else Kind.EMPTY
            before[stay.end].append(Action(kind, place=places[stay.tensor], offset=offset))
        elif stay.tensor in states:
            is_stored = planned.graph.by_name[stay.tensor].role is Role.STORED
            # What is stored stays on the host; what is fetched stays on the device, where it is updated.
            if is_stored == (stay.tier is Tier.FAST):
                kind = Kind.FREE if is_stored else Kind.EMPTY
                before[stay.end].append(Action(kind, place=states[stay.tensor], is_state=True))
    for number, move in enumerate(plan.moves):
        (offset,) = [offset for start, end, offset in slow[move.tensor] if start <= move.start < end]
        is_out, is_state = move.destination is Tier.SLOW, move.tensor in states
        copy = number, (states if is_state else places)[move.tensor], offset, is_state
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

    What runs is one function, written by `torch.fx`: it gives up each tensor after its last use.

    Attributes:
        step: what runs.
        runs: its operators in order, and None where nothing runs; one that draws random numbers draws the same ones
            again.
        before: actions before each of them, before the results are taken, and at the end.
        pool: bytes of host memory.
        copies: the streams.
        sizes: of each storage in bytes, as measured.
        arena: memory in which what is allocated has places (`places_of`); None where PyTorch's allocator chooses them.
        poison: overwrite memory when it is given back and when it is taken, on both sides: a read too early or too
            late gives NaN.
        moved_bytes: that the last step copied into each memory.
    """

    step: Step
    runs: Sequence[Run | None]
    before: list[list[Action]]
    pool: torch.Tensor
    copies: Copies
    sizes: tuple[int, ...]
    arena: Arena | None = None
    poison: bool = False
    moved_bytes: dict[Tier, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        captured = self.step.captured
        self._arguments = [*self.step.constants, *captured.arguments]
        results = (*captured.outputs, *captured.gradients.values(), *captured.updates.values())
        self._results = [*dict.fromkeys(results)]
        self._device = next(iter(captured.values.values())).device
        self._active: dict[int, object] = {}
        self._drawn: dict[int, npt.NDArray[np.uint8]] = {}
        self._ahead: torch.Tensor | None = None
        self._functions = {self.poison: self._function()}

    def run(self, values: Values) -> None:
        """Run the step on `values`, which hold its arguments, then its results too; all other memory is given up.

        Raises:
            AutotmError: a copy failed.
        """
        self.moved_bytes = dict.fromkeys(Tier, 0)
        if self.poison not in self._functions:
            self._functions[self.poison] = self._function()
        try:
            with self.arena or nullcontext():
                results = self._functions[self.poison](self, *map(values.__getitem__, self._arguments))
        except BaseException:
            self.copies.drain()  # The memory of a copy in progress must not be freed.
            raise
        finally:
            self.draw_on()
            self._active.clear()
            self._drawn.clear()
        values.update(zip(self._results, results, strict=True))

    def _function(self) -> Callable[..., tuple[torch.Tensor, ...]]:
        """Write the function of the step, from the executor and the arguments to the results.

        Memory is given up with the last tensor that views it. Only where it is copied, or poisoned, it is emptied under
        the tensors that view it, which stay valid until it is filled again.
        """
        graph, now, stored = fx.Graph(), dict[Node, Node](), dict[int, Node]()
        executor = graph.placeholder("executor")
        for node in self._arguments:
            now[node] = graph.placeholder(node.name)
        for view in self.step.argument_views:
            now[view] = graph.node_copy(view, now.__getitem__)
        actions_in_order = [action for actions in self.before for action in actions]
        copied = {action.place for action in actions_in_order if action.copy >= 0 and not action.is_state}
        again = {run.operator for run in self.runs if run is not None and run.wanted is not None}
        for kernel, (actions, run) in enumerate(zip(self.before, self.runs, strict=False)):
            self._write(graph, executor, actions, stored)
            if run is None:
                continue
            operator = self.step.operators[run.operator]
            graph.call_method("allocate_for", (executor, kernel, run.operator))
            is_drawn_again = operator.is_random and run.operator in again
            if is_drawn_again:
                graph.call_method("draw" if run.wanted is None else "draw_again", (executor, run.operator))
            places = operator.outputs if run.wanted is None else run.wanted
            made = {node for place in places for node in self.step.storages[place].nodes}
            for node in (operator.node, *(view for view in operator.views if run.wanted is None or view in made)):
                now[node] = graph.node_copy(node, now.__getitem__)
            if is_drawn_again and run.wanted is not None:
                graph.call_method("draw_on", (executor,))
            for place in places:
                if self.poison or place in copied:
                    element = self.step.storages[place].element
                    stored[place] = graph.call_function(bytes_of, (now[operator.node], element))
        self._write(graph, executor, self.before[len(self.runs)], stored)
        graph.output(tuple(now[node] for node in self._results))
        return fx.GraphModule(nn.Module(), graph).forward

    def _write(self, graph: fx.Graph, executor: Node, actions: list[Action], stored: dict[int, Node]) -> None:
        """Write the calls of actions; `stored` has the bytes of the storages that are copied or poisoned."""
        for action in actions:
            match action.kind:
                case Kind.FREE if action.is_state:
                    graph.call_method("free_state", (executor, action.place))
                case Kind.WRITE | Kind.START_OUT if action.is_state:
                    graph.call_method("start_storing", (executor, action.copy, action.place))
                case Kind.READ | Kind.START_IN if action.is_state:
                    graph.call_method("start_fetching", (executor, action.copy, action.place))
                case Kind.EMPTY if self.poison and action.is_state:
                    graph.call_method("empty_state", (executor, action.place))
                case Kind.EMPTY if self.poison:
                    graph.call_method("empty", (executor, action.place, action.offset))
                case Kind.FREE if action.place in stored:
                    graph.call_method("free", (executor, stored[action.place]))
                case Kind.WRITE | Kind.START_OUT | Kind.READ | Kind.START_IN:
                    is_out = action.kind in {Kind.WRITE, Kind.START_OUT}
                    where = (stored[action.place], action.copy, action.place, action.offset)
                    graph.call_method("start_out" if is_out else "start_in", (executor, *where))
            if action.kind in {Kind.WAIT, Kind.WRITE, Kind.READ}:
                graph.call_method("wait", (executor, action.copy))

    # What the function calls.

    def allocate_for(self, kernel: int, operator: int) -> None:
        """Let what is allocated next have the places of a kernel."""
        if self.arena is not None:
            update = self.step.operators[operator].node.target
            is_first = isinstance(update, Update) and not update.has_state
            self.arena.at(len(self.runs) + kernel if is_first else kernel)

    def _allocate_for_copy(self, copy: int) -> None:
        if self.arena is not None:
            self.arena.at(2 * len(self.runs) + copy)

    def start_out(self, stored: torch.Tensor, copy: int, place: int, offset: int) -> None:
        """Start a copy of a storage to the host."""
        self.moved_bytes[Tier.SLOW] += self.sizes[place]
        host = self.pool[offset : offset + self.sizes[place]]
        self._active[copy] = self.copies.start(Tier.SLOW, host, stored)

    def start_in(self, stored: torch.Tensor, copy: int, place: int, offset: int) -> None:
        """Allocate a storage's memory, and start a copy of it from the host."""
        self.moved_bytes[Tier.FAST] += self.sizes[place]
        self._allocate_for_copy(copy)
        stored.untyped_storage().resize_(self.sizes[place])
        if self.poison:
            stored.fill_(_POISON_BYTE)
        host = self.pool[offset : offset + self.sizes[place]]
        self._active[copy] = self.copies.start(Tier.FAST, stored, host)

    def start_fetching(self, copy: int, operator: int) -> None:
        """Start a copy of an optimizer's state to the device, before the operator that updates it."""
        self._allocate_for_copy(copy)
        self._start_state(Tier.FAST, copy, self._update(operator).fetch())

    def start_storing(self, copy: int, operator: int) -> None:
        """Start a copy of an optimizer's state to the host, after the operator that updated it."""
        update = self._update(operator)
        copied = update.replace_kept()
        self._start_state(Tier.SLOW, copy, copied)
        if copied is None:
            self.moved_bytes[Tier.SLOW] += update.kept.numel()

    def _start_state(self, tier: Tier, copy: int, copied: Copied | None) -> None:
        if copied is None:
            self._active[copy] = None
            return
        if self.poison and tier is Tier.FAST:
            copied[0].fill_(_POISON_BYTE)
        self._active[copy] = self.copies.start(tier, *copied)
        self.moved_bytes[tier] += copied[0].numel()

    def free_state(self, operator: int) -> None:
        """Free the device memory of an optimizer's state."""
        here = self._update(operator).give_back()
        if here is not None:
            self.free(here)

    def empty_state(self, operator: int) -> None:
        """Overwrite an optimizer's state on the host, which is read no more."""
        self._overwrite(self._update(operator).kept)

    def _update(self, operator: int) -> Update:
        update = self.step.operators[operator].node.target
        assert isinstance(update, Update)
        return update

    def wait(self, copy: int) -> None:
        """Wait for a copy, unless it is of state that was not there."""
        if (active := self._active.pop(copy)) is not None:
            self.copies.wait(active)

    def free(self, stored: torch.Tensor) -> None:
        """Free a storage's memory."""
        if self.poison:
            stored.fill_(_POISON_BYTE)
        stored.untyped_storage().resize_(0)

    def empty(self, place: int, offset: int) -> None:
        """Overwrite bytes on the host that are read no more."""
        self._overwrite(self.pool[offset : offset + self.sizes[place]])

    def _overwrite(self, host: torch.Tensor) -> None:
        if self.pool.is_pinned():  # The device is behind, and may still have to read them.
            torch.cuda.synchronize()
        host.fill_(_POISON_BYTE)

    def draw(self, operator: int) -> None:
        """Note the generator's state before an operator that draws again later."""
        self._drawn[operator] = self._generator_state().numpy().copy()  # On a CPU a tensor would count.

    def draw_again(self, operator: int) -> None:
        """Set the generator back to where it was before the first run of an operator."""
        self._ahead = self._generator_state()
        self._set_generator_state(torch.from_numpy(self._drawn[operator]))

    def draw_on(self) -> None:
        """Set the generator to where it was before `draw_again`."""
        if self._ahead is not None:
            self._set_generator_state(self._ahead)
            self._ahead = None

    def _generator_state(self) -> torch.Tensor:
        return torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else torch.get_rng_state()

    def _set_generator_state(self, state: torch.Tensor) -> None:
        if self._device.type == "cuda":
            torch.cuda.set_rng_state(state, self._device)
        else:
            torch.set_rng_state(state)
