"""Random numbers of a step: the published generator, others in every step and place, evenly spread."""

import numpy as np
import plain_steps
from tvm import relax

from autotm.zoo.network import Network
from autotm.zoo.torch.random_numbers import COUNTER, Draws, _words, uniform_numbers

KNOWN = {
    (0, 0, 0): 0xFF1DAE59,
    (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF): 0x2C3F628B,
    (0x243F6A88, 0x85A308D3, 0x13198A2E): 0xDD7CE038,
}
"""First word of Philox2x32-10 for counter and key: the generator's own known answers (Random123)."""

SHARE = 0.3


def drawing(shapes: list[tuple[int, ...]]) -> Network:
    draws, builder = Draws(), relax.BlockBuilder()
    with builder.function("main", [draws.counter]):
        with builder.dataflow():
            drawn = [draws.at_least(builder, shape, SHARE) for shape in shapes]
            result = builder.emit_output(relax.Tuple([*drawn, draws.next_counter(builder)]))
        builder.emit_func_output(result)
    return Network("draws", 1, builder.finalize(), {}, {}, None, {COUNTER: plain_steps.Initial("integers", 2**30)})


def test_kernels_draw_what_the_reference_draws(tmp_path) -> None:
    steps = plain_steps.compiled(drawing([(3, 40), (7,)]), tmp_path).run(2)
    start = int(steps.start[COUNTER][0])
    for number, after in enumerate(steps.after):
        for place, shape in enumerate([(3, 40), (7,)]):
            is_kept = uniform_numbers(start + number, shape, place + 1) >= SHARE
            np.testing.assert_array_equal(after[f"output.{place}"], is_kept)
        assert int(after[f"{COUNTER}.new"][0]) == start + number + 1


def test_the_reference_is_the_published_generator_and_differs_by_step_and_place() -> None:
    for counter_and_key, word in KNOWN.items():
        assert _words(*map(np.uint64, counter_and_key), np.uint64) == word >> 8
    assert uniform_numbers(0, (1,), 0)[0] == np.float32((KNOWN[0, 0, 0] >> 8) * 2.0**-24)
    drawn = uniform_numbers(123, (100_000,), 1)
    assert 0 <= drawn.min() < drawn.max() < 1
    others = [uniform_numbers(124, (100_000,), 1), uniform_numbers(123, (100_000,), 2)]
    assert all(abs(np.corrcoef(drawn, other)[0, 1]) < 0.02 for other in others)
