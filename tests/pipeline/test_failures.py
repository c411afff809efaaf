"""When jobs fail, the last thing on the screen is one page, and what does not depend on them is done all the same."""

from __future__ import annotations

import re
import signal

from command_server import Signal
from workplace import STAND_IN, TARGET, Workplace

from autotm.stages.jobs import Reason

STAGE = """
import os
from pathlib import Path
wildcards = snakemake.wildcards
if {where}:
    from autotm.model.errors import InfeasibleLimitError
    from autotm.stages.jobs import rule
    with rule(snakemake):
        {fault}
for output in snakemake.output:
    Path(output).write_text("done")
"""
KILLED = STAGE.format(where='wildcards.limit == "1to1"', fault="os.kill(os.getpid(), 9)")
INFEASIBLE = STAGE.format(
    where='wildcards.limit == "0to1" and wildcards.optimizer == "static"',
    fault='raise InfeasibleLimitError("kernel 7 needs 3 bytes more;\\n smallest feasible limit: 10 bytes")',
)
WRONG = STAGE.format(where=True, fault='raise KeyError("never there")')


def page_of(output: str) -> list[str]:
    """The lines from the page's head on."""
    lines = output.rstrip().splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r"autotm: (\d+ jobs? failed|interrupted)", line)]
    assert len(heads) == 1, output
    return lines[heads[0] :]


def test_the_page_names_each_failure_and_comes_last(fresh: Workplace) -> None:
    fresh.change("figures", "fig10", "limits", value=["1:1", "0:1"])
    fresh.set_stage("ilp_solve", INFEASIBLE)
    fresh.set_stage("run", KILLED)
    done = fresh.snakemake(TARGET)
    assert done.returncode != 0
    page = page_of(done.stdout)
    (machine,) = (path.name for path in (fresh.folder / "results").iterdir())
    folder = f"logs/{machine}/tiny/mlp"
    assert page == [
        "autotm: 3 jobs failed",
        "",
        f"ilp_solve: mlp, static, limit 0:1 (tiny, {machine})",
        "  why:    kernel 7 needs 3 bytes more; smallest feasible limit: 10 bytes",
        "  remedy: as it says; then the same command again",
        f"  log:    {folder}/static/0to1/ilp_solve.log",
        "",
        f"run: mlp, static, limit 1:1 (tiny, {machine})",
        f"run: mlp, synchronous, limit 1:1 (tiny, {machine})",
        "  why:    killed by signal 9 (SIGKILL)",
        f"  remedy: {Reason.of_signal(9).remedy}",
        f"  log:    {folder}/static/1to1/run.log",
        f"  log:    {folder}/synchronous/1to1/run.log",
        "",
        # 2 + 2 optimizers x 2 limits x 3 stages, but for a solve with the two jobs behind it, and two runs
        "9 of 15 jobs are done; the same command does the rest, and none of these again.",
        "not made: figures/fig10.pdf",
    ]


def test_what_was_mended_leaves_the_page(fresh: Workplace) -> None:
    fresh.set_stage("ilp_solve", INFEASIBLE)
    fresh.set_stage("run", WRONG)
    record = "results/laptop-1t/tiny/mlp/static/{}/record.json"
    assert fresh.snakemake(record.format("0to1")).returncode != 0
    fresh.set_stand_in("ilp_solve", STAND_IN)
    page = page_of(fresh.snakemake(record.format("0to1")).stdout)
    assert page[0] == "autotm: 1 job failed"
    assert page[2:5] == [
        "run: mlp, static, limit 0:1 (tiny, laptop-1t)",
        "  why:    KeyError: 'never there'",
        "  remedy: this is a fault of autotm: report it with the log, which says where",
    ]
    assert "Traceback" in (fresh.folder / page[5].split()[1]).read_text(encoding="utf-8")
    assert list(fresh.folder.rglob("run.failure.json"))
    fresh.set_stage("run", STAGE.format(where=True, fault="pass"))
    done = fresh.snakemake(record.format("0to1"))
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout
    assert not list(fresh.folder.rglob("run.failure.json"))


def test_a_figure_that_is_done_is_named(finished: Workplace) -> None:
    (machine,) = (path.name for path in (finished.folder / "results").iterdir())
    finished.set_stage("timing_study", STAGE.format(where=True, fault="os.abort()"))
    finished.change("style", "font_size_pt", value=9.0)
    done = finished.snakemake(TARGET, f"results/{machine}/tiny/test_vgg/timing_study.json")
    assert done.returncode != 0
    page = page_of(done.stdout)
    assert page[2:4] == [f"timing_study: test_vgg (tiny, {machine})", "  why:    killed by signal 6 (SIGABRT)"]
    assert page[-1] == "made: figures/fig10.pdf"


def page_after(place: Workplace, number: int, *, is_for_all: bool) -> list[str]:
    """The page of a study that gets a signal while a run waits, and leaves no job behind."""
    place.set_stage("run", STAGE.format(where=True, fault="Path('started').touch(); import time; time.sleep(60)"))
    ended = place.forked(TARGET, signal=Signal(number, "started", is_for_all=is_for_all))
    assert ended.status != 0
    assert ended.left == 0
    return page_of(ended.output)


DONE = r"\d+ of \d+ jobs are done; the same command does the rest, and none of these again\."


def test_an_interrupted_study_ends_with_what_is_done(finished: Workplace) -> None:
    page = page_after(finished, signal.SIGINT, is_for_all=True)
    assert page[0] == "autotm: interrupted"
    assert re.fullmatch(DONE, page[2])
    assert page[3:] == ["not made: figures/fig10.pdf"]


def test_jobs_that_lose_an_interrupt_are_ended(finished: Workplace) -> None:
    """Python may lose an interrupt while it imports."""
    page = page_after(finished, signal.SIGINT, is_for_all=False)
    assert re.fullmatch(DONE, page[-2])
    assert page[-1] == "not made: figures/fig10.pdf"


def test_a_study_that_is_asked_to_end_ends_its_jobs(finished: Workplace) -> None:
    page = page_after(finished, signal.SIGTERM, is_for_all=False)
    assert page[0] == "autotm: 1 job failed"
    assert page[2].startswith("run: mlp, ")
    assert page[3] == "  why:    killed by signal 15 (SIGTERM)"
    assert re.fullmatch(DONE, page[-2])
    assert page[-1] == "not made: figures/fig10.pdf"
