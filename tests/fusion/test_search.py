"""Searches: toy energies whose optimum is known; trials of a step, in a process that may hang, die or be killed."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import json
import math
import random
from collections import Counter

import pytest
import small_step

from autotm.fusion.decisions import executed
from autotm.fusion.moves import GroupingSpace
from autotm.fusion.search import SEARCHES, T_MAX, T_MIN, annealing, temperature
from autotm.fusion.trials import SearchJob, searched
from autotm.fusion.variants import Workbench
from autotm.model.errors import AutotmError
from autotm.model.fusion import Decision
from autotm.model.network_source import NetworkSource
from autotm.model.paths import Paths
from autotm.runtime.step_times import RunOptions
from autotm.stages.context import Context
from autotm.stages.fusion import fusion_graph_stage
from autotm.study.inputs import SEARCHES as NAMES


class Bits:
    """Ten bits, each of which adds its weight, and pairs of neighbours theirs."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self._alone = [draw.uniform(-0.05, 0.05) for _ in range(10)]
        self._pairs = [draw.uniform(-0.02, 0.02) for _ in range(9)]
        self.initial = (0,) * 10
        self.asked = Counter()

    def neighbour(self, state, draw):
        place = draw.randrange(10)
        return (*state[:place], 1 - state[place], *state[place + 1 :])

    def drawn(self, draw):
        return tuple(draw.randint(0, 1) for _ in range(10))

    def chosen(self, choose):
        return tuple(choose(f"bit {place}", (0, 1)) for place in range(10))

    def energy(self, state):
        self.asked[state] += 1
        pairs = sum(
            weight * (one & two) for weight, (one, two) in zip(self._pairs, itertools.pairwise(state), strict=True)
        )
        return 1 + pairs + sum(weight * bit for weight, bit in zip(self._alone, state, strict=True))

    @property
    def least(self):
        return min(map(self.energy, itertools.product((0, 1), repeat=10)))


def test_the_temperature_falls_as_in_the_paper():
    assert temperature(0, 300) == T_MAX == 0.04
    assert temperature(300, 300) == pytest.approx(T_MIN)
    assert temperature(150, 300) == pytest.approx(math.sqrt(T_MAX * T_MIN))


@pytest.mark.parametrize("seed", range(5))
def test_annealing_finds_the_least_energy(seed):
    bits = Bits(seed)
    assert min(one.energy for one in annealing(bits, 300, seed)) == pytest.approx(bits.least)


def test_annealing_accepts_what_is_worse_as_often_as_the_temperature_says():
    class Flat(Bits):
        """Every proposal is worse by a tenth of the first temperature."""

        def energy(self, state):
            return 1.0 if state == self.initial else 1.0 + T_MAX / 10

        def neighbour(self, state, _):
            return self.initial if state != self.initial else (1, *state[1:])

    first = [next(iter(annealing(Flat(0), 300, seed))).is_accepted for seed in range(400)]
    assert sum(first) / len(first) == pytest.approx(math.exp(-0.1), abs=0.04)


def test_a_walk_accepts_all_but_what_failed_and_draws_accept_nothing():
    class Broken(Bits):
        """Half of the states fail."""

        def energy(self, state):
            return math.inf if state[0] else super().energy(state)

    walk = list(SEARCHES["random_walk"](Broken(0), 60, 1))
    assert all(one.is_accepted == math.isfinite(one.energy) for one in walk)
    assert {one.is_accepted for one in walk} == {True, False}
    assert not any(one.is_accepted for one in SEARCHES["independent"](Broken(0), 20, 1))


HAS_OPTUNA = importlib.util.find_spec("optuna") is not None
needs_optuna = pytest.mark.skipif(not HAS_OPTUNA, reason="Optuna is not installed here")


@needs_optuna
@pytest.mark.parametrize("seed", range(2))
def test_the_tuner_learns_from_what_it_tried(seed):
    bits = Bits(seed)
    energies, drawn = (
        [one.energy for one in SEARCHES[name](bits, 150, seed)] for name in ("tree_parzen", "independent")
    )
    assert min(energies) == pytest.approx(bits.least)
    assert sum(energies) < sum(drawn)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=needs_optuna if name == "tree_parzen" else ()) for name in SEARCHES]
)
def test_steps_depend_on_the_seed_and_on_energies_alone(name):
    def run(seed, steps):
        return [(one.proposal, one.is_accepted) for one in SEARCHES[name](Bits(0), steps, seed)]

    assert run(1, 40) == run(1, 40)
    assert run(1, 40) != run(2, 40)


