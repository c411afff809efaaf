"""The time of every distinct kernel of a graph in every configuration that a plan may choose."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from tqdm import tqdm

from autotm.kernels.library import KernelLibrary, check_cores, pinned
from autotm.memory.emulation import wait_until
from autotm.memory.opening import open_tiers
from autotm.memory.tiers import Tiers
from autotm.model.cores import TICK_NS, Round, Watch, quiet_interpreter
from autotm.model.files import content_hash, hash_of
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Configuration, Graph, Kernel, configuration, slow_traffic
from autotm.model.links import Links
from autotm.model.machine import Machine, deciding
from autotm.model.profile import Profile, Timing, TimingKey
from autotm.model.provenance import cpu_signature, provenance, versions
from autotm.profile.kernel_timing import (
    Call,
    Filler,
    OperandPlan,
    ProfileOptions,
    after_a_wait,
    in_turn,
    plan_operands,
    time_interleaved,
)
from autotm.profile.store import KernelStore, StoreKey

# Which kernels must be timed in which configurations.


FULL_LIMIT = 8
"""A kernel with more movable tensors is profiled additively even when all configurations are asked: 2^9 runs each."""


@dataclass(frozen=True)
class Case:
    """One implementation of a distinct kernel: an example call of it, and every configuration that calls may need.

    Attributes:
        graph: the step in which kernels that have this implementation are computed by it.
        kernel: the example, with no other implementation.
        default_identity: of the same kernel as it is computed by default.
        configurations: all-fast first.
    """

    graph: Graph
    kernel: Kernel
    default_identity: str
    configurations: tuple[Configuration, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Identity and implementation of the kernel."""
        return self.kernel.identity, self.kernel.implementation

    @property
    def is_default(self) -> bool:
        """Whether other implementations of the kernel are compared with this one."""
        return self.kernel.implementation == DEFAULT_IMPLEMENTATION


def steps_by_implementation(graph: Graph) -> tuple[Graph, ...]:
    """Return the step computed by default, then by each other implementation wherever a kernel has it."""
    others = dict.fromkeys(other.name for kernel in graph.kernels for other in kernel.alternatives)
    return (
        graph.computed_by(()),
        *(
            graph.computed_by(
                [name if name in kernel.implementations else kernel.implementation for kernel in graph.kernels]
            )
            for name in others
        ),
    )


def cases(graph: Graph, mode: Literal["additive", "full"]) -> tuple[Case, ...]:
    """Return every kernel identity of the graph once, default implementations first, in order of first appearance."""
    examples: dict[tuple[str, str], tuple[Graph, Kernel, str]] = {}
    needed: dict[tuple[str, str], dict[Configuration, None]] = {}
    for step in steps_by_implementation(graph):
        for kernel, default in zip(step.kernels, graph.kernels, strict=True):
            key = kernel.identity, kernel.implementation
            examples.setdefault(key, (step, kernel, default.identity))
            needed.setdefault(key, {}).update(dict.fromkeys(_configurations(step, kernel, mode)))
    return tuple(Case(*examples[key], tuple(configs)) for key, configs in needed.items())


def _configurations(graph: Graph, kernel: Kernel, mode: Literal["additive", "full"]) -> list[Configuration]:
    tensors = list(graph.slots_of(kernel))
    if mode == "full" and len(tensors) > FULL_LIMIT:
        log.warning("kernel '%s' has %d movable tensors: profiled additively", kernel.name, len(tensors))
        mode = "additive"
    most = len(tensors) if mode == "full" else 1
    slow_sets = itertools.chain.from_iterable(itertools.combinations(tensors, count) for count in range(most + 1))
    return [configuration(graph, kernel, slow) for slow in slow_sets]


_SAY_EVERY_S = 30.0  # Where standard error is no terminal.

# In which order kernels are timed, and which of them once more because others held the cores.

Job = TypeVar("Job")
Result = TypeVar("Result")

_STRETCH_NS = 2 * TICK_NS
"""Jobs are judged together until they have lasted so long: what the hypervisor takes is told in ticks."""


def undisturbed(
    jobs: Iterable[Job], run: Callable[[Job], Round[Result]], watch: Watch
) -> Iterator[tuple[Result, bool]]:
    """Yield the result of `run` for each job, and whether others disturbed the job all the same.

    Jobs that were disturbed go to the end of the queue. When the patience of `watch` is spent, their results are
    yielded as they are. They run and are yielded once more if the other jobs went well for so long that patience lasts
    for more.
    """
    queue, given_up = deque(jobs), deque[Job]()
    while queue:
        stretch, lost_ns, wall_ns = [], 0, 0
        while queue and wall_ns < _STRETCH_NS:
            job = queue.popleft()
            done = run(job)
            stretch.append((job, done.result))
            lost_ns, wall_ns = lost_ns + done.lost_ns, wall_ns + done.wall_ns
        is_good = watch.judge(lost_ns, wall_ns)
        if is_good or watch.is_over:
            yield from ((result, not is_good) for _, result in stretch)
            given_up.extend(job for job, _ in stretch if not is_good)
        else:
            queue.extend(job for job, _ in stretch)
        if not queue and not watch.is_over:
            queue, given_up = given_up, deque()
    watch.disturbed.extend(["a kernel"] * len(given_up))


