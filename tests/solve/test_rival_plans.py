"""Rivals as plans: legal, as long as their simulation, with plain symbols, honest where they do not fit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from checked_plans import packed
from faults import refused
from hypothesis import given
from hypothesis import strategies as st
from random_graphs import Case, StepBuilder, make_links, random_case, roofline_profile, training_step_case, with_engines

from autotm.check.fault import Fault, FaultError
from autotm.check.plan import check_plan
from autotm.check.program import check_program
from autotm.layout.compile import compile_program
from autotm.layout.packing import layout_of
from autotm.model.errors import BadInputError
from autotm.model.graph import Graph, Kernel, OpClass, Role, Tier
from autotm.model.limit import Counts, Limit, counting, storage_of
from autotm.model.links import AsynchronousLinks, Contention
from autotm.model.machine import GpuManagedMemory
from autotm.model.plan import RUN_RIVALS, Plan, Status, Stay, called, repeats
from autotm.model.program import Address, KernelStep, Program
from autotm.solve.gpu_rivals import run_rival, segmentations
from autotm.solve.gpu_simulation import run_plan
from autotm.solve.options import SolveOptions
from autotm.solve.placing import fits, solve_and_pack
from autotm.solve.problem import Problem
from autotm.solve.recheck import plan_us

OPTIONS = SolveOptions(fast_operands_only=True, time_limit_s=2.0)
FAULTS = GpuManagedMemory.model_construct(block_bytes=4096, faulted_bytes_per_s=1e9)
COPYING = ("lru-paging", "swap-all")


# Steps on symbols in place of numbers: what a kernel writes is named after its function and all that it read.

Symbols = dict[str, object]


def first_symbols(graph: Graph) -> Symbols:
    return {tensor.name: f"first {tensor.name}" for tensor in graph.tensors if not tensor.role.is_movable}


def written(kernel: Kernel, slot: int, read: Sequence[object]) -> object:
    return hash((kernel.function, slot, *read))


def after_plain_steps(graph: Graph, steps: int = 2) -> Symbols:
    """The symbol in every argument's memory after some plain steps."""
    own = first_symbols(graph)
    for _ in range(steps):
        values: Symbols = {}
        for kernel in graph.kernels:
            places = [
                (values if graph.by_name[one.tensor].role.is_movable else own, storage_of(graph, one.tensor))
                for one in kernel.inputs + kernel.outputs
            ]
            read = [place[name] for place, name in places[: len(kernel.inputs)]]
            for slot, (place, name) in enumerate(places[len(kernel.inputs) :]):
                place[name] = written(kernel, slot, read)
    return own


class Pool:
    """Symbols by their first byte in a pool that tensors share, with the byte after their last; arguments' by name."""

    def __init__(self, step: Graph) -> None:
        self.step, self.own = step, first_symbols(step)
        self._symbols: dict[int, tuple[int, object]] = {}

    def put(self, tensor: str, address: Address, symbol: object) -> None:
        if (start := address.offset) is not None:
            end = start + self.step.by_name[tensor].allocated_bytes
            known = self._symbols.items()
            self._symbols = {at: one for at, one in known if one[0] <= start or end <= at} | {start: (end, symbol)}

    def get(self, tensor: str, address: Address) -> object:
        if address.offset is None:
            return self.own[storage_of(self.step, tensor)]
        end, symbol = self._symbols.get(address.offset, (0, None))
        return symbol if end == address.offset + self.step.by_name[tensor].allocated_bytes else "nothing whole"

    def run(self, kernel: Kernel, addresses: Sequence[Address]) -> None:
        first, last = len(kernel.inputs), len(kernel.inputs + kernel.outputs)
        read = [self.get(one.tensor, at) for one, at in zip(kernel.inputs, addresses[:first], strict=True)]
        for slot, (one, at) in enumerate(zip(kernel.outputs, addresses[first:last], strict=True)):
            symbol = written(kernel, slot, read)
            self.put(one.tensor, at, symbol)
            if not self.step.by_name[one.tensor].role.is_movable:
                self.own[storage_of(self.step, one.tensor)] = symbol
        for one, at in zip(kernel.workspaces, addresses[last:], strict=True):
            self.put(one.tensor, at, "scratch")


