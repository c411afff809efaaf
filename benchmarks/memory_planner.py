"""Plans of `autotm.offload` that compute again, against PyTorch's own ways to save memory, at the same measured peak.

    .venv-torch/bin/python benchmarks/memory_planner.py [--networks gpt2,resnet152] [--rounds 7]

PyTorch's own ways are checkpoints by block (`torch.utils.checkpoint`) and the partitioner of `torch.compile` under an
`activation_memory_budget` (backend `aot_eager_decomp_partition`, so that the operators are the same). The peak of each
is measured; autotm gets it as its budget, and may move nothing. Steps take turns; ratios are of medians over the plain
step. `bound`: no plan of autotm's kind is predicted to take less.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._functorch import config as partitioner
from torch.utils.checkpoint import checkpoint

import autotm
from autotm.memory.torch_device import device_of
from autotm.model.errors import AutotmError
from autotm.zoo.torch.blocks import torchvision_models

models = torchvision_models()  # Before transformers, which looks for torchvision.
import transformers  # noqa: E402

cross_entropy = nn.functional.cross_entropy
IMAGES, SIDE = 8, 64
TEXTS, WORDS, VOCABULARY, WIDTH = 4, 64, 1000, 256
PARTITIONED = (0.7, 0.4, 0.1)
"""Budgets of the partitioner, as shares of what it would keep of activations without one."""

Step = Callable[[], object]


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
        vocab_size=VOCABULARY, d_model=WIDTH, d_kv=32, d_ff=3 * WIDTH, num_layers=6, num_heads=8
    )
    return LanguageModel(transformers.T5ForConditionalGeneration(config))


BLOCKS = {
    "Bottleneck", "_DenseLayer", "CNBlock", "SwinTransformerBlock", "GPT2Block", "LlamaDecoderLayer", "T5Block",
}  # fmt: skip
"""Classes of what one would checkpoint: the parts that networks repeat."""
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet152": models.resnet152,
    "densenet201": models.densenet201,
    "convnext": models.convnext_tiny,
    "swin": models.swin_t,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
}


def batch_of(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets."""
    if name in {"gpt2", "llama", "t5"}:
        words = torch.randint(VOCABULARY, (TEXTS, WORDS))
        return words, words.flatten()
    return torch.randn(IMAGES, 3, SIDE, SIDE), torch.randint(1000, (IMAGES,))


def checkpointed(twin: nn.Module) -> Callable[..., torch.Tensor]:
    """Make blocks checkpoints."""
    for block in twin.modules():
        if type(block).__name__ in BLOCKS:
            forward = block.forward

            def call(*args: Any, forward: Callable[..., Any] = forward, **named: Any) -> Any:
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


def step_of(module: Callable[..., torch.Tensor], inputs: torch.Tensor, targets: torch.Tensor) -> Step:
    """Return a step: forward, loss, backward."""
    return lambda: cross_entropy(module(inputs), targets).backward()


def compare(name: str, rounds: int, time_limit_s: float) -> None:
    """Print a row for each of PyTorch's ways."""
    torch.manual_seed(0)
    module, (inputs, targets) = NETWORKS[name](), batch_of(name)
    device = device_of(torch.device("cpu"))
    arguments = (*module.parameters(), *module.buffers(), inputs, targets)
    held = sum(tensor.untyped_storage().nbytes() for tensor in arguments)
    ways: dict[str, Callable[[nn.Module], Callable[..., torch.Tensor]]] = {"checkpoints by block": checkpointed}
    ways |= {f"partitioner, {share:g}": partial(partitioned, share=share) for share in PARTITIONED}
    plain = step_of(module, inputs, targets)

    def peak(step: Step, trained: nn.Module) -> int:
        step()  # Compiles.
        trained.zero_grad()
        return held + int(device.peak(step)[1])

    need = peak(plain, module)
    for way, make in ways.items():
        twin = copy.deepcopy(module)
        twin.zero_grad()
        theirs = step_of(make(twin), inputs, targets)
        their_peak = peak(theirs, twin)
        try:
            ours = autotm.offload(
                module, inputs, cross_entropy, their_peak, targets=(targets,), move=False, time_limit_s=time_limit_s
            )
        except AutotmError as error:
            print(f"{name}: {way}: peak {their_peak / need:.3f} of plain; {error}", flush=True)
            continue
        summary = ours.summary()
        steps: dict[str, Step] = {"plain": plain, "theirs": theirs, "ours": lambda ours=ours: ours(inputs, targets)}
        times: dict[str, list[float]] = {key: [] for key in steps}
        for turn in range(rounds + 1):
            for key, step in steps.items():
                module.zero_grad()
                twin.zero_grad()
                taken = device.seconds(step, 1)
                if turn:
                    times[key].append(taken)
        medians = {key: statistics.median(taken) for key, taken in times.items()}
        module.zero_grad()
        own_peak = ours.measure(inputs, targets).peak_bytes
        print(
            f"{name}: {way}: peak {their_peak / need:.3f} of plain, {medians['theirs'] / medians['plain']:.3f} of its "
            f"time; autotm: peak {own_peak / need:.3f}, time {medians['ours'] / medians['plain']:.3f}, predicted "
            f"{summary.predicted_s / summary.plain_s:.3f}, bound {summary.bound_s / summary.plain_s:.3f}, "
            f"{summary.recomputed} operators again; plain {medians['plain']:.4g} s",
            flush=True,
        )
        ours.close()


def main() -> None:
    """Compare networks one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--time-limit-s", type=float, default=30.0)
    arguments = parser.parse_args()
    print(f"PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
    for name in arguments.networks.split(","):
        compare(name, arguments.rounds, arguments.time_limit_s)


if __name__ == "__main__":
    main()
