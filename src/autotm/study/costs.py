"""Time and memory of the jobs behind each figure, from the benchmark files that Snakemake writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from autotm.model.config import MODELLED
from autotm.model.errors import BadInputError, DamagedFileError
from autotm.study.inputs import (
    comparison_records,
    device_machines,
    device_records,
    front_records,
    large_files,
    predicted_records,
    rival_records,
)
from autotm.study.setup import CONVENTIONAL, Study

_SEPARATE = ("figures/devices.pdf",)
"""It needs machines of its own, so it is not part of `figures`."""
_OF_WORKLOADS = ("fig7", "fig9", "ilp_times", "price_performance", "cost_performance")
_OF_THE_CASE_STUDY = ("fig10", "fig10a_all_fast", "fig10a_all_slow", "fig10a_synchronous")


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
    of_all = [files for target, files in jobs.items() if target.count("/") == 1 and target not in _SEPARATE]
    jobs["figures"] = list(dict.fromkeys(file for files in of_all for file in files))
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
    steps = _Steps(study, logs)
    records, plans, _ = large_files(study)
    of_large = steps.of_plans(plans) if plans else steps.of_records(records)
    jobs = {} if study.config.scale.endswith(MODELLED) else _jobs_of_runs(study, steps)
    jobs |= dict.fromkeys(("fig8", "fig8_talk"), of_large)
    return {
        f"figures/{name}.pdf": [*dict.fromkeys(files), logs / "figures" / f"{name}.benchmark.tsv"]
        for name, files in jobs.items()
    }


def _jobs_of_runs(study: Study, steps: _Steps) -> dict[str, list[Path]]:
    """Return what is behind the figures of runs, which a modelled scale does not have, without their drawings."""
    jobs: dict[str, list[Path]] = {}
    for workload in study.config.workloads:
        folder = "" if workload == CONVENTIONAL else f"{workload}/"
        with contextlib.suppress(BadInputError):
            records = comparison_records(study, workload)
            jobs |= {f"{folder}{name}": steps.of_records(records) for name in _OF_WORKLOADS}
            jobs[f"{folder}fig7"] = steps.of_records(rival_records(study, workload))
            jobs[f"{folder}fig11"] = steps.of_records(predicted_records(study, workload))
    figures = study.config.figures
    jobs |= dict.fromkeys(_OF_THE_CASE_STUDY, steps.of_records(study.case_study_records(figures.fig10)))
    jobs["front"] = steps.of_records(front_records(study))
    devices = [study.on(machine) for machine in device_machines(study)]
    jobs["devices"] = [file for on in devices for file in _Steps(on, steps.logs).of_records(device_records(on))]
    heap = study.paths(figures.heap.network).plan(figures.heap.optimizer, figures.heap.limit)
    jobs["heap"] = [*steps.of_plans([heap]), steps.in_folder(heap, "compile")]
    jobs["links"] = [steps.calibrate]
    jobs["kernel_plot"] = [steps.calibrate, steps.of_scale / "convolution_profile.benchmark.tsv"]
    timed = steps.of_scale / study.config.timing_study.network
    names = ("kernel_profile", "timing_study")
    jobs["timing_study"] = [steps.calibrate, *(timed / f"{name}.benchmark.tsv" for name in names)]
    return jobs


@dataclass(frozen=True)
class _Steps:
    """The benchmark files that the rules of a study write."""

    study: Study
    logs: Path

    @property
    def calibrate(self) -> Path:
        return self.logs / self.study.machine.slug / "calibrate.benchmark.tsv"

    @property
    def of_scale(self) -> Path:
        return self.logs / self.study.machine.slug / self.study.config.scale

    def in_folder(self, result: Path, rule: str) -> Path:
        """Return that of the job of `rule` that makes a file in a limit's folder."""
        return self.logs / result.relative_to(self.study.results).with_name(f"{rule}.benchmark.tsv")

    def of_records(self, records: Sequence[Path]) -> list[Path]:
        placed = [self.in_folder(record, rule) for record in records for rule in ("ilp_solve", "compile", "run")]
        return [*self._prepared(records), *placed]

    def of_plans(self, plans: Sequence[Path]) -> list[Path]:
        return [*self._prepared(plans), *(self.in_folder(plan, "ilp_solve") for plan in plans)]

    def _prepared(self, results: Sequence[Path]) -> Iterator[Path]:
        """Yield those of jobs before placing: calibration, and the networks' profiles."""
        yield self.calibrate
        for network in dict.fromkeys(result.parts[-4] for result in results):
            scale = self.study.config.scale
            if not scale.endswith(MODELLED):
                yield self.of_scale / network / "kernel_profile.benchmark.tsv"
                continue
            for batch in self.study.config.extrapolate.batches:
                folder = self.of_scale.with_name(f"{scale.removesuffix(MODELLED)}-batch-{batch}")
                yield folder / network / "kernel_profile.benchmark.tsv"
            yield self.of_scale / network / "extrapolate.benchmark.tsv"


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
