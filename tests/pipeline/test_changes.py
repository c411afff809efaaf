"""After a change, what depends on it runs again, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from workplace import LASTS, LIMITS, TARGET, Workplace, make_workplace

from autotm.model.limit import Limit

OPTIMIZERS = 2
POINTS = OPTIMIZERS * len(LIMITS)


def test_a_fresh_study_needs_every_job(fresh: Workplace) -> None:
    assert fresh.jobs_due() == {"calibrate": 1} | PROFILED_AGAIN


def test_a_finished_study_needs_none_whatever_changes_elsewhere(finished: Workplace) -> None:
    """A remark, repeats of another study, sizes of another network: if one of them mattered, a job would be due."""
    finished.change("timing_study", "repeats", value=7)
    scale = finished.folder / "config" / "scales" / "tiny.yaml"
    contents = yaml.safe_load(scale.read_text(encoding="utf-8"))
    contents["networks"]["vgg19"]["batch"] += 1
    scale.write_text(yaml.safe_dump(contents), encoding="utf-8")
    for file in (finished.config_file, finished.folder / "config" / "machines" / "laptop.yaml"):
        file.write_text(f"# a remark\n{file.read_text(encoding='utf-8')}", encoding="utf-8")
    assert "Nothing to be done" in finished.snakemake(TARGET).stdout


PLACED_AGAIN = {"ilp_solve": POINTS, "compile": POINTS, "run": POINTS, "fig10": 1}
PROFILED_AGAIN = {"kernel_profile": 1} | PLACED_AGAIN
CHANGES = [
    ("a new limit", ("figures", "fig10", "limits"), [*LIMITS, "3:1"],
     {"ilp_solve": OPTIMIZERS, "compile": OPTIMIZERS, "run": OPTIMIZERS, "fig10": 1}),
    ("a look", ("style", "font_size_pt"), 9.0, {"fig10": 1}),
    ("a solver option", ("solve", "gap"), 0.02, PLACED_AGAIN),
    ("what counts", ("counts",), "all", PROFILED_AGAIN),
    ("a run option", ("run", "min_seconds"), 3.0, {"run": POINTS, "fig10": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "value", "due"), [pytest.param(*case, id=name) for name, *case in CHANGES])
def test_a_change_needs_what_depends_on_it(
    finished: Workplace, keys: tuple[str, ...], value: Any, due: dict[str, int]
) -> None:
    finished.change(*keys, value=value)
    assert finished.jobs_due() == due


@pytest.mark.parametrize(
    ("key", "value", "due"),
    [
        ("trials", 7, {"fusion_search": 1}),
        ("trial_s", 7.0, {"fusion_search": 1}),
        ("best", 7, {"fusion_exhaustive": 1}),
        ("copies", 7, {"fusion_exhaustive": 1}),
        ("step_s", 0.7, {"fusion_exhaustive": 1, "fusion_search": 1}),
    ],
)
def test_what_one_search_for_groupings_depends_on_repeats_no_other(
    searched: Workplace, key: str, value: float, due: dict[str, int]
) -> None:
    searched.change("fusion", key, value=value)
    assert searched.jobs_due(target=_searches(searched)) == due


@pytest.fixture(scope="module")
def searched_once(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A study with stand-in stages that searched groupings of one step in both ways; copy it before a change."""
    place = make_workplace(tmp_path_factory.mktemp("pipeline") / "searched", stand_in=True)
    assert place.snakemake(*_searches(place)).returncode == 0
    return place


@pytest.fixture
def searched(searched_once: Workplace, tmp_path: Path) -> Workplace:
    return searched_once.copied_to(tmp_path / "place")


def _searches(place: Workplace) -> tuple[str, ...]:
    paths = place.study.paths("mlp")
    files = paths.fusion("training"), paths.fusion_search("annealing", 1)
    return tuple(str(file.relative_to(place.folder)) for file in files)


def test_how_long_a_scale_measures_keeps_the_links(finished: Workplace) -> None:
    scale = finished.folder / "config" / "scales" / "tiny.yaml"
    contents = yaml.safe_load(scale.read_text(encoding="utf-8"))
    scale.write_text(yaml.safe_dump(contents | {"measuring": 0.5}), encoding="utf-8")
    assert finished.jobs_due() == PROFILED_AGAIN


