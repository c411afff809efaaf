"""The arena of a step on a CPU: places are kept, no two tensors share bytes, and a process takes what is planned."""

from __future__ import annotations

import gc
import random
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the steps are PyTorch's: make test-torch installs it")

from offloaded_steps import CASES, DEVICE, QUICK, least, offloaded, plainly, same_bits, trained  # noqa: E402

import autotm  # noqa: E402
from autotm.api.offload import addresses  # noqa: E402
from autotm.layout.packing import Blocks, Ints, pack_blocks  # noqa: E402
from autotm.memory import torch_arena  # noqa: E402
from autotm.memory.torch_arena import OUTSIDE, Arena, Place, recorded  # noqa: E402
from autotm.model.errors import AutotmError, InfeasibleLimitError  # noqa: E402

pytestmark = pytest.mark.skipif(DEVICE.type != "cpu", reason="arenas are a CPU's")


def made(size_bytes: int) -> torch.Tensor:
    return torch.empty(size_bytes, dtype=torch.uint8)


def offset_in(arena: Arena, tensor: torch.Tensor) -> int | None:
    return tensor.data_ptr() - arena._base if arena.holds(tensor) else None


def test_tensors_get_the_places_of_their_point_in_order_and_others_are_outside() -> None:
    assert torch_arena.has_arenas()
    points = [[Place(64, 0), Place(64, 128), Place(256, 256)], [Place(64, OUTSIDE), Place(64, 64)], [Place(64, 960)]]
    with Arena(1000, points) as arena:
        arena.at(0)
        first = [made(size) for size in (64, 100, 256, 64)]
        arena.at(1)
        second = [made(64), made(64)]
        arena.at(2)
        third = made(64)  # It would end behind the arena.
        assert [offset_in(arena, one) for one in (*first, *second, third)] == [0, None, 256, None, None, 64, None]
        arena.at(0)
        assert offset_in(arena, made(64)) is None  # Its place is taken.
        del first
        arena.at(0)
        assert offset_in(arena, made(64)) == 0
    assert offset_in(arena, made(64)) is None


def test_whatever_the_order_is_no_two_tensors_share_bytes() -> None:
    drawn = random.Random(0)
    sizes = [64, 128, 192, 640]
    points = [
        [Place(drawn.choice(sizes), 64 * drawn.randrange(64)) for _ in range(drawn.randrange(5))] for _ in range(50)
    ]
    there: list[tuple[torch.Tensor, int]] = []
    inside = 0
    with Arena(64 * 64, points) as arena:
        for number in range(3000):
            arena.at(drawn.randrange(len(points)))
            for _ in range(drawn.randrange(4)):
                there.append((made(drawn.choice(sizes)).fill_(number % 251), number % 251))
                inside += arena.holds(there[-1][0])
            for _ in range(drawn.randrange(5)):
                if there:
                    tensor, value = there.pop(drawn.randrange(len(there)))
                    assert bool((tensor == value).all())
    assert inside > 500


def test_an_arena_goes_back_with_its_last_tensor() -> None:
    def mapped() -> bool:
        spans = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
        return any(int(start, 16) <= base and base + size_bytes <= int(end, 16) for start, end in spans)

    size_bytes = 64 << 20
    with Arena(size_bytes, [[Place(4096, 0)]]) as arena:
        arena.at(0)
        tensor = made(4096).fill_(7)
    base = arena._base
    arena.close()
    del arena
    assert mapped()
    assert bool((tensor == 7).all())
    freeing = threading.Thread(target=partial(tensor.untyped_storage().resize_, 0))
    freeing.start()
    freeing.join()
    assert not mapped()


def test_what_a_call_allocates_is_recorded() -> None:
    def call() -> torch.Tensor:
        made(100).fill_(1)
        kept = made(200)
        made(300)
        return kept

    kept, (first, second, third) = recorded(call)
    assert [one.size_bytes for one in (first, second, third)] == [100, 200, 300]
    assert first.end is not None
    assert first.end < second.begin < third.begin < third.end
    assert (second.address, second.end) == (kept.data_ptr(), None)
    with pytest.raises(ZeroDivisionError):
        recorded(lambda: 1 / 0)
    assert recorded(lambda: made(64))[1][0].size_bytes == 64


