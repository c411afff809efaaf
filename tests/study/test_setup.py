"""A study as read from its files: names, machines, the files that its figures read, and what these cost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from shipped_study import CONFIG, shipped_study
from synthetic_records import LINUX

from autotm.cli.main import main
from autotm.model.config import SolveConfig, load_scale
from autotm.model.cores import CoreChoice
from autotm.model.errors import BadInputError, DamagedFileError
from autotm.model.files import read_yaml
from autotm.model.limit import Limit
from autotm.model.machine import DaxTier, Machine, NumaTier
from autotm.model.paths import Paths
from autotm.solve import optimizers
from autotm.solve.optimizer import Optimizer
from autotm.solve.options import optimizer_names
from autotm.solve.placing import optimizer_named
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.solve import ilp_solve_stage
from autotm.study.costs import Cost, costs, figure_jobs, table_of_costs
from autotm.study.inputs import comparison_records, large_files, predicted_records, rival_records
from autotm.study.setup import CONVENTIONAL, Study, machine_named, machine_settings


def test_every_optimizer_is_listed_under_its_own_name() -> None:
    classes = (value for value in vars(optimizers).values() if isinstance(value, type) and issubclass(value, Optimizer))
    defined = {value.name for value in classes if "name" in vars(value)}
    assert {name: optimizer_named(name).name for name in optimizer_names()} == {name: name for name in defined}


def machine_of(folder: Path, more: str) -> Machine:
    for part in ("machines", "devices"):
        shutil.copytree(CONFIG / part, folder / part, dirs_exist_ok=True)
    plain = (folder / "machines" / "laptop.yaml").read_text(encoding="utf-8")
    (folder / "machines" / "other.yaml").write_text(plain + more, encoding="utf-8")
    return machine_named(folder, "other", 1)


def test_a_real_cache_and_its_size_are_settings_of_machines_that_have_them_only(tmp_path: Path) -> None:
    mores = ("", "memory_mode: true\n", "memory_mode: true\ncache: 192GB\n")
    plain, unknown, known = machines = [machine_of(tmp_path, more) for more in mores]
    settings = [{*machine_settings(tmp_path, machine)} & {"memory_mode", "cache_bytes"} for machine in machines]
    assert settings == [set(), {"memory_mode"}, {"memory_mode", "cache_bytes"}], "a new key has nothing measured again"
    assert machine_settings(tmp_path, known)["cache_bytes"] == known.cache_bytes == 192 * 10**9
    assert [machine.reality_of(cached=True) for machine in (plain, unknown)] == ["emulated", "real"]
    assert unknown.reality_of(cached=False) == "emulated"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("cache: 192GB\n", "set memory_mode: true"),
        ("memory_mode: true\ncache: 8to1\n", "cache: '8to1' is not allowed: it is no size"),
        ("memory_mode: true\ncache: large\n", "cache: 'large' is not allowed: it is no size"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        machine_of(tmp_path, more)


def test_a_real_cache_has_one_size_whatever_is_asked(tmp_path: Path) -> None:
    context = Context(machine_of(tmp_path, "memory_mode: true\ncache: 192GB\n"), tmp_path / "devices", 1)
    inputs = PlacementInputs(Paths(tmp_path, context.machine, "tiny", "mlp"))
    for optimizer, limit, error, message in (
        ("memory-mode", "5:2", BadInputError, '192000000000 bytes whatever is asked; ask for limit "192000MB"'),
        ("memory-mode", "192GB", DamagedFileError, r"graph\.json"),
        ("static", "5:2", DamagedFileError, r"graph\.json"),
    ):
        with pytest.raises(error, match=message):
            ilp_solve_stage(context, optimizer, Limit.parse(limit), SolveConfig(), inputs, plan=tmp_path / "plan.json")


def study(**further: dict[str, list[str]]) -> Study:
    workload = {"networks": ["vgg19", "mlp"], "optimizers": ["static"], "limits": ["1:0", "4:1", "0:1"], **further}
    return shipped_study(workloads={"conventional": workload})


@pytest.mark.parametrize(
    ("kind", "records", "optimizer", "limits"),
    [
        ("predicted", predicted_records, "asynchronous", ("4:1", "1:1")),  # figure 11
        ("rivals", rival_records, "linux-balancing", ("4:1",)),  # figure 7
    ],
)
def test_some_figures_read_runs_that_other_comparisons_do_not(
    kind: str, records: Callable[[Study, str], list[Path]], optimizer: str, limits: tuple[str, ...]
) -> None:
    changed = study(**{kind: {optimizer: list(limits)}})
    compared, read = comparison_records(changed, CONVENTIONAL), records(changed, CONVENTIONAL)
    assert read[: len(compared)] == compared
    assert [path.parts[-4:-1] for path in read[len(compared) :]] == [
        (network, optimizer, limit.replace(":", "to")) for network in ("vgg19", "mlp") for limit in limits
    ]
    assert set(read) <= set(changed.configured_records())
    assert records(study(), CONVENTIONAL) == comparison_records(study(), CONVENTIONAL)
    with pytest.raises(BadInputError, match=rf"workloads\.conventional\.{kind}: .*{optimizer}"):
        study(**{kind: {optimizer[:-1]: ["4:1"]}})


def of(records: list[Path]) -> set[str]:
    return {path.parts[-3] for path in records}


def test_what_cannot_run_on_a_machine_has_no_column_there() -> None:
    changed = study(rivals={"linux-preferred": ["4:1"], "linux-balancing": ["4:1"], "all-slow": ["1:0"]})
    tiers = (NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(1,)), DaxTier(kind="dax", path="/mnt/pmem"))
    # Elsewhere: what this computer's kernel has does not matter.
    elsewhere = CoreChoice("elsewhere.yaml")
    numa, dax = (changed.on(replace(changed.machine, slow_tier=tier, cores=elsewhere)) for tier in tiers)
    assert of(changed.further_records("conventional", "rivals")) == {"linux-preferred", "linux-balancing", "all-slow"}
    assert of(numa.further_records("conventional", "rivals")) == {"linux-preferred", "linux-balancing", "all-slow"}
    assert of(dax.further_records("conventional", "rivals")) == {"all-slow"}
    shipped = shipped_study()
    assert "memory-mode" in of(large_files(shipped)["records"])
    on_numa = of(large_files(shipped.on(numa.machine))["records"])
    assert on_numa >= {"linux-preferred", "static", "synchronous"}
    assert "memory-mode" not in on_numa
    assert "memory-mode" not in of(numa.verification_records())
    assert "memory-mode" in of(changed.verification_records())


def test_what_is_named_and_cannot_run_is_refused_before_anything_does() -> None:
    figures = read_yaml(CONFIG / "config.yaml", "study")["figures"]
    fig10 = figures["fig10"] | {"optimizers": ["static", "memory-mode"]}
    changed = shipped_study(figures=figures | {"fig10": fig10}, verification={"optimizers": ["linux-preferred"]})
    assert changed.case_study_records()
    real = changed.on(replace(changed.machine, slow_tier=DaxTier(kind="dax", path="/mnt/pmem")))
    with pytest.raises(BadInputError, match=r"memory-mode cannot run on config/machines/laptop\.yaml: .* no cache"):
        real.case_study_records()
    with pytest.raises(BadInputError, match=r"verification: linux-preferred cannot run .* behind DAX"):
        real.verification_records()


def test_the_study_has_three_policies_of_linux_and_few_asynchronous_plans_and_its_scales_measure_as_it_says() -> None:
    shipped = shipped_study()
    for records in (rival_records(shipped, CONVENTIONAL), large_files(shipped)["records"]):
        assert of(records) >= set(LINUX) - {"linux-interleave"}, "the weighted one says more"
    further = set(predicted_records(shipped, CONVENTIONAL)) - set(comparison_records(shipped, CONVENTIONAL))
    assert {path.parts[-4] for path in further} == set(shipped.config.workloads["conventional"].networks)
    assert len(further) == 8
    shares = {file.stem: load_scale(file).measuring for file in (CONFIG / "scales").glob("*.yaml")}
    assert shares.pop("tiny") < 1
    assert set(shares.values()) == {1.0}


def write(file: Path, seconds: float, mib: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:00:01\t{mib}\n", encoding="utf-8")


def test_times_add_up_and_the_largest_memory_counts(tmp_path: Path) -> None:
    files = figure_jobs(shipped_study(), tmp_path)["figures/front.pdf"]
    rules = [file.name.removesuffix(".benchmark.tsv") for file in files]
    assert rules == ["calibrate", "kernel_profile", *["ilp_solve", "compile", "run"] * 4, "front"]
    for number, file in enumerate(files):
        write(file, 2.5, str(100 + number))
    by_target = {cost.target: cost for cost in costs(shipped_study(), tmp_path)}
    assert by_target["figures/front.pdf"] == Cost("figures/front.pdf", 15, 15, 37.5, 114 << 20)
    ten = by_target["figures/fig10.pdf"]
    assert ten.known_jobs == 2 + 3 * 3, "both calibrate and profile, and the three synchronous runs that both show"
    assert ten.jobs == 2 + 3 * 36 + 1
    assert by_target["figures/test_vgg/fig7.pdf"].known_jobs == 1
    every = by_target["figures"]
    assert (every.known_jobs, every.seconds) == (15, 37.5), "what several figures need counts once"
    assert every.jobs < sum(cost.jobs for cost in by_target.values() if cost.target != "figures")


def test_jobs_too_short_to_look_at_have_a_time_and_no_memory(tmp_path: Path) -> None:
    for file in figure_jobs(shipped_study(), tmp_path)["figures/heap.pdf"]:
        write(file, 30, "-")
    heap_cost = next(cost for cost in costs(shipped_study(), tmp_path) if cost.target == "figures/heap.pdf")
    assert (heap_cost.seconds, heap_cost.memory_bytes) == (150, 0)
    assert "| `figures/heap.pdf` | 5 | 2 min 30 s | unknown |" in table_of_costs([heap_cost])


def test_a_modelled_scale_costs_its_small_batches(tmp_path: Path) -> None:
    jobs = figure_jobs(shipped_study(scale="tiny-modelled"), tmp_path)
    assert list(jobs) == ["figures/fig8.pdf", "figures/fig8_talk.pdf"], "the others need runs"
    names = {str(file.relative_to(tmp_path)) for file in jobs["figures/fig8.pdf"]}
    assert "laptop-1t/tiny-batch-8/vgg416/kernel_profile.benchmark.tsv" in names
    assert "laptop-1t/tiny-modelled/vgg416/extrapolate.benchmark.tsv" in names
    assert "laptop-1t/tiny-modelled/vgg416/static/5to2/ilp_solve.benchmark.tsv" in names
    assert not any(name.endswith("run.benchmark.tsv") for name in names)


def test_the_command_tells_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "laptop-1t" / "calibrate.benchmark.tsv", 61, "50")
    options = ["--config", str(CONFIG / "config.yaml"), "--scale", "tiny", "--threads", "1", "--logs", str(tmp_path)]
    assert main(["costs", *options]) == 0
    assert "| `figures/kernel_plot.pdf` | 1 of 3 known | 1 min 01 s | 0.05 GB |" in capsys.readouterr().out
    assert "left no benchmark" in caplog.text


@pytest.mark.parametrize("text", ["", "s\tmax_rss\n", "time\n3\n", "s\tmax_rss\nsoon\t3\n"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "laptop-1t" / "calibrate.benchmark.tsv"
    file.parent.mkdir()
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DamagedFileError, match=f"^{file}: "):
        costs(shipped_study(), tmp_path)
