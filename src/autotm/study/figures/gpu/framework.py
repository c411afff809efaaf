"""A framework's own step of figure 12: a record -> a row like those of programs, and what a caption says of it."""

from __future__ import annotations

from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from autotm.model.files import load_with_provenance
from autotm.model.measurement import FrameworkRecord
from autotm.model.plan import SAVE_ON_CPU
from autotm.study.tables import COLUMN, versions_text

LEFT_OUT = "left_out"
"""Column that says why a step has no bar; empty of those that have one, and of those that do not fit."""


def framework_row(path: Path) -> dict[str, Any]:
    """What a program's record has no counterpart for is empty. Nothing was compared bit for bit.

    Raises:
        DamagedFileError: the file cannot be read.
    """
    record, source = load_with_provenance(path, "framework_record", FrameworkRecord)
    return {
        "network": record.network,
        "batch": record.batch,
        "scale": record.scale,
        "machine": source["machine"],
        "gpu": record.device or source["gpu"],
        "gpu_driver": source["gpu_driver"],
        "cpu_model": source["cpu_model"],
        "tier_reality": record.tier_reality,
        "optimizer": record.optimizer,
        "limit": record.limit,
        "counts": record.counts,
        "dram_limit_bytes": record.dram_limit_bytes,
        "io_bytes": record.io_size,
        "peak_live_bytes": record.peak_live_bytes,
        "fits": record.fits,
        LEFT_OUT: record.left_out,
        "most_bytes": nan if record.most_bytes is None else record.most_bytes,
        "step_s": nan if record.step_s is None else record.step_s,
        "oracle_s": nan,
        "remark": f"{record.framework} on {record.device}; {_compared(record)}" if record.framework else "",
        "samples": len(record.samples_s),
        COLUMN: record.disturbed_steps_count,
        "verified_steps": nan,
        "seed": source["seed"],
        "versions": versions_text(source),
    }


def has_bar(table: pd.DataFrame) -> pd.Series:
    """Of which rows there is something to draw: a bar, or a cross."""
    if LEFT_OUT not in table:
        return pd.Series(data=True, index=table.index)
    return table[LEFT_OUT].isna() | (table[LEFT_OUT] == "")


def framework_text(table: pd.DataFrame) -> str:
    """For captions: what ran of PyTorch, and what was left out; empty where neither was asked for."""
    own = table[table["optimizer"] == SAVE_ON_CPU]
    if own.empty or LEFT_OUT not in own:
        return ""
    shown, texts = own[has_bar(own)], []
    if len(shown):
        ran = "; ".join(f"{row['network']}: {row['remark']}" for _, row in shown.iterrows())
        texts.append(f"save_on_cpu is PyTorch's own step of the same network ({ran}).")
    if (shown["tier_reality"] == "stand-in").any():
        texts.append("It ran on NO GPU: its time says nothing about one.")
    texts += [f"save_on_cpu is left out: {reason}." for reason in dict.fromkeys(own[~has_bar(own)][LEFT_OUT])]
    return " ".join(texts) + " "


def _compared(record: FrameworkRecord) -> str:
    if record.exact_loss is None or record.loss_margin is None:
        return "loss not compared"
    apart = abs(record.losses[0] - record.plain_losses[0])
    return f"losses {apart:.1e} apart, {record.loss_margin:.1e} allowed"
