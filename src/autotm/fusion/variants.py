"""A step with its operators in any groups: compiled, and compared with the step as TVM fuses it."""

from __future__ import annotations

import itertools
import math
import multiprocessing
import pickle
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter_ns
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import tvm
from tvm import tirx

from autotm.fusion.compiling import attempted
from autotm.fusion.dataflow import Dataflow, Grouping, Live
from autotm.fusion.decisions import Choose, Requested, Resolved, resolve
from autotm.kernels.compiler import KernelCompiler, KernelFacts, Request, in_processes
from autotm.kernels.library import KernelLibrary, pinned
from autotm.kernels.schedules.dispatch import has_schedule
from autotm.kernels.target import machine_target
from autotm.lower.lowering import made_of
from autotm.lower.step import first_use, whole_step
from autotm.memory.opening import open_tiers
from autotm.model.cores import Watch, quiet_interpreter
from autotm.model.errors import AutotmError, BadInputError
from autotm.model.fusion import FusionTimes
from autotm.model.graph import Graph, Role, ScheduleKind
from autotm.model.machine import Machine
from autotm.model.network_source import NetworkSource
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import Executor, prepare
from autotm.runtime.step_times import RunOptions, standard_error
from autotm.runtime.verify import all_fast_program, results
from autotm.zoo import Network, build_from, with_values_stored

TOLERANCE = 1e-5
"""Largest error of what a step computes, or changes, as a share of the largest number there."""
_ROUNDING = 2.0**-23
"""Of what a step adds to a value, the value itself keeps only this share of its own size."""

_SHAKEN = 16.0
"""Another order of sums rounds some times as much as a change of the parameters' last bits."""
_PYTORCH = ("torch", "torchvision", "transformers")
Values = dict[str, npt.NDArray[np.float64]]


class WrongResultError(AutotmError):
    """A variant computes something else than the default."""


@dataclass(frozen=True)
class Variant:
    """A step with its operators in certain groups, compiled.

    Attributes:
        grouping: of its operators.
        graph: its kernels and tensors.
        library: machine code of its kernels.
    """

    grouping: Grouping
    graph: Graph
    library: KernelLibrary


class Schedules:
    """Tells whether one kernel can compute a group; the groups of TVM's fusion are one, whatever it is."""

    def __init__(
        self,
        dataflow: Dataflow,
        target: tvm.target.Target,
        threads: int,
        kinds: Mapping[str, ScheduleKind] = MappingProxyType({}),
    ) -> None:
        """Know of a step's groups only what kinds of kernels there are, by the keys of requests for them."""
        self._dataflow, self._target, self._threads = dataflow, target, threads
        self._default = {*dataflow.default.groups}
        self._known: dict[Live, bool] = {}
        self._functions = {key: kind is not ScheduleKind.AS_WRITTEN for key, kind in kinds.items()}

    def __call__(self, group: Live) -> bool:
        """Return whether a schedule computes a group."""
        if group not in self._known:
            self._known[group] = self._is_default(group) or self._is_scheduled(group)
        return self._known[group]

    def among(self, groups: Iterable[Live]) -> list[Live]:
        """Return those of many groups that a schedule computes; several processes try the schedules."""
        groups = list(groups)
        joined = (group for group in groups if not self._is_default(group) and self._may_join(group))
        by_key = {self._key(function): function for function in map(self._dataflow.primitive, joined)}
        untried = {key: function for key, function in by_key.items() if key not in self._functions}
        functions = [*untried.values()]
        answers = multiprocessing.get_context("fork").RawArray("b", len(functions))

        def try_one(at: int) -> None:
            answers[at] = has_schedule(functions[at], self._target, self._threads)

        in_processes(len(functions), try_one)
        self._functions.update(zip(untried, map(bool, answers), strict=True))
        return [group for group in groups if self(group)]

    def _is_default(self, group: Live) -> bool:
        return group.nodes in self._default

    def _may_join(self, group: Live) -> bool:
        return not self._dataflow.is_opaque(group.nodes) and not self._dataflow.expands(group.nodes)

    def _key(self, function: tirx.PrimFunc) -> str:
        return Request(function).key(self._target, self._threads)

    def _is_scheduled(self, group: Live) -> bool:
        if not self._may_join(group):
            return False
        function = self._dataflow.primitive(group)
        key = self._key(function)
        if key not in self._functions:
            self._functions[key] = has_schedule(function, self._target, self._threads)
        return self._functions[key]


def network_of(source: NetworkSource, seed: int, values: Path, *, is_inference: bool) -> Network:
    """Return the network of a source, to be trained or not; values that came with it go to a folder.

    Raises:
        AutotmError: as `build_from`; where what defines the network is not installed, with the remedy.
    """
    try:
        built = build_from(source, seed, is_inference=is_inference)
    except BadInputError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name in _PYTORCH:
            raise BadInputError(
                f"network {source.name} is a module of PyTorch, and {cause.name} is not installed here; `make "
                "figures/fusion` runs where it is, .venv-torch/bin/autotm as well"
            ) from None
        raise
    return with_values_stored(built, values)


