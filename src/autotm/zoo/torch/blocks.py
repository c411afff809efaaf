"""Repeated blocks of well-known networks, as torchvision and transformers define them: what fusion is studied on.

Each function returns the arguments of `from_torch`: two blocks in a row, so that the first one's gradient passes
through the second, random inputs, and the squared distance from a random target as loss. Parts that draw random numbers
are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Block = dict[str, Any]
_BLOCKS = 2


def torchvision_models() -> Any:
    """Return torchvision's definitions of models; its own operators, which they do not use, may be missing."""
    for name in ("nms", "qnms"):
        try:
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        except RuntimeError:  # They are there.
            break
    from torchvision import models  # noqa: PLC0415 - only for those who have it

    return models


def _transformers(family: str) -> tuple[Any, Any]:
    """Return transformers, and its module of a family of models."""
    torchvision_models()  # transformers imports it where it is installed
    import transformers  # noqa: PLC0415 - only for those who have it

    return transformers, getattr(getattr(transformers.models, family), f"modeling_{family}")


class _Values(nn.Module):
    """A block without what it returns besides its values, such as weights of attention."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's values."""
        values: torch.Tensor = out[0] if isinstance(out := self.block(x), tuple) else out
        return values


def _repeated(make: Callable[[], nn.Module], inputs: torch.Tensor) -> Block:
    module = nn.Sequential(*(_Values(make()) for _ in range(_BLOCKS)))
    return {
        "module": module,
        "inputs": inputs,
        "loss": nn.functional.mse_loss,
        "targets": (torch.randn_like(inputs),),
    }


def _images(batch: int, channels: int, image: int) -> torch.Tensor:
    return torch.randn(batch, channels, image, image)


# torchvision. Blocks keep the number of channels; widths within are those of the networks, relative to it.


def resnet18_block(batch: int, channels: int, image: int) -> Block:
    """Return two 3 x 3 convolutions with batch norm, and what was before added."""
    resnet = torchvision_models().resnet
    return _repeated(lambda: resnet.BasicBlock(channels, channels), _images(batch, channels, image))


