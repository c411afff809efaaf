"""What the engines of a GPU do in one step: kernels, copies to the device, copies to the host."""

from __future__ import annotations

import pandas as pd

from autotm.model.study import StyleConfig
from autotm.study.drawing import Drawn, finish, grid, optimizer_colors, rival_colors, series_name, title
from autotm.study.figures.gpu.fig12 import gpu_text, is_modelled, say_so

_LANES = ("compute", "in", "out")
_THICK = 0.8
_MEASURED = (
    "Times are from event to event on three streams; what page faults of managed memory move is within its kernels. "
)


def draw(table: pd.DataFrame, style: StyleConfig) -> Drawn:
    """A panel for each way of placing the tensors, below one another, with one axis of time."""
    steps = list(table.groupby("optimizer", sort=False))
    flat = style.model_copy(update={"panel_height_cm": max(2.1, 0.4 * style.panel_height_cm)})
    figure, axes = grid(len(steps), 1, flat, widen=2.2)
    say_so(figure, table, style)
    colors = {**optimizer_colors(style), **rival_colors(style)}
    longest_s = table["end_us"].max() / 1e6
    for panel, (name, step) in zip(axes, steps, strict=True):
        for place, lane in enumerate(_LANES):
            done = step[step["engine"] == lane]
            spans = list(zip(done["start_us"] / 1e6, (done["end_us"] - done["start_us"]) / 1e6, strict=True))
            bottom = len(_LANES) - 1 - place - _THICK / 2
            panel.broken_barh(spans, (bottom, _THICK), facecolor=colors[str(name)], linewidth=0, rasterized=True)
        panel.set_yticks(range(len(_LANES)), reversed(_LANES))
        panel.set_ylim(-_THICK, len(_LANES) - 1 + _THICK)
        panel.set_xlim(0, longest_s)
        panel.grid(visible=False, axis="y")
        unfit = "" if bool(step["fits"].iloc[0]) else ", does not fit"
        lasted = f"{step['end_us'].max() / 1e6:.3g} s" if step["end_us"].any() else "not run"
        finish(panel, "", f"{series_name(str(name))}: {lasted}{unfit}")
    axes[-1].set_xlabel(f"{'modelled ' if is_modelled(table) else ''}time of one step (s)")
    first, how = table.iloc[0], "" if is_modelled(table) else _MEASURED
    text = (
        f"{title(str(first['network']))}, batch {first['batch']}, scale {first['scale']}. "
        f"{gpu_text(table)} {how}Device memory for what is placed: {first['limit']}. "
        f"Machine {first['machine']}; seed {first['seed']}. {first['versions']}."
    )
    return figure, text
