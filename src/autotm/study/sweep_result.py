"""What a sweep found, for a terminal, as files, and from Python."""

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
class SweepFiles:
    """The files of one sweep, in one folder."""

    csv: Path
    pdf: Path
    png: Path

    @classmethod
    def in_folder(cls, folder: Path) -> SweepFiles:
        """`sweep.csv`, `sweep.pdf` and `sweep.png` there."""
        return cls(folder / "sweep.csv", folder / "sweep.pdf", folder / "sweep.png")


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
        from autotm.study.drawing import fix_legends, save_figure, styled, write_caption  # noqa: PLC0415
        from autotm.study.figures.limits import draw_sweep  # noqa: PLC0415

        look = style or StyleConfig()
        with styled(look):
            figure, text = draw_sweep(self.table, look)
            fix_legends(figure)
            if look.caption:
                write_caption(figure, text, look)
            save_figure(figure, path.with_suffix(".pdf"), path.with_suffix(".png"), text, look)

    def write(self, folder: Path, style: StyleConfig) -> SweepFiles:
        """Write the table and, where a limit could be kept, the picture; each file whole."""
        files = SweepFiles.in_folder(folder)
        write_table(self.table, files.csv)
        if self.placements:
            self.plot(files.pdf, style)
        return files

    def __str__(self) -> str:
        parts = [self._title(), self._columns()]
        if self.table[DISTURBED].any():
            parts.append("* others held the cores meanwhile: too slow.")
        refused = self.table[self.table["refused"] != ""]
        parts += [f"{row['limit']}: {row['refused']}" for _, row in refused.iterrows()]
        return "\n".join([*parts, *(self.answers if self.placements else ())])

    def _title(self) -> str:
        first = self.table.iloc[0]
        beside = f" (beside {_mb(first['uncounted_bytes'])} of arguments)" if first["uncounted_bytes"] else ""
        threads = f"{first['threads']} thread{'s' if first['threads'] != 1 else ''}"
        where = f"{first['machine']}, {threads}; slow memory {str(first['tier_reality']).upper()}"
        if first["slow_memory"]:
            where += f" ({first['slow_memory']})"
        all_fast = f"{1e3 * first['all_fast_predicted_s']:.4g} ms PREDICTED from {kernels_word(self.table)} kernels"
        if first[PAGES]:
            where += f"; pages {str(first[PAGES]).upper()}"
        return (
            f"{first['network']} ({first['scale']}), {first['optimizer']}, on {where}.\n"
            f"Peak {_mb(first['peak_live_bytes'])}{beside}. All-fast step: {all_fast}.\n"
            "`predicted`, `bound`: slow-downs over that step. `measured`: over the all-fast step timed in turn."
        )

    def _columns(self) -> str:
        head = ("limit", "fast MB", "of peak", "slow MB", "predicted", "bound", "gap", "moved MB", "measured")
        return columns([head, *(_line(row) for _, row in self.table.iterrows())], left=1)


def _line(row: pd.Series) -> Sequence[str]:
    fast = ["?", "?"] if pd.isna(row["dram_limit_bytes"]) else [_number(row["dram_limit_bytes"])]
    if not pd.isna(row["dram_limit_bytes"]):
        fast.append(f"{100 * row['share_of_peak']:.1f} %")
    if row["refused"]:
        return (row["limit"], *fast, "-", "impossible", "-", "-", "-", "-")
    measured = row["measured_slowdown"]
    mark = "*" if row[DISTURBED] else ""
    return (
        row["limit"],
        *fast,
        _number(row["pmem_alloc_bytes"]),
        f"{row['predicted_slowdown']:.3f}",
        *_proof(row),
        _number(row["bytes_moved"]),
        "-" if pd.isna(measured) else f"{measured:.3f}{mark}",
    )


def _proof(row: pd.Series) -> tuple[str, str]:
    """Bound and gap; an optimizer that has exactly one plan has neither."""
    if row["solver_status"] == Status.NOT_OPTIMIZED:
        return "-", "-"
    return f"{row['bound_slowdown']:.3f}", f"{100 * row['gap']:.2g} %"


def _number(size: float) -> str:
    return f"{size / 1e6:.4g}"


def _mb(size: float) -> str:
    return f"{_number(size)} MB"