@pytest.mark.parametrize("options", [{}, {"move": False, "recompute": True}], ids=["moves", "repeats"])
def test_all_that_a_step_allocates_has_its_place(options: dict[str, bool]) -> None:
    module = CASES["block"].module()
    with offloaded("block", "0.8x", module, **options) as step:
        for _ in range(2):  # Gradients of the first step stay, and leave the arena.
            arena, summary = step._executor.arena, step.summary()
            argument_bytes = summary.budget_bytes - arena.size_bytes
            peak_bytes = step.measure(*CASES["block"].batch(), verify=True).peak_bytes
            assert peak_bytes <= summary.budget_bytes
            # Beside the arena: arguments, whose sizes a plan rounds up, and scalars of PyTorch.
            assert peak_bytes - arena.size_bytes <= argument_bytes
            assert summary.arena_bytes == arena.size_bytes
    assert "in one piece" in str(summary)


def test_plans_whose_addresses_do_not_fit_are_made_for_less(monkeypatch: pytest.MonkeyPatch) -> None:
    def wasteful(blocks: Blocks, *_: object) -> Ints:  # Good packings lose nothing on steps as small as these.
        return pack_blocks(Blocks(64 * (blocks.sizes * 5 // 256), blocks.starts, blocks.ends))

    monkeypatch.setattr(addresses, "pack_blocks", wasteful)
    name = "block"
    module = CASES[name].module()
    with offloaded(name, "0.8x", module) as step:
        planned = step._planned
        assert planned.layout.fast_bytes <= planned.budget_bytes == step.summary().budget_bytes
        assert planned.plan.dram_limit_bytes < planned.budget_bytes
        assert all(same_bits(trained(module, name, step), plainly(name)))
        assert step.measure(*CASES[name].batch(), verify=True).peak_bytes <= planned.budget_bytes
    with pytest.raises(InfeasibleLimitError, match=r"for their addresses no plan was found; give \d+ bytes"):
        offloaded(name, least(name), CASES[name].module())


def test_without_a_compiler_pytorch_chooses_addresses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> object:
        raise AutotmError("no C compiler found")

    monkeypatch.setattr(torch_arena, "compiled", fail)
    assert torch_arena._library.__wrapped__() is None
    assert "PyTorch's allocator chooses addresses" in caplog.text
    monkeypatch.setattr("autotm.memory.torch_device.has_arenas", lambda: False)
    module = CASES["perceptron"].module()
    with offloaded("perceptron", "0.9x", module) as step:
        assert step._executor.arena is None
        assert step.summary().arena_bytes == 0
        assert all(same_bits(trained(module, "perceptron", step), plainly("perceptron")))
        step.measure(*CASES["perceptron"].batch(), verify=True)


def resident_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS"))


def test_the_process_takes_what_is_planned_and_no_more() -> None:
    # Layers of many widths: what is freed does not fit what is allocated next.
    widths = [64 * (3 + 7 * index % 11) for index in range(16)]
    layers = (part for one, other in pairwise(widths) for part in (torch.nn.Linear(one, other), torch.nn.Tanh()))
    module, inputs = torch.nn.Sequential(*layers), torch.ones(2048, widths[0])
    with autotm.offload(module, inputs, torch.mean, "0.7x", move=False, **{**QUICK, "recompute": True}) as step:
        gc.collect()
        step._executor.arena.make_room()
        before = resident_bytes()
        for _ in range(3):
            step(inputs)
            module.zero_grad()
        taken_bytes, arena_bytes = resident_bytes() - before, step.summary().arena_bytes
    assert arena_bytes > 32 << 20
    assert taken_bytes <= 1.3 * arena_bytes  # With what libraries take for themselves; 1.75 without an arena.
