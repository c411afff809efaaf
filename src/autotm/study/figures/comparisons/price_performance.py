"""Performance against the price of the memory that it takes, a point a run."""

from __future__ import annotations

import pandas as pd

from autotm.model.files import BadInputError
from autotm.model.study import StyleConfig
from autotm.study.drawing import GRAY, Drawn, caption, finish, limits_of, network_colors, panels, prices_remark, title
from autotm.study.setup import MOVER
from autotm.study.tables import marked

_MARKS = ("v", "s", "D", "^", "o", "P", "X", "<", ">", "*")
_MOST = 1.06


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A line for each network, a mark for each limit; on the diagonal, memory is as much cheaper as steps are slower.

    Raises:
        BadInputError: the table has no synchronous runs.
    """
    runs = table[table["optimizer"] == MOVER]
    if runs.empty:
        raise BadInputError(f"price-performance: no run of optimizer '{MOVER}'; add it to the workload's optimizers")
    runs = runs.assign(performance=1.0 / runs["slowdown"])
    figure, (axes,) = panels(1, style, widen=1.4)
    networks, limits = list(dict.fromkeys(runs["network"])), limits_of(runs, ends=True)
    colors = network_colors(style, networks)
    axes.plot([0, _MOST], [0, _MOST], color=GRAY, linewidth=0.8, linestyle=(0, (4, 2)), label="break even")
    for name in networks:
        of_network = runs[runs["network"] == name]
        axes.plot(of_network["pools_price"], of_network["performance"], color=colors[name], label=title(name))
    for number, limit in enumerate(limits):
        at_limit, look = runs[runs["limit"] == limit], {"linestyle": "none", "marker": _MARKS[number % len(_MARKS)]}
        axes.scatter(
            at_limit["pools_price"],
            at_limit["performance"],
            facecolors=[
                "white" if is_marked else colors[name]
                for name, is_marked in zip(at_limit["network"], marked(at_limit), strict=True)
            ],
            edgecolors=[colors[name] for name in at_limit["network"]],
            marker=look["marker"],
            s=18,
            zorder=3,
        )
        axes.plot([], [], color=GRAY, label=limit, **look)
    axes.set_xlim(0, _MOST * max(1.0, float(runs["pools_price"].max())))
    axes.set_ylim(0, _MOST * max(1.0, float(runs["performance"].max())))
    axes.set_xlabel("price of memory, share of all fast")
    axes.set_ylabel("performance, share of all fast")
    finish(axes, "", f"Price and performance ({MOVER})")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, (
        f"{caption(runs)} {prices_remark(runs)} Prices are those of the memory that a run took. Above the dashed line "
        "a step loses less than its memory saves."
    )
