"""Figure 9 of AutoTM: performance against the price of memory, as shares of all-fast."""

from __future__ import annotations

import pandas as pd
import seaborn as sns

from autotm.model.errors import BadInputError
from autotm.model.limit import Limit
from autotm.model.study_config import StyleConfig
from autotm.study.comparison import Drawn, bars, limits_of, title, values
from autotm.study.style import GRAY, finish, panels

MOVER = "synchronous"
COST_RATIO = 2.1
"""Price of a byte of DRAM over one of Optane memory (Hildebrand et al., ASPLOS 2020)."""
_ALL_FAST = "0:1"


def memory_cost(limit: Limit) -> float:
    """Price of the memory that a ratio slow:fast describes, over that of as much fast memory alone."""
    assert limit.slow is not None
    assert limit.fast is not None
    return (limit.slow / COST_RATIO + limit.fast) / (limit.slow + limit.fast)


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """Bars for each network at each ratio; prices as marks.

    Raises:
        BadInputError: the table has no synchronous runs.
    """
    runs = table[table["optimizer"] == MOVER]
    if runs.empty:
        raise BadInputError(f"figure 9: no run of optimizer '{MOVER}'; add it to the workload's optimizers")
    ratios = [text for text in limits_of(runs, ends=True) if Limit.parse(text).size_bytes is None]
    places = [text for text in ratios if text != _ALL_FAST]
    networks = list(dict.fromkeys(runs["network"]))
    figure, (axes,) = panels(1, style, widen=1.6)
    shades = sns.color_palette(style.palette, len(networks))
    performance = runs.assign(performance=1.0 / runs["slowdown"])
    series = [
        (title(name), values(performance[performance["network"] == name], places, "performance"), shade)
        for name, shade in zip(networks, shades, strict=True)
    ]
    bars(axes, places, series)
    costs = [memory_cost(Limit.parse(place)) for place in places]
    axes.plot(range(len(places)), costs, "_", color=GRAY, markersize=26, markeredgewidth=1.4, label="price of memory")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of all fast")
    axes.set_xlabel("slow : fast memory")
    finish(axes, "a", f"Performance ({MOVER}) and price of memory")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, f"Price: fast memory taken as {COST_RATIO} times as dear a byte as slow memory, as in the paper."
