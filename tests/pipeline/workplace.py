"""A copy of the pipeline in a folder of its own, small enough to run in a test."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from command_server import CommandServer, Ended, Signal

from autotm.study.setup import Study, load_study

ROOT = Path(__file__).parents[2]
PARTS = ("Snakefile", "rules", "config", "workflow", "profiles", "envs", "examples")
WATCHED = Path(__file__).parent / "conda" / "watched"
LIMITS = ["1:0", "1:1", "0:1"]
RULES = {
    "calibrate", "kernel_profile", "extrapolate", "ilp_solve", "compile", "run", "save_on_cpu", "timing_study",
    "convolution_profile", "figure_timing_study", "fusion_graph", "fusion_exhaustive", "fusion_search",
}  # fmt: skip
DRAWN = re.compile(r": Drawing figures/(?:\S+/)?(?!timing_study)(\w+)\.pdf: ")
"""What the message of rule `figure` says that it draws."""
TARGET = "figures/fig10.pdf"

STAND_IN = """
# Stands for a stage: writes the outputs at once, and notes when it ran.
LC_ALL=C
started=$EPOCHREALTIME
for output in "${snakemake_output[@]}"; do echo "${snakemake[rule]}" > "$output"; done
echo "${snakemake[rule]} $started $EPOCHREALTIME" >> jobs.txt
"""
LASTS = STAND_IN.replace("\nfor", "\nsleep 0.15 # Time for others that would run beside it.\nfor", 1)
WAITS_FOR_ANOTHER = STAND_IN.replace(
    "\nfor",
    """
