"""What figures cost, from the benchmark files of their jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotm.cli.main import main
from autotm.model.config import read_yaml
from autotm.model.errors import DamagedFileError
from autotm.study.costs import Cost, costs, figure_jobs, table_of_costs
from autotm.study.setup import Study, load_study

CONFIG = Path(__file__).parents[2] / "config"
MIB = 1 << 20


def study(scale: str = "tiny") -> Study:
    raw = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(raw, dict)
    return load_study(raw | {"scale": scale, "threads": 1}, "test.yaml", CONFIG, Path("results"))


def write(file: Path, seconds: float, mib: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"s\th:m:s\tmax_rss\n{seconds}\t0:00:01\t{mib}\n", encoding="utf-8")


def test_times_add_up_and_the_largest_memory_counts(tmp_path: Path) -> None:
    files = figure_jobs(study(), tmp_path)["figures/front.pdf"]
    rules = [file.name.removesuffix(".benchmark.tsv") for file in files]
    assert rules == ["calibrate", "kernel_profile", *["ilp_solve", "compile", "run"] * 4, "front"]
    for number, file in enumerate(files):
        write(file, 2.5, str(100 + number))
    found = {cost.target: cost for cost in costs(study(), tmp_path)}
    assert found["figures/front.pdf"] == Cost("figures/front.pdf", 15, 15, 37.5, 114 * MIB)
    ten = found["figures/fig10.pdf"]
    assert ten.known_jobs == 2 + 3 * 3, "both calibrate and profile, and the three synchronous runs that both show"
    assert ten.jobs == 2 + 3 * 36 + 1
    assert found["figures/test_vgg/fig7.pdf"].known_jobs == 1
    every = found["figures"]
    assert (every.known_jobs, every.seconds) == (15, 37.5), "what several figures need counts once"
    assert every.jobs < sum(cost.jobs for cost in found.values() if cost.target != "figures")


def test_jobs_too_short_to_look_at_have_a_time_and_no_memory(tmp_path: Path) -> None:
    for file in figure_jobs(study(), tmp_path)["figures/heap.pdf"]:
        write(file, 30, "-")
    found = next(cost for cost in costs(study(), tmp_path) if cost.target == "figures/heap.pdf")
    assert (found.seconds, found.memory_bytes) == (150, 0)
    assert "| `figures/heap.pdf` | 5 | 2 min 30 s | unknown |" in table_of_costs([found])


def test_a_modelled_scale_costs_its_small_batches(tmp_path: Path) -> None:
    jobs = figure_jobs(study("tiny-modelled"), tmp_path)
    assert list(jobs) == ["figures/fig8.pdf", "figures/fig8_talk.pdf"], "the others need runs"
    names = {str(file.relative_to(tmp_path)) for file in jobs["figures/fig8.pdf"]}
    assert "laptop-1t/tiny-batch-8/vgg416/kernel_profile.benchmark.tsv" in names
    assert "laptop-1t/tiny-modelled/vgg416/extrapolate.benchmark.tsv" in names
    assert "laptop-1t/tiny-modelled/vgg416/static/5to2/ilp_solve.benchmark.tsv" in names
    assert not any(name.endswith("run.benchmark.tsv") for name in names)


def test_the_command_tells_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "laptop-1t" / "calibrate.benchmark.tsv", 61, "50")
    options = ["--config", str(CONFIG / "config.yaml"), "--scale", "tiny", "--threads", "1", "--logs", str(tmp_path)]
    assert main(["costs", *options]) == 0
    assert "| `figures/kernel_plot.pdf` | 1 of 3 known | 1 min 01 s | 0.05 GB |" in capsys.readouterr().out
    assert "left no benchmark" in caplog.text


@pytest.mark.parametrize("text", ["", "s\tmax_rss\n", "time\n3\n", "s\tmax_rss\nsoon\t3\n"])
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "laptop-1t" / "calibrate.benchmark.tsv"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(DamagedFileError) as caught:
        costs(study(), tmp_path)
    assert str(caught.value).startswith(f"{file}: ")
