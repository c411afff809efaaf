"""Time of a plain step of torchvision's ResNet-50, imported, over that of the zoo's: alternating, medians.

    python benchmarks/imported_resnet.py [--batch 8] [--image 112] [--rounds 9]

The zoo's is AutoTM's: its strides are on the last convolution of a bottleneck, nothing is normalised behind the first
convolution, and it keeps no running averages; torchvision's has its strides in the middle, and both. So multiply-adds
are printed, too. Needs PyTorch and torchvision (requirements/torch.txt).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import autotm
from autotm import zoo
from autotm.zoo.torch.blocks import torchvision_models
from torch_steps import QUICK, medians_in_turn


def main() -> None:
    """Prepare both, time them in turn, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("batch", 8), ("image", 112), ("rounds", 9)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.manual_seed(0)
    images = torch.randn(options.batch, 3, options.image, options.image)
    labels = torch.randint(0, 1000, (options.batch,))
    with tempfile.TemporaryDirectory(prefix="autotm-") as folder:
        shared = {"results": Path(folder), "profile": QUICK}
        steps = {
            "zoo": autotm.prepare(zoo.build("resnet50", {"batch": options.batch, "image": options.image}), **shared),
            "torchvision": autotm.prepare(
                torchvision_models().resnet50(), images, loss=torch.nn.functional.cross_entropy, targets=(labels,),
                training=autotm.Training(autotm.Sgd(0.001)), **shared,
            ),
        }  # fmt: skip
        placed = [step.plan("0:1", "all-fast") for step in steps.values()]
        median_s = dict(zip(steps, medians_in_turn([one.step for one in placed], options.rounds), strict=True))
        for one in placed:
            one.close()
    print(f"batch {options.batch}, {options.image} x {options.image}, {steps['zoo'].context.machine.threads} threads")
    print(f"{'network':<14} {'GFLOP':>8} {'kernels':>8} {'step ms':>9}")
    for name, step in steps.items():
        flops = sum(kernel.flops for kernel in step.graph.kernels)
        print(f"{name:<14} {flops / 1e9:>8.1f} {len(step.graph.kernels):>8d} {1e3 * median_s[name]:>9.1f}")
    print(f"torchvision's over the zoo's: {median_s['torchvision'] / median_s['zoo']:.3f}")


if __name__ == "__main__":
    main()
