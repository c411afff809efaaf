"""Plans of `autotm.offload` against PyTorch's own ways to save memory, at the same measured peak.

    .venv-torch/bin/python benchmarks/memory_planner.py [--networks gpt2,resnet152] [--ways again] [--rounds 7]

PyTorch's own ways are checkpoints by block (`torch.utils.checkpoint`) and the partitioner of `torch.compile` under an
`activation_memory_budget` (backend `aot_eager_decomp_partition`, so that the operators are the same). The peak of each
is measured; autotm gets it as its budget. Then autotm gets shares of the plain step's peak. Steps take turns; ratios
are of medians over the plain step. `bound`: no plan with these ways is predicted to take less.

`--ways again` lets plans compute tensors again; `copies` lets them move tensors, and `both` do either. Then PyTorch's
ways include `save_on_cpu`. Steps run on a GPU if there is one (hide it by `CUDA_VISIBLE_DEVICES=`), then of larger
networks and batches. On a CPU the host's memory is emulated: it is ordinary memory that is not counted, and copies to
it take the cores that operators use. With `--threads` one less than there are cores they have one for themselves, as a
GPU's copies have an engine.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._functorch import config as partitioner
from torch.utils.checkpoint import checkpoint

import autotm
from autotm.api.offload.judging import medians_in_turn
from autotm.api.offload.step import OffloadedStep, OffloadSummary
from autotm.memory.torch_device import device_of, measured_links
from autotm.model.errors import AutotmError, InfeasibleLimitError
from autotm.model.graph import Tier
from autotm.zoo.torch.blocks import torchvision_models

models = torchvision_models()  # Before transformers, which looks for torchvision.
import transformers  # noqa: E402

cross_entropy = nn.functional.cross_entropy
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
IS_GPU = DEVICE.type == "cuda"
IMAGES, SIDE = (64, 224) if IS_GPU else (8, 96)
TEXTS, WORDS, VOCABULARY, WIDTH = (16, 1024, 32000, 1024) if IS_GPU else (8, 128, 1000, 256)
PARTITIONED = (0.7, 0.4, 0.1)
"""Budgets of the partitioner, as shares of what it would keep of activations without one."""

SHARES = (0.8, 0.6, 0.4, 0.3)
"""Budgets of autotm alone, as shares of the plain step's peak."""
LEAST_ADDED = 0.01
"""Of a plain step: less than this is noise, and counts as this where additions are divided."""
NAMES, TABLES, ROWS = 1000, 16, 1 << 20 if IS_GPU else 8192
"""Of the recommender: rows of each table, tables, and rows of a batch."""

WAYS = {"again": {"move": False}, "copies": {"recompute": False}, "both": {}}
"""What is allowed to plans."""
_COPIED_BYTES = 64 << 20
"""Of a copy whose rate is told."""


class LanguageModel(nn.Module):
    """A model of transformers, from words to the logits of all words."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Return logits by word."""
        more = {"decoder_input_ids": words} if self.model.config.is_encoder_decoder else {}
        return self.model(input_ids=words, **more).logits.flatten(0, 1)


def gpt2() -> nn.Module:
    """Return GPT-2 with few, narrow layers."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=8, n_head=8, bos_token_id=0, eos_token_id=0
    )
    return LanguageModel(transformers.GPT2LMHeadModel(config))


def llama() -> nn.Module:
    """Return a Llama with few, narrow layers."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=8,
        num_attention_heads=8,
    )
    return LanguageModel(transformers.LlamaForCausalLM(config))


def t5() -> nn.Module:
    """Return a T5 with few, narrow layers."""
    config = transformers.T5Config(
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=32, d_ff=3 * WIDTH, num_layers=6, num_heads=8, use_cache=False
    )
    return LanguageModel(transformers.T5ForConditionalGeneration(config))


def mixtral() -> nn.Module:
    """Return a Mixtral with few, narrow layers of few experts, in one product per layer."""
    config = transformers.MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=8,
        num_local_experts=4,
        use_cache=False,
    )
    return LanguageModel(transformers.MixtralForCausalLM(config))


class ConvolutionPair(nn.Sequential):
    """Two convolutions with batch norms."""

    def __init__(self, inward: int, outward: int) -> None:
        pairs = ((inward, outward), (outward, outward))
        parts = ((nn.Conv2d(*pair, 3, padding=1), nn.BatchNorm2d(outward), nn.ReLU()) for pair in pairs)
        super().__init__(*(part for several in parts for part in several))


