"""What captions tell, from the table that a figure is drawn from: machine, proof, disturbances, prices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import pandas as pd

from autotm.model.plan import Status
from autotm.study.tables import BEFORE, BEFORE_SEPARATOR, PAGES, marked

_NO_GAP = 1e-6


def machine_text(row: Mapping[Hashable, Any]) -> str:
    """Machine, processor, threads, and how real its slow memory is; `row` holds them under the names of records.

    `slow_memory` in it, if there is any, says which memory that is (`model.machine.slow_memory_text`).
    """
    reality = {
        "real": "real slow memory",
        "emulated": "slow memory EMULATED: DRAM plus injected delay",
        "modelled": "slow memory MODELLED: times computed, not run",
        "stand-in": "NO SLOW MEMORY: ordinary memory stands in for it, its times say nothing about slow memory",
    }[str(row["tier_reality"])]
    which = row.get("slow_memory")
    if isinstance(which, str) and which:
        reality += f" ({which})"
    return f"machine {row['machine']}: {row['cpu_model']}, {row['threads']} threads; {reality}"


def caption(table: pd.DataFrame) -> str:
    """What a reader must know to trust a figure of runs: machine, tier reality, threads, gap, seed, versions."""
    first = table.iloc[0]
    batches = table.drop_duplicates("network")
    networks = ", ".join(f"{row['network']} (batch {row['batch']})" for _, row in batches.iterrows())
    return (
        f"{networks}, scale {first['scale']}; {machine_text(first)}. Runtimes are medians of at least "
        f"{table['samples'].min()} timed steps{_all_fast(table)}. "
        f"{disturbed_text(table)}{proven_text(table)}{pages_text(table)}Outputs of "
        f"{table['verified_steps'].min()} steps a point compared bit for bit with the unplanned step; "
        f"seed {first['seed']}. {first['versions']}."
    )


def _all_fast(table: pd.DataFrame) -> str:
    seconds = table["all_fast_runtime_s"].dropna()
    if seconds.empty:
        return ""
    return f"; all-fast steps took {' to '.join(f'{one:.3g}' for one in sorted({seconds.min(), seconds.max()}))} s"


def proven_text(table: pd.DataFrame) -> str:
    """How good the plans of optimizers that search are; the others have one plan, and no bound to be near."""
    searched = table[table["solver_status"] != str(Status.NOT_OPTIMIZED)]
    if searched.empty:
        return ""
    names = ", ".join(dict.fromkeys(searched["optimizer"]))
    return f"Plans ({names}) {near_text(searched['gap'].max())} on the predicted runtime. "


def pages_text(table: pd.DataFrame) -> str:
    """Whether the pages of Linux's policies were placed by a simulation; empty where the table has none of these."""
    found = {
        how: ", ".join(dict.fromkeys(table.loc[table[PAGES] == how, "optimizer"])) if PAGES in table else ""
        for how in ("simulated", "linux")
    }
    sentences = ""
    if found["simulated"]:
        sentences += f"Pages by Linux ({found['simulated']}): where they are is SIMULATED, by the rules it documents. "
    if found["linux"]:
        sentences += (
            f"Pages by Linux ({found['linux']}): placed by this machine's kernel, in fast memory that was filled but "
            "for the limit. "
        )
    return sentences


def near_text(gap: float) -> str:
    """How near a plan is to its bound, in words; a gap that is rounding error is none."""
    return f"within {100 * gap if gap > _NO_GAP else 0:.2g} % of a proven bound"


def disturbed_text(table: pd.DataFrame) -> str:
    """The caption's sentences that name disturbed runs, and what plans were made from; empty where there are none."""
    shown, sentences = table[marked(table)], ""
    if not shown.empty:
        named = "; ".join(_run_text(row) for _, row in shown.iterrows())
        sentences = f"Hollow, too slow: others held the cores during {named}. "
    texts = table[BEFORE].dropna() if BEFORE in table else ()
    found = dict.fromkeys(one for text in texts for one in text.split(BEFORE_SEPARATOR) if one)
    if named := "; ".join(_grouped(list(found))):
        sentences += f"Others held the cores, too, while what predictions are made from was measured: {named}. "
    return sentences


def _grouped(named: Sequence[str]) -> list[str]:
    """What was measured, in words; `copies beside kernels (matmul)` and the like as one, with their number."""
    members = Counter(one.split(" (")[0] for one in named)
    shown = {one.split(" (")[0]: one for one in named}
    return [one if members[name] == 1 else f"{name} ({members[name]} classes)" for name, one in shown.items()]


def _run_text(row: Mapping[Hashable, Any]) -> str:
    on = f" on {row['device']}" if "device" in row else ""
    return f"{row['network']} {row['optimizer']} {row['limit']}{on}"


def prices_remark(table: pd.DataFrame) -> str:
    """The prices taken, for a caption."""
    return f"A byte of fast memory is taken as {table['price_ratio'].iloc[0]:.3g} times as dear as one of slow memory."


def modelled_caption(table: pd.DataFrame) -> str:
    """What a reader must know to trust a figure of plans: where the kernels were timed, and what is not known."""
    first, networks = table.iloc[0], table.drop_duplicates("network")
    errors = "; ".join(
        f"{row['network']} (batch {row['batch']}) {100 * row['step_error']:+.1f} %, single kernels "
        f"{100 * row['kernel_error']:.1f} %"
        for _, row in networks.iterrows()
    )
    return (
        f"Steps are MODELLED, not run: PREDICTED times at scale {first['scale']} from kernels timed at batches "
        f"{first['batches']}; {machine_text(first)}. {proven_text(table)}{pages_text(table)}"
        f"Error of the all-fast step at the largest of these "
        f"batches, predicted from the others: {errors}. Seed {first['seed']}. {first['versions']}."
    )
