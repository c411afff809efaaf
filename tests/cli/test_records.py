"""`autotm records` and `autotm describe` from the command line."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from pathlib import Path

import pandas as pd
import pytest
import small_step
import yaml
from synthetic_records import PROVENANCE, record

from autotm.cli.main import main
from autotm.model.files import load, save
from autotm.model.graph import all_fast
from autotm.model.limit import Limit
from autotm.model.paths import FRAMEWORK_FILE, Paths
from autotm.model.plan import SAVE_ON_CPU
from autotm.model.profile import Profile, Timing, write_profile
from autotm.model.record import FrameworkRecord, Record
from autotm.stages import run
from autotm.stages.context import Context

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"


@pytest.fixture
def options(tmp_path: Path) -> list[str]:
    return ["--config", str(CONFIG), "--results", str(tmp_path), "--scale", "tiny", "--threads", "1"]


def saved(results: Path, optimizer: str, limit: str = "4:1", **changes: object) -> Path:
    """A record of vgg19."""
    path = results / "laptop-1t" / "tiny" / "vgg19" / optimizer / Limit.parse(limit).slug / "record.json"
    save(path, "record", replace(record(optimizer, limit, network="vgg19"), **changes), PROVENANCE)
    return path


def test_records_go_to_a_file_or_to_the_screen(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["records", *options]) == 1, "there is none yet"
    for optimizer in ("static", "synchronous"):
        saved(tmp_path, optimizer)
    assert main(["records", *options, "--csv", str(tmp_path / "runs.csv")]) == 0
    assert list(pd.read_csv(tmp_path / "runs.csv")["optimizer"]) == ["static", "synchronous"]
    capsys.readouterr()
    assert main(["records", *options]) == 0
    assert capsys.readouterr().out.count("\n") == 3


def test_describe_names_what_is_missing(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", *options, "--workload", "test_vgg"]) == 0
    assert "test_vgg/memory-mode/4to1/record.json" in capsys.readouterr().out
    assert main(["describe", *options, "--workload", "tset_vgg"]) == 1


def test_remeasure_runs_what_others_disturbed_and_nothing_else(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stage stands for a machine that is quiet now; it finds the old record still there."""
    saved(tmp_path, "synchronous", disturbed_steps=4)
    marked = {"disturbed_steps_count": True, "disturbed_steps": 4}
    paths = {name: saved(tmp_path, name, limit, **marked) for name, limit in (("static", "4:1"), ("numa", "8:1"))}
    again = []

    def quiet(runs: run.RunsStage, optimizer: str, limit: Limit) -> None:
        record = runs._paths.record(optimizer, limit)
        old = load(record, "record", Record)
        assert old.disturbed_steps_count
        again.append(record)
        save(record, "record", replace(old, disturbed_steps_count=old.optimizer == "numa"), PROVENANCE)

    monkeypatch.setattr(run.RunsStage, "run", quiet)
    assert main(["remeasure", *options, "--list"]) == 0
    assert set(capsys.readouterr().out.split()) == {str(paths["static"]), str(paths["numa"])}
    assert not again
    assert main(["remeasure", *options]) == 0
    assert set(again) == {paths["static"], paths["numa"]}
    assert main(["remeasure", *options, "--list"]) == 0
    assert capsys.readouterr().out.split() == [str(paths["numa"])], "still disturbed"


def test_remeasure_runs_the_steps_of_a_gpu_again_pytorchs_own_too(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both stages stand for a machine that is quiet now."""
    config = tmp_path / "config"
    shutil.copytree(CONFIG.parent, config)
    machine = {"description": "made up", "threads": 1, "slow_tier": {"kind": "cuda", "managed_oversubscription": True}}
    (config / "machines" / "gpu.yaml").write_text(yaml.safe_dump(machine), encoding="utf-8")
    study = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    study["figures"]["fig12"]["machine"] = "gpu"
    (config / "config.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    options[1] = str(config / "config.yaml")
    of_vgg, again = tmp_path / "gpu-1t" / "tiny" / "vgg19", []
    ours, theirs = of_vgg / "asynchronous/2to3/record.json", of_vgg / SAVE_ON_CPU / "2to3" / FRAMEWORK_FILE
    ran = replace(record("asynchronous", "2:3", network="vgg19"), disturbed_steps_count=True)
    known = {field.name: getattr(ran, field.name) for field in fields(FrameworkRecord) if hasattr(ran, field.name)}
    save(ours, "record", ran, PROVENANCE)
    framework = FrameworkRecord(**known | {"optimizer": SAVE_ON_CPU, "peak_live_bytes": 1})
    save(theirs, "framework_record", framework, PROVENANCE)

    class QuietRuns:
        def __init__(self, context: Context, _: object, paths: Paths) -> None:
            self.context, self.paths = context, paths

        def run(self, optimizer: str, limit: Limit) -> None:
            quiet(self.context, self.paths.record(optimizer, limit), "record", Record)

        def close(self) -> None:
            pass

    def save_on_cpu(context: Context, _: object, limit: Limit, __: object, paths: Paths) -> None:
        quiet(context, paths.framework(SAVE_ON_CPU, limit), "framework_record", FrameworkRecord)

    def quiet(context: Context, path: Path, name: str, kind: type[Record | FrameworkRecord]) -> None:
        assert context.machine.name == "gpu"
        again.append(path)
        save(path, name, replace(load(path, name, kind), disturbed_steps_count=False), PROVENANCE)

    monkeypatch.setattr(run, "RunsStage", QuietRuns)
    monkeypatch.setattr(run, "save_on_cpu_stage", save_on_cpu)
    assert main(["remeasure", *options]) == 0
    assert set(again) == {ours, theirs}
    capsys.readouterr()
    assert main(["remeasure", *options, "--list"]) == 0
    assert not capsys.readouterr().out.split()


def test_remeasure_names_what_was_disturbed_before_the_runs(
    options: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine, step = tmp_path / "laptop-1t", small_step.graph()
    profile = machine / "tiny" / "mlp" / "profile.parquet"
    key = (step.kernels[0].identity, "default", all_fast(step.kernels[0]))
    for is_disturbed in (True, False):
        links = replace(small_step.links(), disturbed=("copies",) if is_disturbed else ())
        save(machine / "links.json", "links", links, PROVENANCE)
        write_profile(profile, Profile("", {key: Timing(1, 1, 1, 1, 9, disturbed=is_disturbed)}, PROVENANCE))
        caplog.clear()
        assert main(["remeasure", *options]) == 0
        named = {str(machine / "links.json"), str(profile)}
        assert {name for name in named if name in caplog.text} == (named if is_disturbed else set())


def test_describe_says_how_many_runs_it_leaves_out(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for optimizer in ("static", "synchronous"):
        saved(tmp_path, optimizer, disturbed_steps_count=optimizer == "synchronous")
    assert main(["describe", *options]) == 0
    output = capsys.readouterr().out
    assert "left out: 1 of 1 runs, which others disturbed; measure them again: autotm remeasure" in output
    assert "loses" not in output.split("published")[0]
