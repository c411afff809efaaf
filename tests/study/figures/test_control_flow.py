"""Figures of control flow: from studies to tables, pictures and what their captions conclude."""

from itertools import product

import pandas as pd
import pytest
from synthetic_records import PROVENANCE

from autotm.model.config import StyleConfig
from autotm.model.control_study import (
    ALL_BLOCKS,
    RESOLVED,
    SYSTEMS,
    VARIANTS,
    WITH_CONTROL_FLOW,
    ControlStudy,
    SystemTimes,
)
from autotm.model.errors import AutotmError
from autotm.model.files import save
from autotm.stages.control_flow import best, control_figure_stage
from autotm.study.columns import MEANINGS
from autotm.study.figures.control_flow import CONTROL_FIGURES, summary, table_of_studies
from autotm.study.inputs import CONTROL_FIGURES as NAMES

STYLE = StyleConfig()
SOURCE = {**PROVENANCE, "machine": "laptop-2t", "seed": 20}


def times(system, variant, *times_ms, batch=1, threads=1, failure="", kernel_ms=None, **sizes):
    rewrites = {"unroll": 2} if system == "tvm-fused" else {}
    error = None if failure else 1e-7
    return SystemTimes(system, variant, batch, sizes, threads, rewrites, failure, 1.0, error, times_ms, kernel_ms)


def write(folder, model, *of_model):
    path = folder / f"{model}.json"
    save(path, "control_study", ControlStudy(model, {"torch": "2.13.0", "jax": "not installed"}, of_model), SOURCE)
    return path


def studies(folder, name):
    """A study of each model that a figure shows; the n-th system takes n ms, and half of it resolved."""
    slower = {WITH_CONTROL_FLOW: 1.0, RESOLVED: 0.5, ALL_BLOCKS: 2.0}
    options = {
        "fig14_batch64": [{"batch": 64}], "fig17": [{"ratio": 0}, {"ratio": 50}],
        "hidden_size": [{"hidden": 16}, {"hidden": 64}],
    }.get(name, [{}])  # fmt: skip
    models = {"fig17": ("blockdrop", "skipnet"), "hidden_size": ("lstm", "nasrnn")}.get(
        name, ("lstm", "nasrnn", "attention", "seq2seq", "blockdrop", "skipnet", "rae")
    )
    paths = []
    for model in models:
        of_model = [
            times(system, variant, *[(number + 1) * slower[variant] * part for part in (0.9, 1.0, 1.1)], **option)
            for (number, system), variant, option in product(enumerate(reversed(SYSTEMS)), VARIANTS, options)
            if (system, model) != ("onnxruntime", "rae")
        ]
        if name != "fig14_batch64":
            of_model += [times(system, WITH_CONTROL_FLOW, 0.5, threads=2, **options[0]) for system in SYSTEMS]
            of_model.append(times("cuda-host", WITH_CONTROL_FLOW, 1.0))
            of_model.append(times("cuda-graph", WITH_CONTROL_FLOW, failure="not run: no GPU"))
        if model == "rae":
            of_model.append(times("onnxruntime", WITH_CONTROL_FLOW, failure="a graph of ONNX cannot call itself"))
        paths.append(write(folder, model, *of_model))
    return paths


def test_every_figure_that_there_is_can_be_drawn():
    assert set(CONTROL_FIGURES) == set(NAMES)


@pytest.mark.parametrize("name", CONTROL_FIGURES)
def test_drawn(name, tmp_path):
    csv = tmp_path / f"{name}.csv"
    control_figure_stage(STYLE, studies(tmp_path, name), csv)
    table = pd.read_csv(csv)
    assert set(table) <= set(MEANINGS)
    has_others = name == "fig19"
    assert ({*table["threads"]} == {1, 2}, "cuda-host" in {*table["system"]}) == (has_others, has_others)
    assert all(csv.with_suffix(kind).stat().st_size > 1000 for kind in (".pdf", ".png"))
    figure, caption = CONTROL_FIGURES[name](table, STYLE)
    assert "MEASURED" in caption
    assert "torch 2.13.0" in caption
    texts = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert ("N/A: a graph of ONNX" in texts) == (name in ("fig14_batch1", "fig18"))
    expected = {
        "fig2": "Share of control flow in the time: Seq2seq (jax) 50 %, BlockDrop (jax) 50 %, RAE (jax) 50 %.",
        "fig14_batch1": "tvm-vm takes 2.00 times as long as tvm-fused in geometric mean of 7, at most 2.00 times",
        "fig14_batch64": "Batch 64.",
        "fig18": "Control flow adds to RAE: torch +100 %",
        "fig19": "no times on one of the two. cuda-graph: not run: no GPU.",
        "fig20": "Best of all sets of rewrites: LSTM: unroll 2",
        "hidden_size": "LSTM: tvm-fused is the fastest at every size.",
    }
    assert expected.get(name, "") in caption


@pytest.mark.parametrize(
    ("fused", "text"),
    [
        ((1, 1, 1), "is the fastest at every size"),
        ((1, 1, 3), "is the fastest up to hidden 64"),
        ((1, 3, 1), "is the fastest up to hidden 16"),
        ((3, 1, 1), "is not the fastest at hidden 16"),
    ],
)
def test_the_crossover_is_stated(fused, text, tmp_path):
    of_model = [
        times(system, WITH_CONTROL_FLOW, ms, ms, hidden=hidden)
        for hidden, own in zip((16, 64, 256), fused, strict=True)
        for system, ms in (("tvm-vm", 2.0), ("jax", 2.5), ("tvm-fused", float(own)))
    ]
    table = table_of_studies([write(tmp_path, "lstm", *of_model)], "hidden_size")
    assert f"LSTM: tvm-fused {text}." in CONTROL_FIGURES["hidden_size"](table, STYLE)[1]


def test_ratios_are_of_the_same_case(tmp_path):
    of_model = [
        times(system, WITH_CONTROL_FLOW, ms, hidden=hidden)
        for system, hidden, ms in (
            ("jax", 16, 8.0),
            ("jax", 64, 4.0),
            ("tvm-fused", 16, 1.5),
            ("tvm-fused", 16, 1.0),
            ("tvm-fused", 64, 2.0),
        )
    ]
    table = table_of_studies([write(tmp_path, "lstm", *of_model)], "hidden_size")
    assert list(summary(table)) == [
        "jax takes 4.00 times as long as tvm-fused in geometric mean of 2, at most 8.00 times (LSTM)"
    ]


def test_the_best_rewrites_are_the_fastest_that_have_times():
    plain, slow = times("tvm-fused", WITH_CONTROL_FLOW, 2.0), times("tvm-fused", WITH_CONTROL_FLOW, 3.0)
    other, failed = times("tvm-vm", WITH_CONTROL_FLOW, 1.0), times("tvm-fused", WITH_CONTROL_FLOW, failure="no kernel")
    assert best(ControlStudy("lstm", {}, (other, failed, slow, plain))) is plain
    with pytest.raises(AutotmError, match="no rewrites of lstm have times: no kernel"):
        best(ControlStudy("lstm", {}, (other, failed)))
