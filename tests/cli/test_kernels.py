"""`autotm kernels` on the tiny MLP: list, export, import; what is wrong is said with its remedy."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import pytest

from autotm.cli.main import main

ROOT = Path(__file__).parents[2]


def run(results: Path, *arguments: str) -> int:
    config = ("--config", str(ROOT / "config" / "config.yaml"), "--results", str(results))
    return main([*arguments, *config, "--scale", "tiny", "--threads", "1"])


def test_the_list_names_every_kernel_and_what_it_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "kernels", "list", "mlp") == 0
    head, columns, *rows = capsys.readouterr().out.splitlines()
    assert f"{len(rows)} distinct kernels" in head
    assert f"0 timed, 0 tuned, {len(rows)} neither" in head
    assert columns.split()[0] == "op"
    assert any(row.startswith("matmul_nt") and "16x256" in row for row in rows)


def test_a_store_goes_out_and_comes_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "kernels.zip"
    with caplog.at_level(logging.INFO):
        assert run(tmp_path / "here", "kernels", "export", str(file)) == 0
        assert run(tmp_path / "there", "kernels", "import", str(file)) == 0
    assert "0 timings and 0 tuned schedules written" in caplog.text
    assert "0 entries added, 0 replaced by better ones, 0 kept as they were, 0 skipped" in caplog.text
    assert [path.parent.name for path in (tmp_path / "there").rglob("kernels.sqlite")] == ["laptop-1t"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kernels", "list", "mpl"), "unknown network 'mpl'; did you mean 'mlp'?"),
        (("kernels", "import", "away.zip"), "away.zip: no such file"),
    ],
)
def test_a_fault_is_one_message(
    arguments: tuple[str, ...], message: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert run(tmp_path, *arguments) == 1
    assert message in caplog.text


def test_tuning_without_its_packages_says_how_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert run(tmp_path, "tune", "mlp") == 1
    assert "make setup-tune" in caplog.text
    assert not list(tmp_path.rglob("tuned.json"))
