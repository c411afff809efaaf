"""Bad input ends Snakemake at once, non-zero, with file, key, value and remedy, before any job starts."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from workplace import TARGET, Workplace

from autotm.model.errors import BadInputError
from autotm.study.setup import load_study

LIMITS = ("figures", "fig10", "limits")


BAD_STUDIES = [
    (("figures", "fig10", "network"), "inception_v3", "unknown network 'inception_v3'; did you mean 'inception_v4'?"),
    (("figures", "fig10", "optimizers"), ["statik"], "unknown optimizer 'statik'; did you mean 'static'?"),
    (("machine",), "laptob", "config/machines/laptob.yaml: no such machine file; did you mean 'laptop'?"),
    (("scale",), "huge", "config/scales/huge.yaml: no such scale file (known: laptop, paper, paper-gpu-1, "),
    (("sede",), 1, "unknown key 'sede'; did you mean 'seed'?"),
    (("solve", "gapp"), 1, "unknown key 'solve.gapp'; did you mean 'gap'?"),
    (("solve", "gap"), -0.1, "solve.gap: -0.1 is not allowed: it should be greater than or equal to 0"),
    (("solve", "gap"), float("nan"), "solve.gap: nan is not allowed"),
    (("threads",), 0, "threads: 0 is not allowed: it should be 'auto' or it should be greater than or equal to 1"),
    (("threads",), 100_000, "threads: 100000 is not allowed"),
    (("profile", "configurations"), "most", "profile.configurations: 'most' is not allowed: it should be 'additive'"),
    (("profile", "min_repeats"), 500, "min_repeats 500 should be at most max_repeats 200"),
    (LIMITS, ["0:0", "0:1"], "figures.fig10.limits.0: '0:0' is not allowed: 0:0 is not a limit"),
    (LIMITS, ["0:1", "-8:1"], "figures.fig10.limits.1: '-8:1' is not allowed"),
    (LIMITS, ["0:1", "nan"], "figures.fig10.limits.1: 'nan' is not allowed"),
    (LIMITS, ["0:1", float("nan")], "figures.fig10.limits.1: nan is not allowed"),
    (LIMITS, ["0:1", 481], "figures.fig10.limits.1: 481 is not allowed: it should be quoted text"),
    (LIMITS, ["0:1", "0:1"], "0:1 appears twice"),
    (LIMITS, ["1:0", "1:1"], 'should contain "0:1"'),
    (("figures", "fig8", "workload"), "larg", "figures.fig8.workload: unknown workload 'larg'; did you mean 'large'?"),
    (("figures", "front", "network"), "inception", "figures.front.network: unknown network 'inception'"),
    (("figures", "heap", "optimizer"), "statik", "figures.heap.optimizer: unknown optimizer 'statik'"),
    (("figures", "heap", "limit"), 481, "figures.heap.limit: 481 is not allowed: it should be quoted text"),
    (("figures", "prices", "slow_per_gb"), 0.0, "figures.prices.slow_per_gb: 0.0 is not allowed"),
    (("workloads", "large", "limits"), ["5:2", "5:2"], "5:2 appears twice"),
]
THROUGH_SNAKEMAKE = (0, 2, 4, 15)
"""One of each kind goes through Snakemake, which takes seconds; all go through the function that it calls."""


@pytest.mark.parametrize(("keys", "value", "message"), BAD_STUDIES)
def test_a_bad_study_is_named(fresh: Workplace, keys: tuple[str, ...], value: Any, message: str) -> None:
    fresh.change(*keys, value=value)
    raw = yaml.safe_load(fresh.config_file.read_text(encoding="utf-8"))
    with pytest.raises(BadInputError, match=r"config/[a-z/]+\.yaml: ") as raised:
        load_study(raw, "config/config.yaml", fresh.folder / "config", Path("results"))
    assert message in str(raised.value).replace(f"{fresh.folder}/", "")


@pytest.mark.parametrize(("keys", "value", "message"), [BAD_STUDIES[number] for number in THROUGH_SNAKEMAKE])
def test_a_bad_study_stops_before_any_job(fresh: Workplace, keys: tuple[str, ...], value: Any, message: str) -> None:
    fresh.change(*keys, value=value)
    done = fresh.snakemake(TARGET)
    assert done.returncode != 0
    assert message in done.stdout
    assert not (fresh.folder / "results").exists()
    assert "Traceback (most recent call last)" not in done.stdout


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("results/laptob-1t/links.json", "config/machines/laptob.yaml: no such machine file; did you mean 'laptop'?"),
        ("results/laptop-1t/tiny/mlpp/graph.json", "unknown network 'mlpp'; did you mean 'mlp'?"),
        ("results/laptop-1t/tiny/mlp/statik/1to1/plan.json", "unknown optimizer 'statik'; did you mean 'static'?"),
        ("results/laptop-1t/tiny/mlp/static/0to0/plan.json", "0:0 is not a limit"),
        ("results/laptop-1t/tiny/mlp/static/1GB/record.json", "the files of limit 1GB are in 1000MB/: ask for those"),
        ("results/laptop-1t/tiny-modelled/vgg19/static/4to1/record.json", "is modelled: there is nothing to run"),
        (
            "results/laptop-1t/tiny/mlp/save-on-cpu/4to1/torch.json",
            "save-on-cpu cannot run on config/machines/",
        ),
        (
            "results/laptop-1t/tiny/mlp/lru-paging/4to1/record.json",
            "lru-paging cannot run on config/machines/",
        ),
        (
            "figures/test_vgg/fig10.pdf",
            "fig10.pdf: this figure shows no workload; leave test_vgg/ out",
        ),
        ("figures/laptop-1t/fig12.pdf", "fig12.pdf: the config names its machines; leave laptop-1t/ out"),
        ("figures/server-24t/fig10.pdf", "no such machine file (known: cxl-x16, cxl-x8"),
    ],
)
def test_a_bad_target_stops_before_any_job(fresh: Workplace, target: str, message: str) -> None:
    done = fresh.snakemake(target)
    assert done.returncode != 0
    assert message in done.stdout
    assert not (fresh.folder / "results").exists()


def test_fewer_cores_than_threads(fresh: Workplace) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core cannot be asked for two threads")
    fresh.change("threads", value=2)
    done = fresh.snakemake(TARGET, cores=1)
    assert done.returncode != 0
    assert "runs kernels on 2 threads; give --cores 2 or more, or --config threads=1" in done.stdout
    assert not (fresh.folder / "results").exists()


def test_no_compiler(fresh: Workplace, tmp_path: Path) -> None:
    path = tmp_path / "bin"
    path.mkdir()
    for tool in ("bash", "sh", "git", "which"):  # Snakemake's executor for Slurm, where it is installed, asks `which`.
        if program := shutil.which(tool):
            (path / tool).symlink_to(program)
    done = fresh.snakemake(TARGET, env={"PATH": str(path), "CXX": ""})
    assert done.returncode != 0
    assert "no C compiler found" in done.stdout
    assert "Install one" in done.stdout
    assert not (fresh.folder / "results").exists()


def test_a_broken_file_is_named(fresh: Workplace) -> None:
    (fresh.folder / "config" / "machines" / "laptop.yaml").write_text("description: [", encoding="utf-8")
    done = fresh.snakemake(TARGET)
    assert done.returncode != 0
    assert "config/machines/laptop.yaml: not valid YAML" in done.stdout
