"""Commands in this process, on results of a network called mlp at the scale tiny that a test makes up."""

from __future__ import annotations

from pathlib import Path

from random_graphs import Case

from autotm.cli.main import main
from autotm.model.files import save
from autotm.model.profile import write_profile

CONFIG = Path(__file__).parents[2] / "config" / "config.yaml"
STUDY = ("--config", str(CONFIG), "--scale", "tiny", "--threads", "1")


def run(results: Path, *words: str) -> int:
    return main([*words, *STUDY, "--results", str(results)])


def network_in(results: Path) -> Path:
    return results / "laptop-1t" / "tiny" / "mlp"


def save_profiled(results: Path, case: Case) -> None:
    """What profiling and calibration would have left behind."""
    save(network_in(results) / "graph.json", "graph", case.graph, {})
    save(results / "laptop-1t" / "links.json", "links", case.links, {})
    write_profile(network_in(results) / "profile.parquet", case.profile)
