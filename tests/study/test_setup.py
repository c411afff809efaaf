from __future__ import annotations

import shutil
from pathlib import Path

from autotm.solve import optimizers
from autotm.study.setup import machine_named, machine_settings, optimizer_names

CONFIG = Path(__file__).parents[2] / "config"


def test_names_read_off_modules_are_the_registered_ones() -> None:
    assert optimizer_names() == optimizers()


def test_memory_mode_is_a_setting_of_machines_that_have_it_only(tmp_path: Path) -> None:
    for folder in ("machines", "devices"):
        shutil.copytree(CONFIG / folder, tmp_path / folder)
    plain = (tmp_path / "machines" / "laptop.yaml").read_text(encoding="utf-8")
    (tmp_path / "machines" / "cached.yaml").write_text(f"{plain}memory_mode: true\n", encoding="utf-8")
    machine, cached = (machine_named(tmp_path, name, 1) for name in ("laptop", "cached"))
    assert "memory_mode" not in machine_settings(tmp_path, machine), "a new key must not rerun what was measured"
    assert machine_settings(tmp_path, cached)["memory_mode"] is True
    assert (machine.reality_of(cached=True), cached.reality_of(cached=True)) == ("emulated", "real")
    assert cached.reality_of(cached=False) == "emulated"
