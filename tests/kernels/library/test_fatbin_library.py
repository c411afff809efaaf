"""A library of GPU kernels is one file, the same for the same kernels, whole or refused."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from autotm.kernels.library import FatbinLibrary
from autotm.model.errors import DamagedFileError
from autotm.model.launch import Launch

LAUNCHES = {
    "matmul": (
        Launch("matmul_0", (0, 1, 2), (8, 1, 1), (256, 1, 1), 65536),
        Launch("matmul_1", (2, 3), (1, 1, 1), (32, 1, 1)),
    ),
    "add": (Launch("add_0", (0, 1), (4, 2, 1), (128, 1, 1)),),
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    saved = FatbinLibrary.save(tmp_path / "kernels.zip", b"\x50\xed\x55\xba", ("sm_80", "sm_90"), LAUNCHES)
    assert FatbinLibrary.load(tmp_path / "kernels.zip") == saved
    assert dict(saved.launches) == LAUNCHES
    assert saved.architectures == ("sm_80", "sm_90")


def test_equal_kernels_make_equal_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("one.zip", "other.zip")]
    hashes = {FatbinLibrary.save(file, b"code", ("sm_90",), LAUNCHES).content_hash for file in files}
    assert len(hashes) == 1
    assert files[0].read_bytes() == files[1].read_bytes()
    assert FatbinLibrary.save(files[0], b"other", ("sm_90",), LAUNCHES).content_hash not in hashes


def test_what_is_missing_or_damaged_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedFileError, match="no such library of GPU kernels"):
        FatbinLibrary.load(tmp_path / "none.zip")
    (tmp_path / "cut.zip").write_bytes(b"PK")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("something", "else")
    for name in ("cut.zip", "other.zip"):
        with pytest.raises(DamagedFileError, match=r"damaged library of GPU kernels.*lower the network again"):
            FatbinLibrary.load(tmp_path / name)
