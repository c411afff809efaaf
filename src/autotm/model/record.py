"""Measurements of one run of a program, under the field names of the original artifact with their units.

Also the measurements of a framework's own step (`torch.json`). Units: `_s` seconds, `_us` microseconds, `_bytes` or
`bytes_` bytes, `_size` bytes. `dram` is the fast tier, `pmem` the slow one. docs/from-the-artifact.md lists the fields
that have another name, unit or meaning than in the artifact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median

from autotm.model.cache import CacheCounts, PageCounts
from autotm.model.limit import Limit

PLAIN_STEP = "plain step"
"""Reference of a program's verification: the step without a plan, all its tensors in fast memory."""
KERNEL_BY_KERNEL = "kernel by kernel"
"""Reference of a program's verification: the same kernels, each with its own operands alone in device memory."""


@dataclass(frozen=True)
class Record:
    """One run of one program.

    Attributes:
        network, scale, batch: what ran; `batch` is samples a step.
        machine, threads, optimizer, limit: where, and how.
        tier_reality: `real`, `emulated` or `modelled` slow memory, or ordinary memory that is its `stand-in`.
        dram_limit_bytes: the budget asked of the solver.
        ratio: slow:fast as asked, e.g. `4:1`; None where the limit was asked in bytes.
        ratio_achieved: slow pool bytes / fast pool bytes (None when the fast pool is empty). In memory mode the cache
            is the fast memory and adds nothing to the slow pool, which holds all: a limit r:1 gives about r + 1.
        counts: what the limit counts: `intermediates` (with workspaces), or `all` (arguments too).
        io_size: bytes of all parameters, inputs, constants and results; in fast memory and outside the limit, unless
            the limit counts all.
        default_alloc_size: peak live bytes of the step when nothing is slow.
        dram_alloc_size: size of the fast pool; in memory mode of the cache; of pages the most that were fast; of
            managed memory the limit.
        pmem_alloc_size: size of the slow pool; of pages and of managed memory the rest of the pool.
        predicted_runtime_s: the plan's objective.
        bound_s, gap, solver_status: from the plan; `gap` is a share.
        creation_times: seconds to build the model, one per attempt.
        optimization_times: seconds to solve it, one per attempt.
        fits: whether the program keeps its limit; one that does not did not run, and nothing of it was measured. Plans
            always keep it, what others do on a GPU may not.
        actual_runtime_s: minimum over `samples_s`; None where nothing ran.
        actual_runtime_median_s: median over `samples_s`; likewise.
        samples_s: wall time of every timed step that counts.
        all_fast_samples_s: wall time of the all-fast step, timed in turn with those; may be empty.
        all_fast_predicted_s: what the profile says of that step.
        disturbed_steps: timed steps kept from their cores by others for more than a tenth of their time.
        disturbed_steps_count: whether the samples include them, because too few steps were undisturbed.
        disturbed_before: what the plan was made from that was measured while others held the cores, in words.
        compared_with: what the plain step was compared with before anything was timed, and how near it came.
        num_kernels: calls in the step.
        num_input_tensors, num_output_tensors: slots over all kernels.
        num_dram_input_tensors, num_dram_output_tensors: those of them in fast memory.
        bytes_input_tensors, bytes_output_tensors: movable bytes by slot; a tensor read k times counts k times;
            workspaces are not inputs or outputs.
        bytes_dram_input_tensors, bytes_dram_output_tensors: those of them in fast memory, pages counted one by one.
        num_move_nodes, num_dram_move_nodes, num_pmem_move_nodes: blocking moves; all, to fast, to slow memory.
        bytes_moved, bytes_moved_dram, bytes_moved_pmem: bytes of blocking moves, likewise.
        num_async_move_nodes, num_dram_async_move_nodes, num_pmem_async_move_nodes: asynchronous moves, likewise.
        bytes_async_moved, bytes_async_moved_dram, bytes_async_moved_pmem: bytes of asynchronous moves, likewise.
        move_time_us: predicted time of the blocking moves.
        stall_time_us: measured time that a step waits for asynchronous moves, from an instrumented step.
        move_actual_us: measured time of the blocking moves, from that step.
        waited_s, all_fast_waited_s: for each timed step that counts, planned and all-fast, how long threads of the run
            were kept from a core by others, added up over threads.
        machine_memory_mode: whether the machine really is in memory mode: what is called fast memory here is then
            itself behind its cache.
        pages_by_node: where pools are bound to memory nodes, how many of their pages were on which when all was timed,
            by `dram` or `pmem` and the node's number; where Linux places pages, all of them are under `pmem`.
        pages_by_node_before: where Linux placed pages, the same of that pool before anything was timed.
        kernel_times_us: measured time per kernel name, from an instrumented step, emulated wait included; a
            kernel that ran again is there twice, the second time with `again` behind its name.
        repeated_share: of the sum of these, the share of kernels that ran again to have their results again.
        oracle_time_us: sum over kernels of the least time that any implementation with all operands in fast memory took
            in the profile, or the chosen one in this run.
        gpu_managed_runtime_s: of a run of managed-memory, its median step; None elsewhere.
        tensor_size_map: bytes of every tensor by name.
        config_map: configuration of every kernel by name, as it ran: a letter a slot, D fast, P slow.
        cache: in memory mode, hits and misses of a step as the model counts them; None elsewhere.
        pages: where Linux places pages, what they cost a step, and whether that is simulated; None elsewhere.
        implementations: number of kernels by the name of the implementation that ran.
        verified_steps: steps whose losses and updated parameters equalled the plain step bit for bit.
        verified_against: what those steps were compared with: `plain step`, with all its tensors in fast memory, or, on
            a GPU that has too little for that, `kernel by kernel`: the same kernels, each with its own operands alone
            in device memory. Empty where nothing was compared.
        seed: of weights, data and the solver.

    Fields with a default were added later: older files lack them.
    """

    network: str
    scale: str
    batch: int
    machine: str
    threads: int
    tier_reality: str
    optimizer: str
    limit: Limit
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
    actual_runtime_s: float | None
    actual_runtime_median_s: float | None
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
    disturbed_before: tuple[str, ...] = ()
    compared_with: str = "nothing"
    stall_time_us: float = 0.0
    ratio: str | None = None
    num_dram_async_move_nodes: int = 0
    num_pmem_async_move_nodes: int = 0
    bytes_async_moved_dram: int = 0
    bytes_async_moved_pmem: int = 0
    gpu_managed_runtime_s: float | None = None
    tensor_size_map: dict[str, int] = field(default_factory=dict)
    config_map: dict[str, str] = field(default_factory=dict)
    cache: CacheCounts | None = None
    pages: PageCounts | None = None
    move_actual_us: float | None = None
    waited_s: tuple[float, ...] = ()
    all_fast_waited_s: tuple[float, ...] = ()
    machine_memory_mode: bool = False
    pages_by_node: dict[str, dict[str, int]] = field(default_factory=dict)
    all_fast_predicted_s: float | None = None
    pages_by_node_before: dict[str, dict[str, int]] = field(default_factory=dict)
    fits: bool = True
    repeated_share: float = 0.0
    verified_against: str = ""

    @property
    def all_fast_runtime_median_s(self) -> float | None:
        """The median of `all_fast_samples_s`; None if there are none."""
        return median(self.all_fast_samples_s) if self.all_fast_samples_s else None

    @property
    def drift_s(self) -> float | None:
        """How much longer than profiled the all-fast step took, median beside the planned one; None if not timed.

        None of it is due to the plan: the machine's speed has changed since the kernels were timed, or they take
        another time one after the other than alone.
        """
        measured_s, predicted_s = self.all_fast_runtime_median_s, self.all_fast_predicted_s
        return None if measured_s is None or predicted_s is None else measured_s - predicted_s

    def __str__(self) -> str:
        """Return one line: what ran, what it took, what was predicted. `repr` has all fields and samples."""
        text = f"{self.network}, {self.optimizer}, limit {self.limit}"
        text += f": {self.predicted_runtime_s:.6g} s a step predicted"
        memory = f"{self.tier_reality} slow memory, machine {self.machine}, threads {self.threads}, seed {self.seed}"
        if self.actual_runtime_median_s is None:
            return f"{text}; it exceeds its limit, nothing ran ({memory})"
        text += f", {self.actual_runtime_median_s:.6g} s measured (median of {len(self.samples_s)})"
        if all_fast_s := self.all_fast_runtime_median_s:
            text += f", {self.actual_runtime_median_s / all_fast_s:.4g} times the all-fast step in turn"
        if self.disturbed_steps_count:
            text += ", while others held the cores"
        if self.verified_steps:
            text += f"; {self.verified_steps} steps equal the {self.verified_against or PLAIN_STEP} bit for bit"
        return f"{text} ({memory})"