def after_steps(graph: Graph, program: Program, steps: int = 2) -> Symbols:
    """The same of a program without moves, whose tensors share addresses."""
    pool = Pool(program.step_of(graph))
    calls = [(pool.step.kernels[one.kernel], one.addresses) for one in program.steps if isinstance(one, KernelStep)]
    assert len(calls) == len(program.steps)
    for operand, at in (pair for kernel, each in calls for pair in zip(kernel.operands, each, strict=True)):
        if pool.step.by_name[operand.tensor].held:
            pool.put(operand.tensor, at, pool.own[operand.tensor])
    for kernel, addresses in calls * steps:
        pool.run(kernel, addresses)
    return pool.own


def trained(seed: int, kernels: int = 16) -> Case:
    """A random step whose loss is made half-way."""
    graph = random_case(seed, kernels=kernels).graph
    by_producer = {tensor.producer: tensor for tensor in graph.tensors if tensor.role is Role.INTERMEDIATE}
    loss = min(by_producer.values(), key=lambda tensor: abs(2 * (tensor.producer or 0) - kernels))
    tensors = tuple(replace(one, role=Role.RESULT) if one == loss else one for one in graph.tensors)
    graph = replace(graph, tensors=tensors)
    return with_engines(Case(graph, roofline_profile(graph, seed), make_links(29.0, 12.0, tiny=True)))


def placed(case: Case, optimizer: str, limit: Limit) -> tuple[Plan, Program]:
    """Checked, both of them."""
    plan, layout, program = packed(case, optimizer, limit, OPTIONS)
    assert program.fits == (fits(plan, layout) or optimizer == "managed-memory")
    return plan, program


def again(plan: Plan) -> list[int]:
    """Kernels that run for the second time."""
    return [plan.calls[number] for number in repeats(plan.calls)]


@given(seed=st.integers(0, 2**31 - 1), limit=st.sampled_from([Limit(0, 1), Limit(2, 3), Limit(4, 1)]))
def test_plans_are_legal_and_last_as_long_as_their_simulation(seed: int, limit: Limit) -> None:
    case = trained(seed)
    problem = Problem(*case, limit, OPTIONS)
    for name in RUN_RIVALS:
        plan, program = placed(case, name, limit)
        assert plan.moves or name != "swap-all"
        assert (plan.status, plan.gap, plan.certificate) == (Status.NOT_OPTIMIZED, 0.0, None)
        assert plan_us(problem, plan) == pytest.approx(plan.objective_us)
        rival = run_rival(name, problem, FAULTS)
        if name in COPYING:
            # What asynchronous moves take from kernels is in plans, and not simulated.
            moves = [(one, case.graph.by_name[one.tensor].size_bytes) for one in plan.moves if one.is_asynchronous]
            own_us = sum(problem.overlap.move_us(*move) for move in moves)
            same = run_plan(problem, plan)
            assert plan.objective_us - own_us == pytest.approx(same.step_us)
            # At the turn, a map that would be back before it is gone stays in a plan.
            assert same.step_us <= rival.step_us * (1 + 1e-9)
            assert same.out_bytes == rival.out_bytes or name == "swap-all"
            assert rival.fits or not program.fits, "addresses need no less than bytes do"
        else:
            fitted = name == "recompute" and not limit.is_unlimited
            assert plan.objective_us >= rival.step_us - 1e-6 or not fitted, "holes ask for more to be repeated"
            repeated_us = sum(case.profile.base_us(case.graph.kernels[index]) for index in again(plan))
            assert plan.objective_us == pytest.approx(rival.kernels_us + repeated_us)
            assert not repeated_us or name == "recompute"


@pytest.mark.parametrize("seed", range(2))
def test_limits_that_count_all_leave_arguments_where_they_are(seed: int) -> None:
    case = random_case(seed, kernels=12)
    graph = counting(case.graph, Counts.ALL)
    counted = Case(graph, roofline_profile(graph, seed), case.links)
    for name in RUN_RIVALS:
        plan, _ = placed(counted, name, Limit(1, 2))
        held = {tensor.name for tensor in graph.tensors if tensor.held}
        assert held
        assert not held & {move.tensor for move in plan.moves}


