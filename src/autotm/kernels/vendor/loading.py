"""Python packages of NVIDIA's libraries: loaded, or an error that says what is missing."""

from __future__ import annotations

import importlib
from typing import Any

from autotm.model.files import AutotmError

EXTRA = "pip install 'autotm[nvidia]'"
MOST_WORKSPACE_BYTES = 4 << 30
"""An algorithm that needs more is not offered: the profile would have to find room for it."""


class VendorMissingError(AutotmError):
    """A library is not installed."""


class VendorError(AutotmError):
    """A library is there, and is not what a kernel was made for."""

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"{reason}: its times are of another GPU or version; profile again here (autotm profile), then solve and "
            "compile"
        )


def loaded(what: str, packages: str, module: str) -> Any:
    """A module of a library's package.

    Raises:
        VendorMissingError: it is not installed.
        AutotmError: it is, and does not load.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise VendorMissingError(
            f"{what} and its Python package are not installed here ({error}): {EXTRA} (which brings {packages})"
        ) from None
    except Exception as error:  # noqa: BLE001  (a library that is half there raises anything)
        raise AutotmError(
            f"{what}'s package is installed and does not load ({error}): {EXTRA}, or uninstall it"
        ) from None
