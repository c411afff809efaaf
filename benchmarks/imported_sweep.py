"""How long `autotm sweep` of an imported module takes, from nothing: import, compile, profile, a plan for each limit.

    python benchmarks/imported_sweep.py NAMES ... [--optimizer synchronous]

Of models of `imported_models.py`, with the command as a user calls it, each with empty results. Needs PyTorch,
torchvision, transformers (requirements/torch.txt).
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import yaml

import imported_models

BENCHMARKS = Path(__file__).resolve().parent
CONFIG = BENCHMARKS.parent / "config"


def network(batch: int) -> dict[str, Any]:
    """Return the arguments of `from_torch` for the model that the environment names; `own_networks` calls this."""
    case = imported_models.build(os.environ["AUTOTM_MODEL"])
    if batch != imported_models.BATCH:
        raise ValueError(f"batch {batch}: the models of this folder have {imported_models.BATCH} samples")
    return {"module": case.module, "inputs": case.inputs, "targets": case.targets, "loss": case.loss}


def _sweep(name: str, optimizer: str) -> tuple[int, float]:
    """Plans that were found, and seconds."""
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        study = yaml.safe_load((CONFIG / "config.yaml").read_text(encoding="utf-8"))
        study["own_networks"] = {
            "imported": {"torch": "imported_sweep:network", "sizes": {"batch": imported_models.BATCH}}
        }
        config = Path(folder) / "config"
        config.mkdir()
        for part in ("scales", "machines", "devices"):
            (config / part).symlink_to(CONFIG / part)
        (config / "config.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
        command = [sys.executable, "-m", "autotm", "sweep", "--config", str(config / "config.yaml")]
        command += ["--results", f"{folder}/results", "--folder", folder, "imported", optimizer]
        path = os.pathsep.join(filter(None, [str(BENCHMARKS), os.environ.get("PYTHONPATH")]))
        begun = perf_counter()
        subprocess.run(command, check=True, env=os.environ | {"AUTOTM_MODEL": name, "PYTHONPATH": path}, cwd=folder)
        seconds = perf_counter() - begun
        with (Path(folder) / "sweep.csv").open(encoding="utf-8") as table:
            return sum(1 for _ in csv.DictReader(table)), seconds


def main() -> None:
    """Sweep each and print its time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", metavar="NAMES", help="models")
    parser.add_argument("--optimizer", default="synchronous")
    options = parser.parse_args()
    rows = [(name, *_sweep(name, options.optimizer)) for name in options.names]
    print(f"{'model':<24} {'limits':>6} {'s':>6}")
    for name, limits, seconds in rows:
        print(f"{name:<24} {limits:>6d} {seconds:>6.0f}")


if __name__ == "__main__":
    main()
