"""`rule kernel_profile`: the time of every distinct kernel of a graph in every configuration a plan may choose."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotm.kernels.library import KernelLibrary
from autotm.kernels.threads import check_cores, pinned
from autotm.memory.clock import quiet_interpreter, wait_until
from autotm.memory.tiers import Tiers, open_tiers
from autotm.model.files import content_hash, hash_of
from autotm.model.graph import Graph
from autotm.model.link import Links
from autotm.model.machine import Machine
from autotm.model.profile import Profile, Timing, TimingKey
from autotm.model.provenance import cpu_signature, provenance, versions
from autotm.model.tier import Configuration
from autotm.model.traffic import slow_traffic
from autotm.profile.cases import Case, cases
from autotm.profile.operands import Filler, OperandPlan, plan_operands
from autotm.profile.options import ProfileOptions
from autotm.profile.progress import track
from autotm.profile.store import KernelStore, StoreKey
from autotm.profile.timing import Call, time_interleaved

log = logging.getLogger(__name__)

METHOD = 1
"""Raised when the way of timing changes so that old timings no longer compare."""


@dataclass(frozen=True)
class _Bench:
    """All that timing a kernel needs."""

    library: KernelLibrary
    tiers: Tiers
    store: KernelStore
    options: ProfileOptions
    context: str

    def delay_ns(self, case: Case, config: Configuration) -> int:
        return self.tiers.kernel_delay_ns(case.kernel.op_class, *slow_traffic(case.graph, case.kernel, config))

    def key(self, case: Case, config: Configuration) -> StoreKey:
        kernel = case.kernel
        return StoreKey(self.context, kernel.identity, kernel.implementation, config, self.delay_ns(case, config))


def profile_kernels(
    graph: Graph,
    library: KernelLibrary,
    machine: Machine,
    links: Links | None,
    store: KernelStore,
    options: ProfileOptions,
    devices_dir: Path,
) -> Profile:
    """Time what the store lacks, and read the rest from it.

    A kernel's timings are stored as soon as it is done, so a killed profile goes on where it was. Kernels that lack any
    configuration are timed in all, in one sitting, because only then the differences between configurations are sharp.

    Raises:
        AutotmError: kernels run on fewer threads than the machine asks for.
        BadInputError: the library lacks a kernel of the graph.
    """
    wanted = cases(graph, options.configurations)
    plans = {case.key: plan_operands(case.graph, case.kernel, options.rotation_bytes) for case in wanted}
    pool_bytes = max((plan.pool_bytes for plan in plans.values()), default=0)
    description = _context(machine)
    context = timing_context(machine)
    store.describe(context, json.dumps(description, sort_keys=True))
    with pinned(machine), open_tiers(machine, links, pool_bytes, pool_bytes, devices_dir) as tiers:
        bench = _Bench(library, tiers, store, options, context)
        missing = [case for case in wanted if any(store.get(bench.key(case, c)) is None for c in case.configurations)]
        log.info("%d ways to compute distinct kernels, %d of them known", len(wanted), len(wanted) - len(missing))
        if missing:
            _time_all(bench, machine, missing, plans)
        timings = dict(_read(bench, wanted))
    extra = {
        "configurations": options.configurations,
        "options_hash": hash_of(options),
        "library_hash": library.content_hash,
        "context": context,
    }
    return Profile(hash_of(graph), timings, provenance(machine, options.seed, **extra))


def timing_context(machine: Machine) -> str:
    """The hash under which timings of this process are stored."""
    return content_hash(_context(machine))


def _context(machine: Machine) -> dict[str, object]:
    """What all timings of this process share, as JSON."""
    return {
        "slow_tier": machine.slow_tier.model_dump(mode="json"),
        "target": machine.target,
        "threads": machine.threads,
        "cpus": list(machine.cpus),
        "cpu": cpu_signature(),
        "tvm": versions().get("apache-tvm"),
        "method": METHOD,
    }


def _time_all(bench: _Bench, machine: Machine, missing: list[Case], plans: dict[tuple[str, str], OperandPlan]) -> None:
    filler = Filler(bench.options.seed)
    heaviest = max(missing, key=lambda case: case.kernel.flops)
    heavy = _calls(bench, heaviest, heaviest.configurations[:1], plans[heaviest.key])[0][0]
    check_cores(machine, heavy, busy=bench.library.busy_threads(machine.threads))
    with quiet_interpreter():
        for case in track(missing, "profiling kernels", len(missing)):
            _fill(bench, filler, plans[case.key], case)
            timings = time_interleaved(_calls(bench, case, case.configurations, plans[case.key]), bench.options)
            keys = [bench.key(case, config) for config in case.configurations]
            bench.store.put(dict(zip(keys, timings, strict=True)))


def _fill(bench: _Bench, filler: Filler, plan: OperandPlan, case: Case) -> None:
    """Random numbers for all inputs of all copies, wherever some configuration puts them."""
    inputs = len(plan.kernel.inputs)
    used = {(slot, config[slot]) for config in case.configurations for slot in range(inputs)}
    everywhere = {letter: letter * len(plan.kernel.operands) for letter in "DP"}
    for copy in range(plan.copies):
        views = {letter: plan.views(bench.tiers, config, copy) for letter, config in everywhere.items()}
        for slot, letter in sorted(used):
            filler.fill(views[letter][slot], case.graph.by_name[plan.kernel.inputs[slot].tensor].initial)


def _calls(bench: _Bench, case: Case, configs: Iterable[Configuration], plan: OperandPlan) -> list[list[Call]]:
    """The kernel with its wait, ready to call, by configuration and copy."""
    return [
        [
            _waiting(bench.library.bind(case.kernel.function, views), bench.delay_ns(case, config))
            for views in (plan.views(bench.tiers, config, copy) for copy in range(plan.copies))
        ]
        for config in configs
    ]


def _waiting(call: Call, delay_ns: int) -> Call:
    return functools.partial(_call_and_wait, call, delay_ns) if delay_ns else call


def _call_and_wait(call: Call, delay_ns: int) -> None:
    call()
    wait_until(time.perf_counter_ns() + delay_ns)


def _read(bench: _Bench, wanted: Iterable[Case]) -> Iterator[tuple[TimingKey, Timing]]:
    for case in wanted:
        for config in case.configurations:
            timing = bench.store.get(bench.key(case, config))
            assert timing is not None, f"{case.kernel.name} was timed but is not in the store"
            yield (case.kernel.identity, case.kernel.implementation, config), timing
