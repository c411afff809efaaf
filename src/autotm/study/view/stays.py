"""The stays of a plan as MiniMalloc and OmniMalloc read them: a file for each pool, a line for each buffer."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pandas as pd

from autotm.model.step import Tier
from autotm.study.tables import write_table
from autotm.study.view.placed import Placed

_KEPT = "/:.@#+=()[]|!*'<>{}$&;?^`~ "
"""Besides letters, digits and `_.-~`, what stays as it is in an id; MiniMalloc knows no quotes around commas."""


def write_stays(placed: Placed, files: dict[Tier, Path]) -> None:
    """Write the stays of each pool to its file, for other packers to read.

    A line is `id,lower,upper,size,offset`: the buffer takes `size` bytes at `offset` during kernels [lower, upper); its
    id is the tensor's name and its first kernel, with `%2C` for a comma and so on. Lines end with a line feed: with a
    carriage return before it, MiniMalloc would not know the last column.

    Raises:
        BadInputError: the program was made from another plan.
    """
    sizes = placed.step.by_name
    table = pd.DataFrame(
        [
            (f"{quote(stay.tensor, _KEPT)}@{stay.start}", stay.start, stay.end, sizes[stay.tensor].allocated_bytes, at)
            for stay, at in zip(placed.plan.stays, placed.offsets, strict=True)
        ],
        columns=["id", "lower", "upper", "size", "offset"],
    )
    tiers = [stay.tier for stay in placed.plan.stays]
    for tier, path in files.items():
        write_table(table[[one is tier for one in tiers]], path)
