"""The study of `config/config.yaml`, checked, at the tiny scale and on one thread unless a test says otherwise."""

from __future__ import annotations

from pathlib import Path

from autotm.model.files import read_yaml
from autotm.study.setup import Study, load_study

CONFIG = Path(__file__).parents[2] / "config"


def shipped_study(results: Path = Path("results"), **changes: object) -> Study:
    """Return the study with other values of its keys; those of `workloads` and `verification` change one by one."""
    raw = read_yaml(CONFIG / "config.yaml", "study")
    assert isinstance(raw, dict)
    for key in ("workloads", "verification"):
        changes[key] = raw[key] | changes.get(key, {})
    return load_study(raw | {"scale": "tiny", "threads": 1} | changes, "test.yaml", CONFIG, results)
