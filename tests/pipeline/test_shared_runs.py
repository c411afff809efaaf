"""One process measures the runs of a network; Snakemake still makes each record by a job of its own, when it is due."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter

import pytest
from workplace import ROOT, TARGET, Workplace

from autotm.model.limit import Limit

LIMITS = ["1:1", "0:1"]
RUNS = {f"{optimizer}/{Limit.parse(limit).slug}" for optimizer in ("static", "synchronous") for limit in LIMITS}
STAND_IN = '''
import os, signal, time
from autotm.model.errors import AutotmError

class RunsStage:
    """Stands for the stage: notes what it measures, and in which process."""
    IN_TURN = 2
    def __init__(self, *_, **__): pass
    def close(self): pass
    def measure_in_turn(self, placements): pass
    def run(self, optimizer, limit, record):
        run = f"{optimizer}/{limit.slug}"
        with open("measured.txt", "a") as notes:
            notes.write(f"{run} {os.getpid()}\\n")
        exec(open("fault.py").read())
        record.write_text(run)
'''


@pytest.fixture
def place(fresh: Workplace) -> Workplace:
    """A study with the rule's own script, but for the stage."""
    own = (ROOT / "workflow" / "scripts" / "run.py").read_text(encoding="utf-8")
    line = "    from autotm.stages.run import RunsStage\n"
    assert own.count(line) == 1
    fresh.set_stage("run", own.replace(line, textwrap.indent(STAND_IN, "    ")))
    set_fault(fresh)
    fresh.change("figures", "fig10", "limits", value=LIMITS)
    return fresh


def set_fault(place: Workplace, fault: str = "") -> None:
    """Have the stage fail, or wait; the script stays as it is, for a change of it would rerun all."""
    (place.folder / "fault.py").write_text(fault, encoding="utf-8")


def measured(place: Workplace) -> list[tuple[str, str]]:
    """Runs in the order in which they were measured since this was last asked, each with its process."""
    notes = place.folder / "measured.txt"
    lines = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    notes.unlink(missing_ok=True)
    return [(run, process) for run, process in (line.split() for line in lines)]


def recorded(place: Workplace) -> set[str]:
    """The runs whose records are there, each with its own content; nothing else may wait beside them."""
    runs = set()
    for record in place.folder.glob("results/*/tiny/mlp/*/*/record.json"):
        runs.add(f"{record.parts[-3]}/{record.parts[-2]}")
        assert record.read_text(encoding="utf-8") == f"{record.parts[-3]}/{record.parts[-2]}"
        assert not list(record.parent.glob("ahead-*"))
    return runs


def test_one_process_measures_what_is_due_and_nothing_else(place: Workplace) -> None:
    other = "results/laptop-1t/tiny/mlp/numa/4to1/record.json"  # of which the program is there, and no run is asked for
    assert place.snakemake(other.replace("record", "program"), "--config", "threads=1").returncode == 0
    done = place.snakemake(TARGET, "--config", "threads=1")
    assert done.returncode == 0, done.stdout
    runs = measured(place)
    assert Counter(run for run, _ in runs) == dict.fromkeys(RUNS, 1)
    assert len({process for _, process in runs}) == 1
    assert recorded(place) == RUNS
    assert done.stdout.count("Running mlp (tiny): ") == len(RUNS), "a job for each record"
    place.change("figures", "fig10", "limits", value=[*LIMITS, "3:1"])
    done = place.snakemake(TARGET, "--config", "threads=1")
    assert done.returncode == 0, done.stdout
    assert {run for run, _ in measured(place)} == {"static/3to1", "synchronous/3to1"}
    done = place.snakemake(other, "--config", "threads=1")
    assert [run for run, _ in measured(place)] == ["numa/4to1"], done.stdout
    again = place.snakemake(other, "--config", "threads=1", "--forcerun", "run")
    assert [run for run, _ in measured(place)] == ["numa/4to1"], again.stdout


def test_a_program_that_fails_or_crashes_is_named_and_keeps_no_other_from_its_record(place: Workplace) -> None:
    fault = """if run == "static/1to1": raise AutotmError("it computes something else")
if run == "synchronous/1to1": os.kill(os.getpid(), signal.SIGSEGV)"""
    set_fault(place, fault)
    done = place.snakemake(TARGET)
    assert done.returncode != 0
    page = done.stdout[done.stdout.index("\nautotm: 2 jobs failed") :]
    assert "run: mlp, static, limit 1:1" in page
    assert "it computes something else" in page
    assert "run: mlp, synchronous, limit 1:1" in page
    assert "killed by signal 11 (SIGSEGV)" in page
    wrong = {"static/1to1", "synchronous/1to1"}
    tried = Counter(run for run, _ in measured(place))
    assert {run: times for run, times in tried.items() if run not in wrong} == dict.fromkeys(RUNS - wrong, 1)
    assert all(tried[run] <= 2 for run in wrong), "once ahead, once by its own job"
    assert recorded(place) == RUNS - wrong
    set_fault(place)
    done = place.snakemake(TARGET)
    assert done.returncode == 0, done.stdout
    assert {run for run, _ in measured(place)} == wrong
    assert recorded(place) == RUNS


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_an_interrupted_study_goes_on_where_it_was(place: Workplace, number: signal.Signals) -> None:
    set_fault(place, 'if len(open("measured.txt").readlines()) == 3: time.sleep(60)')
    study = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "2", TARGET],
        cwd=place.folder,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # As in a terminal: what runs behind others' & has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    notes, deadline = place.folder / "measured.txt", time.monotonic() + 120
    while not (notes.exists() and len(notes.read_text(encoding="utf-8").splitlines()) == 3):
        assert study.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(study.pid, number)
    study.wait(timeout=60)
    *before, last = (run for run, _ in measured(place))
    assert len(before) == 2
    set_fault(place)
    if number == signal.SIGKILL:
        assert place.snakemake("--unlock").returncode == 0
    done = place.snakemake(TARGET)
    assert done.returncode == 0, done.stdout
    assert {run for run, _ in measured(place)} == RUNS - {*before}, f"{last} had not ended"
    assert recorded(place) == RUNS
