"""A record counts what the program does and keeps what was measured."""

from dataclasses import fields, replace

import pytest
import small_step
from small_programs import Trip, plan, profile, program

from autotm.model.limit import Limit
from autotm.model.program import Program
from autotm.model.record import Record
from autotm.runtime.record import Measured, build_record
from autotm.runtime.step_times import StepParts, StepTimes

GRAPH = small_step.graph()
MEASURED = Measured(
    StepTimes((0.5, 0.25, 1.0), (0.2, 0.3, 0.4), 2, waited_s=(0.0, 0.1, 0.2), all_fast_waited_s=(0.3, 0.0, 0.0)),
    StepParts({kernel.name: 3.0 for kernel in GRAPH.kernels}, 5.0, 8.0),
    2,
    7,
)
ROWS, SQUARE = 32 * 64 * 4, 64 * 64 * 4


def recorded(made: Program) -> Record:
    machine, links = small_step.machine(), small_step.links()
    return build_record(GRAPH, made, plan(GRAPH), machine, links, profile(GRAPH), MEASURED)


def test_slots_and_bytes_are_counted_by_tier() -> None:
    record = recorded(program(GRAPH, frozenset({"hidden", "vt"}), {"act2": Trip(5, 6)}))
    assert (record.num_kernels, record.num_input_tensors, record.num_output_tensors) == (10, 19, 11)
    assert record.num_input_tensors - record.num_dram_input_tensors == 2, "two kernels read hidden"
    assert record.num_output_tensors - record.num_dram_output_tensors == 1, "a workspace is not an output"
    assert record.bytes_input_tensors == 9 * ROWS + 2 * SQUARE
    assert record.bytes_dram_input_tensors == 7 * ROWS + 2 * SQUARE
    assert record.bytes_output_tensors == 6 * ROWS + 2 * SQUARE
    assert record.bytes_dram_output_tensors == 5 * ROWS + 2 * SQUARE


def test_moves_are_counted_by_destination_and_priced_by_the_links() -> None:
    record = recorded(program(GRAPH, trips={"act2": Trip(5, 6), "error": Trip(5, 6)}))
    assert (record.num_move_nodes, record.num_async_move_nodes) == (4, 0)
    assert (record.bytes_moved, record.bytes_moved_dram, record.bytes_moved_pmem) == (4 * ROWS, 2 * ROWS, 2 * ROWS)
    assert record.move_time_us == pytest.approx(2 * (ROWS * 0.5e-3 + ROWS * 1e-3))


def test_asynchronous_moves_are_counted_apart() -> None:
    record = recorded(program(GRAPH, trips={"hidden": Trip(2, 5, 3, 4), "error": Trip(5, 6)}))
    assert (record.num_move_nodes, record.num_async_move_nodes) == (2, 2)
    assert (record.bytes_moved, record.bytes_async_moved) == (2 * ROWS, 2 * ROWS)
    assert (record.num_dram_async_move_nodes, record.num_pmem_async_move_nodes) == (1, 1)
    assert (record.bytes_async_moved_dram, record.bytes_async_moved_pmem) == (ROWS, ROWS)
    assert record.stall_time_us == 5.0


def test_times_and_sizes_come_from_measurement_plan_and_program() -> None:
    made = program(GRAPH, frozenset({"hidden"}))
    record = recorded(made)
    assert (record.actual_runtime_s, record.actual_runtime_median_s) == (0.25, 0.5)
    assert (record.predicted_runtime_s, record.bound_s, record.gap) == (2.0, 1.5, 0.25)
    assert (record.waited_s, record.all_fast_waited_s) == ((0.0, 0.1, 0.2), (0.3, 0.0, 0.0))
    assert record.move_actual_us == 8.0
    assert record.all_fast_predicted_s == pytest.approx(sum(profile(GRAPH).base_us(k) for k in GRAPH.kernels) / 1e6)
    assert (record.creation_times, record.optimization_times) == ((0.25,), (0.5,))
    assert record.default_alloc_size == GRAPH.peak_live_bytes
    assert record.dram_alloc_size == made.fast_bytes
    assert record.pmem_alloc_size == made.slow_bytes == ROWS
    assert record.ratio_achieved == ROWS / made.fast_bytes
    assert (record.tier_reality, record.dram_limit_bytes, record.seed) == ("emulated", 12_345, 7)


def test_what_the_all_fast_step_took_longer_than_profiled_is_drift() -> None:
    record = recorded(program(GRAPH, frozenset({"hidden"})))
    assert replace(record, all_fast_predicted_s=0.5).drift_s == pytest.approx(0.3 - 0.5)
    assert replace(record, all_fast_samples_s=()).drift_s is None
    assert replace(record, all_fast_predicted_s=None).drift_s is None, "an older file"


def test_without_fast_pool_there_is_no_ratio() -> None:
    made = program(GRAPH, frozenset(t.name for t in GRAPH.movable))
    record = recorded(made)
    assert made.fast_bytes == 0
    assert record.ratio_achieved is None
    assert record.bytes_dram_input_tensors == record.bytes_dram_output_tensors == 0


ARTIFACT = {
    "io_size": "io_size", "default_alloc_size": "default_alloc_size", "gpu_managed_runtime": "gpu_managed_runtime_s",
    "creation_times": "creation_times", "optimization_times": "optimization_times",
    "predicted_runtime": "predicted_runtime_s", "dram_limit": "dram_limit_bytes", "ratio": "ratio",
    "tensor_size_map": "tensor_size_map", "config_map": "config_map", "move_time": "move_time_us",
    "actual_runtime": "actual_runtime_s", "kernel_times": "kernel_times_us", "oracle_time": "oracle_time_us",
    "dram_alloc_size": "dram_alloc_size", "pmem_alloc_size": "pmem_alloc_size", "num_kernels": "num_kernels",
    **{
        f"{what}{where}": f"{what}{where}"
        for where in ("", "_dram", "_pmem") for what in ("bytes_moved", "bytes_async_moved")
    },
    **{
        f"num{where}{kind}_move_nodes": f"num{where}{kind}_move_nodes"
        for where in ("", "_dram", "_pmem") for kind in ("", "_async")
    },
    **{
        f"{what}{where}_{side}_tensors": f"{what}{where}_{side}_tensors"
        for what in ("num", "bytes") for where in ("", "_dram") for side in ("input", "output")
    },
}  # fmt: skip
"""The fields of the original's artifact document and code, and ours."""


def test_every_field_of_the_original_is_there_under_its_name() -> None:
    assert len(ARTIFACT) == 37
    assert set(ARTIFACT.values()) <= {each.name for each in fields(Record)}
    assert all(ours.startswith(name) for name, ours in ARTIFACT.items())


def test_sizes_configurations_and_both_ratios_are_recorded() -> None:
    made = program(GRAPH, frozenset({"hidden"}), {"error": Trip(2, 5, 3, 4)})
    record = recorded(made)
    assert record.tensor_size_map["hidden"] == ROWS
    assert set(record.config_map) == {kernel.name for kernel in GRAPH.kernels}
    assert sum("P" in config for config in record.config_map.values()) > 0
    assert (record.ratio, record.ratio_achieved) == ("1:1", made.slow_bytes / made.fast_bytes)
    in_bytes = replace(made, limit=Limit.parse("4500MB"))
    record = recorded(in_bytes)
    assert record.ratio is None
    assert (record.gpu_managed_runtime_s, record.cache) == (None, None)
