"""What one run of one program measured, under the field names of the original artifact.

Units: `_s` seconds, `_us` microseconds, `_bytes` or `bytes_` bytes. `dram` is the fast tier, `pmem` the slow one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """One run of one program.

    Attributes:
        network, scale, batch, machine, threads, optimizer, limit: what ran, where, how.
        tier_reality: `real`, `emulated` or `modelled` slow memory.
        dram_limit_bytes: the budget asked of the solver.
        ratio_achieved: slow pool bytes / fast pool bytes (None when the fast pool is empty).
        counts: what the limit counts: `intermediates` (with workspaces), or `all` (arguments too).
        io_size: bytes of all parameters, inputs, constants and results; in fast memory and outside the limit, unless
            the limit counts all.
        default_alloc_size: peak live bytes of the step when nothing is slow.
        dram_alloc_size, pmem_alloc_size: pool sizes, bytes.
        predicted_runtime_s, bound_s, gap, solver_status: from the plan.
        creation_times, optimization_times: seconds to build and to solve, one per attempt.
        actual_runtime_s: minimum over `samples_s`; actual_runtime_median_s: their median.
        samples_s: wall time of every timed step that counts.
        all_fast_samples_s: wall time of the all-fast step, timed in turn with those; may be empty.
        disturbed_steps: timed steps kept from their cores by others for more than a tenth of their time.
        disturbed_steps_count: whether those are among the samples, for want of others; else they are left out.
        num_kernels, num_input_tensors, num_output_tensors and the `_dram_` counts: slots over all kernels.
        bytes_input_tensors ... bytes_dram_output_tensors: movable bytes by slot; a tensor read k times counts k times;
            workspaces are not inputs or outputs.
        num_move_nodes, bytes_moved: blocking moves; `_dram` and `_pmem` by destination.
        num_async_move_nodes, bytes_async_moved: overlapped moves.
        move_time_us: predicted time of the blocking moves.
        kernel_times_us: measured time per kernel name, from a separate instrumented step, emulated wait included.
        oracle_time_us: sum over kernels of the least time that any implementation with all operands in fast memory took
            in the profile, or the chosen one in this run.
        implementations: number of kernels by the name of the implementation that ran.
        verified_steps: steps whose losses and updated parameters equalled the plain step bit for bit.
    """

    network: str
    scale: str
    batch: int
    machine: str
    threads: int
    tier_reality: str
    optimizer: str
    limit: str
    counts: str
    dram_limit_bytes: int
    ratio_achieved: float | None
    io_size: int
    default_alloc_size: int
    dram_alloc_size: int
    pmem_alloc_size: int
    predicted_runtime_s: float
    bound_s: float
    gap: float
    solver_status: str
    creation_times: tuple[float, ...]
    optimization_times: tuple[float, ...]
    actual_runtime_s: float
    actual_runtime_median_s: float
    samples_s: tuple[float, ...]
    all_fast_samples_s: tuple[float, ...]
    disturbed_steps: int
    disturbed_steps_count: bool
    num_kernels: int
    num_input_tensors: int
    num_output_tensors: int
    num_dram_input_tensors: int
    num_dram_output_tensors: int
    bytes_input_tensors: int
    bytes_output_tensors: int
    bytes_dram_input_tensors: int
    bytes_dram_output_tensors: int
    num_move_nodes: int
    num_dram_move_nodes: int
    num_pmem_move_nodes: int
    num_async_move_nodes: int
    bytes_moved: int
    bytes_moved_dram: int
    bytes_moved_pmem: int
    bytes_async_moved: int
    move_time_us: float
    kernel_times_us: dict[str, float]
    oracle_time_us: float
    implementations: dict[str, int]
    verified_steps: int
    seed: int
