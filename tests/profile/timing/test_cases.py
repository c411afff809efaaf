"""Which kernels are timed in which configurations."""

import small_step

from autotm.profile.profiler import cases


def test_every_identity_appears_once_with_what_any_of_its_calls_needs() -> None:
    graph = small_step.graph()
    found = {case.kernel.identity: case.configurations for case in cases(graph, "additive")}
    assert set(found) == {kernel.identity for kernel in graph.kernels}
    assert found["relu:32x64"] == ("DD", "PD", "DP")


def test_additive_is_all_fast_and_each_movable_tensor_alone() -> None:
    found = {case.kernel.function: case.configurations for case in cases(small_step.graph(), "additive")}
    assert found["grad_act"] == ("DDDDD", "PDDDD", "DDPDD", "DDDPD", "DDDDP")
    assert found["sgd_v"] == ("DDD", "DPD")


def test_full_is_every_subset_of_the_movable_tensors() -> None:
    found = {case.kernel.function: case.configurations for case in cases(small_step.graph(), "full")}
    assert len(found["grad_act"]) == len(set(found["grad_act"])) == 2**4
    assert {config[1] for config in found["grad_act"]} == {"D"}, "a parameter never moves"
