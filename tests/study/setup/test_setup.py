"""A study from its config: names, settings of machines, refusals."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotm.model.config import SolveConfig
from autotm.model.errors import BadInputError, DamagedFileError
from autotm.model.limit import Limit
from autotm.model.machine import Machine
from autotm.solve import optimizers
from autotm.solve.optimizer import Optimizer
from autotm.solve.options import optimizer_names
from autotm.solve.placing import optimizer_named
from autotm.stages.context import Context, Given
from autotm.stages.solve import sweep_stage
from autotm.study.setup import machine_named, machine_settings

CONFIG = Path(__file__).parents[3] / "config"


def test_every_optimizer_is_listed_under_its_own_name() -> None:
    defined = {
        value.name
        for value in vars(optimizers).values()
        if isinstance(value, type) and issubclass(value, Optimizer) and value.__module__ == optimizers.__name__
    }
    assert {name: optimizer_named(name).name for name in optimizer_names()} == {name: name for name in defined}


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


def machine_of(folder: Path, more: str) -> Machine:
    for part in ("machines", "devices"):
        shutil.copytree(CONFIG / part, folder / part, dirs_exist_ok=True)
    plain = (folder / "machines" / "laptop.yaml").read_text(encoding="utf-8")
    (folder / "machines" / "other.yaml").write_text(plain + more, encoding="utf-8")
    return machine_named(folder, "other", 1)


def test_the_size_of_a_real_cache_is_a_setting_where_it_is_known(tmp_path: Path) -> None:
    unknown, known = (machine_of(tmp_path, f"memory_mode: true\n{more}") for more in ("", "cache: 192GB\n"))
    assert (unknown.cache_bytes, known.cache_bytes) == (None, 192 * 10**9)
    assert "cache_bytes" not in machine_settings(tmp_path, unknown)
    assert machine_settings(tmp_path, known)["cache_bytes"] == 192 * 10**9


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("cache: 192GB\n", "set memory_mode: true"),
        ("memory_mode: true\ncache: 8to1\n", "'8to1' is no size"),
        ("memory_mode: true\ncache: large\n", "'large' is no size"),
    ],
)
def test_a_cache_that_cannot_be_is_refused(tmp_path: Path, more: str, said: str) -> None:
    with pytest.raises(BadInputError) as caught:
        machine_of(tmp_path, more)
    assert said in str(caught.value)


def test_a_real_cache_has_one_size_whatever_is_asked(tmp_path: Path) -> None:
    context = Context(machine_of(tmp_path, "memory_mode: true\ncache: 192GB\n"), tmp_path / "devices", 1)
    given = Given(*(tmp_path / name for name in ("graph.json", "profile.parquet", "links.json")))
    plans = {Limit.parse("5:2"): tmp_path / "plan.json"}
    with pytest.raises(BadInputError) as caught:
        sweep_stage(context, "memory-mode", plans, SolveConfig(), given)
    assert '192000000000 bytes whatever is asked; ask for limit "192000MB"' in str(caught.value)
    for optimizer, limit in (("memory-mode", "192GB"), ("static", "5:2")):
        with pytest.raises(DamagedFileError, match=r"graph\.json"):
            sweep_stage(context, optimizer, {Limit.parse(limit): tmp_path / "plan.json"}, SolveConfig(), given)
