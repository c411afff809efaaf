"""The measurements of the timing study: the kernels of one step, timed in whole steps and alone."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory.opening import open_tiers
from autotm.memory.tiers import Tiers
from autotm.model.cores import quiet_interpreter
from autotm.model.graph import Configuration, Graph, Tier
from autotm.model.kernel_studies import ConfigurationTime, TimingMethod, TimingMethodCost, TimingStudy
from autotm.model.links import Links
from autotm.model.machine import Machine
from autotm.model.profile import Timing
from autotm.profile.kernel_timing import ProfileOptions, summary
from autotm.profile.profiler import cases, profile_kernels
from autotm.profile.store import KernelStore
from autotm.runtime.arguments import Arguments
from autotm.runtime.executor import prepare
from autotm.runtime.verify import plain_program

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wanted:
    """A configuration of kernel number `kernel` whose time is wanted; `slow` are its tensors in slow memory."""

    kernel: int
    configuration: Configuration
    slow: frozenset[str]


def wanted_configurations(graph: Graph) -> tuple[Wanted, ...]:
    """Return every configuration of every distinct kernel of a step without alternatives, kernel after kernel."""
    number = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
    wanted = []
    for case in cases(graph, "full"):
        slots = graph.slots_of(graph.kernels[number[case.kernel.name]])
        for config in case.configurations:
            slow = frozenset(tensor for tensor, filled in slots.items() if config[filled[0]] == Tier.SLOW.letter)
            wanted.append(Wanted(number[case.kernel.name], config, slow))
    return tuple(wanted)


def rounds(graph: Graph, wanted: Sequence[Wanted]) -> tuple[tuple[Wanted, ...], ...]:
    """Return the sets of configurations of kernels that share no movable tensor, each wanted one in exactly one set.

    Greedy, as in the notebook of AutoTM's prototype: each set takes, in order, all that still fit. So every kernel of a
    set finds its tensors where it wants them, and one run of the step times all of them.
    """
    left, sets = list(wanted), []
    while left:
        taken: dict[Wanted, None] = {}
        used: set[str | int] = set()
        for one in left:
            needed = {one.kernel, *graph.slots_of(graph.kernels[one.kernel])}
            if used.isdisjoint(needed):
                taken[one] = None
                used |= needed
        sets.append(tuple(taken))
        left = [one for one in left if one not in taken]
    return tuple(sets)


TimesAndCost = tuple[list[ConfigurationTime], TimingMethodCost]


@dataclass(frozen=True)
class _Study:
    """A step, every configuration of its distinct kernels, and what times them."""

    graph: Graph
    wanted: tuple[Wanted, ...]
    library: KernelLibrary
    machine: Machine
    links: Links
    options: ProfileOptions
    repeats: int
    devices_dir: Path

    def in_steps(self) -> Iterator[TimesAndCost]:
        """Yield the times of kernels within whole steps, by each method of doing that."""
        graph, total = self.graph, plain_program(self.graph).fast_bytes
        alone = tuple((one,) for one in self.wanted)
        methods = {
            TimingMethod.SINGLE: alone,
            TimingMethod.TOGETHER: rounds(graph, self.wanted),
            TimingMethod.AGAIN: alone,
        }
        with (
            pinned(self.machine),
            open_tiers(self.machine, self.links, total, total, self.devices_dir) as tiers,
            quiet_interpreter(),
        ):
            arguments = Arguments.allocate(graph, tiers=tiers)
            arguments.fill(self.options.seed)
            plain = prepare(graph, self.library, plain_program(graph), arguments, tiers)
            check_cores(self.machine, plain.step)
            for method, sets in methods.items():
                yield self._in_steps_by(method, sets, arguments, tiers)
            tiers.check()

    def _in_steps_by(
        self, method: TimingMethod, sets: Sequence[Sequence[Wanted]], arguments: Arguments, tiers: Tiers
    ) -> TimesAndCost:
        """Run the step once for each set in turn, `repeats` times and once before to warm up."""
        start = time.perf_counter()
        executors = []
        for chosen in sets:
            slow = frozenset[str]().union(*(one.slow for one in chosen))
            executors.append(prepare(self.graph, self.library, plain_program(self.graph, slow), arguments, tiers))
        samples: dict[Wanted, list[int]] = {one: [] for chosen in sets for one in chosen}
        for turn in range(self.repeats + 1):
            # Else thousands of steps on the same data would train the network to gradients of nearly nothing.
            arguments.fill(self.options.seed)
            for chosen, executor in zip(sets, executors, strict=True):
                times_ns = executor.instrumented_step()
                for one in chosen if turn else ():
                    samples[one].append(times_ns[one.kernel])
        seconds = time.perf_counter() - start
        log.info("%s: %d configurations in %d sets, %.1f s", method, len(samples), len(sets), seconds)
        times = [self._timed(method, one, summary(series)) for one, series in samples.items()]
        return times, TimingMethodCost(method, seconds, len(sets) * (self.repeats + 1))

    def alone(self, method: TimingMethod, configurations: Literal["additive", "full"]) -> TimesAndCost:
        """Profile as rule kernel_profile does, with a store that knows nothing."""
        options = replace(self.options, configurations=configurations, times_known_waits=True)
        with (
            tempfile.TemporaryDirectory(prefix="autotm-") as folder,
            KernelStore(Path(folder) / "kernels.sqlite") as store,
        ):
            start = time.perf_counter()
            profile = profile_kernels(
                self.graph, self.library, self.machine, self.links, store, options, self.devices_dir
            )
            seconds = time.perf_counter() - start
        times = []
        for one in self.wanted:
            kernel = self.graph.kernels[one.kernel]
            if (timing := profile.timing(kernel, one.configuration)) is not None:
                times.append(self._timed(method, one, timing))
            else:
                sum_us = profile.additive_us(self.graph, kernel, one.slow)
                times.append(ConfigurationTime(method, *self._facts(one), sum_us, 0))
        log.info("%s: %d configurations timed, %.1f s", method, len(profile.timings), seconds)
        return times, TimingMethodCost(method, seconds, len(profile.timings))

    def _timed(self, method: TimingMethod, one: Wanted, timing: Timing) -> ConfigurationTime:
        quartiles = timing.lower_quartile_ns / 1e3, timing.upper_quartile_ns / 1e3
        return ConfigurationTime(method, *self._facts(one), timing.median_ns / 1e3, timing.repeats, *quartiles)

    def _facts(self, one: Wanted) -> tuple[str, str, str, int]:
        kernel = self.graph.kernels[one.kernel]
        return kernel.name, kernel.op, one.configuration, len(one.slow)


def measure(
    graph: Graph,
    library: KernelLibrary,
    machine: Machine,
    links: Links,
    options: ProfileOptions,
    repeats: int,
    devices_dir: Path,
) -> TimingStudy:
    """Time every configuration of every distinct kernel of `graph` by every method.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
        BadInputError: the library lacks a kernel of the graph.
    """
    step = graph.computed_by(())
    wanted = wanted_configurations(step)
    study = _Study(step, wanted, library, machine, links, options, repeats, devices_dir)
    measured = [
        *study.in_steps(),
        study.alone(TimingMethod.ISOLATED, "full"),
        study.alone(TimingMethod.ADDITIVE, "additive"),
    ]
    return TimingStudy(
        network=step.network,
        scale=step.scale,
        batch=step.batch,
        machine=machine.name,
        threads=machine.threads,
        tier_reality=machine.tier_reality,
        seed=options.seed,
        repeats=repeats,
        costs=tuple(cost for _, cost in measured),
        times=tuple(one for times, _ in measured for one in times),
    )
