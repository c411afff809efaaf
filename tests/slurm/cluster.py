"""A study over two kinds of nodes, whose jobs go to the Slurm that `run.sh` started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import small_step
import yaml
from workplace import ROOT, Workplace, make_workplace

from autotm.study.setup import machine_named

NODES = {
    "dram": {"partition": "small", "cpus": 2},
    "cxl": {"partition": "big", "constraint": "cxl", "gres": "gpu:1", "cpus": 2},
}
"""The kinds of nodes, with one kernel thread each: the two share this computer's cores."""
OWN_NETWORKS = '''
import pathlib
import time
import autotm


def small(batch, width):
    net = autotm.NetworkBuilder("small", batch, learning_rate=0.01)
    return net.softmax_cross_entropy(net.dense(net.input("data", (batch, width), autotm.Initial("normal")), 10))


def broken(batch, width):
    raise ValueError("this network was never finished")


def hungry(batch, width):
    """Takes more memory than a job gets the first time, until Slurm has seen it."""
    is_first = not pathlib.Path("hungry").exists()
    pathlib.Path("hungry").touch()
    block = bytearray(b"x") * 2_200_000_000
    while is_first:
        time.sleep(0.1)
    return small(batch, len(block) // 2_200_000_000 * width)


def waiting(batch, width):
    """Its profile is not done before there is a file named go."""
    while not pathlib.Path("go").exists():
        time.sleep(0.1)
    return small(batch, width)
'''


@dataclass(frozen=True)
class Call:
    """A call of Snakemake, and where it writes."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8")

    def status(self, within_s: float) -> int:
        """How it ended; killed with its jobs where that takes too long."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            subprocess.run(["scancel", "--user", "root"], check=False)
            raise AssertionError(f"not done after {within_s} s: {self.said}") from None

    def until(self, happens: Callable[[], bool], within_s: float = 300.0) -> None:
        """Wait for something while it runs."""
        deadline = time.monotonic() + within_s
        while not happens():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.2)

    def interrupt(self) -> None:
        """What Ctrl-C does."""
        os.killpg(self.process.pid, signal.SIGINT)


@dataclass(frozen=True)
class Cluster:
    """A workplace whose jobs go to Slurm."""

    place: Workplace

    @property
    def folder(self) -> Path:
        return self.place.folder

    def start(self, *targets: str) -> Call:
        """Start Snakemake as a user would, but that it asks Slurm often and without a database."""
        options = [
            "--workflow-profile", "profiles/slurm", "--latency-wait", "5", "--seconds-between-status-checks", "2",
            "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "2",
            "--default-resources", "slurm_partition=big", "slurm_account=lab",
        ]  # fmt: skip
        log = self.folder / f"snakemake-{time.monotonic_ns()}.txt"
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                # A shell's background jobs ignore Ctrl-C, and so would what they start.
                ["env", "--default-signal=INT", sys.executable, "-m", "snakemake", *targets, *options],
                cwd=self.folder,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Call(process, log)

    def autotm_in_job(self, *srun: str, command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of autotm in a job that `srun` makes."""
        return subprocess.run(
            ["srun", "--mem=1500", *srun, sys.executable, "-m", "autotm", *command.split()],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(self.folder / "cache")}


def make_cluster(folder: Path) -> Cluster:
    """A study of which nothing was made, in a folder that all nodes see."""
    place = make_workplace(folder, stand_in=False)
    (place.folder / "own.py").write_text(OWN_NETWORKS, encoding="utf-8")
    own = {"file": "own.py", "sizes": {"batch": 16, "width": 256}}
    names = ("small", "broken", "hungry", "waiting")
    place.change("own_networks", value={name: own | {"function": name} for name in names})
    place.change("figures", "heap", value={"network": "mlp", "optimizer": "synchronous", "limit": "1:1"})
    place.change("run", "min_seconds", value=0.5)
    scale = place.folder / "config" / "scales" / "tiny.yaml"
    sizes = yaml.safe_load(scale.read_text(encoding="utf-8")) | {"memory_mb": 1800}
    scale.write_text(yaml.safe_dump(sizes), encoding="utf-8")
    for name, slurm in {**NODES, "shared": {"partition": "small", "shared": True}}.items():
        tier = {"kind": "emulated", "device": "optane-dcpmm", "share": "whole"}
        machine = {"description": f"{name} node", "threads": 1, "slow_tier": tier, "slurm": slurm}
        file = place.folder / "config" / "machines" / f"{name}.yaml"
        file.write_text(yaml.safe_dump(machine), encoding="utf-8")
    # Copies are timed on one kind of node: those of the other are made up.
    small_step.write_links(folder / "results", machine_named(folder / "config", "dram", 1))
    return Cluster(place)
