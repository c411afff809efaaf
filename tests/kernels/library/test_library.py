"""A library of kernels: bound to views without copies, refused with a remedy where it does not fit."""

from pathlib import Path

import numpy as np
import pytest
import small_step_kernels

from autotm.kernels.library import KernelLibrary, aligned_empty
from autotm.model.errors import AutotmError, BadInputError, DamagedFileError


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
