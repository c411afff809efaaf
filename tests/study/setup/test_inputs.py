"""Which records figures read."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotm.model.files.errors import BadInputError
from autotm.model.study.study_config import read_yaml
from autotm.study.setup.inputs import comparison_records, predicted_records
from autotm.study.setup.study import Study, load_study

CONFIG = Path(__file__).parents[3] / "config"


def study(predicted: dict[str, list[str]]) -> Study:
    raw = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(raw, dict)
    workload = {
        "networks": ["vgg19", "mlp"], "optimizers": ["static"], "limits": ["1:0", "4:1", "0:1"], "predicted": predicted,
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


def test_the_study_runs_few_asynchronous_plans_of_every_conventional_network() -> None:
    raw = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(raw, dict)
    shipped = load_study(raw, "config.yaml", CONFIG, Path("results"))
    further = set(predicted_records(shipped, "")) - set(comparison_records(shipped, ""))
    assert {path.parts[-4] for path in further} == set(shipped.config.workloads["conventional"].networks)
    assert len(further) == 8
