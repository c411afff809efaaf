"""Kernels for GPUs as one file: their fatbin, their launches, and which GPUs they are for."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotm.model.files import DamagedFileError, write_atomically
from autotm.model.step import Launch, VendorCall

Launches = Mapping[str, tuple[Launch | VendorCall, ...]]
"""By the name that the graph has for a kernel's function, what it launches, in order."""
_IMAGE, _LAUNCHES = "kernels.fatbin", "launches.json"


@dataclass(frozen=True)
class FatbinLibrary:
    """A zip archive of `kernels.fatbin` and `launches.json`.

    Attributes:
        path: of the file.
        content_hash: of what is in it; equal hashes run the same machine code.
        architectures: that the fatbin has code for, such as `sm_90`.
        launches: of each kernel, by the name that the graph has for its function; some may be calls of a library of
            NVIDIA's.
        image: the fatbin.
    """

    path: Path
    content_hash: str
    architectures: tuple[str, ...]
    launches: Launches
    image: bytes = field(repr=False)

    @classmethod
    def save(cls, path: Path, image: bytes, architectures: tuple[str, ...], launches: Launches) -> FatbinLibrary:
        """Write the file, whole or not at all."""
        listed = {symbol: [launch.to_json() for launch in each] for symbol, each in sorted(launches.items())}
        text = json.dumps({"architectures": architectures, "kernels": listed}, indent=1)

        def write(temporary: Path) -> None:
            with zipfile.ZipFile(temporary, "w") as archive:
                for name, content in ((_IMAGE, image), (_LAUNCHES, text.encode())):
                    # Without the time, so that equal kernels make equal files; a fatbin is compressed already.
                    archive.writestr(zipfile.ZipInfo(name), content)

        write_atomically(path, write)
        return cls.load(path)

    @classmethod
    def load(cls, path: Path) -> FatbinLibrary:
        """Read the file.

        Raises:
            DamagedFileError: it is missing, or not such a file.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                image, text = archive.read(_IMAGE), archive.read(_LAUNCHES)
            found = json.loads(text)
            launches = {symbol: tuple(_launch(one) for one in listed) for symbol, listed in found["kernels"].items()}
            architectures = tuple(found["architectures"])
        except FileNotFoundError:
            raise DamagedFileError(f"{path}: no such library of GPU kernels; lower the network again") from None
        except (zipfile.BadZipFile, KeyError, ValueError, TypeError, AttributeError, OSError) as error:
            raise DamagedFileError(
                f"{path}: damaged library of GPU kernels ({error}); remove it and lower the network again"
            ) from None
        return cls(path, hashlib.sha256(image + text).hexdigest()[:16], architectures, launches, image)


def _launch(found: Mapping[str, Any]) -> Launch | VendorCall:
    return VendorCall.from_json(found) if "algorithm" in found else Launch.from_json(found)
