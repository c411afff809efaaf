"""Algorithms of played cuDNN and cuBLAS from a machine file to a record: profiled, chosen, run, equal to plain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import random_graphs
import small_step
from played_cudart import PlayedDriver, PlayedRuntime
from played_gpu import plug_in
from thread_device import Delays
from vendor_cases import Played, functions_of, installed, missing

from autotm import stages
from autotm.kernels.cuda.device import device_named
from autotm.kernels.cuda.source import Fatbin
from autotm.kernels.library import FatbinLibrary
from autotm.kernels.vendor import VendorError, VendorMissingError, Vendors
from autotm.lower.cuda import cuda_step
from autotm.model.config import ProfileConfig, RunConfig, SolveConfig
from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.files import load, load_with_provenance, save
from autotm.model.graph import DEFAULT_IMPLEMENTATION, Graph, all_fast
from autotm.model.launch import VendorCall
from autotm.model.limit import Limit
from autotm.model.machine import CudaTier
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.model.plan import Plan
from autotm.model.profile import Profile, read_profile
from autotm.model.record import Record
from autotm.stages import Context, PlacementInputs
from autotm.stages.bundle import gpu_step
from autotm.zoo import build

SIZES = {"batch": 2, "image": 28}
NETWORK = NetworkSource("mnist", SIZES)
OPTIMIZERS = ("synchronous", "asynchronous")


@dataclass
class Counted:
    """Device functions that count their calls."""

    functions: dict[str, Callable[..., None]]
    calls: int = 0
    wrapped: dict[str, Callable[..., None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, function in self.functions.items():
            self.wrapped[name] = lambda *given, function=function: self._call(function, *given)

    def _call(self, function: Callable[..., None], *given: Any) -> None:
        self.calls += 1
        function(*given)


@dataclass(frozen=True)
class Computer:
    """One with a played H100 and both libraries, and what was made there."""

    context: Context
    paths: Paths
    played: Played
    driver: PlayedDriver
    counted: Counted


def no_image(*_: object, **__: object) -> Fatbin:
    """What nvcc would make; the played driver has the functions already."""
    return Fatbin(b"fatbin", ())


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Profiled, with `implementations: all`."""
    folder = tmp_path_factory.mktemp("vendor")
    with pytest.MonkeyPatch.context() as patch:
        runtime = PlayedRuntime(order=Delays(2, 1e-5))
        played = installed(patch, runtime)
        patch.setattr("autotm.lower.cuda.fatbin", no_image)
        vendors = Vendors()
        vendors.installed()
        step = cuda_step(build("mnist", SIZES), "tiny", device_named("h100"), "all", offers=vendors.offers)
        counted = Counted(functions_of(step.kernels.values(), folder))
        driver = plug_in(patch, runtime, counted.wrapped)
        machine = replace(small_step.machine(), name="gpu", slow_tier=CudaTier(kind="cuda"))
        context = Context(machine, folder, 20)
        paths = Paths(folder / "results", machine, "tiny", "mnist")
        paths.graph.parent.mkdir(parents=True)
        case = random_graphs.Case(step.graph, Profile("", {}, {}), random_graphs.make_links(29.0, 12.0, tiny=True))
        save(paths.links, "links", random_graphs.with_engines(case, slower=1.5).links, {})
        places = {name: getattr(paths, name) for name in ("links", "store", "objects", "values", "graph", "library")}
        config = ProfileConfig(implementations="all", min_repeats=2)
        stages.kernel_profile_stage(context, NETWORK, "tiny", config, **places, profile=paths.profile)
        yield Computer(context, paths, played, driver, counted)


def planned(computer: Computer, optimizer: str) -> tuple[Plan, dict[str, Path]]:
    """A plan at little more than the least memory, and the files of its program."""
    context, paths = computer.context, computer.paths
    solving = SolveConfig(time_limit_s=10.0)
    with pytest.raises(InfeasibleLimitError) as found:
        stages.ilp_solve_stage(
            context,
            optimizer,
            Limit.parse("64B"),
            solving,
            PlacementInputs.of(paths),
            plan=paths.profile.with_name("none.json"),
        )
    limit = Limit.parse(f"{found.value.smallest_bytes * 5 // 4 // 64 * 64}B")
    files = {"plan": paths.plan(optimizer, limit), "program": paths.program(optimizer, limit)}
    files |= {"graph": paths.graph, "profile": paths.profile, "links": paths.links}
    files["plan"].parent.mkdir(parents=True, exist_ok=True)
    stages.ilp_solve_stage(context, optimizer, limit, solving, PlacementInputs.of(paths), plan=files["plan"])
    stages.compile_stage(context, PlacementInputs.of(paths), plan=files["plan"], program=files["program"])
    return load(files["plan"], "plan", Plan), files