def test_paging_pretends_to_have_less_where_its_addresses_have_holes() -> None:
    plain = training_step_case(layers=8, seed=0)
    case = with_engines(Case(plain.graph, plain.profile, make_links(29.0, 12.0)))
    plan, program = placed(case, "lru-paging", Limit(1, 1))
    assert program.fits
    assert len(plan.attempts_s) > 1
    assert (plan.limit, plan.dram_limit_bytes) == (Limit(1, 1), Limit(1, 1).fast_bytes(case.graph.peak_live_bytes, 0))


def test_checks_find_what_is_wrong_with_a_swap() -> None:
    case = trained(1)
    plan, _ = placed(case, "swap-all", Limit(0, 1))
    restrictions = {"fast_operands_only": True}
    with refused(Fault.OBJECTIVE):
        check_plan(*case, replace(plan, objective_us=plan.objective_us * 1.01), **restrictions)
    move = next(one for one in plan.moves if one.is_asynchronous and one.destination == "pmem")
    longer = replace(move, before=move.before + 1)
    moves = tuple(sorted((longer if one == move else one for one in plan.moves), key=lambda one: one.order))
    stays = tuple(
        replace(one, end=one.end + 1) if (one.tensor, one.end) == (move.tensor, move.before) else one
        for one in plan.stays
    )
    wrong = replace(plan, moves=moves, stays=stays, offsets=())
    faults = {Fault.WINDOW, Fault.DOUBLE_STAY, Fault.BAD_SPAN, Fault.NO_SOURCE}
    with pytest.raises(FaultError) as caught:
        check_plan(*case, wrong, **restrictions)
    assert caught.value.fault in faults


def test_a_swap_that_loses_nothing_at_the_turn_lasts_as_long_as_its_simulation() -> None:
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.chain(3, 1024)
    graph = builder.graph("chain")
    case = Case(graph, roofline_profile(graph, 0), make_links(29.0, 12.0, tiny=True))
    none = dict.fromkeys(OpClass, Contention(0.0, 0.0))
    uncontended = AsynchronousLinks(case.links.to_fast, case.links.to_slow, none, none, 0.0)
    case = replace(case, links=replace(case.links, asynchronous=uncontended))
    plan, program = placed(case, "swap-all", Limit(0, 1))
    rival = run_rival("swap-all", Problem(graph, case.profile, case.links, Limit(0, 1), OPTIONS), FAULTS)
    assert plan.objective_us == pytest.approx(rival.step_us)
    assert program.fits
    assert sorted(move.tensor for move in plan.moves) == ["t0", "t0", "t1", "t1", "t2", "t2"]


@pytest.mark.parametrize("name", RUN_RIVALS)
def test_they_are_for_gpus(name: str) -> None:
    with pytest.raises(BadInputError, match="what others do on a GPU"):
        solve_and_pack(*random_case(1, kernels=6), name, Limit(1, 1), SolveOptions())


def test_checks_hold_plans_that_search_to_their_limit() -> None:
    case = random_case(3, kernels=16)
    plan, _ = placed(case, "lru-paging", Limit(9, 1))
    with refused(Fault.LIMIT):
        check_plan(*case, replace(plan, optimizer="synchronous"))


