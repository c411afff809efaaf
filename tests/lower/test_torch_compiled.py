"""`torch.compile` in another process: ended at its limit, honest about failures."""

import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="what is compiled is PyTorch's step: make test-torch installs it")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import torch_compiled
from step_vs_pytorch import geometric_means
from torch_compiled import NotCompiledError, compile_within


def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path, monkeypatch):
    script, mark = tmp_path / "script.py", tmp_path / "child"
    script.write_text(
        f"import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\nopen({str(mark)!r}, 'w').write("
        "str(child.pid))\ntime.sleep(600)\n"
    )
    monkeypatch.setattr(torch_compiled, "__file__", str(script))
    with pytest.raises(NotCompiledError, match="not compiled in 5 s"):
        compile_within("mlp", "tiny", 1, tmp_path, 5)
    child = Path("/proc") / mark.read_text()
    deadline = time.monotonic() + 10
    while child.exists() and "State:\tZ" not in (child / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.exists() or "State:\tZ" in (child / "status").read_text()


def test_a_failure_says_why(tmp_path):
    with pytest.raises(NotCompiledError, match=r"failed \(exit 1\): .*no_network"):
        compile_within("no_network", "tiny", 1, tmp_path, 600)


def test_means_say_over_how_many_networks_they_are():
    assert geometric_means([(2.0, 1.0), (8.0, None)]) == ["eager/autotm 4.00", "compile/autotm 1.00 (of 1 networks)"]
    assert geometric_means([(2.0, None)]) == ["eager/autotm 2.00"]