def run(computer: Computer, files: dict[str, Path]) -> Path:
    record = files["plan"].with_name("record.json")
    stages.run_stage(
        computer.context,
        RunConfig(min_seconds=0.01, patience_s=0.1),
        **files,
        library=computer.paths.library,
        reference=computer.paths.reference,
        record=record,
    )
    return record


def test_every_contraction_is_offered_by_them_and_timed(computer: Computer) -> None:
    graph, profile = load(computer.paths.graph, "graph", Graph), read_profile(computer.paths.profile)
    assert profile.provenance["vendor_libraries"] == {"cudnn": "9.28.1", "cublas": "13.10.0"}
    library = FatbinLibrary.load(computer.paths.library)
    offered = 0
    for kernel in graph.kernels:
        for other in kernel.alternatives:
            calls = [one for one in library.launches[other.function] if isinstance(one, VendorCall)]
            assert bool(calls) == other.name.startswith(("cudnn ", "cublas "))
            offered += len(calls)
            chosen = kernel.computed_by(other.name)
            timing = profile.timing(chosen, all_fast(chosen))
            assert timing is not None
            assert timing.repeats == 2
    # Two of each library for each of 11 contractions.
    assert offered == 22


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_plans_choose_them_and_equal_the_plain_step(computer: Computer, optimizer: str) -> None:
    plan, files = planned(computer, optimizer)
    of_vendors = [name for name in plan.implementations if name.startswith(("cudnn ", "cublas "))]
    assert any(name.startswith("cudnn ") for name in of_vendors)
    computer.played.cudnn.ran.clear()
    record, _ = load_with_provenance(run(computer, files), "record", Record)
    assert record.verified_steps == 2
    assert computer.played.cudnn.ran
    assert sum(count for name, count in record.implementations.items() if name in of_vendors) == len(of_vendors)
    # What their workspaces take is in the plan's memory, byte by byte.
    graph = load(files["graph"], "graph", Graph).computed_by(plan.implementations)
    for kernel in graph.kernels:
        if kernel.implementation != DEFAULT_IMPLEMENTATION:
            needed = sum(graph.by_name[operand.tensor].allocated_bytes for operand in kernel.workspaces)
            assert needed <= record.dram_alloc_size <= plan.dram_limit_bytes


def test_a_run_without_a_library_or_with_another_ends_before_a_kernel_runs(
    computer: Computer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, files = planned(computer, "synchronous")
    before = computer.counted.calls
    with monkeypatch.context() as patch:
        missing(patch)
        with pytest.raises(VendorMissingError, match=r"a kernel needs cu\w+ .* are not installed here .*pip install"):
            run(computer, files)
    monkeypatch.setattr(computer.played.cudnn, "version", "9.40.0")
    monkeypatch.setattr(computer.played.lt, "version", 140000)
    with pytest.raises(VendorError, match=r"a kernel needs cu\w+ [\d.]+, here is (9|14)\.[40.]+: .*autotm profile"):
        run(computer, files)
    assert computer.counted.calls == before


def test_by_default_no_library_is_asked(computer: Computer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def asked(_: object) -> None:
        pytest.fail("a library was asked")

    monkeypatch.setattr(Vendors, "installed", asked)
    paths = Paths(tmp_path, computer.context.machine, "tiny", "mnist")
    paths.graph.parent.mkdir(parents=True)
    places = {name: getattr(paths, name) for name in ("links", "store", "objects", "values", "graph", "library")}
    config = ProfileConfig(implementations="default", min_repeats=1)
    stages.kernel_profile_stage(computer.context, NETWORK, "tiny", config, **places, profile=paths.profile)
    assert "vendor_libraries" not in read_profile(paths.profile).provenance


def test_a_bundle_leaves_a_step_alone_that_calls_libraries(computer: Computer, tmp_path: Path) -> None:
    before = computer.paths.graph.read_bytes()
    with pytest.raises(
        BadInputError, match=r"graph.json: was lowered on a GPU and offers 'cublas ID=13 .*another name"
    ):
        gpu_step(
            computer.context, NETWORK, ProfileConfig(), computer.paths, "static", Limit.parse("4:1"), "h100", tmp_path
        )
    assert computer.paths.graph.read_bytes() == before
