"""Figure 10 through Snakemake with a real second memory, a node and DAX, as a user makes it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from workplace import Workplace, make_workplace

from autotm.memory.calibration import Effort, calibrate_links
from autotm.model.cores import Watch
from autotm.model.files import load_with_provenance, save
from autotm.model.graph import OpClass
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.study.setup import machine_named

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]  # run.sh limits all together
LIMITS = ["1:1", "0:1"]
MACHINES = ("node", "dax")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, dax_folder: Path) -> Workplace:
    """A study of a small network, on machines whose slow memory is a node, a folder, and one that is not there."""
    workplace = make_workplace(tmp_path_factory.mktemp("study") / "place", stand_in=False)
    for key, value in {"limits": LIMITS, "optimizers": ["synchronous"]}.items():
        workplace.change("figures", "fig10", key, value=value)
    workplace.change("counts", value="all")
    workplace.change("profile", "implementations", value="default")
    workplace.change("run", "min_seconds", value=0.5)
    tiers = {
        "node": {"kind": "numa", "fast_nodes": [0], "slow_nodes": [1]},
        "dax": {"kind": "dax", "path": str(dax_folder), "fast_nodes": [0]},
        "absent": {"kind": "numa", "fast_nodes": [0], "slow_nodes": [5]},
    }
    for name, tier in tiers.items():
        text = yaml.safe_dump({"description": "The guest.", "threads": 1, "slow_tier": tier})
        (workplace.folder / "config" / "machines" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return workplace


def measure_links(place: Workplace, name: str) -> None:
    """Copies of two sizes, timed once: the convolutions of `calibrate` alone take the guest minutes."""
    machine = machine_named(place.folder / "config", name, 1)
    numbers = np.ones(1 << 14)
    busy = dict.fromkeys(OpClass, numbers.sum)
    watch = Watch(machine.cpus, 1.0)
    links = calibrate_links(machine, place.folder / "config/devices", 1e9, busy, watch, (4096, 1 << 20), Effort(1, 1))
    path = place.folder / "results" / machine.slug / "links.json"
    path.parent.mkdir(parents=True)
    save(path, "links", links, provenance(machine, 20))


def test_a_node_that_is_not_there_ends_a_command(place: Workplace) -> None:
    command = [sys.executable, "-m", "autotm", "calibrate", "--machine", "absent"]
    done = subprocess.run(command, cwd=place.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "config/machines/absent.yaml: slow_tier.slow_nodes: node 5 does not exist on this machine" in done.stderr


def test_figure_10_builds_with_both(place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    for machine in MACHINES:
        measure_links(place, machine)
    figures = [f"figures/{machine}-1t/fig10.pdf" for machine in MACHINES]
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *figures]
    with Path("/mnt/out/study.log").open("w") as log:  # of which run.sh shows the end, if the guest ends within it
        done = subprocess.run(command, cwd=place.folder, stdout=log, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, Path(log.name).read_text(encoding="utf-8")
    for figure in figures:
        assert (place.folder / figure).read_bytes().startswith(b"%PDF")
    for machine in MACHINES:
        for limit in LIMITS:
            folder = place.folder / "results" / f"{machine}-1t" / "tiny" / "mlp" / "synchronous"
            path = folder / limit.replace(":", "to") / "record.json"
            record, came_from = load_with_provenance(path, "record", Record)
            assert (record.tier_reality, record.verified_steps) == ("real", 2)
            assert came_from["slow_memory"]["kind"] == {"node": "numa", "dax": "dax"}[machine]
            with capsys.disabled():
                print(f" {machine} {limit}: pages {json.dumps(record.pages_by_node)}, {record.pmem_alloc_size} B slow")
            assert set(record.pages_by_node["dram"]) == {"0"}
            assert set(record.pages_by_node.get("pmem", {})) == ({"1"} if machine == "node" else set())
