"""Placement programs of real networks as files, for people who write solvers: makes benchmarks/instances.

    python benchmarks/instances.py --seconds 60     # writes the files, and README.md with what HiGHS reached in 60 s

Kernel times are modelled (benchmarks/modelled_profile.py). The files are what `autotm solve --write-mps` writes.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import highspy

from autotm.model.limit import Limit
from autotm.solve.options import SolveOptions
from autotm.solve.placing import ProgramSize, export
from modelled_profile import modelled_links, modelled_profile
from zoo_graphs import zoo_graph

FOLDER = Path(__file__).parent / "instances"


@dataclass(frozen=True)
class Instance:
    """One file."""

    network: str
    optimizer: str
    limit: Limit
    tables: bool = False

    @property
    def file(self) -> str:
        """Its name says what it is."""
        return f"{self.network}-{self.optimizer}-{self.limit.slug}{'-tables' if self.tables else ''}.mps.gz"


INSTANCES = (
    Instance("vgg19", "synchronous", Limit(8, 1)),
    Instance("vgg19", "synchronous", Limit(4, 1), tables=True),
    Instance("inception_v4", "static", Limit(4, 1)),
    Instance("inception_v4", "synchronous", Limit(8, 1)),
    Instance("inception_v4", "synchronous", Limit(79, 1)),
    Instance("inception_v4", "synchronous", Limit(4, 1), tables=True),
)

HEAD = """# Placement programs of training steps

Integer programs as `autotm solve --write-mps` writes them, from training steps at the batch sizes of AutoTM's paper
with modelled kernel times; `docs/formulation.md` says what rows and columns mean. All minimise. Written by
`python benchmarks/instances.py --seconds {seconds:g}`: objective and bound are what HiGHS {version} reached on one
thread in that time from the file alone (relative gap 1e-6), in units of the file; `us` is a unit's microseconds of step
time. A file like these from your own network is welcome, and so are better bounds.

| file | columns | rows | nonzeros | us | objective | bound | gap |
|---|---:|---:|---:|---:|---:|---:|---:|
"""


def main() -> None:
    """Write all files and the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="for HiGHS on each file (%(default)s)")
    cache = Path(tempfile.gettempdir()) / "autotm-graphs"
    parser.add_argument("--cache", type=Path, default=cache, help="where lowered steps are kept (%(default)s)")
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    lines = list(_lines(asked.seconds, asked.cache))
    head = HEAD.format(seconds=asked.seconds, version=highspy.Highs().version())
    (FOLDER / "README.md").write_text(head + "\n".join(lines) + "\n", encoding="utf-8")


def _lines(seconds: float, cache: Path) -> Iterator[str]:
    for instance in INSTANCES:
        size = write(instance, cache)
        objective, bound = best_known(FOLDER / instance.file, seconds)
        gap = f"{100 * (objective - bound) / objective:.2g} %" if math.isfinite(objective) else "-"
        yield (
            f"| {instance.file} | {size.columns} | {size.rows} | {size.nonzeros} | {size.us_per_unit:.6g} "
            f"| {objective:.9g} | {bound:.9g} | {gap} |"
        )


def write(instance: Instance, cache: Path) -> ProgramSize:
    """Make the file."""
    graph = zoo_graph(instance.network, "paper", cache)
    profile = modelled_profile(graph, tables=instance.tables)
    path = FOLDER / instance.file
    return export(graph, profile, modelled_links(), instance.optimizer, instance.limit, SolveOptions(), path)


def best_known(path: Path, seconds: float) -> tuple[float, float]:
    """Objective and bound that HiGHS reaches from the file."""
    solver = highspy.Highs()
    for name, value in (("output_flag", False), ("threads", 1), ("time_limit", seconds), ("mip_rel_gap", 1e-6)):
        solver.setOptionValue(name, value)
    solver.readModel(str(path))
    solver.run()
    info = solver.getInfo()
    return info.objective_function_value, info.mip_dual_bound


if __name__ == "__main__":
    main()
