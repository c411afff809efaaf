"""`autotm records` and `autotm describe` from the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parent / "study"))

from synthetic_records import PROVENANCE, record

from autotm.cli import main
from autotm.model.files import save

CONFIG = Path(__file__).parents[1] / "config" / "config.yaml"


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    return ["--config", str(CONFIG), "--results", str(tmp_path), "--scale", "tiny", "--threads", "1"]


def test_records_go_to_a_file_or_to_the_screen(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["records", *options]) == 1, "there is none yet"
    for optimizer in ("static", "synchronous"):
        path = tmp_path / "laptop-1t" / "tiny" / "vgg19" / optimizer / "4to1" / "record.json"
        save(path, "record", record(optimizer, "4:1", network="vgg19"), PROVENANCE)
    assert main(["records", *options, "--csv", str(tmp_path / "runs.csv")]) == 0
    assert list(pd.read_csv(tmp_path / "runs.csv")["optimizer"]) == ["static", "synchronous"]
    capsys.readouterr()
    assert main(["records", *options]) == 0
    assert capsys.readouterr().out.count("\n") == 3


def test_describe_names_what_is_missing(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", *options, "--workload", "test_vgg"]) == 0
    assert "test_vgg/memory-mode/4to1/record.json" in capsys.readouterr().out
    assert main(["describe", *options, "--workload", "tset_vgg"]) == 1
