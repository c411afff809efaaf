"""The audit of TVM's fusions: what is looked at, what a verdict needs, and the script of a fused kernel."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import small_step

from autotm.fusion import audit, replay
from autotm.fusion.dataflow import Dataflow
from autotm.fusion.partitions import Precedence
from autotm.fusion.variants import Workbench
from autotm.kernels.compiler import function_hash
from autotm.kernels.target import host_target
from autotm.model.errors import BadInputError
from autotm.model.fusion import AuditedFusion, FusionTimes, Verdict
from autotm.model.graph import Initial, ScheduleKind
from autotm.profile.kernel_timing import ProfileOptions
from autotm.profile.store import KernelStore
from autotm.runtime.step_times import RunOptions
from autotm.zoo.builder import NetworkBuilder

PROFILE = ProfileOptions(min_repeats=3, max_repeats=3, rotation_bytes=1)
RUN = RunOptions(min_steps=3, min_seconds=0.0, patience_s=0.0)
SOURCES = Path(audit.__file__).parents[2]


def mlp():
    net = NetworkBuilder("mlp", 8, 0.01)
    x = net.input("0_data", (8, 32), Initial("normal"))  # No name in Python, as many of PyTorch's parameters.
    for _ in range(3):
        x = net.dense(x, 32)
    return net.softmax_cross_entropy(net.dense(x, 4, relu=False))


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    folder = tmp_path_factory.mktemp("objects")
    return Workbench(mlp(), "tiny", small_step.machine(threads=1), small_step.DEVICES, folder)


def audited(bench, folder, **options):
    with KernelStore(folder / "fusion.sqlite") as store:
        return audit.audited(bench, store, PROFILE, RUN, step_s=0.0, **options)


@pytest.fixture(scope="module")
def found(bench, tmp_path_factory):
    return audited(bench, tmp_path_factory.mktemp("store"), most=3)


def times(ratio, error=0.001, noise=1.0, noise_error=0.001):
    return FusionTimes(1.0, 1.0, ratio, error, noise, noise_error, 0.0, disturbed=False)


def test_every_fused_kernel_is_counted_once(bench, found):
    own, _ = found
    flow = bench.dataflow
    fused = [live for live in flow.live(flow.default).values() if len(live.nodes) > 1]
    assert sum(one.occurrences for one in own.fusions) == len(fused)
    assert max(one.occurrences for one in own.fusions) == 3  # The three hidden layers.
    assert own.default_kernels == len(bench.default.graph.kernels)


def test_the_costliest_alone_are_measured_as_steps_and_no_others(found):
    own, _ = found
    gains = [one.gain_s for one in own.fusions]
    assert gains == sorted(gains, reverse=True)
    assert [one.off is not None for one in own.fusions] == [True] * 3 + [False] * (len(gains) - 3)
    assert all(one.verdict is Verdict.UNMEASURED for one in own.fusions[3:])
    assert all(one.off.times.difference <= 1 for one in own.fusions[:3])


def test_a_fusion_is_off_wherever_it_occurs(found):
    own, _ = found
    for one in own.fusions[:3]:
        added = one.occurrences * (len(one.operators) - 1)
        assert one.off.kernels == own.default_kernels + added


def test_other_kernels_share_out_the_same_operators(found):
    own, _ = found
    others = [one for one in own.fusions if one.partial]
    assert all(sorted(sum(one.partial, ())) == sorted(one.operators) for one in others)
    assert all(1 < len(one.partial) < len(one.operators) and one.partial_s <= one.off_s for one in others)


def test_kernels_save_what_they_neither_write_nor_read_back(found):
    own, _ = found
    hidden = next(one for one in own.fusions if one.operators[0] == "matmul.0")
    assert [name.partition(".")[0] for name in hidden.operators] == ["matmul", "add", "relu"]
    # Training reads the value of relu alone: two values of 8 x 32 are not written, and not read back.
    assert hidden.saved_bytes == 2 * 2 * 8 * 32 * 4
    assert hidden.shapes[0] == (8, 32)


@pytest.mark.parametrize(
    ("off", "partial", "verdict"),
    [
        (times(0.9), None, (Verdict.HARMFUL, "off")),
        (times(1.1), times(0.9), (Verdict.HARMFUL, "partial")),
        (times(1.1), times(1.0), (Verdict.HELPFUL, "")),
        (times(0.99, error=0.01), None, (Verdict.NEUTRAL, "")),
        (times(1.02, noise=1.03), None, (Verdict.NEUTRAL, "")),
        (times(0.998, noise=1.03), None, (Verdict.HARMFUL, "off")),
        (times(1.02, noise=1.03, noise_error=0.0), times(1.0), (Verdict.NEUTRAL, "")),
        (times(0.97, noise=0.96), None, (Verdict.NEUTRAL, "")),
    ],
)
def test_a_verdict_is_beyond_the_noise_and_beyond_equality(off, partial, verdict):
    steps = {"off": off, "partial": partial}
    assert audit.verdict_of({name: own for name, own in steps.items() if own}) == verdict


def test_nothing_measured_is_no_verdict():
    assert audit.verdict_of({}) == (Verdict.UNMEASURED, "")


def test_harmful_fusions_are_measured_together_once_more(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(audit, "verdict_of", lambda _: (Verdict.HARMFUL, "off"))
    own, harmful = audited(bench, tmp_path, most=2)
    assert [one.remedy for one in own.fusions] == ["off"] * len(own.fusions)
    assert own.mended.times.difference <= 1
    assert own.mended.kernels == len(bench.dataflow.operators)
    assert [*harmful] == [*range(len(own.fusions))]
    assert "step without the harmful ones, measured again" in str(own)


def test_a_harmful_fusion_that_is_not_so_again_makes_no_difference(bench, tmp_path, monkeypatch):
    verdicts = itertools.chain([(Verdict.HARMFUL, "off")], itertools.repeat((Verdict.NEUTRAL, "")))
    monkeypatch.setattr(audit, "verdict_of", lambda _: next(verdicts))
    own, harmful = audited(bench, tmp_path, most=1)
    first = own.fusions[0]
    assert (first.verdict, first.remedy) == (Verdict.NEUTRAL, "")
    assert first.again.times.difference <= 1
    assert (own.mended, harmful) == (None, {})


def test_too_many_kernels_leave_single_cuts(bench, monkeypatch):
    monkeypatch.setattr(audit, "_MOST_SETS", 3)
    flow = bench.dataflow
    precedence = Precedence([node.reads for node in flow.nodes])
    hidden = next(one for one in audit.fusions_of(bench) if 0 in one.first.nodes)
    audit._find_candidates(bench, precedence, hidden)
    first, second, third = hidden.first.nodes
    assert {*hidden.cuts} == {((first,), (second, third)), ((first, second), (third,))}
    assert {*hidden.candidates} == {(first,), (second,), (third,), (first, second), (second, third)}


def fused(bench, operator):
    """A fused kernel, and what an audit that found it harmful would know."""
    flow = bench.dataflow
    live = next(one.first for one in audit.fusions_of(bench) if flow.nodes[one.first.nodes[0]].name == operator)
    names = tuple(flow.nodes[place].name for place in live.nodes)
    parts = (names[:1], names[1:])
    shapes = ((8, 32),) * len(names)
    return live, AuditedFusion(names, shapes, 3, 2e-6, 1e-6, 1e-6, parts, True, 0, ScheduleKind.GENERATED)


def test_a_script_times_a_fused_kernel_and_others(bench, tmp_path):
    live, fusion = fused(bench, "matmul.0")
    path = tmp_path / replay.file_name(1, fusion)
    assert path.name == "1-matmul-add-relu.py"
    path.write_text(replay.script_of(bench.dataflow, live, fusion, "Of a test.", threads=1), encoding="utf-8")
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    printed = re.findall(r"^(\w+): ([\d.e+]+) us, ([\d.]+)$", done.stdout, re.MULTILINE)
    assert [name for name, *_ in printed] == ["fused", "off", "partial"]
    assert all(float(number) > 0 for _, *numbers in printed for number in numbers)


@pytest.mark.parametrize("operator", ["matmul.0", "multiply.12", "matmul_tn.22"])
def test_a_script_has_the_kernel_of_the_step(bench, operator, tmp_path, monkeypatch):
    live, fusion = fused(bench, operator)
    path = tmp_path / "one.py"
    path.write_text(replay.script_of(bench.dataflow, live, fusion, "", threads=1), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "one", raising=False)
    import one

    flow = Dataflow(one.Module, host_target(1))
    whole = flow.computed_apart(flow.operators)
    assert function_hash(flow.primitive(whole)) == function_hash(bench.dataflow.primitive(live))


def test_ways_that_compute_something_else_are_refused(bench, monkeypatch):
    live, _ = fused(bench, "matmul.0")
    draws = itertools.count()
    monkeypatch.setattr(replay.Filler, "fill", lambda _, view: view.fill(next(draws)))
    kernels = {"fused": [[0, 1, 2]], "off": [[0], [1], [2]]}
    with pytest.raises(BadInputError, match="off: result 0 differs from that of the first way"):
        replay.replay(bench.dataflow.module_of(live), kernels, 1, PROFILE)
