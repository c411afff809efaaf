"""Slow-downs of runs that are timed in turn beside one all-fast step, against those measured one by one.

    python benchmarks/shared_runs.py --scale tiny --network inception_v4 --rounds 5 --before ../older-checkout

In each round every plan is measured both ways, a group of plans right after the other way, the first of the two in
turn: in a process of its own (by the code of another checkout, if given), and with its group in one that measures all
plans, as the pipeline does. A slow-down is the ratio of the medians of a record. Printed are medians over rounds, how
far they differ, how much the rounds scatter, and what a run takes. On a machine with other work only ratios of
neighbours tell something. Needs the programs: they are made first.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, stdev

import yaml

from autotm.model.files import load
from autotm.model.limit import Limit
from autotm.model.record import Record
from autotm.stages.run import RunsStage
from autotm.study.setup import Study, load_study

ROOT = Path(__file__).parents[1]
GROUP = RunsStage.IN_TURN
CHILD = """
import json
import sys
from contextlib import closing
from pathlib import Path
import yaml
from autotm.model.limit import Limit
from autotm.stages.context import Context
from autotm.stages.run import RunsStage
from autotm.study.setup import load_study
scale, network, shared = sys.argv[1:]
config = yaml.safe_load(Path("config/config.yaml").read_text(encoding="utf-8")) | {"scale": scale}
study = load_study(config, "config", Path("config"), Path("results"))
paths, options = study.paths(network), study.scale.of_run(study.config.run)
context = Context(study.machine, Path("config/devices"), study.config.seed)
with closing(RunsStage(context, options, paths)) as runs:
    for line in sys.stdin:
        asked = [(optimizer, Limit.parse(limit), Path(record)) for optimizer, limit, record in json.loads(line)]
        if shared == "shared":
            runs.measure_in_turn([(optimizer, limit) for optimizer, limit, _ in asked])
        for one in asked:
            if shared == "shared":
                runs.run(*one)
            else:
                with closing(RunsStage(context, options, paths)) as alone:
                    alone.run(*one)
        print("measured", flush=True)
"""


@dataclass
class MethodResults:
    """Results of one method of measuring: slow-downs by plan, one a round, and wall-clock seconds of each run."""

    slow_downs: dict[tuple[str, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    wall_s: list[float] = field(default_factory=list)

    def add(self, plan: tuple[str, str], record: Path, wall_s: float) -> None:
        """Add the slow-down of a run and its wall-clock seconds."""
        measured = load(record, "record", Record)
        self.slow_downs[plan].append(median(measured.samples_s) / median(measured.all_fast_samples_s))
        self.wall_s.append(wall_s)

    def at(self, plan: tuple[str, str]) -> float:
        """Return the median over rounds."""
        return median(self.slow_downs[plan])

    @property
    def scatter(self) -> float:
        """Coefficient of variation of a plan's slow-downs over rounds; the median over plans."""
        return median(stdev(slow_downs) / median(slow_downs) for slow_downs in self.slow_downs.values())


def main() -> None:
    """Measure, and print after each round."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", default="tiny")
    parser.add_argument("--network", default="inception_v4")
    parser.add_argument("--optimizers", nargs="+", default=["static", "synchronous"])
    parser.add_argument("--limits", nargs="+", default=["1:0", "39:1", "8:1", "4:1", "1:1", "0:1"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, default=ROOT, help="checkout whose code measures one by one")
    options = parser.parse_args()
    config = yaml.safe_load(Path("config/config.yaml").read_text(encoding="utf-8")) | {"scale": options.scale}
    study = load_study(config, "config/config.yaml", Path("config"), Path("results"))
    plans = [(optimizer, limit) for optimizer in options.optimizers for limit in options.limits]
    make_programs(study, options.network, plans)
    alone, shared = MethodResults(), MethodResults()
    groups = [plans[first : first + GROUP] for first in range(0, len(plans), GROUP)]
    with tempfile.TemporaryDirectory() as folder, measuring(options, ROOT, "shared") as together:
        records = [Path(folder) / f"{number}.json" for number in range(GROUP)]
        for number in range(options.rounds):
            for group in groups:
                for is_shared in (False, True) if number % 2 else (True, False):
                    asked = list(zip(group, records, strict=False))
                    start_s = time.perf_counter()
                    if is_shared:
                        ask(together, asked)
                    else:
                        for one in asked:
                            with measuring(options, options.before, "alone") as child:
                                ask(child, [one])
                    wall_s = (time.perf_counter() - start_s) / len(group)
                    for plan, record in asked:
                        (shared if is_shared else alone).add(plan, record, wall_s)
            report(plans, alone, shared)
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"processor seconds of all: {cpu.ru_utime + cpu.ru_stime:.0f}")


def make_programs(study: Study, network: str, plans: list[tuple[str, str]]) -> None:
    """Make the programs of some plans with Snakemake, as the pipeline does."""
    paths = study.paths(network)
    targets = [str(paths.program(optimizer, Limit.parse(limit))) for optimizer, limit in plans]
    cores = str(os.cpu_count() or 1)
    command = [sys.executable, "-m", "snakemake", "--cores", cores, *targets, "--rerun-triggers", "mtime"]
    subprocess.run([*command, "--config", f"scale={study.config.scale}"], check=True)


@contextmanager
def measuring(options: argparse.Namespace, checkout: Path, method: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that measures the plans it is asked for."""
    command = [sys.executable, "-c", CHILD, options.scale, options.network, method]
    env = os.environ | {"PYTHONPATH": str(checkout / "src")}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as child:
        try:
            yield child
        finally:
            assert child.stdin is not None
            child.stdin.close()


def ask(child: subprocess.Popen[str], asked: list[tuple[tuple[str, str], Path]]) -> None:
    """Have it measure plans, each into a record."""
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(json.dumps([[*plan, str(record)] for plan, record in asked]) + "\n")
    child.stdin.flush()
    if child.stdout.readline().strip() != "measured":
        raise SystemExit(f"{asked}: not measured")


def report(plans: list[tuple[str, str]], alone: MethodResults, shared: MethodResults) -> None:
    """Print the results of all rounds so far."""
    rounds = len(alone.slow_downs[plans[0]])
    print(f"\nafter {rounds} rounds, load {os.getloadavg()[0]:.1f}\n")
    print("| plan | one by one | shared | differs by |\n|---|---|---|---|")
    differs = []
    for plan in plans:
        by = shared.at(plan) / alone.at(plan) - 1
        differs.append(by)
        print(f"| {' '.join(plan)} | {alone.at(plan):.4f} | {shared.at(plan):.4f} | {by:+.2%} |")
    print(f"\nmedian difference {median(differs):+.2%}, worst {max(differs, key=abs):+.2%}")
    if rounds > 1:
        print(f"scatter over rounds: {alone.scatter:.2%} one by one, {shared.scatter:.2%} shared")
    print(f"a run takes {median(alone.wall_s):.1f} s one by one, {median(shared.wall_s):.1f} s shared", flush=True)


if __name__ == "__main__":
    main()
