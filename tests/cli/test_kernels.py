"""`autotm kernels export` and `import`; what is wrong is said with its remedy."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from autotm.cli.main import main

ROOT = Path(__file__).parents[2]


def run(results: Path, *arguments: str) -> int:
    config = ("--config", str(ROOT / "config" / "config.yaml"), "--results", str(results))
    return main([*arguments, *config, "--scale", "tiny", "--threads", "1"])


def test_a_store_goes_out_and_comes_in(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "kernels.zip"
    with caplog.at_level(logging.INFO):
        assert run(tmp_path / "here", "kernels", "export", str(file)) == 0
        assert run(tmp_path / "there", "kernels", "import", str(file)) == 0
    assert "0 timings written" in caplog.text
    assert "0 timings added, 0 known before, 0 skipped" in caplog.text
    assert [path.parent.name for path in (tmp_path / "there").rglob("kernels.sqlite")] == ["laptop-1t"]


def test_a_missing_file_is_one_message(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert run(tmp_path, "kernels", "import", "away.zip") == 1
    assert "away.zip: no such file" in caplog.text