def resnet50_block(batch: int, channels: int, image: int) -> Block:
    """Return a bottleneck of a fourth of the channels."""
    resnet = torchvision_models().resnet
    return _repeated(lambda: resnet.Bottleneck(channels, channels // 4), _images(batch, channels, image))


def mobilenet_v2_block(batch: int, channels: int, image: int) -> Block:
    """Return an inverted residual: six times the channels, filtered each for itself."""
    mobile = torchvision_models().mobilenetv2
    return _repeated(lambda: mobile.InvertedResidual(channels, channels, 1, 6), _images(batch, channels, image))


def mobilenet_v3_block(batch: int, channels: int, image: int) -> Block:
    """Return an inverted residual with hard swish, whose channels are weighted by their means."""
    mobile = torchvision_models().mobilenetv3
    shape = mobile.InvertedResidualConfig(channels, 3, 4 * channels, channels, True, "HS", 1, 1, 1.0)
    return _repeated(lambda: mobile.InvertedResidual(shape, nn.BatchNorm2d), _images(batch, channels, image))


def densenet_block(batch: int, channels: int, image: int) -> Block:
    """Return three layers that each read all before, with a growth of half the channels."""
    densenet = torchvision_models().densenet
    inputs = _images(batch, channels, image)
    module = densenet._DenseBlock(3, channels, 4, channels // 2, 0.0)  # noqa: SLF001
    targets = (torch.randn(batch, channels + 3 * (channels // 2), image, image),)
    return {"module": module, "inputs": inputs, "loss": nn.functional.mse_loss, "targets": targets}


def squeezenet_block(batch: int, channels: int, image: int) -> Block:
    """Return a fire module: squeezed to an eighth of the channels, expanded by 1 x 1 and 3 x 3 convolutions."""
    squeeze = torchvision_models().squeezenet
    half = channels // 2
    return _repeated(lambda: squeeze.Fire(channels, channels // 8, half, half), _images(batch, channels, image))


def shufflenet_block(batch: int, channels: int, image: int) -> Block:
    """Return half of the channels filtered, then shuffled with the other half."""
    shuffle = torchvision_models().shufflenetv2
    return _repeated(lambda: shuffle.InvertedResidual(channels, channels, 1), _images(batch, channels, image))


def efficientnet_block(batch: int, channels: int, image: int) -> Block:
    """Return an inverted residual with swish, whose channels are weighted by their means."""
    efficient = torchvision_models().efficientnet
    shape = efficient.MBConvConfig(4, 3, 1, channels, channels, 1)
    return _repeated(lambda: efficient.MBConv(shape, 0.0, nn.BatchNorm2d), _images(batch, channels, image))


def mnasnet_block(batch: int, channels: int, image: int) -> Block:
    """Return an inverted residual of three times the channels."""
    mnasnet = torchvision_models().mnasnet
    make = mnasnet._InvertedResidual  # noqa: SLF001
    return _repeated(lambda: make(channels, channels, 3, 1, 3), _images(batch, channels, image))


def regnet_block(batch: int, channels: int, image: int) -> Block:
    """Return a bottleneck of grouped convolutions, eight channels a group, weighted by their means."""
    regnet = torchvision_models().regnet
    shape = (channels, channels, 1, nn.BatchNorm2d, nn.ReLU, 8, 1.0, 0.25)
    return _repeated(lambda: regnet.ResBottleneckBlock(*shape), _images(batch, channels, image))


def convnext_block(batch: int, channels: int, image: int) -> Block:
    """Return a 7 x 7 filter of each channel, layer norm and a perceptron."""
    convnext = torchvision_models().convnext
    # Published blocks begin as scaled by 1e-6, so that nearly nothing of them would reach the loss.
    return _repeated(lambda: convnext.CNBlock(channels, 1.0, 0.0), _images(batch, channels, image))


def vit_block(batch: int, sequence: int, width: int) -> Block:
    """Return an encoder layer: layer norm, attention and a perceptron, four times as wide."""
    vit = torchvision_models().vision_transformer
    make = vit.EncoderBlock
    return _repeated(lambda: make(_heads(width), width, 4 * width, 0.0, 0.0), torch.randn(batch, sequence, width))


def swin_block(batch: int, image: int, width: int) -> Block:
    """Return attention within windows of 7 x 7."""
    swin = torchvision_models().swin_transformer
    make = swin.SwinTransformerBlock
    return _repeated(lambda: make(width, _heads(width), [7, 7], [0, 0]), torch.randn(batch, image, image, width))


# transformers, with its plain attention.

_HEAD = 16
"""Elements of a head; published models have 64 at 12 times the width of the laptop scale's."""
_PLAIN = {"attn_implementation": "eager"}


def _heads(width: int) -> int:
    return max(1, width // _HEAD)


def bert_block(batch: int, sequence: int, width: int) -> Block:
    """Return a layer of BERT: attention, perceptron, each followed by layer norm."""
    transformers, bert = _transformers("bert")
    config = transformers.BertConfig(
        hidden_size=width, num_attention_heads=_heads(width), intermediate_size=4 * width,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **_PLAIN,
    )  # fmt: skip
    return _repeated(lambda: bert.BertLayer(config), torch.randn(batch, sequence, width))


def albert_block(batch: int, sequence: int, width: int) -> Block:
    """Return a layer of ALBERT, whose GELU is computed by a hyperbolic tangent."""
    transformers, albert = _transformers("albert")
    config = transformers.AlbertConfig(
        hidden_size=width, num_attention_heads=_heads(width), intermediate_size=4 * width, **_PLAIN
    )
    return _repeated(lambda: albert.AlbertLayer(config), torch.randn(batch, sequence, width))


def gpt2_block(batch: int, sequence: int, width: int) -> Block:
    """Return a layer of GPT-2: causal attention, perceptron, each behind layer norm."""
    transformers, gpt2 = _transformers("gpt2")
    config = transformers.GPT2Config(
        n_embd=width, n_head=_heads(width), resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0, **_PLAIN
    )
    return _repeated(lambda: gpt2.GPT2Block(config), torch.randn(batch, sequence, width))


def t5_block(batch: int, sequence: int, width: int) -> Block:
    """Return an encoder layer of T5: attention and perceptron, each behind a norm by root mean squares."""
    transformers, t5 = _transformers("t5")
    config = transformers.T5Config(d_model=width, d_kv=_HEAD, num_heads=_heads(width), d_ff=4 * width, dropout_rate=0.0)
    return _repeated(lambda: t5.T5Block(config), torch.randn(batch, sequence, width))


def t5_gated_block(batch: int, sequence: int, width: int) -> Block:
    """Return the gated perceptron of T5 v1.1, with GELU."""
    transformers, t5 = _transformers("t5")
    config = transformers.T5Config(d_model=width, d_ff=4 * width, dropout_rate=0.0, feed_forward_proj="gated-gelu")
    return _repeated(lambda: t5.T5LayerFF(config), torch.randn(batch, sequence, width))


def llama_block(batch: int, sequence: int, width: int) -> Block:
    """Return the gated perceptron of Llama behind its norm by root mean squares."""
    transformers, llama = _transformers("llama")
    config = transformers.LlamaConfig(hidden_size=width, intermediate_size=4 * width)
    return _repeated(
        lambda: nn.Sequential(llama.LlamaRMSNorm(width), llama.LlamaMLP(config)), torch.randn(batch, sequence, width)
    )


def convnextv2_block(batch: int, channels: int, image: int) -> Block:
    """Return a block of ConvNeXt whose perceptron divides responses by their norm over the image."""
    transformers, convnext = _transformers("convnextv2")
    return _repeated(
        lambda: convnext.ConvNextV2Layer(transformers.ConvNextV2Config(), channels), _images(batch, channels, image)
    )
