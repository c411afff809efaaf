"""Libraries for a bundle: as they are installed here, or, for another version of Python, as pip downloads them."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path, PurePosixPath

from autotm.model.files import AutotmError, BadInputError

RUNTIME_OF_TVM = "apache-tvm"
"""Its shared library is opened by path; none of its modules is imported."""
NVIDIAS = ("cuda-bindings", "cuda-pathfinder", "nvidia-ml-py")
"""What runs a step on a GPU besides; loaded only where there is one."""
_UNUSED_FOLDERS = frozenset({"tests", "testing_data", "__pycache__", "3rdparty", "src", "include", "web", "f2py"})
_UNUSED_SUFFIXES = frozenset({".pyi", ".pyc", ".a", ".h", ".hpp", ".pxd", ".pyx"})
_COMPILERS = frozenset({"libtvm_compiler.so"})


def is_needed(name: str) -> bool:
    """Whether a file of a distribution is of use where nothing is compiled or tested; licences always are."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return False
    if path.parts[0].endswith(".dist-info"):
        return path.name == "METADATA" or "licenses" in path.parts or _is_licence(path.name)
    if _is_licence(path.name):
        return True
    return (
        not _UNUSED_FOLDERS.intersection(path.parts[:-1])
        and path.suffix not in _UNUSED_SUFFIXES
        and path.name not in _COMPILERS
    )


def _is_licence(name: str) -> bool:
    return name.upper().startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE"))


def require_installed(names: Sequence[str]) -> None:
    """Refuse before anything is compiled.

    Raises:
        AutotmError: a distribution is not installed here, so that its version is not known.
    """
    for name in names:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            extra = "autotm[cuda]" if name in NVIDIAS else name
            raise AutotmError(f"bundle: {name} is not installed here: pip install '{extra}'") from None


def installed(names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The needed files of installed distributions, by their paths below a folder for modules.

    Raises:
        AutotmError: it is not known which files a distribution has, or one is gone.
    """
    for name in names:
        distribution = metadata.distribution(name)
        if distribution.files is None:
            raise AutotmError(f"bundle: {name} does not say which files it has; install it anew with pip")
        for file in distribution.files:
            if is_needed(file.as_posix()):
                try:
                    yield file.as_posix(), Path(str(file.locate())).read_bytes()
                except OSError as error:
                    raise AutotmError(
                        f"bundle: {name}: {file} cannot be read ({error.strerror}); install it anew: "
                        f"pip install --force-reinstall {name}=={distribution.version}"
                    ) from None


def downloaded(names: Sequence[str], python: str, folder: Path) -> Iterator[tuple[str, bytes]]:
    """As `installed`, in the same versions for CPython of version `python`; wheels go to `folder`.

    Raises:
        BadInputError: there are no such wheels, or no network.
    """
    wanted = [f"{name}=={metadata.version(name)}" for name in names]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--python-version", python, "--dest", str(folder), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "pip said nothing").splitlines()[-1]
        raise BadInputError(
            f"--python {python}: pip could not download {', '.join(wanted)} for CPython {python} ({reason}). That "
            f"needs a network and pip; a bundle for CPython {here()}, which runs here, needs neither"
        )
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for name in sorted(archive.namelist()):
                if not name.endswith("/") and is_needed(name):
                    yield name, archive.read(name)


def here() -> str:
    """The version of Python that runs this, as in `--python`."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"