def test_another_thread_count_needs_profile_and_all_after_it(finished: Workplace) -> None:
    due = finished.jobs_due("--config", "threads=1")
    assert due["kernel_profile"] == 1
    assert due["run"] == POINTS


def test_another_network_keeps_the_links(finished: Workplace) -> None:
    due = finished.jobs_due("--config", "figures={fig10: {network: vgg19, limits: ['1:0', '0:1']}}")
    assert "calibrate" not in due
    assert due["kernel_profile"] == 1


def test_the_device_decides_every_measurement(finished: Workplace) -> None:
    device = finished.folder / "config" / "devices" / "optane-dcpmm.yaml"
    text = device.read_text(encoding="utf-8")
    device.write_text(text.replace("to_slow_bytes_per_s: 12.0e+9", "to_slow_bytes_per_s: 6.0e+9"), encoding="utf-8")
    assert text != device.read_text(encoding="utf-8")
    assert finished.jobs_due()["calibrate"] == 1


def test_a_removed_record_is_made_again_alone(finished: Workplace) -> None:
    record = f"results/{_machine(finished)}/tiny/mlp/static/1to1/record.json"
    (finished.folder / record).unlink()
    assert finished.jobs_due(target=record) == {"run": 1}


def test_measurements_run_alone_whatever_the_cores(finished: Workplace) -> None:
    spans = _spans(finished.folder / "jobs.txt")
    measuring = [span for span in spans if span[0] in {"calibrate", "kernel_profile", "run"}]
    assert len(measuring) == 2 + POINTS
    for rule, start, end in measuring:
        others = [other for other in spans if other != (rule, start, end)]
        assert not [other for other in others if other[1] < end and start < other[2]], f"{rule} was not alone"


def test_solves_run_beside_each_other(finished: Workplace) -> None:
    solves = [span for span in _spans(finished.folder / "jobs.txt") if span[0] == "ilp_solve"]
    assert any(a[1] < b[2] and b[1] < a[2] for a in solves for b in solves if a != b)


def test_measurements_run_alone_without_the_profile_too(finished: Workplace) -> None:
    (finished.folder / "jobs.txt").unlink()
    others = [f"results/{_machine(finished)}/tiny/{network}/graph.json" for network in ("test_vgg", "mnist")]
    assert finished.snakemake("--workflow-profile", "none", *others, cores=24).returncode == 0
    (first, second) = sorted(span[1:] for span in _spans(finished.folder / "jobs.txt"))
    assert first[1] <= second[0]


def test_snakemake_looks_for_jobs_only_when_one_has_ended(finished: Workplace) -> None:
    """Its limit on job starts would have it look each second, which takes time from what is measured."""
    finished.set_stand_in("kernel_profile", LASTS.replace("0.15", "1.3"))
    others = [f"results/{_machine(finished)}/tiny/{network}/graph.json" for network in ("test_vgg", "mnist")]
    done = finished.snakemake("--verbose", *others)
    assert done.returncode == 0, done.stdout
    assert re.findall(r"Ready jobs: (\d)", done.stdout) == ["2", "1"]


def test_the_paths_of_rules_and_commands_agree(finished: Workplace) -> None:
    study, limit = finished.study, Limit.parse("1:1")
    paths = study.paths("mlp")
    files = [study.machine_paths.links, paths.links, paths.graph, paths.library, paths.profile]
    files += [kind("static", limit) for kind in (paths.plan, paths.program, paths.record)]
    assert [file for file in files if not file.is_file()] == []


def _machine(place: Workplace) -> str:
    return next((place.folder / "results").iterdir()).name


def _spans(notes: Path) -> list[tuple[str, float, float]]:
    lines = [line.split() for line in notes.read_text(encoding="utf-8").splitlines()]
    return [(rule, float(start), float(end)) for rule, start, end in lines]


def test_a_modelled_step_needs_profiles_of_small_batches_and_no_run(fresh: Workplace) -> None:
    assert fresh.jobs_due(target="results/laptop-1t/tiny-modelled/vgg19/static/4to1/program.json") == {
        "calibrate": 1, "kernel_profile": 3, "extrapolate": 1, "ilp_solve": 1, "compile": 1,
    }  # fmt: skip
