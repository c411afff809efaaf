"""Time and memory of the jobs behind each figure, from the benchmark files that Snakemake writes."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pandas as pd

from autotm.model.config import MODELLED
from autotm.model.errors import BadInputError, DamagedFileError
from autotm.study.inputs import (
    comparison_records,
    device_machines,
    device_records,
    front_records,
    heap_files,
    large_files,
    predicted_records,
    rival_records,
)
from autotm.study.setup import CONVENTIONAL, Study

_SEPARATE = "figures/devices.pdf"
"""It needs machines of its own, so it is not part of `figures`."""
_OF_WORKLOADS = ("fig7", "fig9", "ilp_times", "price_performance", "cost_performance")
_OF_THE_CASE_STUDY = ("fig10", "fig10a_all_fast", "fig10a_all_slow", "fig10a_synchronous")
_RULES = {
    "plan.json": ("ilp_solve",),
    "program.json": ("ilp_solve", "compile"),
    "record.json": ("ilp_solve", "compile", "run"),
}
"""By file of a limit's folder, the rules whose jobs make it and what it is made from."""


@dataclass(frozen=True)
class Cost:
    """The time and memory of the jobs behind a target, e.g. `figures/fig7.pdf`.

    Attributes:
        known_jobs: of how many `jobs` a benchmark file is there.
        seconds: sum over these. Jobs that ran side by side (placements, drawings) each count in full.
        memory_bytes: the largest resident memory of one of them; 0 where none is known.
    """

    target: str
    jobs: int
    known_jobs: int
    seconds: float
    memory_bytes: int


def costs(study: Study, logs: Path) -> list[Cost]:
    """Return the cost of each figure built alone from nothing, then of `figures`, in which each job counts once.

    Raises:
        BadInputError: the scale has no sizes for a network of a figure.
        DamagedFileError: a benchmark file under `logs` holds no time.
    """
    jobs = figure_jobs(study, logs)
    # `make figures` leaves out the figures of further workloads, which have folders.
    of_all = [files for target, files in jobs.items() if target.count("/") == 1 and target != _SEPARATE]
    jobs["figures"] = list(dict.fromkeys(itertools.chain(*of_all)))
    measured = {file: _measured(file) for files in jobs.values() for file in files if file.exists()}
    table = []
    for target, files in jobs.items():
        known = [measured[file] for file in files if file in measured]
        seconds, memory = sum(time_s for time_s, _ in known), max((size for _, size in known), default=0)
        table.append(Cost(target, len(files), len(known), seconds, memory))
    return table


def _measured(file: Path) -> tuple[float, int]:
    """Return a job's seconds and bytes as Snakemake measured them; 0 bytes where it ended before the first look."""
    try:
        row = pd.read_csv(file, sep="\t", na_values=["-"]).iloc[-1]
        seconds, mib = float(row["s"]), float(row["max_rss"])
    except (KeyError, IndexError, ValueError) as error:
        raise DamagedFileError(f"{file}: not a benchmark of Snakemake ({error}); remove it") from None
    return seconds, 0 if pd.isna(mib) else round(mib * 2**20)


def figure_jobs(study: Study, logs: Path) -> dict[str, list[Path]]:
    """Return the benchmark files of the jobs behind each figure, its own drawing last.

    Figures that cannot be drawn (no sizes at the study's scale, no end to compare with) are left out.
    """
    large = large_files(study)
    jobs = {} if study.config.scale.endswith(MODELLED) else _jobs_of_runs(study, logs)
    jobs |= dict.fromkeys(
        ("fig8", "fig8_talk"), _jobs_behind(study, logs, large["plans"] if "plans" in large else large["records"])
    )
    return {
        f"figures/{name}.pdf": [*dict.fromkeys(files), logs / "figures" / f"{name}.benchmark.tsv"]
        for name, files in jobs.items()
    }


def _jobs_of_runs(study: Study, logs: Path) -> dict[str, list[Path]]:
    """Return what is behind the figures of runs, which a modelled scale does not have, without their drawings."""
    behind = partial(_jobs_behind, study, logs)
    jobs: dict[str, list[Path]] = {}
    for workload in study.config.workloads:
        folder = "" if workload == CONVENTIONAL else f"{workload}/"
        with contextlib.suppress(BadInputError):
            jobs |= dict.fromkeys(
                (f"{folder}{name}" for name in _OF_WORKLOADS), behind(comparison_records(study, workload))
            )
            jobs[f"{folder}fig7"] = behind(rival_records(study, workload))
            jobs[f"{folder}fig11"] = behind(predicted_records(study, workload))
    jobs |= dict.fromkeys(_OF_THE_CASE_STUDY, behind(study.case_study_records()))
    jobs["front"] = behind(front_records(study))
    devices = [study.on(machine) for machine in device_machines(study)]
    jobs["devices"] = [file for on in devices for file in _jobs_behind(on, logs, device_records(on))]
    jobs["heap"] = behind([heap_files(study)["program"]])
    jobs["links"] = behind([])
    of_scale = logs / study.machine.slug / study.config.scale
    jobs["kernel_plot"] = [*behind([]), of_scale / "convolution_profile.benchmark.tsv"]
    timed = of_scale / study.config.timing_study.network
    jobs["timing_study"] = [
        *behind([]),
        *(timed / f"{rule}.benchmark.tsv" for rule in ("kernel_profile", "timing_study")),
    ]
    return jobs


def _jobs_behind(study: Study, logs: Path, results: Sequence[Path]) -> list[Path]:
    """Return the benchmark files of calibration, of the networks' profiles, and of the rules behind files of limits."""
    scale = study.config.scale
    of_machine = logs / study.machine.slug
    files = [of_machine / "calibrate.benchmark.tsv"]
    for network in dict.fromkeys(result.parts[-4] for result in results):
        timed = [scale]
        if scale.endswith(MODELLED):
            timed = [f"{scale.removesuffix(MODELLED)}-batch-{batch}" for batch in study.config.extrapolate.batches]
            files.append(of_machine / scale / network / "extrapolate.benchmark.tsv")
        files += [of_machine / one / network / "kernel_profile.benchmark.tsv" for one in timed]
    in_logs = [(logs / result.relative_to(study.results), _RULES[result.name]) for result in results]
    return files + [file.with_name(f"{rule}.benchmark.tsv") for file, rules in in_logs for rule in rules]


def table_of_costs(table: Iterable[Cost]) -> str:
    """Return the costs as a Markdown table, with how many jobs have left a benchmark file where some have not."""
    lines = ["| target | jobs | time of its jobs | memory of the largest |", "|---|---|---|---|"]
    for cost in table:
        jobs = f"{cost.jobs}" if cost.known_jobs == cost.jobs else f"{cost.known_jobs} of {cost.jobs} known"
        minutes, seconds = divmod(round(cost.seconds), 60)
        time = f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
        memory = f"{cost.memory_bytes / 1e9:.2f} GB" if cost.memory_bytes else "unknown"
        lines.append(f"| `{cost.target}` | {jobs} | {time} | {memory} |")
    return "\n".join(lines)