class UNet(nn.Module):
    """A U-Net (Ronneberger et al., arXiv:1505.04597) with four levels of half the width, and one mean for each map."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128, 256, 512)) -> None:
        super().__init__()
        self.down = nn.ModuleList(map(ConvolutionPair, (3, *widths), widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * width, width, 2, stride=2) for width in widths[-2::-1])
        self.merge = nn.ModuleList(ConvolutionPair(2 * width, width) for width in widths[-2::-1])
        self.head = nn.Linear(widths[0], 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return a number by image and class."""
        value, skipped = images, list[torch.Tensor]()
        for level, part in enumerate(self.down):
            value = part(value if level == 0 else nn.functional.max_pool2d(value, 2))
            skipped.append(value)
        for widen, part, skip in zip(self.up, self.merge, skipped[-2::-1], strict=True):
            value = part(torch.cat((skip, widen(value)), 1))
        return self.head(value.mean((2, 3)))


class Recommender(nn.Module):
    """A deep recommender (Naumov et al., arXiv:1906.00091): tables, two perceptrons, products between all pairs."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(NAMES, width) for _ in range(TABLES))
        pairs = TABLES * (TABLES + 1) // 2
        self.top = nn.Sequential(nn.Linear(pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 2))

    def forward(self, names: torch.Tensor) -> torch.Tensor:
        """Return the logits of a batch of names (rows, tables)."""
        found = torch.stack([table(names[:, place]) for place, table in enumerate(self.tables)], 1)
        first, second = torch.triu_indices(TABLES, TABLES)
        return self.top((found @ found.transpose(1, 2))[:, first, second])


BLOCKS = {
    "Bottleneck", "_DenseLayer", "CNBlock", "SwinTransformerBlock", "GPT2Block", "LlamaDecoderLayer", "T5Block",
    "MixtralDecoderLayer", "ConvolutionPair",
}  # fmt: skip
"""Classes of what one would checkpoint: the parts that networks repeat."""
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet152": models.resnet152,
    "densenet201": models.densenet201,
    "unet": UNet,
    "convnext": models.convnext_tiny,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "mixtral": mixtral,
    "swin": models.swin_t,
    "recommender": Recommender,
}
WORDED = {"gpt2", "llama", "t5", "mixtral"}


def batch_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets."""
    if name == "recommender":
        return torch.randint(NAMES, (ROWS, TABLES)), torch.randint(2, (ROWS,))
    if name in WORDED:
        words = torch.randint(VOCABULARY, (TEXTS, WORDS))
        return words, words.flatten()
    return torch.randn(IMAGES, 3, SIDE, SIDE), torch.randint(1000, (IMAGES,))


def checkpointed(twin: nn.Module) -> Callable[..., torch.Tensor]:
    """Make blocks checkpoints."""
    for block in twin.modules():
        if type(block).__name__ in BLOCKS:
            forward = block.forward

            def call(*args: Any, forward: Callable[..., Any] = forward, **named: Any) -> Any:
                args = tuple(list(one) if isinstance(one, list) else one for one in args)  # DenseNet's grow later.
                return checkpoint(forward, *args, use_reentrant=False, **named)

            block.forward = call  # type: ignore[method-assign]
    return twin


def partitioned(twin: nn.Module, share: float) -> Callable[..., torch.Tensor]:
    """Return a module that PyTorch's partitioner splits under a budget."""
    torch.compiler.reset()
    compiled = torch.compile(twin, backend="aot_eager_decomp_partition", dynamic=False)

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        with partitioner.patch(activation_memory_budget=share):
            return compiled(*inputs)

    return call


def saved(twin: nn.Module) -> Callable[..., torch.Tensor]:
    """Return a module under `save_on_cpu`; on a CPU, under hooks that copy as it does, to uncounted memory."""
    hooks = torch.autograd.graph
    copying = partial(hooks.save_on_cpu, pin_memory=True)
    if not IS_GPU:
        keep, bring = (lambda one: one.detach().numpy().copy(order="K")), (lambda kept: torch.from_numpy(kept).clone())
        copying = partial(hooks.saved_tensors_hooks, keep, bring)

    def call(*inputs: torch.Tensor) -> torch.Tensor:
        with copying():
            return twin(*inputs)

    return call