def test_the_study_names_every_search():
    assert {*SEARCHES} == {*NAMES}


# Groupings.

NETWORK = """
from autotm.model.graph import Initial
from autotm.zoo.builder import NetworkBuilder


def small():
    net = NetworkBuilder("small", 8, 0.01)
    x = net.dense(net.input("data", (8, 32), Initial("normal")), 32)
    return net.softmax_cross_entropy(net.dense(x, 4, relu=False))
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    (folder / "small.py").write_text(NETWORK, encoding="utf-8")
    machine = small_step.machine(threads=1)
    source = NetworkSource("small", {}, str(folder / "small.py"), "small")
    run = RunOptions(min_steps=3, min_seconds=0.0, patience_s=0.0, seed=20)
    paths = Paths(folder / "results", machine, "tiny", "small")
    graph = paths.fusion("training", "graph")
    fusion_graph_stage(Context(machine, small_step.DEVICES, 20), source, paths, {"training": graph})
    return SearchJob(source, graph, paths, machine, small_step.DEVICES, "annealing", 4, 1, run)


@pytest.fixture(scope="module")
def log(job, tmp_path_factory):
    """A search that has ended."""
    path = tmp_path_factory.mktemp("log") / "annealing-1.jsonl"
    searched(job, path, 60.0)
    return path


def test_moves_lead_to_groupings_that_can_be_executed(job):
    bench: Workbench = job.bench()
    space = GroupingSpace(bench, lambda _: 1.0)
    states = {space.initial}
    assert {*space.grouping(space.initial).groups} == {*bench.dataflow.default.groups}
    state = space.initial
    for step in range(30):
        state = space.neighbour(state, random.Random(step))
        found = executed(bench.dataflow, space.grouping(state))
        assert sum(own is not Decision.APPLY for own in found.values()) == len(state)
        states.add(state)
    assert len(states) > 10
    assert any(own is Decision.RECOMPUTE for state in states for _, own in state)


def lines(log):
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]


def test_a_search_that_was_killed_goes_on(job, log, tmp_path):
    whole = lines(log)
    trials = [line["trial"] for line in whole if "trial" in line]
    cut = tmp_path / "cut.jsonl"
    kept = [json.dumps(line) for line in whole[:4]]  # The job, the first trial, and one that was begun.
    cut.write_text("\n".join(kept) + '\n{"trial": {"sta', encoding="utf-8")
    steps = searched(job, cut, 60.0)
    again = [line["trial"] for line in lines_that_are_whole(cut) if "trial" in line]
    assert again[0] == trials[0], "it was not measured again"
    assert len(steps) == 4
    assert [one.step for one in steps] == [0, 1, 2, 3]
    assert all(one.trial.times.difference <= 1 for one in steps)


def lines_that_are_whole(log):
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def test_a_search_that_has_ended_is_not_repeated(job, log):
    before = log.read_text(encoding="utf-8")
    steps = searched(job, log, 60.0)
    assert log.read_text(encoding="utf-8") == before
    assert [one.temperature for one in steps] == [temperature(step, 4) for step in range(4)]


@pytest.fixture
def endless(job):
    """A job whose trials take for ever."""
    return dataclasses.replace(job, steps=1, run=dataclasses.replace(job.run, min_steps=10**9))


def test_a_trial_that_takes_too_long_is_a_row_with_its_reason(endless, log, tmp_path):
    (step,) = searched(endless, begun(endless, first_trial(log), tmp_path), 0.0)
    assert step.trial.failure == "the process that tried it took longer than 0 s"
    assert (step.trial.energy, step.is_accepted) == (math.inf, False)


def test_a_search_that_cannot_begin_says_why(endless, log, tmp_path):
    failed = first_trial(log) | {"times": None, "failure": "took longer than 0 s"}
    with pytest.raises(AutotmError, match="TVM's fusion itself fails: took longer than 0 s"):
        searched(endless, begun(endless, failed, tmp_path), 60.0)


def first_trial(log):
    return next(line["trial"] for line in lines(log) if "trial" in line)


def begun(job, trial, folder):
    """Return the log of a search that was killed after its first trial."""
    path = folder / "begun.jsonl"
    entries = {"job": job.identity}, {"trial": trial}
    path.write_text("".join(f"{json.dumps(entry)}\n" for entry in entries), encoding="utf-8")
    return path