class Workbench:
    """What makes variants of a step.

    Attributes:
        dataflow: the operators of the step.
        network: trained or not.
        scale: of its sizes, for records.
        machine: runs it.
        devices_dir: folder of the device files.
        compiler: of kernels.
        has_schedule: tells whether one kernel can compute a group.
    """

    def __init__(self, network: Network, scale: str, machine: Machine, devices_dir: Path, objects: Path) -> None:
        """Lower a step.

        Args:
            network: trained or not.
            scale: of its sizes, for records.
            machine: runs it.
            devices_dir: folder of the device files.
            objects: folder that keeps machine code.

        Raises:
            AutotmError: an operator has no gradient or no kernel, or there is no C compiler.
        """
        self.network, self.scale, self.machine, self.devices_dir = network, scale, machine, devices_dir
        self._target = machine_target(machine)
        objects.mkdir(parents=True, exist_ok=True)
        self.compiler = KernelCompiler(objects, self._target, machine.threads)
        self._step = whole_step(network)
        try:
            self.dataflow = Dataflow(self._step.module, self._target)
        except NotImplementedError as error:
            raise AutotmError(f"network {network.name}: {error}{first_use(network, str(error))}") from None
        self.has_schedule = Schedules(self.dataflow, self._target, machine.threads, self.compiler.kinds())

    def resolved(self, requested: Requested | Choose) -> Resolved:
        """Return the groups that decisions ask for, as far as autotm's schedules compute each in one kernel."""
        return resolve(self.dataflow, requested, self.has_schedule)

    def compiled(self, grouping: Grouping) -> Variant:
        """Compile a variant.

        Raises:
            AutotmError: a kernel cannot be compiled.
        """
        return self.compiled_all([grouping])[0]

    def compiled_all(self, groupings: Sequence[Grouping]) -> list[Variant]:
        """Compile variants in several processes.

        Raises:
            AutotmError: a kernel cannot be compiled.
        """
        outcomes = self.compiled_each(groupings)
        for outcome in outcomes:
            if isinstance(outcome, AutotmError):
                raise outcome
        return [outcome for outcome in outcomes if isinstance(outcome, Variant)]

    def compiled_each(self, groupings: Sequence[Grouping]) -> list[Variant | AutotmError]:
        """Compile variants in several processes; return the error of one with a kernel that cannot be compiled."""
        with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
            graphs = [Path(folder) / f"{at}.pkl" for at in range(len(groupings))]
            libraries = [path.with_suffix(".so") for path in graphs]

            def compile_one(at: int) -> None:
                try:
                    outcome: Graph | AutotmError = self._linked(groupings[at], libraries[at])
                except AutotmError as error:
                    outcome = error
                graphs[at].write_bytes(pickle.dumps(outcome))

            in_processes(len(groupings), compile_one)
            outcomes = [pickle.loads(graph.read_bytes()) for graph in graphs]  # noqa: S301 - Just written.
            return [
                outcome if isinstance(outcome, AutotmError) else Variant(grouping, outcome, KernelLibrary.load(library))
                for grouping, outcome, library in zip(groupings, outcomes, libraries, strict=True)
            ]

    def _linked(self, grouping: Grouping, library: Path) -> Graph:
        """Write the library of a variant, and return its graph."""
        fuse = partial(self.dataflow.fused, grouping)
        made = made_of(self.network, self.scale, self._step, fuse, self._make, "default")
        self.compiler.link(made.kernels, library)
        return made.graph

    def _make(self, requests: Sequence[Request]) -> list[KernelFacts]:
        outcomes = attempted(self.compiler, requests)
        for outcome in outcomes:
            if isinstance(outcome, str):
                raise AutotmError(f"network {self.network.name}: a kernel cannot be compiled: {outcome}")
        return [outcome for outcome in outcomes if isinstance(outcome, KernelFacts)]

    @property
    def default(self) -> Variant:
        """The step as TVM fuses it."""
        return self._defaults[0]

    @cached_property
    def _defaults(self) -> list[Variant]:
        """The step as TVM fuses it, and another copy of its code."""
        return self.compiled_all([self.dataflow.default] * 2)

    def compared(self, variants: Sequence[Variant], options: RunOptions) -> list[FusionTimes | WrongResultError]:
        """Compare what variants compute with the default's results, then time those that are right in turn with it.

        Raises:
            AutotmError: the default's own results are not finite, or kernels run on fewer threads than the machine asks
                for.
        """
        machine = self.machine
        # The default beside itself is another copy of its code: the same would find itself in the caches.
        steps = *variants, *self._defaults
        programs = [all_fast_program(one.graph) for one in steps]
        pool_bytes = max(program.fast_bytes for program in programs)
        with pinned(machine), open_tiers(machine, None, pool_bytes, 0, self.devices_dir, stretch=1.0) as tiers:
            # Steps run one after the other, and leave nothing in the pool that another reads.
            arguments = Arguments.allocate(self.default.graph, tiers=tiers)
            *owns, default, again = (
                prepare(one.graph, one.library, program, arguments, tiers)
                for one, program in zip(steps, programs, strict=True)
            )
            outcomes = self._differences(owns, default, arguments, options.seed)
            again.step()
            right = [place for place, outcome in enumerate(outcomes) if isinstance(outcome, float)]
            watch = Watch(machine.cpus, options.patience_s)
            with quiet_interpreter():
                rounds_s = _rounds([one.step for one in (default, again, *(owns[at] for at in right))], watch, options)
            tiers.check()
        default_s, noise = float(np.median(rounds_s[:, 0])), _ratio(rounds_s[:, [1, 0]])
        found: list[FusionTimes | WrongResultError] = []
        for place, outcome in enumerate(outcomes):
            if isinstance(outcome, WrongResultError):
                found.append(outcome)
                continue
            own_s = rounds_s[:, [2 + right.index(place), 0]]
            step_s, ratio = float(np.median(own_s[:, 0])), _ratio(own_s)
            found.append(FusionTimes(step_s, default_s, *ratio, *noise, outcome, bool(watch.disturbed)))
        return found

    def _differences(
        self, owns: Sequence[Executor], default: Executor, arguments: Arguments, seed: int
    ) -> list[float | WrongResultError]:
        """Return by step the largest error of a result as a share of what is allowed, or which result is wrong.

        Of a parameter what the step changes counts, beside what the parameter's own size rounds away. A change that is
        nothing but roundings, such as that of a bias before a normalization, is held against the others' size. Where
        the step amplifies roundings, as many normalizations do, as much is allowed as the default itself changes when
        the last bits of its parameters do.
        """
        graph = self.default.graph
        replaced = {name: tensor.alias_of for name, tensor in graph.by_name.items() if tensor.alias_of}
        draw = np.random.default_rng(seed)

        def computed(step: Executor, *, is_shaken: bool = False) -> Values:
            arguments.fill(seed)
            for tensor in graph.tensors:
                if is_shaken and tensor.role is Role.PARAMETER and tensor.dtype.startswith("float"):
                    value = arguments.value(tensor.name)
                    value[...] = np.nextafter(value, draw.choice([-np.inf, np.inf], value.shape).astype(value.dtype))
            before.update((name, arguments.value(old).astype(np.float64)) for name, old in replaced.items())
            step.step()
            return {name: arguments.value(name).astype(np.float64) for name in results(graph)}

        before: Values = {}
        shaken, wanted = computed(default, is_shaken=True), computed(default)
        if unfit := [name for name, value in wanted.items() if not np.isfinite(value + shaken[name]).all()]:
            raise AutotmError(
                f"network {self.network.name}: '{unfit[0]}' is not finite after a step, so nothing can be compared; "
                "lower its learning rate, or the values that it starts from"
            )
        changes = {name: value - before[name] if name in before else value for name, value in wanted.items()}
        sizes = [np.square(changes[name]) for name in before]
        typical = math.sqrt(sum(map(np.sum, sizes)) / max(sum(size.size for size in sizes), 1))
        allowed = {
            name: TOLERANCE * max(_peak(changes[name]), typical if name in before else 0.0)
            + _ROUNDING * _peak(value)
            + _SHAKEN * _peak(shaken[name] - value)
            for name, value in wanted.items()
        }
        outcomes: list[float | WrongResultError] = []
        for own in owns:
            shares = {}
            for name, value in computed(own).items():
                distance = _peak(value - wanted[name])
                share = distance / allowed[name] if distance else 0.0
                shares[name] = math.inf if math.isnan(share) else share
            worst = max(shares, key=shares.__getitem__)
            outcomes.append(shares[worst])
            if shares[worst] > 1:
                outcomes[-1] = WrongResultError(
                    f"network {self.network.name}: '{worst}' differs from that by TVM's fusion by "
                    f"{shares[worst]:.3g} times what is allowed; please report the decisions"
                )
        return outcomes


