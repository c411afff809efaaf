"""The headline numbers, recomputed by hand; what is missing is named with its command."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from synthetic_records import PROVENANCE, record

from autotm.model.errors import BadInputError
from autotm.model.files import save
from autotm.study.records import describe, headlines, wanted_records
from autotm.study.setup import Study, load_study
from autotm.study.tables import table_of_records

CONFIG = Path(__file__).parents[3] / "config"
WORKLOAD = {"networks": ["mlp", "vgg19"], "optimizers": ["synchronous"], "limits": ["1:0", "4:1", "1:1", "0:1"]}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    raw = yaml.safe_load((CONFIG / "config.yaml").read_text(encoding="utf-8"))
    changed = raw | {"scale": "tiny", "threads": 1, "workloads": raw["workloads"] | {"two": WORKLOAD}}
    return load_study(changed, "test", CONFIG, tmp_path / "results")


def write(study: Study, leave_out: str = "none") -> list[Path]:
    """Synthetic records of all that is wanted: slow-downs at 4:1 are 1 + t x 0.64 with t 1.4 or, first touch, 4.2."""
    paths = [path for path in wanted_records(study, "two") if leave_out not in str(path)]
    for path in paths:
        network, optimizer, slug = path.parts[-4:-1]
        step_s = 1.0 if network == "mlp" else 2.0
        save(path, "record", record(optimizer, slug.replace("to", ":"), network=network, step_s=step_s), PROVENANCE)
    return paths


def test_losses_and_speed_ups_are_geometric_means(study: Study) -> None:
    found = {str(one.limit): one for one in headlines(table_of_records(write(study)))}
    assert list(found) == ["1:1", "4:1"], "the ends are what the others are compared with"
    at = found["4:1"]
    assert at.losses["synchronous"].value == pytest.approx(1 - 1 / (1 + 1.4 * 0.64))
    assert at.losses["numa"].value == pytest.approx(1 - 1 / (1 + 4.2 * 0.64))
    assert at.losses["numa"].networks == ("mlp", "vgg19")
    assert at.speed_ups["numa"].value == pytest.approx((1 + 4.2 * 0.64) / (1 + 1.4 * 0.64))
    assert set(at.speed_ups) == {"numa", "memory-mode"}


def test_networks_of_different_slow_downs_are_averaged_geometrically(study: Study) -> None:
    paths = write(study)
    slower = next(path for path in paths if path.parts[-4:-1] == ("vgg19", "synchronous", "4to1"))
    save(slower, "record", record("static", "4:1", network="vgg19", step_s=2.0), PROVENANCE)
    table = table_of_records(paths)
    table.loc[(table["network"] == "vgg19") & (table["optimizer"] == "static"), "optimizer"] = "synchronous"
    at = {str(one.limit): one for one in headlines(table)}["4:1"]
    one, other = 1 + 1.4 * 0.64, 1 + 3.5 * 0.64
    assert at.losses["synchronous"].value == pytest.approx(1 - (one * other) ** -0.5)
    numa = 1 + 4.2 * 0.64
    assert at.speed_ups["numa"].value == pytest.approx(numa / (one * other) ** 0.5)


def test_what_was_run_is_told_beside_what_was_published(study: Study) -> None:
    write(study)
    text = describe(study, "two")
    assert "synchronous loses 47.3 % against all fast (mlp, vgg19)" in text
    assert "synchronous is 1.95 times as fast as first touch (numa) (mlp, vgg19)" in text
    assert "27.7 %" in text
    assert "71.9 %" in text
    assert "missing" not in text


def test_what_is_missing_is_named_with_its_command(study: Study) -> None:
    write(study, leave_out="vgg19/memory-mode")
    text = describe(study, "two")
    assert "memory mode (2LM) (mlp)" in text, "a speed-up is told for the networks that have both"
    assert "missing: 2 of 14 records" in text
    assert "snakemake --cores 1 \\\n" in text
    assert "vgg19/memory-mode/4to1/record.json" in text


def test_without_an_all_fast_step_there_are_speed_ups_but_no_losses(study: Study) -> None:
    for path in write(study, leave_out="vgg19/synchronous/0to1"):
        if "vgg19" in str(path):
            network, optimizer, slug = path.parts[-4:-1]
            alone = record(optimizer, slug.replace("to", ":"), network=network, step_s=2.0, side_by_side=False)
            save(path, "record", alone, PROVENANCE)
    text = describe(study, "two")
    assert "synchronous loses 47.3 % against all fast (mlp)" in text
    assert "synchronous is 1.95 times as fast as first touch (numa) (mlp, vgg19)" in text
    assert "vgg19/synchronous/0to1" in text
    with pytest.raises(BadInputError, match="workload"):
        describe(study, "too")


def test_with_no_record_at_all_only_the_command_is_left(study: Study) -> None:
    text = describe(study, "two")
    assert "missing: 14 of 14" in text
    assert "loses 27.7 %" in text
