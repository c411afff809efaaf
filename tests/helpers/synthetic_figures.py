"""The table of every figure, from files that no machine made but that the study reads as its own."""

from __future__ import annotations

import itertools
from pathlib import Path

import pandas as pd
import random_graphs
from synthetic_records import BATCHES, LINUX, PROVENANCE, write_devices, write_modelled, write_study, write_workload

from autotm.layout.compile import compile_program
from autotm.model.config import PricesConfig
from autotm.model.files import hash_of, save
from autotm.model.graph import Graph, Kernel, OpClass, Operand, Role, Tensor, Tier, configuration
from autotm.model.limit import Counts, Limit, counting
from autotm.model.links import AsynchronousLinks, Contention, CopyCurve, Link, Links
from autotm.model.profile import Profile, Timing, write_profile
from autotm.solve.options import SolveOptions
from autotm.solve.placing import solve_and_pack
from autotm.study.figures.gpu import table_of_lanes, table_of_steps
from autotm.study.figures.heap import table_of_heap
from autotm.study.figures.kernel_times import table_of_convolution
from autotm.study.figures.slow_memories import table_of_devices, table_of_links
from autotm.study.tables import table_of_records, with_prices

CONVENTIONAL = ("inception_v4", "resnet200", "vgg19", "densenet264")
LARGE = ("vgg416", "inception_v4", "resnet200", "densenet264")
LIMITS = ("1:0", "8:1", "4:1", "1:1", "0:1")
DEVICES = {"laptop-2t": "optane-dcpmm", "cxl-x8": "cxl-x8", "ddr5-beside-hbm": "ddr5-beside-hbm"}
SOURCE = PROVENANCE | {"machine": "laptop-2t", "threads": 2, "tier_reality": "emulated", "seed": 20}
EXTRA_NS = {"data": 250_000, "weight": 40_000, "output": 2_100_000}
BASE_NS = 1_000_000
QUICK = SolveOptions(gap=0.05)


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """The table of each figure by name."""
    workload = write_workload(folder / "conventional", CONVENTIONAL, LIMITS, steeper=-0.15)
    rivals = write_workload(folder / "rivals", CONVENTIONAL, LIMITS[1:-1], LINUX, steeper=-0.15)
    case_study = write_study(folder / "case_study")
    large = write_workload(
        folder / "large", LARGE, ("5:2",), ("memory-mode", "static", "synchronous", *LINUX), steeper=0.3
    )
    points = {("synchronous", "1to0"), ("synchronous", "4to1"), ("synchronous", "0to1"), ("numa", "4to1")}
    front = [path for path in workload if path.parts[-4] == "inception_v4" and path.parts[-3:-1] in points]
    sources = {
        ("fig9", "fig11", "ilp_times", "price_performance", "cost_performance"): table_of_records(workload),
        ("fig7",): table_of_records([*workload, *rivals]),
        ("fig10", "fig10a_all_fast", "fig10a_all_slow", "fig10a_synchronous"): table_of_records(case_study),
        ("fig8", "fig8_talk"): table_of_records(large, needs_all_fast=False),
        ("front",): table_of_records(front),
        ("devices",): table_of_devices(write_devices(folder / "devices", tuple(DEVICES)), DEVICES),
    }
    modelled = SOURCE | {"machine": "modelled-rtx-2080-ti-1t", "tier_reality": "modelled"}
    return {name: with_prices(table, PricesConfig()) for names, table in sources.items() for name in names} | {
        "fig12": table_of_steps(write_modelled(folder / "gpu", modelled, BATCHES)),
        "fig12_timeline": table_of_lanes(write_modelled(folder / "one", modelled, {"vgg19": (64,)})),
        "kernel_plot": table_of_convolution(*write_convolution(folder / "convolution")),
        "heap": table_of_heap(*write_program(folder / "heap")),
        "links": table_of_links(*write_links(folder / "links")),
    }


def write_convolution(folder: Path) -> tuple[Path, Path]:
    """Graph and profile of one convolution whose slow operands add `EXTRA_NS` each."""
    shapes = {"data": (8, 48, 48, 128), "weight": (3, 3, 128, 128), "output": (8, 48, 48, 128)}
    data, weight, output = (Operand(name, shape, "float32") for name, shape in shapes.items())
    kernel = Kernel("convolution", "conv", "conv:8", "conv2d", OpClass.CONV_FORWARD, 10**9, (data, weight), (output,))
    tensors = (
        Tensor("data", Role.INPUT, data.shape, "float32", data.size_bytes, None, (0,)),
        Tensor("weight", Role.PARAMETER, weight.shape, "float32", weight.size_bytes, None, (0,)),
        Tensor("output", Role.RESULT, output.shape, "float32", output.size_bytes, 0, ()),
    )
    graph, timings = Graph("convolution", "laptop", 8, (kernel,), tensors), {}
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


def write_links(folder: Path) -> tuple[Path, Path]:
    """Links of an emulated device, and its file: copies at 10 to 80 bytes a nanosecond, moves at the device's."""
    sizes = (4096, 1 << 20, 1 << 26)

    def points(bytes_per_ns: float) -> tuple[tuple[int, int], ...]:
        return tuple((size, 1000 + round(size / bytes_per_ns)) for size in sizes)

    curves = tuple(
        CopyCurve(tier, threads, rate > 1, ahead_bytes, points(10.0 * threads * rate))
        for tier, threads, (rate, ahead_bytes) in itertools.product(Tier, (1, 2, 4), ((1, 0), (1.5, 0), (2, 1024)))
    )
    none = dict.fromkeys(OpClass, Contention(0.1, 0.0))
    asynchronous = AsynchronousLinks(Link(Tier.FAST, points(0.5)), Link(Tier.SLOW, points(0.5)), none, none, 1.0)
    links = Links(Link(Tier.FAST, points(5.0)), Link(Tier.SLOW, points(2.0)), 1e12, 2.0, asynchronous, curves=curves)
    paths = folder / "links.json", folder / "devices" / "imaginary.yaml"
    save(paths[0], "links", links, SOURCE)
    paths[1].parent.mkdir(parents=True)
    costs = "".join(f"  {each}: {{read_ns_per_byte: 0.1, write_ns_per_byte: 0.2}}\n" for each in OpClass)
    paths[1].write_text(
        "description: imaginary\nsource: nobody's paper.\ncontraction_flop_per_s: 1.0e+12\n"
        "moves: {to_fast_bytes_per_s: 10.0e+9, to_slow_bytes_per_s: 4.0e+9}\n"
        "asynchronous_moves: {to_fast_bytes_per_s: 1.0e+9, to_slow_bytes_per_s: 1.0e+9}\n"
        f"kernels:\n{costs}",
        encoding="utf-8",
    )
    return paths


def write_program(folder: Path, optimizer: str = "asynchronous") -> tuple[Path, Path, Path, Path]:
    """Graph, profile, plan and program of a step with modelled kernel times."""
    case = random_graphs.with_engines(random_graphs.training_step_case(6), slower=3.0)
    plan, layout = solve_and_pack(case.graph, case.profile, case.links, optimizer, Limit(3, 1), QUICK)
    paths = tuple(folder / name for name in ("graph.json", "profile.parquet", "plan.json", "program.json"))
    save(paths[0], "graph", case.graph, SOURCE)
    write_profile(paths[1], Profile(case.profile.graph_hash, case.profile.timings, SOURCE))
    save(paths[2], "plan", plan, SOURCE)
    save(paths[3], "program", compile_program(case.graph, plan, layout), SOURCE)
    return paths
