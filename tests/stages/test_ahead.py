"""One job measures the runs of its network that its call will do; the others take theirs where nothing changed."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotm.model.errors import AutotmError
from autotm.stages.ahead import Call, Job, Waiting, take, work

SETTINGS = {"machine": {"threads": 2}, "options": {"min_steps": 3}, "seed": 20}
LIMITS = ("1to0", "1to1", "0to1")


class Stage:
    """Stands for what measures: writes what it was given, and does as told at some limits."""

    def __init__(self, at: dict[str, BaseException] | None = None) -> None:
        self.at, self.measured = at or {}, []

    def __call__(self, job: Job, record: Path) -> None:
        plan, program = map(Path, job.inputs)
        limit = plan.parent.name
        logging.getLogger("autotm").warning("this is %s", limit)
        self.measured.append(limit)
        if limit in self.at:
            raise self.at[limit]
        record.write_text(json.dumps([plan.read_text(), program.read_text()]))


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTM_JOBS_DUE", "nowhere")


@pytest.fixture
def jobs() -> dict[str, Job]:
    """Runs of one network at three limits, all of them ready."""
    by_limit = {}
    for limit in LIMITS:
        folder = Path("results/laptop-2t/tiny/mlp/static") / limit
        folder.mkdir(parents=True)
        for name in ("plan", "program"):
            (folder / f"{name}.json").write_text(f"{name} of {limit}")
        record, *inputs = (str(folder / f"{name}.json") for name in ("record", "plan", "program"))
        by_limit[limit] = Job(record, tuple(inputs), log=f"logs/static/{limit}/run.log")
    Path("graph.json").write_text("graph")
    return by_limit


def waiting(**settings: object) -> Waiting:
    return Waiting(SETTINGS | settings, ("graph.json",))


def started(job: Job, stage: Stage, call: Call, **settings: object) -> None:
    """What rule `run` does, Snakemake's part before it too."""
    Path(job.output).unlink(missing_ok=True)
    if not take(job, waiting(**settings)):
        work(job, waiting(**settings), stage, call)


def files_beside(jobs: dict[str, Job]) -> set[str]:
    return {path.name for job in jobs.values() for path in Path(job.output).parent.glob("ahead-*")}


def test_the_first_job_measures_them_all_and_each_record_is_its_own(jobs: dict[str, Job]) -> None:
    stage, call = Stage(), Call(1.0, tuple(jobs.values()))
    for job in jobs.values():
        started(job, stage, call)
        assert stage.measured == list(LIMITS), "once each"
        assert Path(job.output).exists()
    for limit, job in jobs.items():
        assert json.loads(Path(job.output).read_text()) == [f"plan of {limit}", f"program of {limit}"]
    assert "this is 1to1" in Path(jobs["1to1"].log).read_text()
    assert "this is 0to1" not in Path(jobs["1to1"].log).read_text()
    assert files_beside(jobs) == set()


def test_some_are_begun_together_after_the_first_and_what_fails_then_is_made_one_by_one(jobs: dict[str, Job]) -> None:
    stage, begun = Stage(), []

    def begin(some: Sequence[Job]) -> None:
        assert Path(jobs["1to0"].output).exists(), "nothing that happens here can cost the job its output"
        begun.append([job.placement[1] for job in some])
        assert all(waiting().was_tried(job, call) for job in some), "a crash is met by no other job"
        logging.getLogger("autotm").warning("all of these")
        raise AutotmError("none of these")

    call = Call(1.0, tuple(jobs.values()))
    work(jobs["1to0"], waiting(), stage, call, begin=begin, together=2)
    for limit in LIMITS[1:]:
        started(jobs[limit], stage, call)
        log = Path(jobs[limit].log).read_text()
        assert log.count("all of these") == log.count(f"this is {limit}") == 1
    assert begun == [["1to1", "0to1"]]
    assert stage.measured == list(LIMITS), "once each"
    begun.clear()
    for job in jobs.values():
        Path(job.output).unlink()
    work(jobs["1to0"], waiting(), stage, call, begin=lambda some: begun.append(len(some)), together=1)
    assert begun == [1, 1]


