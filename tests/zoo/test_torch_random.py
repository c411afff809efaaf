"""Modules made at random compute what PyTorch computes, over three steps."""

import pytest

torch = pytest.importorskip("torch", reason="the modules are PyTorch's: make test-torch installs it")

from conformance import Sample, judge, random_samples  # noqa: E402

SEEDS, MORE = (0, 1, 2, 680), 100
"""TVM's passes fail on a kernel of seed 680, unless its loops stay without vectors."""


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in SEEDS else pytest.mark.slow) for seed in (*range(MORE), SEEDS[-1])]
)
def test_three_steps_are_pytorchs(seed: int) -> None:
    (sample,) = random_samples(1, seed)
    assert judge(sample, "auto") == ("right", ""), sample.name


def test_a_buffer_that_is_assigned_and_whose_old_value_the_gradient_needs() -> None:
    class Kept(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(6, 6)
            self.register_buffer("kept", torch.ones(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            old, y = self.kept, self.line(x)
            self.kept = 0.5 * self.kept + y.detach()
            return (old * y).sin().mean()

    torch.manual_seed(1)
    module = Kept()
    sample = Sample("kept", module, (torch.randn(4, 6),), steps=3, loss=lambda output, _dtype: output)
    assert judge(sample, "auto") == ("right", "")
