"""`snakemake --sdm conda` as Snakemake does it: environments from envs/*.yaml, and each job in its own.

In place of conda stands py-rattler (conda/conda.py), in place of conda-forge a channel with Python and pip
(conda/channel.py); the pins come from PyPI, as they do for a user. `make test-conda` installs what this needs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from workplace import ROOT, TARGET, WATCHED, Workplace, make_workplace

RATTLER = os.environ.get("AUTOTM_TEST_RATTLER")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ENVS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (ROOT / "envs").glob("*.yaml")}
LIMIT_S = 1500
"""Seconds after which a call counts as hanging: beside other work on few cores, a call may take ten minutes."""
USING_CONDA = ("--sdm", "conda", "--config", "threads=1")

pytestmark = [
    pytest.mark.skipif(RATTLER is None, reason="takes minutes, and a Python with py-rattler: make test-conda"),
    pytest.mark.skipif(
        f"python={PYTHON}" not in ENVS["figures"]["dependencies"],
        reason=f"environments have another Python than this one ({PYTHON}), and the channel has no other",
    ),
    pytest.mark.timeout(2 * LIMIT_S + 100),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A study with the path that has this `conda` first."""
    place = make_workplace(tmp_path_factory.mktemp("conda") / "place", stand_in=False)
    place.change("run", value={"min_seconds": 0.2})
    place.change("figures", "fig10", "limits", value=["1:1", "0:1"])
    place.change("figures", "fig10", "optimizers", value=["static"])
    channel = Path(__file__).parent / "conda" / "channel.py"
    subprocess.run([RATTLER, channel, place.folder / "installation", "conda-forge", sys.executable], check=True)
    return place


def on_path(place: Workplace) -> dict[str, str]:
    """What finds this `conda`, and uv; packages are compiled by the first job that imports them, for all of them."""
    folders = (place.folder / "installation" / "bin", Path(sys.prefix) / "bootstrap" / "bin", os.environ["PATH"])
    return {"PATH": ":".join(map(str, folders)), "PIP_NO_COMPILE": "1", "PYTHONDONTWRITEBYTECODE": ""}


@pytest.fixture(scope="module")
def environments(place: Workplace) -> dict[str, Path]:
    """Every environment, by name."""
    asked = (TARGET, *USING_CONDA, "--conda-create-envs-only")
    done = place.snakemake(*asked, env=on_path(place), timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout
    return {
        path.stem: place.folder / prefix
        for path, prefix in (
            (Path(file), prefix)
            for file, prefix in re.findall(r"Environment for (\S+) created \(location: (\S+)\)", done.stdout)
        )
    }


def test_each_environment_holds_its_pins_and_nothing_else(environments: dict[str, Path]) -> None:
    assert set(environments) == set(ENVS)
    for name, prefix in environments.items():
        listed = subprocess.run(
            [prefix / "bin" / "python", "-m", "pip", "list", "--format", "json", "--exclude", "pip"],
            capture_output=True, check=True,
        ).stdout  # fmt: skip
        installed = {f"{one['name'].lower().replace('_', '-')}=={one['version']}" for one in json.loads(listed)}
        (pins,) = (entry["pip"] for entry in ENVS[name]["dependencies"] if isinstance(entry, dict))
        assert installed == set(pins), name


def test_jobs_run_in_their_environments(place: Workplace, environments: dict[str, Path]) -> None:
    """Snakemake puts its own packages behind those of the environment; autotm may import nothing from there."""
    for prefix in environments.values():  # Snakemake takes PYTHONPATH from them
        shutil.copy(WATCHED / "sitecustomize.py", prefix / "lib" / f"python{PYTHON}" / "site-packages")
    watching = {"WATCHED_IMPORTS": place.watching["WATCHED_IMPORTS"]}
    done = place.snakemake(TARGET, *USING_CONDA, env=on_path(place) | watching, timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stdout
    imported = place.imports()
    assert set(imported) >= {
        "calibrate.py", "kernel_profile.py", "ilp_solve.py", "compile.py", "run.py", "figure.py",
    }  # fmt: skip
    prefixes = tuple(str(prefix.resolve()) for prefix in environments.values())
    strangers = {
        (script, file)
        for script, files in imported.items()
        for file in files.values()
        if not str(Path(file).resolve()).startswith(prefixes)
    }
    assert not strangers
