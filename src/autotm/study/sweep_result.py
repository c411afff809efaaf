"""The result of a sweep: from Python, for a terminal, and as files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import pandas as pd

from autotm.model.config import StyleConfig
from autotm.model.errors import BadInputError
from autotm.model.plan import Status
from autotm.study.columns import columns
from autotm.study.sweep import answers, kernels_word
from autotm.study.tables import DISTURBED, PAGES, write_table

T = TypeVar("T")


@dataclass(frozen=True)
class SweepResult(Generic[T]):
    """What limits on fast memory cost one step.

    Attributes:
        table: a row for each limit, as `sweep_table` describes it.
        placements: what was placed at the limits that can be kept, in the order in which they were asked for; a result
            iterates over them.
    """

    table: pd.DataFrame
    placements: tuple[T, ...]

    def __iter__(self) -> Iterator[T]:
        return iter(self.placements)

    def __len__(self) -> int:
        return len(self.placements)

    @property
    def answers(self) -> list[str]:
        """How little fast memory is enough for a step at most 1, 5 and 10 % slower, a sentence each."""
        return answers(self.table)

    def plot(self, path: str | Path, style: StyleConfig | None = None) -> None:
        """Draw slow-down against fast memory: `path` names a .pdf or a .png, and the other is written beside it.

        Raises:
            BadInputError: the name ends otherwise, or no limit could be kept.
        """
        path = Path(path)
        if path.suffix not in {".pdf", ".png"}:
            raise BadInputError(f"{path}: a picture is a .pdf or a .png file")
        if not self.placements:
            raise BadInputError(f"{path}: nothing to draw: no placement can keep any of these limits")
        # seaborn takes a second, and most sweeps are read, not drawn.
        from autotm.study.drawing import draw_to_files  # noqa: PLC0415
        from autotm.study.figures.limits import draw_sweep  # noqa: PLC0415

        draw_to_files(
            draw_sweep, self.table, path.with_suffix(".pdf"), path.with_suffix(".png"), style or StyleConfig()
        )

    def write(self, folder: Path, style: StyleConfig) -> list[Path]:
        """Write `sweep.csv` and, where a limit could be kept, `sweep.pdf` and `.png`, each whole; return the paths."""
        csv, pdf, png = (folder / f"sweep.{kind}" for kind in ("csv", "pdf", "png"))
        write_table(self.table, csv)
        if self.placements:
            self.plot(pdf, style)
        return [csv, pdf, png] if self.placements else [csv]

    def __str__(self) -> str:
        head = ("limit", "fast MB", "of peak", "slow MB", "predicted", "bound", "gap", "moved MB", "measured")
        parts = [self._title(), columns([head, *(_line(row) for _, row in self.table.iterrows())], left=1)]
        if self.table[DISTURBED].any():
            parts.append("* others held the cores meanwhile: too slow.")
        refused = self.table[self.table["refused"] != ""]
        parts += [f"{row['limit']}: {row['refused']}" for _, row in refused.iterrows()]
        return "\n".join([*parts, *(self.answers if self.placements else ())])

    def _title(self) -> str:
        first = self.table.iloc[0]
        uncounted = f" (beside {_mb(first['uncounted_bytes'])} MB of arguments)" if first["uncounted_bytes"] else ""
        threads = f"{first['threads']} thread{'s' if first['threads'] != 1 else ''}"
        where = f"{first['machine']}, {threads}; slow memory {str(first['tier_reality']).upper()}"
        if first["slow_memory"]:
            where += f" ({first['slow_memory']})"
        all_fast = f"{1e3 * first['all_fast_predicted_s']:.4g} ms PREDICTED from {kernels_word(self.table)} kernels"
        if first[PAGES]:
            where += f"; pages {str(first[PAGES]).upper()}"
        return (
            f"{first['network']} ({first['scale']}), {first['optimizer']}, on {where}.\n"
            f"Peak {_mb(first['peak_live_bytes'])} MB{uncounted}. All-fast step: {all_fast}.\n"
            "`predicted`, `bound`: slow-downs over that step. `measured`: over the all-fast step timed in turn."
        )


def _line(row: pd.Series) -> Sequence[str]:
    """Return the words of a limit, in the order of the table's head."""
    fast, proof = ("?", "?"), ("-", "-")
    if pd.notna(row["dram_limit_bytes"]):
        fast = (_mb(row["dram_limit_bytes"]), f"{100 * row['share_of_peak']:.1f} %")
    if row["refused"]:
        return (row["limit"], *fast, "-", "impossible", "-", "-", "-", "-")
    if row["solver_status"] != Status.NOT_OPTIMIZED:  # an optimizer that does not search has neither bound nor gap
        proof = (f"{row['bound_slowdown']:.3f}", f"{100 * row['gap']:.2g} %")
    measured = "-"
    if pd.notna(row["measured_slowdown"]):
        measured = f"{row['measured_slowdown']:.3f}{'*' if row[DISTURBED] else ''}"
    slow, moved = _mb(row["pmem_alloc_bytes"]), _mb(row["bytes_moved"])
    return (row["limit"], *fast, slow, f"{row['predicted_slowdown']:.3f}", *proof, moved, measured)


def _mb(size: float) -> str:
    return f"{size / 1e6:.4g}"
