"""What each figure costs: time and memory of the jobs behind it, from the benchmark files that Snakemake writes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

_APART = ("figures/devices.pdf",)
"""On machines of its own, so not part of `figures`."""
_OF_WORKLOADS = ("fig7", "fig9", "ilp_times", "price_performance", "cost_performance")
_OF_THE_CASE_STUDY = ("fig10", "fig10a_all_fast", "fig10a_all_slow", "fig10a_synchronous")
_BYTES_PER_MIB = 1 << 20


@dataclass(frozen=True)
class Cost:
    """What the jobs behind a target took.

    Attributes:
        target: e.g. `figures/fig7.pdf`.
        jobs: how many there are; known_jobs: of how many a benchmark file is there.
        seconds: sum over these. Jobs that ran side by side (placements, drawings) each count in full.
        memory_bytes: the largest resident memory of one of them; 0 where none is known.
    """

    target: str
    jobs: int
    known_jobs: int
    seconds: float
    memory_bytes: int


def costs(study: Study, logs: Path) -> list[Cost]:
    """The cost of every figure if it alone were built from nothing, and of `figures`, which has no folders, jobs once.

    Raises:
        BadInputError: the scale has no sizes for a network of a figure.
        DamagedFileError: a benchmark file under `logs` holds no time.
    """
    jobs = figure_jobs(study, logs)
    jobs["figures"] = [*dict.fromkeys(file for target, files in jobs.items() if _is_of_all(target) for file in files)]
    measured = {file: _measured(file) for files in jobs.values() for file in files if file.exists()}
    return [_cost(target, files, measured) for target, files in jobs.items()]


def _is_of_all(target: str) -> bool:
    return len(Path(target).parts) == len(("figures", "name")) and target not in _APART


def figure_jobs(study: Study, logs: Path) -> dict[str, list[Path]]:
    """The benchmark files of the jobs behind each figure, its own drawing last.

    Workloads that their figures cannot be drawn of (a scale without sizes, no ends to compare with) are left out.
    """
    steps = _Steps(study, logs)
    records, plans, _ = large_files(study)
    of_large = steps.of_plans(plans) if plans else steps.of_records(records)
    found = {} if study.config.scale.endswith(MODELLED) else _jobs_of_runs(study, steps)
    found |= dict.fromkeys(("fig8", "fig8_talk"), of_large)
    return {
        f"figures/{name}.pdf": [*dict.fromkeys(files), logs / "figures" / f"{name}.benchmark.tsv"]
        for name, files in found.items()
    }


def _jobs_of_runs(study: Study, steps: _Steps) -> dict[str, list[Path]]:
    """What is behind the figures that a modelled scale does not have, without their drawings."""
    found: dict[str, list[Path]] = {}
    for workload in study.config.workloads:
        folder = "" if workload == CONVENTIONAL else f"{workload}/"
        with contextlib.suppress(BadInputError):
            records = comparison_records(study, folder)
            found |= {f"{folder}{name}": steps.of_records(records) for name in _OF_WORKLOADS}
            found[f"{folder}fig7"] = steps.of_records(rival_records(study, folder))
            found[f"{folder}fig11"] = steps.of_records(predicted_records(study, folder))
    figures = study.config.figures
    found |= dict.fromkeys(_OF_THE_CASE_STUDY, steps.of_records(study.case_study_records(figures.fig10)))
    found["front"] = steps.of_records(front_records(study))
    found["devices"] = [
        file for machine in device_machines(study) for file in _of_devices(study.on(machine), steps.logs)
    ]
    heap = study.paths(figures.heap.network).plan(figures.heap.optimizer, figures.heap.limit)
    found["heap"] = [*steps.of_plans([heap]), steps.beside(heap, "compile")]
    found["links"] = [steps.calibrate]
    found["kernel_plot"] = [steps.calibrate, steps.of_scale / "convolution_profile.benchmark.tsv"]
    timed = steps.of_scale / study.config.timing_study.network
    names = ("kernel_profile", "timing_study")
    found["timing_study"] = [steps.calibrate, *(timed / f"{name}.benchmark.tsv" for name in names)]
    return found


def _of_devices(study: Study, logs: Path) -> list[Path]:
    """What is behind the figure of devices on one of its machines."""
    return _Steps(study, logs).of_records(device_records(study))


def table_of_costs(found: Iterable[Cost]) -> str:
    """The costs as rows of a Markdown table, and how many jobs have left no benchmark file."""
    rows = [f"| `{one.target}` | {_jobs_text(one)} | {_time_text(one)} | {_memory_text(one)} |" for one in found]
    return "\n".join(["| target | jobs | time of its jobs | memory of the largest |", "|---|---|---|---|", *rows])


@dataclass(frozen=True)
class _Steps:
    """Where the rules of a study leave their benchmark files."""

    study: Study
    logs: Path

    @property
    def calibrate(self) -> Path:
        return self.logs / self.study.machine.slug / "calibrate.benchmark.tsv"

    @property
    def of_scale(self) -> Path:
        return self.logs / self.study.machine.slug / self.study.config.scale

    def beside(self, result: Path, rule: str) -> Path:
        """Of the job that makes a file in a limit's folder."""
        return self.logs / result.relative_to(self.study.results).with_name(f"{rule}.benchmark.tsv")

    def of_records(self, records: Sequence[Path]) -> list[Path]:
        placed = [self.beside(record, rule) for record in records for rule in ("ilp_solve", "compile", "run")]
        return [*self._prepared(records), *placed]

    def of_plans(self, plans: Sequence[Path]) -> list[Path]:
        return [*self._prepared(plans), *(self.beside(plan, "ilp_solve") for plan in plans)]

    def _prepared(self, results: Sequence[Path]) -> Iterator[Path]:
        """What comes before placing: calibration, and the networks' profiles."""
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


@dataclass(frozen=True)
class _Measured:
    seconds: float
    memory_bytes: int


def _measured(file: Path) -> _Measured:
    """One job, as Snakemake measured it; memory is unknown (0) where it ended before the first look at it."""
    try:
        row = pd.read_csv(file, sep="\t", na_values=["-"]).iloc[-1]
        seconds, mib = float(row["s"]), float(row["max_rss"])
    except (KeyError, IndexError, ValueError) as error:
        raise DamagedFileError(f"{file}: not a benchmark of Snakemake ({error}); remove it") from None
    return _Measured(seconds, 0 if pd.isna(mib) else round(mib * _BYTES_PER_MIB))


def _cost(target: str, files: Sequence[Path], measured: Mapping[Path, _Measured]) -> Cost:
    known = [measured[file] for file in files if file in measured]
    memory = max((one.memory_bytes for one in known), default=0)
    return Cost(target, len(files), len(known), sum(one.seconds for one in known), memory)


def _jobs_text(cost: Cost) -> str:
    return str(cost.jobs) if cost.known_jobs == cost.jobs else f"{cost.known_jobs} of {cost.jobs} known"


def _time_text(cost: Cost) -> str:
    minutes, seconds = divmod(round(cost.seconds), 60)
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"


def _memory_text(cost: Cost) -> str:
    return f"{cost.memory_bytes / 1e9:.2f} GB" if cost.memory_bytes else "unknown"
