"""A study as read from its files, and the files that its figures read."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_records import LINUX

from autotm.model.config import SolveConfig, read_yaml
from autotm.model.cores import CoreChoice
from autotm.model.errors import BadInputError, DamagedFileError
from autotm.model.limit import Limit
from autotm.model.machine import DaxTier, Machine, NumaTier
from autotm.model.paths import Paths
from autotm.solve import optimizers
from autotm.solve.optimizer import Optimizer
from autotm.solve.options import optimizer_names
from autotm.solve.placing import optimizer_named
from autotm.stages.context import Context, PlacementInputs
from autotm.stages.solve import ilp_solve_stage
from autotm.study.inputs import comparison_records, large_files, predicted_records, rival_records
from autotm.study.setup import CONVENTIONAL, Study, load_study, machine_named, machine_settings

# A study from its config: names, settings of machines, refusals.

CONFIG = Path(__file__).parents[2] / "config"


def test_every_optimizer_is_listed_under_its_own_name() -> None:
    defined = {
        value.name
        for value in vars(optimizers).values()
        if isinstance(value, type) and issubclass(value, Optimizer) and value.__module__ == optimizers.__name__
    }
    assert {name: optimizer_named(name).name for name in optimizer_names()} == {name: name for name in defined}


def test_memory_mode_is_a_setting_of_machines_that_have_it_only(tmp_path: Path) -> None:
    for folder in ("machines", "devices"):
        shutil.copytree(CONFIG / folder, tmp_path / folder)
    plain = (tmp_path / "machines" / "laptop.yaml").read_text(encoding="utf-8")
    (tmp_path / "machines" / "cached.yaml").write_text(f"{plain}memory_mode: true\n", encoding="utf-8")
    machine, cached = (machine_named(tmp_path, name, 1) for name in ("laptop", "cached"))
    assert "memory_mode" not in machine_settings(tmp_path, machine), "a new key must not rerun what was measured"
    assert machine_settings(tmp_path, cached)["memory_mode"] is True
    assert (machine.reality_of(cached=True), cached.reality_of(cached=True)) == ("emulated", "real")
    assert cached.reality_of(cached=False) == "emulated"


def machine_of(folder: Path, more: str) -> Machine:
    for part in ("machines", "devices"):
        shutil.copytree(CONFIG / part, folder / part, dirs_exist_ok=True)
    plain = (folder / "machines" / "laptop.yaml").read_text(encoding="utf-8")
    (folder / "machines" / "other.yaml").write_text(plain + more, encoding="utf-8")
    return machine_named(folder, "other", 1)


def test_the_size_of_a_real_cache_is_a_setting_where_it_is_known(tmp_path: Path) -> None:
    unknown, known = (machine_of(tmp_path, f"memory_mode: true\n{more}") for more in ("", "cache: 192GB\n"))
    assert (unknown.cache_bytes, known.cache_bytes) == (None, 192 * 10**9)
    assert "cache_bytes" not in machine_settings(tmp_path, unknown)
    assert machine_settings(tmp_path, known)["cache_bytes"] == 192 * 10**9


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("cache: 192GB\n", "set memory_mode: true"),
        ("memory_mode: true\ncache: 8to1\n", "'8to1' is no size"),
        ("memory_mode: true\ncache: large\n", "'large' is no size"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(BadInputError) as caught:
        machine_of(tmp_path, more)
    assert said in str(caught.value)


def test_a_real_cache_has_one_size_whatever_is_asked(tmp_path: Path) -> None:
    context = Context(machine_of(tmp_path, "memory_mode: true\ncache: 192GB\n"), tmp_path / "devices", 1)
    given = PlacementInputs(Paths(tmp_path, context.machine, "tiny", "mlp"))

    def solve(optimizer: str, limit: str) -> None:
        plan = tmp_path / "plan.json"
        ilp_solve_stage(context, optimizer, Limit.parse(limit), SolveConfig(), given, plan=plan)

    with pytest.raises(BadInputError) as caught:
        solve("memory-mode", "5:2")
    assert '192000000000 bytes whatever is asked; ask for limit "192000MB"' in str(caught.value)
    for optimizer, limit in (("memory-mode", "192GB"), ("static", "5:2")):
        with pytest.raises(DamagedFileError, match=r"graph\.json"):
            solve(optimizer, limit)


# Which records figures read.

CORES = CoreChoice("elsewhere.yaml")


def study(predicted: dict[str, list[str]], rivals: dict[str, list[str]] | None = None) -> Study:
    raw = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(raw, dict)
    workload = {
        "networks": ["vgg19", "mlp"], "optimizers": ["static"], "limits": ["1:0", "4:1", "0:1"], "predicted": predicted,
        "rivals": rivals or {},
    }  # fmt: skip
    changed = raw | {"scale": "tiny", "workloads": raw["workloads"] | {"conventional": workload}}
    return load_study(changed, "test.yaml", CONFIG, Path("results"))


def test_figure_11_reads_runs_that_the_other_comparisons_do_not() -> None:
    found = study({"asynchronous": ["4:1", "1:1"]})
    compared, judged = comparison_records(found, CONVENTIONAL), predicted_records(found, CONVENTIONAL)
    assert judged[: len(compared)] == compared
    assert [path.parts[-4:-1] for path in judged[len(compared) :]] == [
        (network, "asynchronous", limit) for network in ("vgg19", "mlp") for limit in ("4to1", "1to1")
    ]
    assert predicted_records(found, "test_vgg") == comparison_records(found, "test_vgg")


def test_an_optimizer_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"workloads\.conventional\.predicted: .*asynchronous"):
        study({"asynchronos": ["4:1"]})


def test_figure_7_reads_rivals_that_the_other_comparisons_do_not() -> None:
    found = study({}, {"linux-balancing": ["4:1"]})
    compared, shown = comparison_records(found, CONVENTIONAL), rival_records(found, CONVENTIONAL)
    assert shown[: len(compared)] == compared
    assert [path.parts[-4:-1] for path in shown[len(compared) :]] == [
        (network, "linux-balancing", "4to1") for network in ("vgg19", "mlp")
    ]
    assert set(shown) <= set(found.configured_records())


def of(records: list[Path]) -> set[str]:
    return {path.parts[-3] for path in records}


def test_what_cannot_run_on_a_machine_has_no_column_there() -> None:
    found = study({}, {"linux-preferred": ["4:1"], "linux-balancing": ["4:1"], "all-slow": ["1:0"]})
    tiers = (NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(1,)), DaxTier(kind="dax", path="/mnt/pmem"))
    # Elsewhere: what this computer's kernel has does not matter.
    numa, dax = (found.on(replace(found.machine, slow_tier=tier, cores=CORES)) for tier in tiers)
    assert of(found.further_records("conventional", "rivals")) == {"linux-preferred", "linux-balancing", "all-slow"}
    assert of(numa.further_records("conventional", "rivals")) == {"linux-preferred", "linux-balancing", "all-slow"}
    assert of(dax.further_records("conventional", "rivals")) == {"all-slow"}
    large = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(large, dict)
    shipped = load_study(large, "config.yaml", CONFIG, Path("results"))
    assert "memory-mode" in of(large_files(shipped)[0])
    on_numa = of(large_files(shipped.on(numa.machine))[0])
    assert on_numa >= {"linux-preferred", "static", "synchronous"}
    assert "memory-mode" not in on_numa
    assert "memory-mode" not in of(numa.verification_records())
    assert "memory-mode" in of(found.verification_records())


def test_what_is_named_and_cannot_run_is_refused_before_anything_does() -> None:
    found = study({})
    real = found.on(replace(found.machine, slow_tier=DaxTier(kind="dax", path="/mnt/pmem")))
    case = found.config.figures.fig10.model_copy(update={"optimizers": ["static", "memory-mode"]})
    assert found.case_study_records(case)
    with pytest.raises(BadInputError, match=r"memory-mode cannot run on config/machines/laptop\.yaml: .* no cache"):
        real.case_study_records(case)
    named = found.config.verification.model_copy(update={"optimizers": ["linux-preferred"]})
    narrowed = replace(real, config=real.config.model_copy(update={"verification": named}))
    with pytest.raises(BadInputError, match=r"verification: linux-preferred cannot run .* behind DAX"):
        narrowed.verification_records()


def test_a_rival_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"workloads\.conventional\.rivals: .*linux-balancing"):
        study({}, {"linux-balancin": ["4:1"]})


def test_the_study_compares_with_three_policies_of_linux() -> None:
    raw = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(raw, dict)
    shipped = load_study(raw, "config.yaml", CONFIG, Path("results"))
    for records in (rival_records(shipped, CONVENTIONAL), large_files(shipped)[0]):
        assert {path.parts[-3] for path in records} >= set(LINUX) - {"linux-interleave"}, "the weighted one says more"


def test_the_study_runs_few_asynchronous_plans_of_every_conventional_network() -> None:
    raw = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(raw, dict)
    shipped = load_study(raw, "config.yaml", CONFIG, Path("results"))
    further = set(predicted_records(shipped, CONVENTIONAL)) - set(comparison_records(shipped, CONVENTIONAL))
    assert {path.parts[-4] for path in further} == set(shipped.config.workloads["conventional"].networks)
    assert len(further) == 8
