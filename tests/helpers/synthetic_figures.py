"""The table of every figure, from files that no machine made but that the study reads as its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import random_graphs
from synthetic_records import PROVENANCE, write_study, write_workload

from autotm.layout import compile_program
from autotm.model.files.files import hash_of, save
from autotm.model.measurement.profile import Profile, Timing
from autotm.model.measurement.profile_file import write_profile
from autotm.model.step.counting import Counts, counting
from autotm.model.step.graph import Graph, Kernel, OpClass, Operand, Role, Tensor
from autotm.model.step.limit import Limit
from autotm.model.step.tier import configuration
from autotm.model.study.figures_config import PricesConfig
from autotm.solve import SolveOptions, solve_and_pack
from autotm.study.figures.heap import table_of_heap
from autotm.study.figures.kernel_plot import table_of_convolution
from autotm.study.tables.prices import with_prices
from autotm.study.tables.records import table_of_records

CONVENTIONAL = ("inception_v4", "resnet200", "vgg19", "densenet264")
LARGE = ("vgg416", "inception_v4", "resnet200", "densenet264")
LIMITS = ("1:0", "8:1", "4:1", "1:1", "0:1")
SOURCE = PROVENANCE | {"machine": "laptop-2t", "threads": 2, "tier_reality": "emulated", "seed": 20}
EXTRA_NS = {"data": 250_000, "weight": 40_000, "output": 2_100_000}
BASE_NS = 1_000_000
QUICK = SolveOptions(gap=0.05)


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The table of each figure by name."""
    workload = write_workload(folder / "conventional", CONVENTIONAL, LIMITS, steeper=-0.15)
    case_study = write_study(folder / "case_study")
    large = write_workload(folder / "large", LARGE, ("5:2",), ("memory-mode", "static", "synchronous"), steeper=0.3)
    front = [
        path
        for path in workload
        if path.parts[-4] == "inception_v4"
        and path.parts[-3:-1]
        in {("synchronous", "1to0"), ("synchronous", "4to1"), ("synchronous", "0to1"), ("numa", "4to1")}
    ]
    sources: dict[str, Callable[[], pd.DataFrame]] = {
        **dict.fromkeys(
            ("fig7", "fig9", "fig11", "ilp_times", "price_performance", "cost_performance"),
            lambda: table_of_records(workload),
        ),
        **dict.fromkeys(
            ("fig10", "fig10a_all_fast", "fig10a_all_slow", "fig10a_synchronous"), lambda: table_of_records(case_study)
        ),
        **dict.fromkeys(("fig8", "fig8_talk"), lambda: table_of_records(large, needs_all_fast=False)),
        "front": lambda: table_of_records(front),
    }
    found = {name: with_prices(make(), PricesConfig()) for name, make in sources.items()}
    return found | {
        "kernel_plot": table_of_convolution(*write_convolution(folder / "convolution")),
        "heap": table_of_heap(*write_program(folder / "heap")),
    }


def convolution() -> Graph:
    """One convolution as a step of its own."""
    shapes = {"data": (8, 48, 48, 128), "weight": (3, 3, 128, 128), "output": (8, 48, 48, 128)}
    data, weight, output = (Operand(name, shape, "float32") for name, shape in shapes.items())
    kernel = Kernel("convolution", "conv", "conv:8", "conv2d", OpClass.CONV_FORWARD, 10**9, (data, weight), (output,))
    tensors = (
        Tensor("data", Role.INPUT, data.shape, "float32", data.size_bytes, None, (0,)),
        Tensor("weight", Role.PARAMETER, weight.shape, "float32", weight.size_bytes, None, (0,)),
        Tensor("output", Role.RESULT, output.shape, "float32", output.size_bytes, 0, ()),
    )
    return Graph("convolution", "laptop", 8, (kernel,), tensors)


def write_convolution(folder: Path) -> tuple[Path, Path]:
    """Graph and profile of one convolution whose slow operands add `EXTRA_NS` each."""
    graph, timings = convolution(), {}
    counted = counting(graph, Counts.ALL)
    (kernel,) = counted.kernels
    for slow in itertools.chain.from_iterable(itertools.combinations(EXTRA_NS, count) for count in range(4)):
        median = BASE_NS + sum(EXTRA_NS[name] for name in slow)
        timing = Timing(median - 9_000, median, median - 5_000, median + 20_000, 7)
        timings[kernel.identity, kernel.implementation, configuration(counted, kernel, slow)] = timing
    paths = folder / "graph.json", folder / "profile.parquet"
    save(paths[0], "graph", graph, SOURCE)
    write_profile(paths[1], Profile(hash_of(counted), timings, SOURCE))
    return paths


def write_program(
    folder: Path, optimizer: str = "asynchronous", limit: str = "3:1", layers: int = 16
) -> tuple[Path, Path, Path, Path]:
    """Graph, profile, plan and program of a step with modelled kernel times."""
    case = random_graphs.with_engines(random_graphs.training_step_case(layers), slower=3.0)
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, optimizer, Limit.parse(limit), QUICK)
    paths = tuple(folder / name for name in ("graph.json", "profile.parquet", "plan.json", "program.json"))
    save(paths[0], "graph", case.graph, SOURCE)
    write_profile(paths[1], Profile(case.profile.graph_hash, case.profile.timings, SOURCE))
    save(paths[2], "plan", plan, SOURCE)
    save(paths[3], "program", compile_program(case.graph, plan, layout), SOURCE)
    return paths
