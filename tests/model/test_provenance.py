"""Where a file comes from: the checkout is read, and left as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

provenance = import_module("autotm.model.provenance")  # The room's face has a function of that name.


def test_asking_for_the_commit_leaves_the_checkout_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Git would note in its index that a file of another time is the same; who is ended meanwhile leaves a lock."""
    file = Path(shutil.copy(__file__, tmp_path))
    for words in ("init -q", "add .", "-c user.name=a -c user.email=a@b commit -qm a"):
        subprocess.run(["git", *words.split()], check=True, cwd=tmp_path)
    os.utime(file, (1e9, 1e9))
    before = (tmp_path / ".git" / "index").read_bytes()
    monkeypatch.setattr(provenance, "__file__", str(file))
    found = provenance.commit.__wrapped__()
    assert found is not None
    assert not found.endswith("+")
    assert (tmp_path / ".git" / "index").read_bytes() == before
