"""Machine code for copies: every store kind this processor has, kept once compiled, and clear where it cannot be."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from autotm.memory.native.library import Stores, compiled, copy_bytes, widest_store
from autotm.model.errors import AutotmError

SIZES = [0, 1, 63, 64, 255, 256, 257, 319, 320, 4096, 70001]


@pytest.mark.parametrize("ahead_bytes", [0, 1024])
@pytest.mark.parametrize("store_bytes", [0, 16, 32, 64])
@pytest.mark.parametrize("size", SIZES)
def test_every_store_copies_every_byte_and_no_other(store_bytes: int, ahead_bytes: int, size: int) -> None:
    if store_bytes > widest_store():
        pytest.skip(f"this processor's widest streaming store has {widest_store()} bytes")
    source = np.random.default_rng(size).integers(1, 256, size + 64, dtype=np.uint8)
    for to_offset in (0, 1, 31, 63, 64):
        for from_offset in (0, 1, 33):
            target = np.zeros(size + 192, np.uint8)
            copy_bytes(
                target.ctypes.data + to_offset, source.ctypes.data + from_offset, size, Stores(store_bytes, ahead_bytes)
            )
            assert np.array_equal(target[to_offset : to_offset + size], source[from_offset : from_offset + size])
            assert not target[:to_offset].any()
            assert not target[to_offset + size :].any()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "answer.c"
    path.write_text("int answer(void) { return 42; }\n", encoding="utf-8")
    return path


def test_a_library_is_compiled_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(source).answer() == 42
    (kept,) = (source.parent / "cache" / "autotm").iterdir()
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert compiled(source).answer() == 42, "no compiler is asked any more"
    assert kept.exists()


def test_a_damaged_library_is_compiled_again(source: Path) -> None:
    folder = source.parent / "cache" / "autotm"
    compiled(source)
    (kept,) = folder.iterdir()
    kept.unlink()
    kept.write_bytes(b"half of one")
    assert compiled(source).answer() == 42


def test_a_folder_that_cannot_be_written_is_done_without(source: Path) -> None:
    shutil.rmtree(source.parent / "cache", ignore_errors=True)
    (source.parent / "cache").write_text("a file where the folder should be", encoding="utf-8")
    assert compiled(source).answer() == 42


def test_what_is_missing_is_named(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(source.parent))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(AutotmError, match=r"no C compiler.*apt-get install gcc"):
        compiled(source)
    monkeypatch.undo()
    source.write_text(f"#include <no_such_header_{os.getpid()}.h>\n", encoding="utf-8")
    with pytest.raises(AutotmError, match=r"(?s)answer\.c failed.*gcc.*no_such_header"):
        compiled(source)
