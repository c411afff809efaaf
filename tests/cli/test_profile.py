"""`autotm profile` on the tiny MLP: its report, and the files of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import small_step

from autotm.cli.main import main
from autotm.model.files import save
from autotm.model.links import MachineRates

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


def run(results: Path, *arguments: str) -> int:
    shared = ("--config", str(CONFIG), "--results", str(results), "--scale", "tiny", "--threads", "1")
    return main(["profile", "mlp", *shared, *arguments])


def test_a_profile_ends_with_where_the_time_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    links = replace(small_step.links(), rates=MachineRates(1e11, 1e10))
    save(tmp_path / "laptop-1t" / "links.json", "links", links, {})
    csv = tmp_path / "report.csv"
    assert run(tmp_path, "--csv", str(csv), "--worst", "2") == 0
    told = capsys.readouterr().out
    assert told.startswith("mlp (tiny) on laptop-1t: 21 kernels, ")
    assert "multiply-adds in registers 100 GF/s, copies 10 GB/s" in told
    assert "No kernel was compiled nearly as written." in told
    assert run(tmp_path, "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in report["kernel_report"]["by_schedule"]} == {"generated", "general"}
    assert report["provenance"]["threads"] == 1
    assert len(pd.read_csv(csv)) == len(report["kernel_report"]["kernels"])


def test_fewer_than_no_kernels_cannot_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--worst", "-1") == 2
    assert "'--worst': -1 is not in the range x>=0" in capsys.readouterr().err
