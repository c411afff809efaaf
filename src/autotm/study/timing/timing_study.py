"""The timing study: do quick ways of timing kernels agree with the slow one, and what do they save?"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from autotm.model.files import load_with_provenance
from autotm.model.machine import slow_memory_text
from autotm.model.measurement import TimingStudy, Way
from autotm.study.tables import versions_text
from autotm.study.timing.recorded_kernels import sums_of_recorded

MEASURED, RECORDED = "measured", "recorded"
_ADDITIVE_OF_RECORDED = "additive, recorded Optane"


def timing_table(study_file: Path, recorded: Path | None = None) -> pd.DataFrame:
    """One row for each way and configuration; `single_us` is what the way is compared with.

    Of recorded kernels (`source`) only sums are judged, by what was recorded.

    Raises:
        DamagedFileError: the study cannot be read.
        BadInputError: the table of recorded kernels cannot.
    """
    study, provenance = load_with_provenance(study_file, "timing_study", TimingStudy)
    single = {(one.kernel, one.configuration): one.time_us for one in study.times if one.way is Way.SINGLE}
    seconds = {cost.way: (cost.seconds, cost.runs) for cost in study.costs}
    table = pd.DataFrame(
        [
            {
                "source": MEASURED,
                "way": str(one.way),
                "kernel": one.kernel,
                "op": one.op,
                "configuration": one.configuration,
                "slow_operands": one.slow_operands,
                "time_us": one.time_us,
                "single_us": single[one.kernel, one.configuration],
                "lower_quartile_us": one.lower_quartile_us,
                "upper_quartile_us": one.upper_quartile_us,
                "repeats": one.repeats,
                "way_seconds": seconds[one.way][0],
                "way_runs": seconds[one.way][1],
            }
            for one in study.times
        ]
    )
    if recorded is not None:
        sums = sums_of_recorded(recorded).assign(source=RECORDED, way=_ADDITIVE_OF_RECORDED)
        table = pd.concat([table, sums], ignore_index=True)
    table["difference_percent"] = 100 * (table["time_us"] / table["single_us"] - 1)
    shared = {
        "network": study.network,
        "scale": study.scale,
        "batch": study.batch,
        "machine": study.machine,
        "threads": study.threads,
        "tier_reality": study.tier_reality,
        "slow_memory": slow_memory_text(provenance),
        "seed": study.seed,
        "step_repeats": study.repeats,
        "cpu_model": provenance.get("cpu_model", ""),
        "versions": versions_text(provenance),
    }
    return table.assign(**shared)


def summary(table: pd.DataFrame) -> pd.DataFrame:
    """One row a way: what it took, how far it is from one configuration at a time, and whether that is noise.

    Differences are relative to `single`, in %: median and 90th percentile of their size over configurations, and that
    of the sum of all times. `spread_percent` is the median, over configurations, of the interquartile range of the runs
    of one configuration over their median. A way is `inside_noise` where its median difference is at most the spread of
    `single`: a second look at the same configuration differs by as much. `fastest_inside_noise` marks the quickest.
    """
    measured = table[table["source"] == MEASURED]
    noise = _spread(measured[measured["way"] == str(Way.SINGLE)])
    single_s = measured.loc[measured["way"] == str(Way.SINGLE), "way_seconds"].iloc[0]
    rows = []
    for (source, way), found in table.groupby(["source", "way"], sort=False):
        size = found["difference_percent"].abs()
        seconds = found["way_seconds"].iloc[0]
        rows.append(
            {
                "source": source,
                "way": way,
                "configurations": len(found),
                "runs": found["way_runs"].iloc[0],
                "seconds": seconds,
                "speedup": single_s / seconds,
                "median_difference_percent": size.median(),
                "p90_difference_percent": size.quantile(0.9),
                "sum_difference_percent": 100 * (found["time_us"].sum() / found["single_us"].sum() - 1),
                "spread_percent": _spread(found),
                "inside_noise": bool(source == MEASURED and size.median() <= noise),
            }
        )
    found = pd.DataFrame(rows)
    candidates = found[found["inside_noise"] & (found["way"] != str(Way.AGAIN))]
    quickest = candidates["seconds"].idxmin() if len(candidates) else None
    return found.assign(fastest_inside_noise=[index == quickest for index in found.index])


def _spread(found: pd.DataFrame) -> float:
    """Median interquartile range over the median time, in %; sums have none."""
    shares = (found["upper_quartile_us"] - found["lower_quartile_us"]) / found["time_us"]
    return 100 * float(shares.astype(float).median())