def training(seed: int, forward: int = 12) -> Graph:
    """A forward pass, a loss, a backward pass that reads of the former; states are replaced somewhere, weights late."""
    draw, builder = random.Random(seed), StepBuilder()
    builder.argument("data", draw.randint(1, 400), Role.INPUT)
    builder.argument("weight", draw.randint(1, 400))
    states = [f"state{number}" for number in range(2)]
    replaced_at = {builder.argument(name, 16, Role.STATE): draw.randrange(2 * forward) for name in states}
    results: list[str] = []
    living = ["data"]

    def kernel(index: int, inputs: Sequence[str]) -> None:
        newest = [f"{name}.new" if f"{name}.new" in builder.shapes else name for name in (*states, "weight")]
        inputs = [*inputs, *(name for name in newest if draw.random() < 0.15)]
        outputs = {f"t{index}_{slot}": draw.randint(1, 400) for slot in range(draw.choice((1, 1, 2)))}
        workspaces = {f"w{index}": draw.randint(1, 400)} if draw.random() < 0.3 else {}
        replaced = [name for name, at in replaced_at.items() if at == index]
        # Some states are replaced by a kernel that makes something else, too.
        here = replaced[:1] if replaced and draw.random() < 0.5 else []
        updates = {f"{name}.new": 16 for name in here}
        builder.kernel(list(dict.fromkeys((*inputs, *replaced))), outputs | updates, workspaces)
        for name in here:
            builder.roles[f"{name}.new"] = Role.RESULT
            builder.aliases[f"{name}.new"] = name
        results.extend(outputs)
        living.extend(outputs)

    for index in range(forward):
        kernel(index, draw.sample(living[-4:], min(len(living), draw.randint(1, 2))))
    builder.kernel([living[-1]], {"loss": 1}, role=Role.RESULT)
    for index in range(forward + 1, 2 * forward):
        kernel(index, [living[-1], *draw.sample(results[:forward], draw.randint(0, 2))])
    for name in states:
        if f"{name}.new" not in builder.shapes:
            builder.update([name, living[-1]], f"{name}.new", name)
    builder.update(["weight", living[-1]], "weight.new", "weight")
    return builder.graph()


def case_of(graph: Graph) -> Case:
    return with_engines(Case(graph, roofline_profile(graph, 0), make_links(29.0, 12.0, tiny=True)))


def called_so(plan: Plan, graph: Graph, calls: Sequence[int]) -> tuple[Plan, Program]:
    """The same plan for another order of calls, with addresses of its own."""
    step = called(graph.computed_by(plan.implementations), calls)
    stays = (Stay(one.name, Tier.FAST, one.live.start, one.live.stop) for one in step.movable)
    other = replace(
        plan,
        calls=tuple(calls),
        stays=tuple(sorted(stays, key=lambda stay: stay.order)),
        configurations=tuple("D" * len(kernel.operands) for kernel in step.kernels),
        offsets=(),
    )
    return other, compile_program(graph, other, layout_of(graph, other))


@given(st.integers(0, 10_000), st.integers(6, 20), st.sampled_from(Counts), st.sampled_from(["0:1", "1:3", "1:1"]))
def test_programs_end_with_the_symbols_of_the_plain_step(seed: int, forward: int, counts: Counts, limit: str) -> None:
    graph = training(seed, forward)
    counted = counting(graph, counts)
    plain = after_plain_steps(counted)
    plan, program = placed(case_of(counted), "recompute", Limit.parse(limit))
    assert after_steps(counted, program) == plain
    writers = {index for index, one in enumerate(graph.kernels) for o in one.outputs if o.tensor.endswith(".new")}
    assert not writers & {plan.calls[number] for number in repeats(plan.calls)}


