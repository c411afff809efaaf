"""Time of an offloaded step of PyTorch against `torch.autograd.graph.save_on_cpu`, side by side, on one device.

    python benchmarks/offload.py [--network transformer|resnet] [--batch 32] [--budget 0.5x] [--rounds 9]

Plain PyTorch, `save_on_cpu(pin_memory=True)` and `autotm.offload` take turns; medians and quartiles are of the rounds.
Peaks are those of PyTorch's allocator, in a step of their own. On a CPU ordinary memory plays both parts; what that
says of speed holds for no GPU.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch
from torch import nn

import autotm
from autotm.memory.torch_device import device_of

F = nn.functional
WIDTH, WORDS, LAYERS, VOCABULARY = 512, 128, 6, 1000


class Transformer(nn.Module):
    """Layers with dropout; words are embedded and predicted by the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        layers = (nn.TransformerEncoderLayer(WIDTH, 8, 4 * WIDTH, batch_first=True) for _ in range(LAYERS))
        self.layers = nn.Sequential(*layers)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Logits of all words."""
        return F.linear(self.layers(self.embed(words)), self.embed.weight).flatten(0, 1)


def network(name: str, batch: int, device: torch.device) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a module with a batch."""
    torch.manual_seed(0)
    if name == "transformer":
        words = torch.randint(VOCABULARY, (batch, WORDS), device=device)
        return Transformer().to(device), words, words.flatten()
    import torchvision  # noqa: PLC0415 - only here

    side = 224 if device.type == "cuda" else 64
    images = torch.randn(batch, 3, side, side, device=device)
    return torchvision.models.resnet50().to(device), images, torch.randint(1000, (batch,), device=device)


def main() -> None:
    """Time the step by each method in turn and print medians, quartiles and peak memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=["transformer", "resnet"], default="transformer")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--budget", default="0.5x")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--time-limit-s", type=float, default=30.0)
    args = parser.parse_args()
    where = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    device = device_of(where)
    print(f"device: {device.name}; PyTorch {torch.__version__}, {torch.get_num_threads()} threads of the host")
    module, inputs, targets = network(args.network, args.batch, where)
    options = {"targets": (targets,), "time_limit_s": args.time_limit_s}
    offloaded = autotm.offload(module, inputs, F.cross_entropy, args.budget, **options)
    print(offloaded)

    def plain() -> None:
        F.cross_entropy(module(inputs), targets).backward()

    def saved() -> None:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss = F.cross_entropy(module(inputs), targets)
        loss.backward()

    contenders: dict[str, Callable[[], object]] = {
        "plain PyTorch": plain,
        "save_on_cpu": saved,
        "autotm.offload": lambda: offloaded(inputs, targets),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(args.rounds + 1):
        for name, call in contenders.items():
            module.zero_grad()
            taken = device.seconds(call, 1)
            if turn:
                times[name].append(taken)
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, call in contenders.items():
        module.zero_grad()
        _, peak_bytes = device.peak(call)
        lower, _, upper = statistics.quantiles(times[name], n=4)
        remark = "" if where.type == "cuda" or name != "save_on_cpu" else " (what it keeps counts here too)"
        print(
            f"{name}: {medians[name]:.4g} s measured (quartiles {lower:.4g} to {upper:.4g}), "
            f"{peak_bytes / 1e6:.4g} MB beside parameters and batch{remark}"
        )
    ratio = medians["save_on_cpu"] / medians["autotm.offload"]
    print(f"autotm.offload is {ratio:.3g} times as fast as save_on_cpu")


if __name__ == "__main__":
    main()
