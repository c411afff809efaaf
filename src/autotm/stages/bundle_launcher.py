"""Start a bundle, as its `__main__.py`: `python FOLDER check|run|profile`. The module needs only Python 3.7.

It checks that Python, computer and files are those that the bundle was made for, before it loads any of the files.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import platform
import sys
import sysconfig
from pathlib import Path

FORMAT = 1
"""Format number of the manifest, which `autotm.stages.bundle_files` writes."""
_NO_DRIVER = (
    "this bundle is for an NVIDIA GPU, and no driver of NVIDIA's is here (libcuda.so.1): install it (nvidia-smi then "
    "lists the GPU), or run this on a computer that has one"
)


class UnfitError(Exception):
    """Bundle and computer do not go together; the text says what to do."""


def read_manifest(folder: Path) -> dict:
    """Read the manifest: the files of the bundle and its requirements."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        number = manifest["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnfitError(damaged(folder, f"manifest.json cannot be read ({error})")) from None
    if number != FORMAT:
        raise UnfitError(
            f"this bundle's list is of format {number}, its launcher reads {FORMAT}: files of two bundles lie in "
            f"{folder}; unpack one into an empty folder"
        )
    return manifest


def damaged(folder: Path, reason: str) -> str:
    """Return the message for a bundle that must be copied again."""
    return f"{folder}: damaged bundle: {reason}; unpack the archive again, and if that is damaged, copy it again"


def require_python(manifest: dict) -> None:
    """Refuse another Python than the bundle's libraries were compiled for."""
    wanted, here = manifest["python"], f"{sys.version_info[0]}.{sys.version_info[1]}"
    without_lock = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    if sys.implementation.name != "cpython" or here != wanted or without_lock:
        kind = "free-threaded " if without_lock else ""
        raise UnfitError(
            f"this bundle is for CPython {wanted}, this is {kind}{platform.python_implementation()} {here} "
            f"({sys.executable}): start it with python{wanted}, or make it again at home with: autotm bundle ... "
            f"--python {here}"
        )


def require_computer(manifest: dict) -> None:
    """Refuse another architecture, an older C library, or a processor that lacks instructions of the kernels."""
    wanted, system, machine = manifest["machine"], platform.system(), platform.machine()
    if (system, machine) != ("Linux", wanted):
        raise UnfitError(
            f"this bundle is for Linux on {wanted}, this is {system} on {machine}: make it again on such a computer"
        )
    library, version = platform.libc_ver()
    if library != "glibc" or numbers(version) < numbers(manifest["glibc"]):
        raise UnfitError(
            f"this bundle needs glibc {manifest['glibc']} or newer, this computer has "
            f"{library or 'another C library'} {version}: make it again on a computer with an older Linux, or in a "
            "container of one"
        )
    flags = set()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("flags"):
            flags.update(line.split(":", 1)[1].split())
    missing = ", ".join(sorted(set(manifest["cpu_flags"]) - flags))
    if missing:
        raise UnfitError(
            f"this bundle's kernels were compiled for {manifest['compiled_for']}; this processor lacks {missing}: name "
            'it as target in the machine file at home (such as {"kind": "llvm", "mcpu": "haswell"}), profile and make '
            "the bundle again"
        )


def numbers(version: str) -> list:
    """Return the first two numbers of a version: [2, 36] for 2.36."""
    return [int(part) for part in version.split(".")[:2] if part.isdigit()]


def require_driver(manifest: dict, library: str = "libcuda.so.1") -> None:
    """Refuse a computer without a driver for the GPU, before anything is loaded that needs one."""
    if manifest["target"] != "cuda":
        return
    try:
        ctypes.CDLL(library)
    except OSError:
        raise UnfitError(_NO_DRIVER) from None


def require_files(folder: Path, manifest: dict) -> None:
    """Refuse files that are missing, cut or changed."""
    for name, wanted in manifest["files"].items():
        try:
            digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        except OSError as error:
            raise UnfitError(damaged(folder, f"{name} cannot be read ({error.strerror})")) from None
        if digest != wanted:
            raise UnfitError(damaged(folder, f"{name} is not what was packed"))


def own_modules_only(folder: Path) -> None:
    """Let Python look for modules in the bundle and its own library, and nowhere else."""
    paths = sysconfig.get_paths()
    own = {Path(paths[key]).resolve() for key in ("stdlib", "platstdlib")}
    standard = [path for path in sys.path if is_standard(path, own)]
    sys.path[:] = [str(folder / "site"), *standard]
    sys.dont_write_bytecode = True


def is_standard(path: str, own: set) -> bool:
    """Return whether an entry of `sys.path` is Python's own library."""
    place = Path(path).resolve()
    return bool(path) and (place in own or place.parent in own or place.suffix == ".zip") and "-packages" not in path


def require_version(manifest: dict) -> None:
    """Refuse another autotm than the bundle was made by."""
    from importlib import metadata

    version, wanted = metadata.version("autotm"), manifest["autotm"]
    if version != wanted:
        raise UnfitError(
            f"this bundle was made by autotm {wanted}, and holds autotm {version}: files of two bundles lie in one "
            "folder; unpack one into an empty folder"
        )


def main() -> int:
    """Check bundle and computer, then run autotm's command; return the exit status."""
    folder = Path(__file__).resolve().parent
    try:
        manifest = read_manifest(folder)
        require_python(manifest)
        require_computer(manifest)
        require_files(folder, manifest)
        require_driver(manifest)
        own_modules_only(folder)
        require_version(manifest)
    except UnfitError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    from autotm.profile.host_commands import main as hosted

    return hosted(folder, sys.argv[1:], f"python {folder.name}")


if __name__ == "__main__":
    sys.exit(main())