mkdir -p begun
touch begun/$$
for _ in {1..6000}; do
    begun=(begun/*)
    [ ${#begun[@]} -gt 1 ] && break
    sleep 0.02
done
for""",
    1,
)


@functools.cache
def server() -> CommandServer:
    """A process that has imported Snakemake; it ends with this one."""
    return CommandServer("snakemake")


@dataclass(frozen=True)
class Workplace:
    """Where a copy of the pipeline lives.

    Attributes:
        folder: where.
        is_forked: Snakemake's own process is a fork of one that has imported it; else one is started, as a user does.
    """

    folder: Path
    is_forked: bool = False

    def copied_to(self, folder: Path) -> Workplace:
        """A copy of it, with its files' times."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return replace(self, folder=folder)

    @property
    def config_file(self) -> Path:
        return self.folder / "config" / "config.yaml"

    @property
    def study(self) -> Study:
        """The study, as commands see it."""
        raw = yaml.safe_load(self.config_file.read_text(encoding="utf-8"))
        return load_study(raw, "config.yaml", self.folder / "config", self.folder / "results")

    def change(self, *keys: str, value: Any) -> None:
        """Set one key of the study's config."""
        self.change_all({keys: value})

    def change_all(self, changes: Mapping[tuple[str, ...], Any]) -> None:
        """Set several keys of the study's config."""
        config = yaml.load(self.config_file.read_text(encoding="utf-8"), yaml.CSafeLoader)
        for keys, value in changes.items():
            place = config
            for key in keys[:-1]:
                place = place[key]
            place[keys[-1]] = value
        self.config_file.write_text(yaml.dump(config, Dumper=yaml.CSafeDumper), encoding="utf-8")

    def set_stand_in(self, stage: str, script: str) -> None:
        """Have another script of Bash stand for a stage."""
        self._script(stage, "sh").write_text(script, encoding="utf-8")

    def set_stage(self, stage: str, script: str) -> None:
        """Have a script of Python in place of a stage, or of what stands for it."""
        self._script(stage, "py").write_text(script, encoding="utf-8")

    def _script(self, stage: str, kind: str) -> Path:
        """Where the rules look for a stage's script, once they want it of that kind."""
        for rules in (self.folder / "rules").glob("*.smk"):
            text = rules.read_text(encoding="utf-8")
            wanted = re.sub(rf"(/scripts/{stage})\.\w+\"", rf'\1.{kind}"', text)
            if wanted != text:
                rules.write_text(wanted, encoding="utf-8")
        return self.folder / "workflow" / "scripts" / f"{stage}.{kind}"

    def snakemake(
        self, *arguments: str, cores: int = 2, env: dict[str, str] | None = None, timeout_s: float = 280
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake here; returns its status and both outputs, merged in `stdout`."""
        if self.is_forked:
            ended = self.forked(*arguments, cores=cores, env=env)
            return subprocess.CompletedProcess(arguments, ended.status, ended.output)
        return subprocess.run(
            [sys.executable, "-m", "snakemake", "--cores", str(cores), *arguments],
            cwd=self.folder,
            env=os.environ | self.environment | (env or {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout_s,
        )

    def forked(
        self, *arguments: str, cores: int = 2, env: dict[str, str] | None = None, signal: Signal | None = None
    ) -> Ended:
        """Run Snakemake in a fork, which may get a signal; what it wrote is in `output`."""
        words, variables = ["--cores", str(cores), *arguments], self.environment | (env or {})
        return server().call(words, self.folder, environment=variables, signal=signal, merged=True)

    @property
    def environment(self) -> dict[str, str]:
        """What Snakemake's process has besides."""
        return {"PYTHONPATH": str(ROOT / "src"), "XDG_CACHE_HOME": str(self.folder / "cache")}

    @property
    def watching(self) -> dict[str, str]:
        """For `env`: jobs tell what autotm imports in them (`watched/sitecustomize.py`), in the folder `imports`."""
        (self.folder / "imports").mkdir(exist_ok=True)
        return {"PYTHONPATH": f"{ROOT / 'src'}:{WATCHED}", "WATCHED_IMPORTS": str(self.folder / "imports")}

    def imports(self) -> dict[str, dict[str, str]]:
        """For each script, the file of each module outside the standard library that it imported, by module name."""
        files_by_script: dict[str, dict[str, str]] = {}
        for path in (self.folder / "imports").glob("*.json"):
            record = json.loads(path.read_text(encoding="utf-8"))
            script = re.sub(r"^tmp\w+\.", "", record["script"])
            ours = {*sys.stdlib_module_names, "autotm", "snakemake"}
            files_by_script.setdefault(script, {}).update({k: v for k, v in record["files"].items() if k not in ours})
        return files_by_script

    def jobs_due(self, *arguments: str, target: str | tuple[str, ...] = TARGET) -> dict[str, int]:
        """How many jobs of each rule a dry run would start; those of rule `figure` by the figure's name."""
        targets = (target,) if isinstance(target, str) else target
        done = self.snakemake(*targets, "--dry-run", *arguments)
        assert done.returncode == 0, done.stdout
        return jobs_in(done.stdout)


def jobs_in(output: str) -> dict[str, int]:
    """How many jobs of each rule a dry run says that it would start; those of rule `figure` by the figure's name."""
    lines = (line.split() for line in output.splitlines())
    by_rule = {w[0]: int(w[1]) for w in lines if len(w) == 2 and w[1].isdigit() and w[0] in RULES}
    return by_rule | Counter(DRAWN.findall(output))


def make_workplace(folder: Path, *, stand_in: bool) -> Workplace:
    """Copy the pipeline to `folder` with a study of the tiny MLP; `stand_in` replaces scripts and forks Snakemake.

    What stands for a script is of Bash, which starts in a hundredth of the time that Python with Snakemake takes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        source = ROOT / part
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, folder / part)
    place = Workplace(folder, is_forked=stand_in)
    if stand_in:
        for script in (folder / "workflow" / "scripts").glob("*.py"):
            script.unlink()
            script.with_suffix(".sh").write_text(STAND_IN, encoding="utf-8")
        for rules in (folder / "rules").glob("*.smk"):
            text = rules.read_text(encoding="utf-8")
            rules.write_text(re.sub(r"(/scripts/\w+)\.py\"", r'\1.sh"', text), encoding="utf-8")
    changes: dict[tuple[str, ...], Any] = {
        ("scale",): "tiny",
        ("profile", "patience_s"): 1.0,
        ("run", "patience_s"): 1.0,
        ("figures", "fig10", "network"): "mlp",
        ("figures", "fig10", "limits"): LIMITS,
    }
    place.change_all(changes)
    return place
