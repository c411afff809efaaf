"""A pipeline of a hundred jobs starts a hundred processes: each imports what its job needs, and no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotm.model.profile import Profile, Timing, write_profile

HEAVY = {"tvm", "pyomo", "pyomo.environ", "highspy", "pandas", "matplotlib", "seaborn"}
JOBS = {
    "run": ("autotm.runtime.run", set()),
    "compile": ("autotm.layout.compile, autotm.layout.packing", set()),
    "ilp_solve": ("autotm.solve.placing", {"pyomo", "highspy"}),
    "sweep": ("autotm.study.sweep", {"pandas"}),
    "figure": ("autotm.study.figures.figures", {"pandas", "matplotlib", "seaborn"}),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_imports_what_it_needs(job: str) -> None:
    module, wanted = JOBS[job]
    program = f"import sys, autotm.stages.jobs, {module}; print(*({HEAVY} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == wanted


def test_a_profile_is_read_without_pandas(tmp_path: Path) -> None:
    file = tmp_path / "profile.parquet"
    profile = Profile("hash", {("kernel", "default", "DP"): Timing(1, 2, 1, 3, 7)}, {"tier_reality": "real"})
    write_profile(file, profile)
    program = f"""
import sys
from pathlib import Path
from autotm.model.profile import read_profile
print(len(read_profile(Path({str(file)!r})).timings), "pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]