# Timing what the store lacks.

log = logging.getLogger(__name__)

METHOD = 2
"""Raised when the method of timing changes so that old timings no longer compare."""


Plans = dict[tuple[str, str], OperandPlan]
"""Places of a case's operands by the case's key; the same for all implementations of a kernel."""


@dataclass(frozen=True)
class _Bench:
    """All that timing a kernel needs."""

    library: KernelLibrary
    tiers: Tiers
    store: KernelStore
    options: ProfileOptions
    context: str

    def timed(self, case: Case) -> tuple[Configuration, ...]:
        """Return the configurations to time, all-fast first; where waits are known the others follow from that one."""
        knows_waits = self.tiers.waits_are_known and not self.options.times_known_waits
        return case.configurations[:1] if knows_waits else case.configurations

    def stored(self, case: Case, config: Configuration) -> Timing | None:
        """Return the timing of a case in the store; None if there is none, or it was timed beside another default."""
        timing = self.store.get(self.key(case, config))
        is_reference = case.is_default or "P" in config
        if timing is None or is_reference or timing.default_identity == case.default_identity:
            return timing
        return None

    def key(self, case: Case, config: Configuration) -> StoreKey:
        return StoreKey(self.context, *case.key, config, delay_ns(self.tiers, case, config))

    def lacks(self, case: Case) -> bool:
        timings = [self.stored(case, config) for config in self.timed(case)]
        return any(timing is None or timing.disturbed for timing in timings)


def profile_kernels(
    graph: Graph,
    library: KernelLibrary,
    machine: Machine,
    links: Links | None,
    store: KernelStore,
    options: ProfileOptions,
    devices_dir: Path,
) -> Profile:
    """Time each kernel alone: what the store lacks, and read the rest from it.

    A kernel's timings are stored as soon as it is done, so a killed profile goes on where it was. Kernels that lack any
    configuration or implementation are timed in all, in turn, because only then the differences are sharp. What slow
    operands add is not timed where it is a wait of known length. Kernels that others disturbed are timed again, in this
    call until the options' patience is spent, and in the next.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for, or memory is not where it was opened.
        BadInputError: the library lacks a kernel of the graph.
    """
    wanted = cases(graph, options.configurations)

    def opened(pool_bytes: int) -> Tiers:
        return open_tiers(machine, links, pool_bytes, pool_bytes, devices_dir)

    timings = _profiled(wanted, library, machine, opened, store, options)
    return Profile(hash_of(graph), timings, origin(library, machine, options))


def all_fast_times(
    graph: Graph,
    library: KernelLibrary,
    machine: Machine,
    store: KernelStore,
    options: ProfileOptions,
    devices_dir: Path,
) -> dict[str, Timing]:
    """Time each kernel alone as `profile_kernels`, with all operands in fast memory only; return times by identity.

    Raises:
        AutotmError, BadInputError: as `profile_kernels`.
    """
    wanted = [replace(case, configurations=case.configurations[:1]) for case in cases(graph, "additive")]

    def opened(pool_bytes: int) -> Tiers:
        return open_tiers(machine, None, pool_bytes, 0, devices_dir, stretch=1.0)

    timings = _profiled(wanted, library, machine, opened, store, options)
    return {identity: timing for (identity, _, _), timing in timings.items()}


def _profiled(
    wanted: Sequence[Case],
    library: KernelLibrary,
    machine: Machine,
    opened: Callable[[int], Tiers],
    store: KernelStore,
    options: ProfileOptions,
) -> dict[TimingKey, Timing]:
    """Return the timings of cases: from the store, or made now in memory that is opened for them."""
    groups: dict[str, list[Case]] = {}
    for case in wanted:  # All implementations of a kernel, the default first, are timed in turn.
        groups.setdefault(case.default_identity, []).append(case)
    plans: Plans = {}
    for group in groups.values():
        layouts = in_turn([plan_operands(case.graph, case.kernel, options.rotation_bytes) for case in group])
        plans.update(zip((case.key for case in group), layouts, strict=True))
    pool_bytes = max((plan.pool_bytes for plan in plans.values()), default=0)
    context = timing_context(machine, store=store)
    with pinned(machine), opened(pool_bytes) as tiers:
        bench = _Bench(library, tiers, store, options, context)
        missing = [group for group in groups.values() if any(map(bench.lacks, group))]
        log.info("%d distinct kernels, %d of them known", len(groups), len(groups) - len(missing))
        if missing:
            _time_all(bench, machine, missing, plans)
        return dict(_read(bench, wanted))


def origin(library: KernelLibrary, machine: Machine, options: ProfileOptions) -> dict[str, Any]:
    """Return where a profile comes from."""
    extra = {
        "configurations": options.configurations,
        "options_hash": hash_of(options),
        "library_hash": library.content_hash,
        "context": timing_context(machine),
    }
    return provenance(machine, options.seed, **extra)