@given(st.data())
def test_whatever_changes_the_symbols_is_found(data: st.DataObject) -> None:
    graph = counting(training(data.draw(st.integers(0, 10_000)), 8), data.draw(st.sampled_from(Counts)))
    plain = after_plain_steps(graph)
    plan, program = placed(case_of(graph), "recompute", Limit(0, 1))
    if data.draw(st.booleans(), label="calls"):
        calls = list(plan.calls or range(len(graph.kernels)))
        at = data.draw(st.integers(1, len(calls)))
        plan, program = called_so(plan, graph, [*calls[:at], data.draw(st.sampled_from(calls[:at])), *calls[at:]])
    else:
        index = data.draw(st.integers(0, len(program.steps) - 1))
        step = program.steps[index]
        assert isinstance(step, KernelStep)
        slots = [slot for slot, address in enumerate(step.addresses) if address.offset is not None]
        addresses = list(step.addresses)
        if slots:
            slot = data.draw(st.sampled_from(slots))
            offset = 64 * data.draw(st.integers(0, program.fast_bytes // 64 - 1))
            addresses[slot] = replace(addresses[slot], offset=offset)
        changed = replace(step, addresses=tuple(addresses))
        program = replace(program, steps=(*program.steps[:index], changed, *program.steps[index + 1 :]))
    if after_steps(graph, program) != plain:
        with pytest.raises(FaultError):
            check_program(graph, plan, program)


def chain(layers: int = 8) -> Graph:
    """Layers of which each reads a state; the state is replaced after the fourth."""
    builder = StepBuilder()
    builder.argument("data", 16, Role.INPUT)
    builder.argument("state", 16, Role.STATE)
    builder.kernel(["data"], {"t0": 1024})
    for layer in range(1, layers):
        builder.kernel([f"t{layer - 1}", *(["state"] if layer == 2 else [])], {f"t{layer}": 1024})
    builder.kernel([f"t{layers - 1}"], {"loss": 1}, role=Role.RESULT)
    builder.update(["state"], "state.new", "state")
    builder.kernel([f"t{layers - 1}"], {f"g{layers - 1}": 1024})
    for layer in range(layers - 2, -1, -1):
        builder.kernel([f"t{layer}", f"g{layer + 1}"], {f"g{layer}": 1024})
    return builder.graph()


def test_what_read_a_state_that_was_replaced_is_kept_and_the_rest_runs_again() -> None:
    by_count = {one.count: one for one in segmentations(chain())}
    again = {count: [one.calls[number] for number in repeats(one.calls)] for count, one in by_count.items()}
    assert 2 not in again[2], "it read the state"
    assert {0, 1} <= {*again[2]}, "what it read itself is dropped, and made again"
    assert by_count[2].most_bytes < chain().peak_live_bytes


@pytest.mark.parametrize(
    ("calls", "said"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 2, *range(10, 18)], "'state' was overwritten"),
        ([*range(10), 9, *range(10, 18)], "'state' was overwritten"),
        ([*range(9), 8, *range(9, 18)], "'loss', which it may do once"),
        ([1, 0, *range(2, 18)], "for the first time in order"),
        ([*range(17)], "for the first time in order"),
    ],
    ids=["a state that is gone", "a state replaced twice", "a result twice", "another order", "one missing"],
)
def test_calls_that_change_what_is_computed_are_found(calls: list[int], said: str) -> None:
    case = case_of(chain())
    plan, _ = placed(case, "recompute", Limit(0, 1))
    with pytest.raises(FaultError, match=said) as caught:
        check_plan(*case, replace(plan, calls=tuple(calls)), fast_operands_only=True)
    assert caught.value.fault is Fault.CALLS


def test_only_recomputation_calls_kernels_again() -> None:
    case = case_of(chain())
    plan, _ = placed(case, "recompute", Limit(0, 1))
    with pytest.raises(FaultError, match="runs each kernel once"):
        check_plan(*case, replace(plan, optimizer="managed-memory"), fast_operands_only=True)


def test_the_fastest_whose_addresses_fit_is_taken_and_the_leanest_where_none_does() -> None:
    case = case_of(training(3, 20))
    tried = list(segmentations(case.graph))
    peaks, least = sorted({one.most_bytes for one in tried}), min(one.most_bytes for one in tried)
    for limit_bytes in (*peaks, least - 64):
        limit = Limit(size_bytes=limit_bytes)
        plan, program = placed(case, "recompute", limit)
        rival = run_rival("recompute", Problem(*case, limit, OPTIONS), FAULTS)
        assert rival.fits == (limit_bytes >= least)
        assert program.fits <= rival.fits
        us = sum(case.profile.base_us(kernel) for kernel in program.step_of(case.graph).kernels)
        assert plan.objective_us == pytest.approx(us)
        leanest = next(one for one in tried if one.most_bytes == least)
        if program.fits:
            assert us >= rival.step_us - 1e-6, "holes between addresses ask for more, never for less"
        else:
            assert us == pytest.approx(rival.kernels_us + leanest.repeated_us(case.profile))
    assert len({placed(case, "recompute", Limit(size_bytes=one))[0].objective_us for one in (peaks[0], peaks[-1])}) == 2
