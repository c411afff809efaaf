"""One's own network in the pipeline: a target like any other, rerun when its file changes, and nothing else is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import small_step
from workplace import TARGET, Workplace, make_workplace

from autotm.cli.main import main
from autotm.model.errors import BadInputError
from autotm.model.files import load_with_provenance, save
from autotm.model.graph import Graph
from autotm.study.setup import network_source

RECORD = "results/laptop-1t/tiny/my_mlp/synchronous/4to1/record.json"
JOBS = {"kernel_profile": 1, "ilp_solve": 1, "compile": 1, "run": 1}


@pytest.fixture(scope="module")
def ran_once(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    place = make_workplace(tmp_path_factory.mktemp("own") / "place", stand_in=True)
    place.change("own_networks", "my_mlp", "sizes", value={"batch": 8, "width": 64})
    done = place.snakemake(RECORD, "results/laptop-1t/tiny/mlp/graph.json")
    assert done.returncode == 0, done.stdout
    return place


@pytest.fixture
def ran(ran_once: Workplace, tmp_path: Path) -> Workplace:
    return ran_once.copied_to(tmp_path / "place")


@pytest.mark.parametrize("changed", ["file", "size"])
def test_after_a_change_only_its_jobs_run_again(ran: Workplace, changed: str) -> None:
    assert ran.jobs_due(target=RECORD) == {}
    if changed == "file":
        file = ran.folder / "examples" / "mlp.py"
        file.write_text(file.read_text(encoding="utf-8").replace("range(3)", "range(4)"), encoding="utf-8")
    else:
        ran.change("own_networks", "my_mlp", "sizes", value={"batch": 9, "width": 64})
    assert ran.jobs_due(target=RECORD) == JOBS
    assert ran.jobs_due(target="results/laptop-1t/tiny/mlp/graph.json") == {}


def test_figures_may_show_it(ran: Workplace) -> None:
    ran.change("figures", "fig10", "network", value="my_mlp")
    assert ran.jobs_due(target=TARGET)["run"] > 1
    ran.change("workloads", "mine", value={"networks": ["my_mlp"], "limits": ["1:0", "16:1", "4500MB", "0:1"]})
    assert ran.jobs_due("--config", "threads=1", target="figures/mine/fig7.pdf")["run"] == 3 * 4


def test_limits_in_every_form_are_targets(ran: Workplace) -> None:
    limits = ("16to1", "4500MB", "2147483648B", "123B", "10000MB-io")
    planned = ran.snakemake(*(RECORD.replace("4to1", limit) for limit in limits), "--dry-run").stdout
    assert [f"Running my_mlp (tiny): synchronous, limit {limit}" in planned for limit in limits] == [True] * len(limits)


def test_it_can_be_modelled_from_small_batches(ran: Workplace) -> None:
    planned = ran.snakemake(RECORD.replace("tiny", "tiny-modelled").replace("record", "program"), "--dry-run").stdout
    batches = [f"Compiling the training step of my_mlp (tiny-batch-{batch})" in planned for batch in (2, 4, 8)]
    assert batches == [True] * 3
    source = network_source(ran.folder / "config", ran.study.config, "tiny-batch-4", "my_mlp")
    assert source.sizes == {"batch": 4, "width": 64}


def test_thread_counts_stand_side_by_side(ran: Workplace) -> None:
    before = (ran.folder / RECORD).stat().st_mtime_ns
    assert ran.jobs_due(target=RECORD.replace("-1t", "-2t")) == JOBS | {"calibrate": 1}
    assert ran.jobs_due(target=RECORD) == {}
    assert (ran.folder / RECORD).stat().st_mtime_ns == before


BAD = [
    ({"file": "examples/mpl.py"}, "network my_mlp: examples/mpl.py: cannot be read (No such file or directory)"),
    ({"function": "mpl"}, "network my_mlp: examples/mlp.py: unknown function 'mpl'; did you mean 'mlp'?"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_fault_stops_before_any_job(ran: Workplace, change: dict[str, str], message: str) -> None:
    shutil.rmtree(ran.folder / "results")
    for key, value in change.items():
        ran.change("own_networks", "my_mlp", key, value=value)
    done = ran.snakemake(RECORD)
    assert done.returncode != 0
    assert message in done.stdout
    assert not (ran.folder / "results").exists()
    assert ran.jobs_due(target="results/laptop-1t/tiny/mlp/graph.json") == {"calibrate": 1, "kernel_profile": 1}


def test_a_name_of_the_zoo_is_taken(ran: Workplace) -> None:
    ran.change("own_networks", "mlp", value={"file": "examples/mlp.py", "function": "mlp"})
    with pytest.raises(BadInputError, match=r"own_networks.mlp: the zoo has a network of that name; give another"):
        _ = ran.study


def test_the_command_compiles_and_times_it(ran: Workplace, caplog: pytest.LogCaptureFixture) -> None:
    results = ran.folder / "made"
    ran.change("profile", value={"step_s": 0.2, "min_repeats": 2, "patience_s": 0.05})
    common = ("--config", str(ran.config_file), "--results", str(results), "--scale", "tiny", "--threads", "1")
    save(results / "laptop-1t" / "links.json", "links", small_step.links(), {})
    assert main(["profile", "my_mlp", *common]) == 0, caplog.text
    graph, provenance = load_with_provenance(results / "laptop-1t" / "tiny" / "my_mlp" / "graph.json", "graph", Graph)
    assert (graph.network, graph.batch) == ("my_mlp", 8)
    assert provenance["network_function"] == "mlp"
    assert provenance["network_file"].endswith("examples/mlp.py")
    assert main(["profile", "my_mpl", *common]) == 1
    assert "did you mean 'my_mlp'?" in caplog.text
