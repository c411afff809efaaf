"""Which records figures read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_records import LINUX

from autotm.model.config import read_yaml
from autotm.model.cores import CoreChoice
from autotm.model.errors import BadInputError
from autotm.model.machine import DaxTier, NumaTier
from autotm.study.inputs import comparison_records, large_files, predicted_records, rival_records
from autotm.study.setup import Study, load_study

CONFIG = Path(__file__).parents[3] / "config"
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
    compared, judged = comparison_records(found, ""), predicted_records(found, "")
    assert judged[: len(compared)] == compared
    assert [path.parts[-4:-1] for path in judged[len(compared) :]] == [
        (network, "asynchronous", limit) for network in ("vgg19", "mlp") for limit in ("4to1", "1to1")
    ]
    assert predicted_records(found, "test_vgg/") == comparison_records(found, "test_vgg/")


def test_an_optimizer_that_there_is_not_is_refused() -> None:
    with pytest.raises(BadInputError, match=r"workloads\.conventional\.predicted: .*asynchronous"):
        study({"asynchronos": ["4:1"]})


def test_figure_7_reads_rivals_that_the_other_comparisons_do_not() -> None:
    found = study({}, {"linux-balancing": ["4:1"]})
    compared, shown = comparison_records(found, ""), rival_records(found, "")
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
    assert of(found.rival_records("conventional")) == {"linux-preferred", "linux-balancing", "all-slow"}
    assert of(numa.rival_records("conventional")) == {"linux-preferred", "linux-balancing", "all-slow"}
    assert of(dax.rival_records("conventional")) == {"all-slow"}
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
    for records in (rival_records(shipped, ""), large_files(shipped)[0]):
        assert {path.parts[-3] for path in records} >= set(LINUX) - {"linux-interleave"}, "the weighted one says more"


def test_the_study_runs_few_asynchronous_plans_of_every_conventional_network() -> None:
    raw = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(raw, dict)
    shipped = load_study(raw, "config.yaml", CONFIG, Path("results"))
    further = set(predicted_records(shipped, "")) - set(comparison_records(shipped, ""))
    assert {path.parts[-4] for path in further} == set(shipped.config.workloads["conventional"].networks)
    assert len(further) == 8
