"""Tables for a terminal, and what the columns of `.csv` files mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDEST, _CUT = 60, " ... "
"""Characters of a name in a table; what replaces the middle of a longer one."""


def columns(lines: Sequence[Sequence[str]], left: int) -> str:
    """Align lines of equally many words: the first `left` columns at the left, the others at the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            word.ljust(width) if index < left else word.rjust(width)
            for index, (word, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def shorten(text: str) -> str:
    """Cut the middle out of a text that is too long for a column; names of fused kernels have dozens of parts."""
    half = (_WIDEST - len(_CUT)) // 2
    return text if len(text) <= _WIDEST else text[:half] + _CUT + text[-half:]


MEANINGS: Mapping[str, str] = {
    # What ran, and where.
    "network": "name",
    "scale": "of its sizes",
    "batch": "samples a step",
    "machine": "the machine file's name; in tables of plans and kernels with the threads, as in paths",
    "device": "that is emulated; where that does not tell, the machine (`devices.csv`), or nothing (`links.csv`)",
    "tier_reality": "whether slow memory was `real`, `emulated` or `modelled`, or ordinary memory its `stand-in`",
    "slow_memory": "which memory that was, where it was not emulated: nodes, distance, HMAT, or DAX and its mount; "
    "of a GPU what contractions round their factors to, if they do",
    "threads": "that ran kernels",
    "optimizer": "that placed it",
    "limit": "as asked: a ratio slow:fast, or bytes",
    "counts": "what the limit counts: `intermediates`, or `all`",
    "seed": "of weights, data and the solver",
    "cpu_model": "name, family, model and stepping of the processor",
    "versions": "of what shapes a result, with the commit",
    "autotm_commit": "of the checkout, with `+` where it had changes",
    # Runs.
    "dram_limit_bytes": "the limit in bytes of fast memory",
    "io_bytes": "all parameters, inputs, constants and results",
    "uncounted_bytes": "those of them that are in fast memory whatever the limit",
    "peak_live_bytes": "of the step when nothing is slow: what ratios divide",
    "dram_alloc_bytes": "size of the fast pool; in memory mode of the cache",
    "pmem_alloc_bytes": "size of the slow pool",
    "predicted_runtime_s": "the plan's objective",
    "bound_s": "no plan of the optimizer is predicted to take less",
    "gap": "of the objective, not proven necessary",
    "solver_status": "how the search ended; `infeasible` where no placement keeps the limit",
    "creation_s": "to build the model, over all attempts",
    "optimization_s": "to solve it, over all attempts",
    "actual_runtime_s": "the fastest timed step",
    "actual_runtime_median_s": "the median timed step",
    "page_placement": "`simulated` or `linux` where policies of Linux place pages; empty where plans place tensors",
    "samples": "number of timed steps",
    "disturbed": "whether others held the cores, so that times are too long",
    "disturbed_before": "what the plan was made from that was measured so, in words",
    "dram_input_fraction": "bytes that kernels read in fast memory over all that they read",
    "dram_output_fraction": "bytes that kernels write in fast memory over all that they write",
    "bytes_moved_dram": "by blocking moves to fast memory, a step",
    "bytes_moved_pmem": "by blocking moves to slow memory, a step",
    "num_move_nodes": "blocking moves of a step",
    "predicted_moves_s": "predicted time of the blocking moves",
    "moves_s": "measured time of the blocking moves",
    "waited_median_s": "how long the step's threads were kept from a core, added up",
    "all_fast_waited_median_s": "the same of the all-fast step",
    "verified_steps": "equal to the plain step bit for bit",
    "all_fast_runtime_s": "the median all-fast step",
    "all_fast_predicted_s": "what the profile says of it",
    "slowdown": "the median step over the all-fast step",
    "predicted_slowdown": "that step with what the placement costs by prediction, over itself; of a sweep, the "
    "predicted step over the predicted all-fast one",
    "ratio_price": "of the memory that the limit's ratio describes, over that of as much fast memory",
    "pools_price": "of the memory that the run took, over that of the all-fast step",
    "price_ratio": "a byte of fast memory over one of slow memory",
    # Sweeps.
    "share_of_peak": "the limit over the step's peak",
    "num_moves": "moves of the plan",
    "bytes_moved": "by them",
    "bound_slowdown": "the bound over the predicted all-fast step",
    "measured_runtime_s": "the median timed step; empty where nothing ran",
    "measured_slowdown": "that over the all-fast step",
    "smallest_bytes": "of a refused limit: the least that a placement can keep",
    "refused": "why a limit was refused",
    # Steps that are extrapolated from smaller batches.
    "batches": "that the step was extrapolated from",
    "step_error": "of the largest of them, predicted from the others",
    "kernel_error": "the same of its kernels",
    # Stays of a plan.
    "tensor": "name",
    "tier": "`dram` is fast memory, `pmem` slow; of kernels, where they were timed",
    "offset_bytes": "in the pool of the tier",
    "size_bytes": "that it takes there",
    "start": "kernel with which the stay begins",
    "end": "kernel before which it ends",
    "start_us": "predicted time at which that kernel starts",
    "end_us": "predicted time at which that kernel starts, or the step ends",
    "moves": "whether the tensor ever moves",
    "began": "how the stay began: `born`, `blocking` or `asynchronous` move",
    "arrival_us": "when the tensor was there, by prediction",
    # Control flow in several systems.
    "model": "name",
    "hidden": "its hidden size, if it has one",
    "ratio": "percentage of its blocks that are computed, where that was set",
    "sizes": "all of them",
    "system": "that ran it",
    "variant": "`with control flow`, `resolved` to the operators that it computes, or with `all blocks`",
    "rewrites": "of the program before it is one function",
    "failure": "why there are no times",
    "build_s": "seconds until the first results were there",
    "error": "largest difference from PyTorch in float64, over the largest result",
    "median_ms": "of a call, over the rounds",
    "low_ms": "lower quartile",
    "high_ms": "upper quartile",
    "rounds": "in which the systems took turns",
    "kernel_ms": "of a call within kernels, from a run of its own; empty where a system does not tell",
    # Which operators share a kernel.
    "step": "`training` or `inference`",
    "grouping": "`cheapest` by its sum of kernels, `unfused`, `random`; `best, again`: the fastest, measured once more",
    "operators": "of the step",
    "searched_operators": "of them that can share kernels, in all ways that were priced",
    "left_operators": "of them that can share kernels in too many ways, and keep those of TVM's fusion",
    "kernels": "that compute the step",
    "default_kernels": "that compute it by TVM's fusion",
    "kernels_timed": "different kernels that were timed alone",
    "sum_ratio": "sum of the kernels alone, over that of TVM's fusion",
    "sum_error": "how much longer that of TVM's fusion is than its step, as a share",
    "step_ratio": "median step over that by TVM's fusion",
    "ratio_error": "its standard error",
    "noise": "median of a second copy of the step by TVM's fusion over the first",
    "noise_error": "its standard error",
    "default_ms": "median step by TVM's fusion",
    "peak_ratio": "peak of tensors and workspaces over that by TVM's fusion",
    # Times of kernels in several configurations.
    "data": "tier of the images: `fast` or `slow`",
    "weight": "tier of the weights",
    "output": "tier of the result",
    "data_shape": "of the images",
    "weight_shape": "of the weights",
    "output_shape": "of the result",
    "median_ns": "over the runs",
    "lower_quartile_ns": "over the runs",
    "upper_quartile_ns": "over the runs",
    "repeats": "number of runs; 0 where the time is a sum",
    "relative": "the median over that with all operands fast",
    "time": "`measured`, or with an `emulated` wait",
    "source": "`measured` here, or `recorded` on Optane memory",
    "way": "how times were found",
    "kernel": "name of the call that stands for all of the same code",
    "op": "what it computes, by the name of its main block",
    "configuration": "a letter for each slot, D fast, P slow",
    "slow_operands": "tensors in slow memory",
    "time_us": "of the kernel; in reports of all its calls in a step",
    "single_us": "in a step in which this kernel's tensors alone are configured",
    "difference_percent": "`time_us` against `single_us`",
    "lower_quartile_us": "over the runs",
    "upper_quartile_us": "over the runs",
    "way_seconds": "that the way took, kernels being compiled",
    "way_runs": "steps, or configurations of kernels alone, that it ran",
    "step_repeats": "runs of a step for each configuration",
    "configurations": "that the way timed",
    "runs": "as `way_runs`",
    "seconds": "as `way_seconds`",
    "speedup": "of a way, time of one configuration at a time over its own; of modelled steps, the baseline's over it",
    "median_difference_percent": "median size of `difference_percent`",
    "p90_difference_percent": "90th percentile of it",
    "sum_difference_percent": "the same of the sum of all times",
    "spread_percent": "median of the interquartile range of a configuration's runs over their median",
    "inside_noise": "whether the median difference is at most the spread of one configuration at a time",
    "fastest_inside_noise": "whether it is the quickest of these",
    # Reports on kernels.
    "name": "of the kernel's first call",
    "function": "its symbol in the library",
    "op_class": "what it does to memory",
    "schedule": "where its schedule comes from",
    "shapes": "inputs, then outputs",
    "calls": "in a step",
    "share": "of the time of all kernels",
    "flops": "multiply-adds of a step, two each; 0 where it is no contraction",
    "moved_bytes": "inputs read once, outputs written once, a step",
    "best_us": "what the machine needs for that at best",
    "set_by": "`multiply-adds` or `copies`, whichever the best comes from",
    "beyond_best_us": "time beyond the best",
    "of_best": "the best over the time",
    # Copies between the memories.
    "to": "the tier copied to: `dram` (fast) or `pmem` (slow)",
    "series": "`copy`, `move`, `device` (what an emulated wait amounts to) or `published`",
    "team": "threads of a copy",
    "stores": "of a copy: `plain` or `streaming`",
    "ahead_bytes": "by which streaming stores ask for lines of the source early",
    "mode": "of moves: `blocking`, or `asynchronous`, beside kernels",
    "copied_bytes": "size of one copy",
    "took_ns": "median, or by the device's constants",
    "bytes_per_s": "bytes copied a second",
    "published_in": "source of the device's constants",
    # Steps on a GPU.
    "gpu": "that is modelled",
    "fits": "whether the step keeps the limit; the times of one that does not are those of a larger device",
    "most_bytes": "of what is placed, the most in device memory at once",
    "step_s": "modelled, from the first kernel to the end of the last",
    "kernels_s": "kernels and waits for asynchronous moves, each timed; of modelled steps all kernels; each once",
    "repeated_s": "kernels that run again to have their results again",
    "oracle_s": "modelled, the fastest implementation of every kernel: no placement is faster",
    "in_bytes": "copied to the device",
    "out_bytes": "copied to the host",
    "predicted_s": "of a plan, its objective; empty for rivals",
    "winograd_kernels": "convolutions that are computed by Winograd's algorithm, with its workspace",
    "remark": "what else a reader must know",
    "engine": "`compute`, `in` or `out`",
}
"""Meaning by column; a unit is in the name."""
