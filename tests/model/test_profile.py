"""A profile: what slow operands and other implementations add, measured, summed, kept in a file."""

from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from random_graphs import StepBuilder

from autotm.model.errors import AutotmError, DamagedFileError
from autotm.model.files import hash_of
from autotm.model.graph import Implementation, all_fast, configuration
from autotm.model.profile import TIE_NS, Profile, Timing, read_profile, write_profile

BASE = Timing(900, 1000, 950, 1100, 9)


def step_with_lean():
    builder = StepBuilder()
    builder.kernel([], {"a": 10, "b": 10})
    graph = builder.graph()
    kernel = replace(graph.kernels[0], alternatives=(Implementation("lean", "f0_lean", "id0_lean"),))
    return replace(graph, kernels=(kernel,)), kernel


GRAPH, KERNEL = step_with_lean()
LEAN = KERNEL.computed_by("lean")


def profile(**changed: Timing) -> Profile:
    """`a` adds 300 ns in the same rounds, though the medians differ by 700; `b` seems to make the kernel faster."""
    timings = {
        ("id0", "default", all_fast(KERNEL)): BASE,
        ("id0", "default", configuration(GRAPH, KERNEL, {"a"})): replace(BASE, median_ns=1700, beyond_ns=300),
        ("id0", "default", configuration(GRAPH, KERNEL, {"b"})): replace(BASE, median_ns=980),
        ("id0_lean", "lean", all_fast(KERNEL)): replace(BASE, default_identity="id0", **changed),
        ("id0_lean", "lean", configuration(GRAPH, KERNEL, {"a"})): replace(BASE, beyond_ns=200),
    }
    return Profile(hash_of(GRAPH), timings, {"seed": 1})


def test_what_slow_operands_add_was_measured_in_turn_with_fast_ones() -> None:
    found = profile(beyond_ns=0)
    assert found.extra_us(GRAPH, KERNEL, "a") == 0.3
    assert found.time_us(GRAPH, KERNEL, frozenset({"a"})) == 1.3


def test_what_did_not_take_turns_is_the_difference_of_medians() -> None:
    """And noise below zero stays there, so that sums over a step are not too large."""
    found = profile(beyond_ns=0)
    assert found.extra_us(GRAPH, KERNEL, "b") == -0.02
    assert found.time_us(GRAPH, KERNEL, frozenset({"b"})) == 0.98


def test_what_was_not_measured_is_a_sum() -> None:
    assert profile(beyond_ns=0).time_us(GRAPH, KERNEL, frozenset({"a", "b"})) == pytest.approx(1.28)


@pytest.mark.parametrize(
    ("beyond_ns", "error_ns", "read_ns"),
    [(-100, 40, 900), (-100, 51, 1000 + TIE_NS), (100, 40, 1100), (100, 51, 1000 + TIE_NS), (0, 0, 1000 + TIE_NS)],
)
def test_another_implementation_differs_from_the_default_only_beyond_the_noise(
    beyond_ns: int, error_ns: int, read_ns: int
) -> None:
    """Whatever its own median was: the two took turns."""
    found = profile(median_ns=500, beyond_ns=beyond_ns, beyond_error_ns=error_ns)
    assert found.base_us(LEAN) == read_ns / 1e3
    assert found.time_us(GRAPH, LEAN, frozenset({"a"})) == pytest.approx((read_ns + 200) / 1e3)
    assert found.base_us(KERNEL) == 1.0
    assert found.least_us(KERNEL) == min(1.0, read_ns / 1e3)


def test_what_is_lacking_is_said() -> None:
    found = Profile(hash_of(GRAPH), {}, {})
    with pytest.raises(AutotmError, match="no time for kernel 'kernel_0'"):
        found.base_us(KERNEL)
    with pytest.raises(AutotmError, match="lacks 'a' in slow memory"):
        found.extra_us(GRAPH, KERNEL, "a")


def test_a_file_holds_all_of_it(tmp_path: Path) -> None:
    whole = profile(beyond_ns=-7, beyond_error_ns=3)
    write_profile(tmp_path / "profile.parquet", whole)
    assert read_profile(tmp_path / "profile.parquet") == whole


def test_a_file_from_before_configurations_were_paired_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.parquet"
    write_profile(path, profile(beyond_ns=-7, beyond_error_ns=3))
    pq.write_table(pq.read_table(path).drop_columns(["beyond_ns", "beyond_error_ns", "default_identity"]), path)
    assert set(read_profile(path).timings.values()) == {
        BASE,
        replace(BASE, median_ns=1700),
        replace(BASE, median_ns=980),
    }


def test_a_file_without_times_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "profile.parquet"
    write_profile(path, profile(beyond_ns=0))
    pq.write_table(pq.read_table(path).drop_columns(["median_ns"]), path)
    with pytest.raises(DamagedFileError, match="median_ns"):
        read_profile(path)