@pytest.mark.parametrize("changed", ["plan", "program", "graph", "options"])
def test_what_was_measured_from_something_else_is_not_taken(jobs: dict[str, Job], changed: str) -> None:
    call = Call(1.0, tuple(jobs.values()))
    started(jobs["1to0"], Stage(), call)
    settings = {"options": {"min_steps": 4}} if changed == "options" else {}
    if changed == "graph":
        Path("graph.json").write_text("another")
    elif changed != "options":
        Path(jobs["1to1"].output).with_name(f"{changed}.json").write_text("another")
    again = Stage()
    for limit in LIMITS[1:]:
        started(jobs[limit], again, call, **settings)
    assert again.measured == (["1to1"] if changed in {"plan", "program"} else ["1to1", "0to1"])
    assert files_beside(jobs) <= {waiting(**settings).file(jobs["1to0"]).name}, "its own job would take it"


def test_a_program_that_fails_is_left_to_its_own_job(jobs: dict[str, Job]) -> None:
    stage, call = Stage({"1to1": AutotmError("wrong")}), Call(1.0, tuple(jobs.values()))
    started(jobs["1to0"], stage, call)
    started(jobs["0to1"], stage, call)
    assert stage.measured == list(LIMITS)
    assert Path(jobs["1to0"].output).exists()
    assert Path(jobs["0to1"].output).exists()
    with pytest.raises(AutotmError, match="wrong"):
        started(jobs["1to1"], stage, call)
    assert not Path(jobs["1to1"].output).exists()


def test_what_ended_one_job_does_not_end_the_next_but_one(jobs: dict[str, Job]) -> None:
    """A crash leaves no chance to say so: what is tried is noted before."""
    call = Call(1.0, tuple(jobs.values()))
    waiting().note(jobs["1to1"], call)
    stage = Stage()
    started(jobs["1to0"], stage, call)
    assert stage.measured == ["1to0", "0to1"]
    started(jobs["1to0"], stage, Call(2.0, call.jobs))
    assert stage.measured[2:] == ["1to0", "1to1"], "another call tries again, and what waits is not measured twice"


def test_an_interrupted_call_keeps_what_it_had_and_the_next_goes_on(jobs: dict[str, Job]) -> None:
    call = Call(1.0, tuple(jobs.values()))
    with pytest.raises(KeyboardInterrupt):
        started(jobs["1to0"], Stage({"0to1": KeyboardInterrupt()}), call)
    stage, again = Stage(), Call(2.0, call.jobs)
    for job in jobs.values():  # Snakemake removes the record of the job that was under way.
        started(job, stage, again)
        assert Path(job.output).exists()
    assert stage.measured == ["0to1"]


def test_plans_that_the_call_makes_first_are_waited_for(jobs: dict[str, Job]) -> None:
    old = jobs["1to1"]
    program = old.inputs[1]
    changes = replace(old, made=(program,))
    since_s = Path(program).stat().st_mtime + 5.0
    call = Call(since_s, (jobs["1to0"], changes, jobs["0to1"]))
    stage = Stage()
    started(jobs["1to0"], stage, call)
    assert stage.measured == ["1to0", "0to1"]
    os.utime(program, (since_s + 1, since_s + 1))
    assert call.others(jobs["0to1"]) == [jobs["1to0"], changes]


def test_jobs_know_of_the_others_where_they_were_told(jobs: dict[str, Job], tmp_path: Path) -> None:
    assert Call.read() == Call(0.0, ()), "nobody has: each measures for itself"
    call = Call(5.0, tuple(jobs.values()))
    call.tell(tmp_path / "logs" / "jobs_due.json")
    assert Call.read() == call
    elsewhere = replace(jobs["1to1"], output="results/laptop-2t/tiny/vgg19/static/1to1/record.json")
    assert call.others(elsewhere) == []
    assert Call(1.0, (*call.jobs, elsewhere)).others(elsewhere) == [], "another network"


def test_jobs_side_by_side_make_different_outputs(jobs: dict[str, Job]) -> None:
    """Each output is made once; a job that another one makes ahead waits for that."""
    call, begun = Call(1.0, tuple(jobs.values())), threading.Event()

    class Slow(Stage):
        def __call__(self, job: Job, record: Path) -> None:
            if self.measured:
                begun.set()
                time.sleep(0.3)
            super().__call__(job, record)

    first, second = Slow(), Stage()
    working = threading.Thread(target=started, args=(jobs["1to0"], first, call))
    working.start()
    assert begun.wait(10)
    started(jobs["1to1"], second, call)
    working.join()
    started(jobs["0to1"], second, call)
    assert sorted(first.measured + second.measured) == sorted(LIMITS)
    assert "1to1" in first.measured
    assert all(Path(job.output).exists() for job in jobs.values())
    assert files_beside(jobs) == set()
