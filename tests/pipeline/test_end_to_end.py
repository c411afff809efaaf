"""The real pipeline, from measured links to figure 10 of a tiny network; killed on the way, as a laptop may be.

How fast this machine copies is made up, as measuring that takes half a minute; `calibrate` runs for a modelled machine.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import packages_distributions
from typing import Any

import pytest
import small_step
import yaml
from PIL import Image
from workplace import ROOT, TARGET, Workplace, make_workplace

from autotm.model.files import load, save, schema_version
from autotm.model.machine import load_machine
from autotm.model.provenance import provenance
from autotm.model.record import Record
from autotm.study.tables import read_table

pytestmark = pytest.mark.timeout(600)

LIMITS = ["1:1", "0:1"]
MODELLED = "results/modelled-rtx-2080-ti-1t/links.json"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """Snakemake's own process is started as a user does, and killed; what follows are forks."""
    place = make_workplace(tmp_path_factory.mktemp("end to end") / "pläce", stand_in=False)
    place.change("threads", value=1)
    place.change("run", "min_seconds", value=0.2)
    place.change("figures", "fig10", "limits", value=LIMITS)
    place.change("figures", "fig10", "optimizers", value=["synchronous"])
    machine = load_machine(place.folder / "config" / "machines" / "laptop.yaml", 1)
    save(place.folder / "results" / "laptop-1t" / "links.json", "links", small_step.links(), provenance(machine, 20))
    _kill_when(place, "*/tiny/mlp/synchronous/*/record.json")
    place = replace(place, is_forked=True)
    unlocked = place.snakemake("--unlock")
    assert unlocked.returncode == 0, unlocked.stdout
    done = place.snakemake(TARGET, MODELLED, env=place.watching)
    assert done.returncode == 0, done.stdout
    return place


def test_the_figure_has_its_points(place: Workplace) -> None:
    table = read_table(place.folder / "figures" / "fig10.csv")
    assert sorted(zip(table["optimizer"], table["limit"], strict=True)) == sorted(
        ("synchronous", limit) for limit in LIMITS
    )
    assert (place.folder / "figures" / "fig10.pdf").read_bytes().startswith(b"%PDF")
    assert set(table["tier_reality"]) == {"emulated"}
    assert (table["verified_steps"] == 2).all()
    assert table.sort_values("dram_limit_bytes")["predicted_runtime_s"].is_monotonic_decreasing


def test_limits_are_kept_and_io_is_counted(place: Workplace) -> None:
    for path in place.folder.glob("results/*/tiny/mlp/*/*/record.json"):
        record = load(path, "record", Record)
        if record.limit != "0:1":
            assert record.dram_alloc_size <= record.dram_limit_bytes
        assert record.limit != "0:1" or record.bytes_dram_output_tensors / record.bytes_output_tensors == 1.0


def test_every_file_says_where_it_comes_from(place: Workplace) -> None:
    files = [path for path in place.folder.glob("results/**/*.json") if path.parent.name != "objects"]
    assert len(files) >= 3 + 3 * len(LIMITS)
    for path in files:
        document = json.loads(path.read_text(encoding="utf-8"))
        assert document["schema_version"] == schema_version(document["kind"])
        reality = "modelled" if path == place.folder / MODELLED else "emulated"
        assert document["provenance"]["tier_reality"] == reality
        assert document["provenance"]["versions"]["apache-tvm"] == "0.27.0.post1"


def test_jobs_import_what_their_environment_holds(place: Workplace) -> None:
    """Here all packages are installed, and under `--sdm conda` Snakemake's own are in reach of every job."""
    rules = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "rules").glob("*.smk"))
    pairs = re.findall(r"envs/(\w+)\.yaml\"(?:(?!envs/).)*?scripts/(\w+\.py)\"", rules, re.DOTALL)
    envs = {script: env for env, script in pairs}
    imported = place.imports()
    assert {"calibrate.py", "ilp_solve.py", "run.py", "figure.py"} <= set(imported)
    for script, files in imported.items():
        env = yaml.safe_load((ROOT / "envs" / f"{envs[script]}.yaml").read_text(encoding="utf-8"))
        held = {pin.split("==")[0] for entry in env["dependencies"] if isinstance(entry, dict) for pin in entry["pip"]}
        names = packages_distributions()
        lacking = {name for name in files if not {one.lower().replace("_", "-") for one in names[name]} & held}
        assert not lacking, f"{script}: envs/{envs[script]}.yaml lacks {sorted(lacking)}"