@dataclass(frozen=True)
class FrameworkRecord:
    """Measurements of one run of PyTorch.

    Attributes:
        network, scale, batch: what ran; `batch` is samples a step.
        machine, threads: where, and how many threads of the host PyTorch may use.
        tier_reality: `real`; `stand-in` where a CPU played the device, whose times say nothing of a GPU.
        optimizer: `save-on-cpu`.
        limit: of device memory, as asked.
        counts: what the limit counts: `intermediates`, all that a step takes beside what is there before it, or `all`.
        dram_limit_bytes: the limit in bytes.
        io_size: bytes of parameters, inputs, constants and results of our step, beside the limit unless it counts them.
        peak_live_bytes: of our step when nothing leaves the device.
        seed: of weights and data.
        left_out: why nothing ran, as a caption says it; empty where something did.
        framework: its name and version.
        device: as the framework names it.
        fits: whether the step keeps the limit; one that does not was not timed.
        most_bytes: of device memory that the limit counts, the most at once, as PyTorch's allocator counts, without
            what it keeps for later; None where nothing ran, or where device memory ran out.
        losses: of the first steps.
        plain_losses: of as many plain steps of ours, from the same start; empty where they were not compared.
        exact_loss: of the first step in float64, by PyTorch.
        loss_margin: by how much the first losses may differ.
        samples_s: wall time of every timed step that counts.
        between_events_s: median time of these steps from an event before to one after, as the device's clock has it.
        disturbed_steps: timed steps kept from their cores by others for more than a tenth of their time.
        disturbed_steps_count: whether the samples include them, because too few steps were undisturbed.
        waited_s: for each timed step that counts, how long threads of the run were kept from a core by others.
    """

    network: str
    scale: str
    batch: int
    machine: str
    threads: int
    tier_reality: str
    optimizer: str
    limit: Limit
    counts: str
    dram_limit_bytes: int
    io_size: int
    peak_live_bytes: int
    seed: int
    left_out: str = ""
    framework: str = ""
    device: str = ""
    fits: bool = False
    most_bytes: int | None = None
    losses: tuple[float, ...] = ()
    plain_losses: tuple[float, ...] = ()
    exact_loss: float | None = None
    loss_margin: float | None = None
    samples_s: tuple[float, ...] = ()
    between_events_s: float | None = None
    disturbed_steps: int = 0
    disturbed_steps_count: bool = False
    waited_s: tuple[float, ...] = ()

    @property
    def step_s(self) -> float | None:
        """The median of `samples_s`; None if nothing was timed."""
        return median(self.samples_s) if self.samples_s else None
