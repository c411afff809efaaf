import pytest

import small_step
from autotm.runtime.record import Measured, build_record
from autotm.runtime.timing import StepTimes
from small_programs import Trip, plan, profile, program

MEASURED = Measured(
    StepTimes((0.5, 0.25, 1.0), (0.2, 0.3, 0.4), 2), {kernel.name: 3.0 for kernel in small_step.graph().kernels}, 2, 7
)
ROWS, SQUARE = 32 * 64 * 4, 64 * 64 * 4


def test_slots_and_bytes_are_counted_by_tier() -> None:
    graph = small_step.graph()
    made = program(graph, frozenset({"hidden", "vt"}), {"act2": Trip(5, 6)})
    record = build_record(graph, made, plan(graph), small_step.machine(), small_step.links(), profile(graph), MEASURED)
    assert (record.num_kernels, record.num_input_tensors, record.num_output_tensors) == (10, 19, 11)
    assert record.num_input_tensors - record.num_dram_input_tensors == 2, "two kernels read hidden"
    assert record.num_output_tensors - record.num_dram_output_tensors == 1, "a workspace is not an output"
    assert record.bytes_input_tensors == 9 * ROWS + 2 * SQUARE
    assert record.bytes_dram_input_tensors == 7 * ROWS + 2 * SQUARE
    assert record.bytes_output_tensors == 6 * ROWS + 2 * SQUARE
    assert record.bytes_dram_output_tensors == 5 * ROWS + 2 * SQUARE


def test_moves_are_counted_by_destination_and_priced_by_the_links() -> None:
    graph = small_step.graph()
    made = program(graph, trips={"act2": Trip(5, 6), "error": Trip(5, 6)})
    record = build_record(graph, made, plan(graph), small_step.machine(), small_step.links(), profile(graph), MEASURED)
    assert (record.num_move_nodes, record.num_async_move_nodes) == (4, 0)
    assert (record.bytes_moved, record.bytes_moved_dram, record.bytes_moved_pmem) == (4 * ROWS, 2 * ROWS, 2 * ROWS)
    assert record.move_time_us == pytest.approx(2 * (ROWS * 0.5e-3 + ROWS * 1e-3))


def test_times_and_sizes_come_from_measurement_plan_and_program() -> None:
    graph = small_step.graph()
    made = program(graph, frozenset({"hidden"}))
    record = build_record(graph, made, plan(graph), small_step.machine(), small_step.links(), profile(graph), MEASURED)
    assert (record.actual_runtime_s, record.actual_runtime_median_s) == (0.25, 0.5)
    assert (record.predicted_runtime_s, record.bound_s, record.gap) == (2.0, 1.5, 0.25)
    assert (record.creation_times, record.optimization_times) == ((0.25,), (0.5,))
    assert record.default_alloc_size == graph.peak_live_bytes
    assert record.dram_alloc_size == made.fast_bytes
    assert record.pmem_alloc_size == made.slow_bytes == ROWS
    assert record.ratio_achieved == ROWS / made.fast_bytes
    assert (record.tier_reality, record.dram_limit_bytes, record.seed) == ("emulated", 12_345, 7)


def test_without_fast_pool_there_is_no_ratio() -> None:
    graph = small_step.graph()
    made = program(graph, frozenset(t.name for t in graph.movable))
    record = build_record(graph, made, plan(graph), small_step.machine(), small_step.links(), profile(graph), MEASURED)
    assert made.fast_bytes == 0
    assert record.ratio_achieved is None
    assert record.bytes_dram_input_tensors == record.bytes_dram_output_tensors == 0