def test_a_report_shows_it_all(place: Workplace) -> None:
    """Figures with captions and tables, runs with provenance and logs, the machine: in one page that loads nothing."""
    lost = next(place.folder.glob("logs/*/tiny/mlp/synchronous/1to1/compile.log"))
    lost.unlink()
    unreachable = "http://127.0.0.1:9"
    done = place.snakemake(
        TARGET, MODELLED, "--report", "report.html", env={"http_proxy": unreachable, "https_proxy": unreachable}
    )
    assert done.returncode == 0, done.stdout
    page = (place.folder / "report.html").read_text(encoding="utf-8")
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=.?http", page)
    shown = embedded(page, "results")
    for name, kind in (("fig10.png", "picture"), ("fig10.csv", "table")):
        entry = shown[f"figures/{name}"]
        assert entry["labels"] == {"name": "fig10", "file": kind}
        content = base64.b64decode(entry["data_uri"].partition("base64,")[2])
        assert content == (place.folder / "figures" / name).read_bytes()
    with Image.open(place.folder / "figures" / "fig10.png") as picture:
        assert " ".join(picture.info["Description"].split()) in plain(shown["figures/fig10.png"]["caption"])
    records = sorted(place.folder.glob("results/*/tiny/mlp/*/*/record.json"))
    assert len(records) == len(LIMITS)
    for record in records:
        path = str(record.relative_to(place.folder))
        caption = plain(shown[path]["caption"])
        source = json.loads(record.read_text(encoding="utf-8"))["provenance"]
        assert source["cpu_model"] in caption
        assert source["versions"]["highspy"] in caption
        log = (place.folder / path.replace("results", "logs")).with_name("ilp_solve.log")
        assert " ".join(log.read_text(encoding="utf-8").split()) in caption
    assert f"{lost.relative_to(place.folder)} cannot be read" in page
    assert "tier_reality" in plain(shown[MODELLED]["caption"])
    assert "how little fast memory" in page
    assert set(embedded(page, "categories")) == {"Figures", "Runs", "Machine"}


def embedded(page: str, name: str) -> dict[str, Any]:
    """What a report's page holds in its script of that name."""
    return json.loads(re.search(rf'<script id="{name}">\s*var {name} = (.*);\n', page)[1])


def plain(caption: str) -> str:
    """The text of a caption's HTML, one blank between words."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", caption)).split())


def test_verification_and_the_table_of_runs_are_targets(place: Workplace) -> None:
    small = {"networks": ["mlp"], "optimizers": ["memory-mode"], "limits": ["4:1"]}
    place.change("workloads", value={"large": small})
    place.change("verification", value={"networks": ["mlp"], "optimizers": ["memory-mode"]})
    folder = place.folder / "results" / "laptop-1t" / "tiny"
    done = place.snakemake("verification", str(folder.relative_to(place.folder) / "records.csv"))
    assert done.returncode == 0, done.stdout
    verified = read_table(folder / "verification.csv")
    assert list(zip(verified["optimizer"], verified["limit"], strict=True)) == [("memory-mode", "4:1")]
    assert verified["is_verified"].all()
    cached = load(folder / "mlp" / "memory-mode" / "4to1" / "record.json", "record", Record)
    assert cached.cache is not None
    assert (cached.tier_reality, cached.ratio) == ("emulated", "4:1")
    runs = read_table(folder / "records.csv")
    assert len(runs) == 1 + len(LIMITS)
    assert runs["cache_hits"].notna().sum() == 1
    assert (runs["verified_steps"] == 2).all()


def test_the_second_call_has_nothing_to_do(place: Workplace) -> None:
    assert place.jobs_due() == {}


def test_a_damaged_plan_is_named_with_its_remedy(place: Workplace) -> None:
    plan = next(place.folder.glob("results/*/tiny/mlp/synchronous/1to1/plan.json"))
    whole = plan.read_text(encoding="utf-8")
    plan.write_text(whole[: len(whole) // 2], encoding="utf-8")
    relative = plan.relative_to(place.folder)
    done = place.snakemake(str(relative.with_name("program.json")))
    assert done.returncode != 0
    assert f"{relative}: damaged plan file" in done.stdout
    assert f"rm {relative} && snakemake {relative}" in done.stdout
    plan.unlink()
    assert place.jobs_due(target=str(relative)) == {"ilp_solve": 1}


def _kill_when(place: Workplace, pattern: str) -> None:
    """Start the pipeline, and kill it and its jobs as a power cut would, when a result appears."""
    pipeline = subprocess.Popen(
        [sys.executable, "-m", "snakemake", "--cores", "2", TARGET],
        cwd=place.folder,
        env=os.environ | place.watching,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not list((place.folder / "results").glob(pattern)):
        assert pipeline.poll() is None, f"the pipeline ended before {pattern}"
        assert time.monotonic() < deadline, f"no {pattern} in time"
        time.sleep(0.02)
    os.killpg(pipeline.pid, signal.SIGKILL)
    pipeline.wait()