def compare(name: str, allowed: str, rounds: int, time_limit_s: float) -> list[float]:
    """Print a row for each of PyTorch's ways and each share; return what autotm adds over what PyTorch's ways add."""
    torch.manual_seed(0)
    module, (inputs, targets) = NETWORKS[name]().to(DEVICE), (one.to(DEVICE) for one in batch_of(name))
    device = device_of(DEVICE)
    ways: dict[str, Callable[[nn.Module], Callable[..., torch.Tensor]]] = {"checkpoints by block": checkpointed}
    ways |= {f"partitioner, {share:g}": partial(partitioned, share=share) for share in PARTITIONED}
    ways |= {} if allowed == "again" else {"save_on_cpu": saved}
    options: dict[str, Any] = {"targets": (targets,), "time_limit_s": time_limit_s, **WAYS[allowed]}

    def plain() -> None:
        module.zero_grad()
        output = module(inputs)  # Its memory is held as long, as in the usual loop.
        cross_entropy(output, targets).backward()

    def ours(summary: OffloadSummary, peak_bytes: int, time: float) -> str:
        return (
            f"autotm: peak {peak_bytes / need:.3f} ({peak_bytes / summary.planned_peak_bytes:.3f} of planned), time "
            f"{time:.3f}, predicted {summary.predicted_s / summary.plain_s:.3f}, bound "
            f"{summary.bound_s / summary.plain_s:.3f}, {summary.recomputed} operators again, "
            f"{summary.moved_out_bytes / need:.3f} of the peak moved out and {summary.moved_in_bytes / need:.3f} back"
        )

    plain()
    module.zero_grad()
    arguments = (*module.parameters(), *module.buffers(), inputs, targets)
    held = sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in arguments}.values())
    need, found = held + int(device.peak(plain)[1]), list[float]()
    try:
        fits = f"{autotm.fits(module, inputs, cross_entropy, targets=(targets,)).peak.size_bytes / need:.3f} of it"
    except AutotmError as error:  # PyTorch traces no grouped product in float32.
        fits = str(error)
    print(f"{name}: plain: peak {need / 1e6:.6g} MB; autotm.fits predicts {fits}", flush=True)
    for way, make in ways.items():
        try:
            judged = autotm.judge(module, make, inputs, cross_entropy, rounds=rounds, **options)
        except Exception as error:  # noqa: BLE001 - PyTorch's ways fail in many ways
            print(f"{name}: {way}: {type(error).__name__}: {str(error).partition('. ')[0]}", flush=True)
            continue
        print(f"{name}: {way}: peak {judged.peak_bytes / need:.3f} of plain, time {1 + judged.added:.3f}; ", end="")
        if judged.plan is None or judged.plan_peak_bytes is None or judged.plan_added is None:
            print(f"autotm: {judged.failure}", flush=True)
            continue
        found.append(max(judged.plan_added, LEAST_ADDED) / max(judged.added, LEAST_ADDED))
        print(ours(judged.plan, judged.plan_peak_bytes, 1 + judged.plan_added), end="")
        print(f"; autotm adds {found[-1]:.2f} of what that adds", flush=True)
    for share in SHARES:
        begun = time.perf_counter()
        try:
            planned = autotm.offload(module, inputs, cross_entropy, int(share * need), **options)
        except InfeasibleLimitError as error:
            least = "no plan found" if error.smallest_bytes is None else f"at least {error.smallest_bytes / need:.3f}"
            print(f"{name}: budget {share:g}: autotm: {least}", flush=True)
            continue
        made_s = time.perf_counter() - begun
        medians = medians_in_turn(
            device, {"plain": plain, "ours": partial(stepped, module, planned, inputs, targets)}, rounds
        )
        module.zero_grad()
        peak_bytes, reserved_bytes = peaks(planned, inputs, targets)
        row = ours(planned.summary(), peak_bytes, medians["ours"] / medians["plain"])
        row += f", {reserved_bytes / need:.3f} of it reserved" if IS_GPU else ""
        planned.close()
        print(f"{name}: budget {share:g}: {row}, made in {made_s:.1f} s; plain {medians['plain']:.4g} s", flush=True)
    return found


def peaks(step: OffloadedStep, *batch: torch.Tensor) -> tuple[int, int]:
    """Return the measured peak of a step, and of a GPU what PyTorch's allocator takes for it."""
    if not IS_GPU:
        return step.measure(*batch).peak_bytes, 0
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return step.measure(*batch).peak_bytes, torch.cuda.max_memory_reserved()


def stepped(module: nn.Module, step: Callable[..., torch.Tensor], *batch: torch.Tensor) -> None:
    """Run a planned step as a plain one is run."""
    module.zero_grad()
    step(*batch)


def main() -> None:
    """Compare networks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--ways", choices=WAYS, default="again")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--time-limit-s", type=float, default=30.0)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    device = device_of(DEVICE)
    links = measured_links(device, 1 << 30)
    rates = (f"{_COPIED_BYTES / 1e3 / links.copy_us(tier, _COPIED_BYTES):.3g}" for tier in (Tier.SLOW, Tier.FAST))
    print(f"{device.name}; PyTorch {torch.__version__}, {torch.get_num_threads()} threads", end="; ")
    print(f"copies: {' and '.join(rates)} GB/s")
    found: list[float] = []
    for name in arguments.networks.split(","):
        found += compare(name, arguments.ways, arguments.rounds, arguments.time_limit_s)
    if found:
        mean = math.exp(statistics.fmean(map(math.log, found)))
        print(f"autotm adds {mean:.2f} of what PyTorch's ways add (geometric mean of {len(found)})")


if __name__ == "__main__":
    main()
