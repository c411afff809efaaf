"""The models of control flow in every system: what they compute, and how one that fails is told."""

import contextlib
import dataclasses
import os
import signal

import numpy as np
import pytest

pytest.importorskip("torch", reason="it is the yardstick: make test-torch installs it")
import branches_in_torch
import loops_in_numpy
import torch

from autotm.control.reader import read_program
from autotm.model.control_study import ALL_BLOCKS, BRANCHING, RESOLVED, SYSTEMS, VARIANTS, WITH_CONTROL_FLOW
from autotm.model.errors import AutotmError, BadInputError
from autotm.systems import measure, worker
from autotm.systems.measure import Task, times_in_turn
from autotm.systems.resolved import resolved, with_weights
from autotm.systems.source import without_checks
from autotm.systems.torch_systems import reference
from autotm.zoo import branch_models
from autotm.zoo.control_flow import MODELS, control_model

SIZES = {
    "lstm": {"steps": 4, "cells": 2, "hidden": 16},
    "nasrnn": {"steps": 6, "hidden": 16},
    "attention": {"first": 3, "slots": 6, "heads": 2, "width": 16},
    "seq2seq": {"words": 40, "hidden": 16, "most_steps": 12},
    "blockdrop": {"image": 8, "blocks": 2, "channels": 4},
    "skipnet": {"image": 32, "blocks": 1, "channels": 4, "classes": 10},
    "rae": {"width": 16, "leaves": 6},
}
NONE = {("torchscript", "rae"): "function definitions", ("onnxruntime", "rae"): "cannot call itself"}
"""What cannot be had with control flow, and why."""


def task(model, system, variant=WITH_CONTROL_FLOW, batch=1, **more):
    return Task(model, tuple({**SIZES[model], **more}.items()), batch, 20, 1, system, variant)


def prepared(one):
    return worker._prepared(one, {})[1]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("system", [system for system in SYSTEMS if system != "torch.compile"])  # Minutes.
def test_results_are_those_of_the_model(system, model):
    if (system, model) in NONE:
        with pytest.raises(Exception, match=NONE[system, model]):
            prepared(task(model, system))
    else:
        assert prepared(task(model, system, batch=1 if model == "rae" else 3))["error"] < measure.TOLERANCE
    for variant in VARIANTS[1:]:
        if variant != ALL_BLOCKS or model in BRANCHING:
            assert prepared(task(model, system, variant))["error"] < measure.TOLERANCE


@pytest.mark.parametrize("model", ["nasrnn", "seq2seq"])
def test_pieces_through_torch_compile(model):
    assert prepared(task(model, "torch.compile"))["error"] < measure.TOLERANCE


@pytest.mark.parametrize("model", MODELS)
def test_the_yardstick_computes_the_model(model):
    made = control_model(model, SIZES[model], 1 if model == "rae" else 3, 20)
    arguments = made.arguments
    found = reference(read_program(made.module), arguments)
    if model in BRANCHING:
        net = {"blockdrop": (branch_models.BlockDrop, branches_in_torch.block_drop),
               "skipnet": (branch_models.SkipNet, branches_in_torch.skip_net)}[model]  # fmt: skip
        sizes = {"blockdrop": (8, (2, 2, 2), 4), "skipnet": (32, (1, 1, 7, 1), 4, 10)}[model]
        double = [torch.from_numpy(each).double() for each in arguments]
        expected = (net[1](net[0](*sizes), *double).numpy(),)
    else:
        function = {"seq2seq": loops_in_numpy.decoder, "rae": loops_in_numpy.encoder}.get(model)
        function = function or getattr(loops_in_numpy, model)
        first = (SIZES[model]["first"],) if model == "attention" else ()
        expected = function(*first, *arguments)
        expected = expected if isinstance(expected, tuple) else (expected,)
    for one, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-6)


def test_what_is_resolved_has_no_control_flow_and_no_decisions():
    made = control_model("skipnet", SIZES["skipnet"], 1, 20)
    program = with_weights(read_program(made.module), {index: made.arguments[index] for index in made.weights})
    flat = resolved(without_checks(program), made.arguments[:2], [1])
    kinds = {type(item).__name__ for item in flat.body.statements}
    convolutions = [item for item in flat.body.statements if item.name == "relax.nn.conv2d"]
    names = [value.name for value in flat.parameters]
    # A stem, the first block, 6 of 9 gated blocks; 4 convolutions that shortcuts of wider blocks have.
    assert (kinds, len(convolutions), names) == ({"Operator"}, 1 + 3 * (1 + 6) + 4, ["x"])