def _peak(values: npt.NDArray[np.float64]) -> float:
    return float(np.max(np.abs(values), initial=0.0))


_FEW, _MANY = 10, 2000
"""Rounds that are not enough, however long they are, and that need not go on, however short."""


def _rounds(steps: Sequence[Callable[[], None]], watch: Watch, options: RunOptions) -> npt.NDArray[np.float64]:
    """Time steps in turn: a row a round, in seconds.

    Each round begins with another of them: the first comes after what is no step, and takes longer for that.
    """
    turn = itertools.count()

    def run() -> list[int]:
        first, times_ns = next(turn) % len(steps), [0] * len(steps)
        for place in (*range(first, len(steps)), *range(first)):
            start_ns = perf_counter_ns()
            steps[place]()
            times_ns[place] = perf_counter_ns() - start_ns
        return times_ns

    def is_enough(rounds: Sequence[list[int]]) -> bool:
        if len(rounds) < max(_FEW, options.min_steps):
            return False
        return len(rounds) >= _MANY or sum(times[0] for times in rounds) >= options.min_seconds * 1e9

    return np.asarray(watch.until(run, is_enough, "steps")) / 1e9


def _ratio(rounds_s: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Return the ratio of the medians of two steps, and its standard error as a share of it."""
    own_s, default_s = np.median(rounds_s, axis=0)
    return float(own_s / default_s), standard_error(rounds_s)
