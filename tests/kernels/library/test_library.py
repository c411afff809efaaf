"""Libraries of kernels: bound to views without copies, one file for GPUs, refused with a remedy if unfit."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import small_step_kernels

from autotm.kernels.library import FatbinLibrary, KernelLibrary, aligned_empty
from autotm.model.errors import AutotmError, BadInputError, DamagedFileError
from autotm.model.graph import Launch


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "kernels.so"
    small_step_kernels.build_library(path)
    return path


def test_a_bound_kernel_reads_and_writes_the_views_themselves(path: Path) -> None:
    source, target = aligned_empty((32, 64), "float32"), aligned_empty((32, 64), "float32")
    call = KernelLibrary.load(path).bind("relu", [source, target])
    for value in (-1.0, 3.0):
        source[...] = value
        call()
        assert (target == max(value, 0.0)).all()


def test_equal_files_have_equal_hashes(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "other.so"
    copy.write_bytes(path.read_bytes())
    assert KernelLibrary.load(path).content_hash == KernelLibrary.load(copy).content_hash


@pytest.mark.parametrize("content", [None, b"", b"not a library"])
def test_a_missing_or_damaged_library_is_named_with_a_remedy(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "kernels.so"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DamagedFileError, match=r"kernels\.so.*snakemake"):
        KernelLibrary.load(path)


def test_an_unknown_kernel_is_named(path: Path) -> None:
    with pytest.raises(BadInputError, match="no kernel 'absent'"):
        KernelLibrary.load(path).bind("absent", [])


def test_memory_that_a_kernel_cannot_use_is_refused_before_the_call(path: Path) -> None:
    library, good = KernelLibrary.load(path), aligned_empty((32, 64), "float32")
    shifted = np.ndarray((32, 64), "float32", buffer=aligned_empty((33 * 64,), "float32").data, offset=4)
    with pytest.raises(AutotmError, match="slot 1: memory starts 4 bytes past"):
        library.bind("relu", [good, shifted])
    with pytest.raises(AutotmError, match=r"slot 0.*contiguous"):
        library.bind("relu", [aligned_empty((64, 32), "float32").T, good])


LAUNCHES = {
    "matmul": (
        Launch("matmul_0", (0, 1, 2), (8, 1, 1), (256, 1, 1)),
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
