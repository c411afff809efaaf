"""The examples of docs/extending.md: written and applied to a copy of the project as the page says, then used."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PARTS = ("src", "config", "examples", "Snakefile", "rules", "workflow", "profiles", "envs", "pyproject.toml")
BLOCK = re.compile(r'^```(\w+) title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def applied(before: str, diff: str) -> str:
    """A text after a change; each hunk must fit at exactly one place."""
    for hunk in diff.split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        old = "".join(line[1:] for line in lines if line[0] in " -")
        new = "".join(line[1:] for line in lines if line[0] in " +")
        assert before.count(old) == 1, f"fits {before.count(old)} times:\n{old}"
        before = before.replace(old, new)
    return before


PROGRAMS = {
    "network": """
import sys
from pathlib import Path
sys.path.insert(0, "examples")
from recommender import towers
import plain_steps
from autotm.model.files import read_yaml
from autotm.study.setup import load_study
config = Path("config/config.yaml")
study = load_study(read_yaml(config, "study"), config, config.parent, Path("results"))
assert study.network("towers").sizes == {"batch": 64}
compiled = plain_steps.compiled(towers(8, rows=50), Path("towers"))
assert all(0 < step["loss"] < 2 for step in compiled.run(2).after)
""",
    "device and kind": """
from pathlib import Path
from autotm.memory.opening import open_tiers
from autotm.model.machine import load_machine
from autotm.model.graph import OpClass, Tier
file, devices = Path("config/machines/made-up.yaml"), Path("config/devices")
def delay_ns(kind):
    text = file.read_text().replace("kind: emulated,", f"kind: {kind},")
    Path("config/machines/other.yaml").write_text(text)
    with open_tiers(load_machine(Path("config/machines/other.yaml"), 1), None, 4096, 4096, devices) as tiers:
        assert tiers.asynchronous_move_ns(Tier.FAST, 5_000_000) == 1_000_000
        return tiers.kernel_delay_ns(OpClass.MATMUL, (1_000_000,), (1_000_000,))
assert delay_ns("emulated") == 150_000
assert delay_ns("emulated_far") == 154_000
""",
    "optimizer": """
from random_graphs import training_step_case
from autotm.check.plan import check_plan
from autotm.model.limit import Limit
from autotm.solve.placing import solve
case = training_step_case(layers=4, branches=3)
def plan(optimizer, limit):
    solved = solve(case.graph, case.profile, case.links, optimizer, Limit.parse(limit))
    check_plan(case.graph, case.profile, case.links, solved)
    return solved
densest = plan("densest-first", "2:1")
assert plan("static", "2:1").bound_us <= densest.objective_us < plan("all-slow", "1:0").objective_us
assert plan("densest-first", "0:1").objective_us == plan("all-fast", "0:1").objective_us
from autotm.model.config import StyleConfig
from autotm.stages.solve import program_of
from autotm.study.sweep import SweepPoint, SweepResult, sweep_table
points = [SweepPoint(each, program_of(case.graph, each)) for each in (densest, plan("densest-first", "0:1"))]
source = {"machine": "m-1t", "threads": 1, "cpu_model": "", "seed": 1, "tier_reality": "emulated"}
table = sweep_table(case.graph, case.profile, "densest-first", points, [], source)
SweepResult(table, tuple(points)).plot("sweep.pdf", StyleConfig(dots_per_inch=60))
""",
    "update rule": """
import numpy as np, plain_steps
from pathlib import Path
from tvm import relax
from autotm.model.training import SignSgd
from autotm.model.training import Training
def half_square(b, x, w):
    y = b.emit(relax.op.matmul(x, w))
    return b.emit(relax.op.sum(b.emit(relax.op.multiply(y, y))))
network = plain_steps.network(half_square, {"x": (4, 6)}, {"w": (6, 5)}, None, Training(SignSgd(0.125)))
steps = plain_steps.compiled(network, Path("sign")).run(1)
x, w = steps.start["x"], steps.start["w"]
np.testing.assert_array_equal(steps.after[0]["w"], w - np.float32(0.125) * np.sign(x.T @ (x @ w)))
""",
    "figure": """
from pathlib import Path
from synthetic_records import write_study
from autotm.model.config import StyleConfig
from autotm.stages.figures import figure_stage
figure_stage(StyleConfig(dots_per_inch=60), {"records": write_study(Path("records"))}, csv=Path("gaps.csv"))
assert Path("gaps.pdf").stat().st_size > 1000 and Path("gaps.png").stat().st_size > 1000
""",
    "target": """
from snakemake.cli import main
try:
    main(["--cores", "8", "figures/gaps.pdf", "--dry-run", "--quiet"])
except SystemExit as ended:
    assert not ended.code
""",
    "style": """
import subprocess, sys
for command in ("check", "format --check"):
    ruff = [sys.executable, "-m", "ruff", *command.split(), "--quiet", "src", "examples"]
    done = subprocess.run(ruff, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
""",
}
IN_TURN = """
import json, sys, traceback
from pathlib import Path
programs = json.loads(Path("programs.json").read_text())
failures = {}
for name, program in programs.items():
    try:
        exec(program, {"__name__": "__main__"})
    except BaseException:
        failures[name] = traceback.format_exc()
Path("failures.json").write_text(json.dumps(failures))
"""


@pytest.fixture(scope="module")
def failures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong in which program, in the project with everything that the page adds in place of this one.

    All run in one process, since most of the time they import.
    """
    folder = tmp_path_factory.mktemp("extended")
    for part in PARTS:
        copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
        copy(ROOT / part, folder / part)
    for language, name, text in BLOCK.findall((ROOT / "docs" / "extending.md").read_text(encoding="utf-8")):
        path = folder / name
        assert path.exists() == (language == "diff"), f"{name}: new files are shown whole, changes as a diff"
        path.write_text(applied(path.read_text("utf-8"), text) if language == "diff" else text, encoding="utf-8")
    (folder / "programs.json").write_text(json.dumps(PROGRAMS), encoding="utf-8")
    paths = os.pathsep.join(map(str, (folder / "src", ROOT / "tests" / "helpers")))
    environment = os.environ | {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", IN_TURN], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    failed: dict[str, str] = json.loads((folder / "failures.json").read_text(encoding="utf-8"))
    return failed


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_example_does_what_the_page_says(failures: dict[str, str], name: str) -> None:
    assert name not in failures, failures[name]
