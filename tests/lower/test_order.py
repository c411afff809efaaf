"""Updates run early, and never before a reader of the old parameter."""

from autotm.lower.calls import Call
from autotm.lower.results import early_updates
from autotm.model.graph import Operand


def call(function: str, inputs: list[str], output: str) -> Call:
    return Call(function, tuple(Operand(name, (1,), "float32") for name in inputs), (Operand(output, (1,), "float32"),))


STEP = [
    call("forward", ["w", "x"], "y"),
    call("gradient", ["y", "x"], "g"),
    call("data_gradient", ["y", "w"], "dx"),
    call("use", ["dx"], "z"),
    call("more", ["z"], "zz"),
    call("update", ["w", "g"], "w_new"),
]


def test_update_follows_the_last_reader_of_its_parameter():
    order = [item.function for item in early_updates(STEP, {"w_new": "w"})]
    assert order == ["forward", "gradient", "data_gradient", "update", "use", "more"]


def test_without_updates_nothing_moves():
    assert early_updates(STEP, {}) == STEP


def test_updates_in_a_row_keep_their_order():
    step = [call("f", ["v", "w"], "y"), call("u", ["w", "y"], "w_new"), call("t", ["v", "y"], "v_new")]
    assert [item.function for item in early_updates(step, {"w_new": "w", "v_new": "v"})] == ["f", "u", "t"]


def test_what_would_have_to_come_before_itself_is_left_out():
    step = [call("f", ["x"], "y"), call("u", ["v", "w"], "v_new"), call("t", ["v", "w"], "w_new")]
    assert [item.function for item in early_updates(step, {"w_new": "w", "v_new": "v"})] == ["f"]
    assert [item.function for item in early_updates(step, {"v_new": "v"})] == ["f", "t", "u"]