def test_compilers_are_given_no_resolved_program_that_they_would_not_end_with(monkeypatch):
    monkeypatch.setattr(worker, "_MOST_COMPILED", 10)
    with pytest.raises(BadInputError, match=r"^\d+ operators in a row: compilers are given 10 at most$"):
        prepared(task("nasrnn", "tvm-vm", RESOLVED))
    assert prepared(task("nasrnn", "torch", RESOLVED))["error"] < measure.TOLERANCE


def test_ratios_are_rounded_as_in_the_original():
    made = control_model("blockdrop", {**SIZES["blockdrop"], "blocks": 5}, 1, 0)
    kept = [made.at_ratio(ratio)[1].sum() for ratio in (0, 25, 50, 75, 100)]
    assert kept == [0, 4, 7, 11, 15]


# Processes that take turns.


def test_systems_take_turns_and_one_that_has_nothing_says_why():
    tasks = [task("rae", system, variant) for system in ("onnxruntime", "tvm-fused") for variant in VARIANTS[:2]]
    none, flat, fused, fused_flat = times_in_turn(tasks, rounds=3, build_s=60, at_once=2)
    assert (none.failure, none.times_ms) == ("a graph of ONNX cannot call itself", ())
    assert [len(times.times_ms) for times in (flat, fused, fused_flat)] == [3, 3, 3]
    assert (flat.variant, flat.rewrites, fused.rewrites["unroll"]) == (RESOLVED, {}, 2)
    assert fused.error < 1e-6


def test_a_system_that_takes_too_long_has_no_times_and_ends_nothing_else(monkeypatch):
    asked = measure._Worker.ask

    def ask(own, question, one, limit_s, **details):
        is_slow = (question, one.batch) == ("prepare", 2)
        return asked(own, question, one, 0.0 if is_slow else limit_s, **details)

    monkeypatch.setattr(measure._Worker, "ask", ask)
    one = task("nasrnn", "tvm-vm")
    times, slow = times_in_turn([one, dataclasses.replace(one, batch=2)], rounds=3, build_s=60, at_once=1)
    assert (slow.failure, slow.times_ms, len(times.times_ms)) == ("no result within 0 s", (), 3)


def test_a_process_that_ends_is_told_and_another_takes_its_place():
    one = task("nasrnn", "tvm-vm")
    with contextlib.closing(measure.Forks([one])) as forks:
        asked = measure._Worker([one], forks)
        asked.ask("prepare", one, 60)
        os.kill(asked.fork[0], signal.SIGKILL)
        with pytest.raises(AutotmError, match="its process ended: signal SIGKILL"):
            asked.ask("call", one, 60, calls=1)
        asked.close()
        asked.prepare(60)
        assert asked.times[one].build_s > 0
        asked.close()


def test_the_process_that_forks_is_missed():
    with contextlib.closing(measure.Forks([])) as forks:
        forks.process.kill()
        with pytest.raises(AutotmError, match="the process that forks others ended: signal SIGKILL"):
            forks.fork()


def test_a_fork_has_threads_whatever_the_environment_asks_of_the_first_process(monkeypatch):
    monkeypatch.setenv("MKL_NUM_THREADS", "2")  # As Snakemake sets it.
    one = task("rae", "torch", width=512, leaves=8)  # Large enough for MKL to share its `tanh`.
    (times,) = times_in_turn([dataclasses.replace(one, threads=2)], rounds=1, build_s=20, at_once=1)
    assert not times.failure


def test_wrong_results_end_the_job(monkeypatch):
    monkeypatch.setattr(measure, "TOLERANCE", 1e-12)
    wrong = (
        r"tvm-fused computes nasrnn \(with control flow, batch 1\) wrong: off PyTorch's float64 by .* allowed are 1e-12"
    )
    with pytest.raises(AutotmError, match=wrong):
        times_in_turn([task("nasrnn", "tvm-fused")], rounds=3, build_s=60, at_once=1)


def test_nan_is_wrong():
    assert np.isnan(worker._error([np.array([np.nan])], [np.array([1.0])]))
    assert worker._error([np.zeros((2, 1))], [np.zeros(2)]) == np.inf


def test_rewrites_that_are_searched_make_different_programs():
    assert len(worker.different_rewrites(task("rae", "tvm-fused"))) == 2
    one = task("nasrnn", "tvm-fused", steps=16)
    found = times_in_turn([], rounds=1, build_s=60, at_once=2, searched=one)
    assert [times.rewrites["unroll"] for times in found] == [1, 1, 2, 4, 8]
    assert all(times.times_ms for times in found)