def delay_ns(tiers: Tiers, case: Case, config: Configuration) -> int:
    """Return the nanoseconds to wait after a kernel for what its slow operands would have cost."""
    return tiers.kernel_delay_ns(case.kernel.op_class, *slow_traffic(case.graph, case.kernel, config))


def timing_context(machine: Machine, step: str = "", store: KernelStore | None = None) -> str:
    """Return the hash under which timings of this process are stored: of kernels alone, or within a step, by its hash.

    The facts that it stands for, which all these timings share, are written to the store, if one is given.
    """
    facts = {
        **({"step": step} if step else {}),
        "slow_tier": deciding(machine.slow_tier),
        "target": machine.target,
        "threads": machine.threads,
        "cpus": list(machine.cpus),
        "cpu": cpu_signature(),
        "tvm": versions().get("apache-tvm"),
        "method": METHOD,
    }
    context = content_hash(facts)
    if store is not None:
        store.describe(context, json.dumps(facts, sort_keys=True))
    return context


def _time_all(bench: _Bench, machine: Machine, missing: Sequence[Sequence[Case]], plans: Plans) -> None:
    filler = Filler(bench.options.seed)
    heaviest = max((group[0] for group in missing), key=lambda case: case.kernel.flops)
    heavy = _calls(bench, heaviest, heaviest.configurations[:1], plans[heaviest.key])[0][0]
    check_cores(machine, heavy, busy=bench.library.busy_threads(machine.threads))
    watch = Watch(machine.cpus, bench.options.patience_s)
    with quiet_interpreter():
        timed = undisturbed(missing, lambda group: _timed(bench, filler, group, plans, watch), watch)
        # A bar on a terminal, elsewhere a line now and then.
        bar = tqdm(timed, "profiling kernels", len(missing), unit="kernel", smoothing=0.05, disable=None)
        said_s = time.monotonic()
        for done, (timings, is_disturbed) in enumerate(bar):
            if bar.disable and time.monotonic() - said_s > _SAY_EVERY_S:
                said_s = time.monotonic()
                log.info("profiling kernels: %d of %d", done, len(missing))
            bench.tiers.check()
            bench.store.put({key: replace(timing, disturbed=is_disturbed) for key, timing in timings.items()})
    if watch.disturbed:
        log.warning("others held the cores: %d kernels were timed all the same, and too long", len(watch.disturbed))


def _timed(
    bench: _Bench, filler: Filler, group: Sequence[Case], plans: Plans, watch: Watch
) -> Round[dict[StoreKey, Timing]]:
    """Return all implementations of one kernel, in turn: slow operands against all fast, others against the default."""
    _fill(bench, filler, plans[group[0].key], group[0])
    calls, references, keys = [], [], []
    for case in group:
        configs, all_fast = bench.timed(case), len(calls)
        calls += _calls(bench, case, configs, plans[case.key])
        references += [None if case.is_default else 0] + [all_fast] * (len(configs) - 1)
        keys += [(case, config) for config in configs]
    done = watch.timed(lambda: time_interleaved(calls, references, bench.options))
    timings = {
        bench.key(case, config): timing if case.is_default else replace(timing, default_identity=case.default_identity)
        for (case, config), timing in zip(keys, done.result, strict=True)
    }
    return replace(done, result=timings)


def _fill(bench: _Bench, filler: Filler, plan: OperandPlan, case: Case) -> None:
    """Draw random numbers for all inputs of all copies, wherever some configuration puts them."""
    inputs = len(plan.kernel.inputs)
    used = {(slot, config[slot]) for config in bench.timed(case) for slot in range(inputs)}
    everywhere = {letter: letter * len(plan.kernel.operands) for letter in {letter for _, letter in used}}
    for copy in range(plan.copies):
        views = {letter: plan.views(bench.tiers, config, copy) for letter, config in everywhere.items()}
        for slot, letter in sorted(used):
            filler.fill(views[letter][slot], case.graph.by_name[plan.kernel.inputs[slot].tensor].initial)


def _calls(bench: _Bench, case: Case, configs: Iterable[Configuration], plan: OperandPlan) -> list[list[Call]]:
    """Return the kernel with its wait, ready to call, by configuration and copy."""
    return [
        [
            _waiting(bench.library.bind(case.kernel.function, views), delay_ns(bench.tiers, case, config))
            for views in (plan.views(bench.tiers, config, copy) for copy in range(plan.copies))
        ]
        for config in configs
    ]


def _waiting(call: Call, wait_ns: int) -> Call:
    def call_and_wait() -> None:
        call()
        wait_until(time.perf_counter_ns() + wait_ns)

    return call_and_wait if wait_ns else call


def _read(bench: _Bench, wanted: Iterable[Case]) -> Iterator[tuple[TimingKey, Timing]]:
    for case in wanted:
        timed = bench.timed(case)
        for config in case.configurations:
            timing = bench.stored(case, config if config in timed else timed[0])
            assert timing is not None, f"{case.kernel.name} was timed but is not in the store"
            if config not in timed:
                timing = after_a_wait(timing, delay_ns(bench.tiers, case, config))
            yield (case.kernel.identity, case.kernel.implementation, config), timing
