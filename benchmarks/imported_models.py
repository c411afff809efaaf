"""Modules of PyTorch as people train them, at small sizes.

torchvision's 80 classifiers, as published but for small images, and twelve families of transformers, built from their
configurations without weights: narrow, and where the published ones are deeper, of 6 to 12 layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from autotm.zoo.torch.blocks import torchvision_models

CLASSES, WORDS, LENGTH = 10, 96, 32
BATCH = 4
Module = torch.nn.Module


@dataclass(frozen=True)
class TrainingCase:
    """A module with what its training step takes.

    Attributes:
        module: with seeded random weights, in float32.
        inputs: positional tensors, or named ones.
        targets: what the loss takes behind the output.
        loss: of output and targets.
    """

    module: Module
    inputs: tuple[torch.Tensor, ...] | Mapping[str, Any]
    targets: tuple[torch.Tensor, ...]
    loss: Callable[..., torch.Tensor]


def names() -> list[str]:
    """Every model of this file."""
    models = torchvision_models()
    import torchvision  # noqa: PLC0415

    return [*models.list_models(module=torchvision.models), *_FAMILIES]


def build(name: str, seed: int = 0, *, random: bool = False) -> TrainingCase:
    """Return the model of that name.

    Args:
        name: one of `names()`.
        seed: of weights and data.
        random: whether dropout and stochastic depth draw; else they are off, so that numbers can be compared.
    """
    torch.manual_seed(seed)
    case = _FAMILIES[name]() if name in _FAMILIES else _classifier(name)
    if not random:
        for part in case.module.modules():
            if isinstance(part, torch.nn.Dropout) or type(part).__name__ in {"StochasticDepth", "DropPath"}:
                part.p = 0.0
            if isinstance(part, torch.nn.MultiheadAttention):
                part.dropout = 0.0
    return case


_IMAGES = {"inception_v3": 96, "alexnet": 96, "squeezenet1_0": 96, "squeezenet1_1": 96, "vit_h_14": 28, "maxvit_t": 64}
_IMAGE = 64
"""Pixels of a side; vision transformers get 32."""


def other_data(case: TrainingCase, seed: int) -> TrainingCase:
    """Return the same module with other data of the same shapes: new images, words in another order."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.is_floating_point():
            return torch.randn(value.shape, generator=generator)
        return value.flatten()[torch.randperm(value.numel(), generator=generator)].view(value.shape)

    if isinstance(case.inputs, Mapping):
        inputs: Any = {name: drawn(value) for name, value in case.inputs.items()}
    else:
        inputs = tuple(map(drawn, case.inputs))
    return TrainingCase(case.module, inputs, tuple(map(drawn, case.targets)), case.loss)


def _classifier(name: str) -> TrainingCase:
    models = torchvision_models()
    side = _IMAGES.get(name, 32 if name.startswith("vit") else _IMAGE)
    options: dict[str, Any] = {"num_classes": CLASSES}
    if name in {"googlenet", "inception_v3"}:
        options |= {"init_weights": True, "aux_logits": False}
    if name.startswith("vit"):
        options["image_size"] = side
    if name == "maxvit_t":
        sizes = {"stem_channels": 64, "partition_size": 2, "head_dim": 32, "stochastic_depth_prob": 0.0}
        blocks = {"block_channels": [64, 128, 256, 512], "block_layers": [2, 2, 5, 2]}
        module = models.maxvit.MaxVit((side, side), num_classes=CLASSES, **sizes, **blocks)
    else:
        module = getattr(models, name)(**options)
    for part in module.modules():  # heads that begin at zero would leave every other gradient zero
        if isinstance(part, torch.nn.Linear) and not part.weight.any():
            torch.nn.init.normal_(part.weight, std=0.05)
    inputs = (torch.randn(BATCH, 3, side, side),)
    return TrainingCase(module, inputs, (torch.randint(0, CLASSES, (BATCH,)),), torch.nn.functional.cross_entropy)


def _own_loss(output: Any) -> torch.Tensor:
    """Return the loss in a Transformers model's output; the model computes one if its inputs include labels."""
    loss: torch.Tensor = output.loss
    return loss


def _words() -> torch.Tensor:
    return torch.randint(3, WORDS, (BATCH, LENGTH))


_WIDTHS = {"vocab_size": WORDS, "hidden_size": 48, "intermediate_size": 96, "num_attention_heads": 4}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SIDE = 32


def _transformers() -> Any:
    torchvision_models()  # transformers imports it where it is installed
    import transformers  # noqa: PLC0415

    return transformers


def _language(kind: str, config: str, **options: Any) -> TrainingCase:
    transformers = _transformers()
    module = getattr(transformers, kind)(getattr(transformers, config)(**options))
    return TrainingCase(module, {"input_ids": _words(), "labels": _words()}, (), _own_loss)


def _vision(kind: str, config: str, **options: Any) -> TrainingCase:
    transformers = _transformers()
    module = getattr(transformers, kind)(getattr(transformers, config)(image_size=_SIDE, **_STILL, **options))
    pixels, labels = torch.randn(BATCH, 3, _SIDE, _SIDE), torch.randint(0, 2, (BATCH,))
    return TrainingCase(module, {"pixel_values": pixels, "labels": labels}, (), _own_loss)


def _whisper() -> TrainingCase:
    transformers = _transformers()
    sizes = {"d_model": 48, "vocab_size": WORDS, "num_mel_bins": 8, "max_source_positions": 16, "dropout": 0.0}
    layers = {f"{side}_{setting}": n for side in ("encoder", "decoder") for setting, n in
              (("layers", 4), ("attention_heads", 4), ("ffn_dim", 96))}  # fmt: skip
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = transformers.WhisperConfig(**sizes, **layers, **tokens, max_target_positions=LENGTH)
    inputs = {"input_features": torch.randn(BATCH, 8, 32), "labels": _words()}
    return TrainingCase(transformers.WhisperForConditionalGeneration(config), inputs, (), _own_loss)


def _clip() -> TrainingCase:
    transformers = _transformers()
    text = {**_WIDTHS, "num_hidden_layers": 12, "max_position_embeddings": LENGTH, "eos_token_id": 2, "bos_token_id": 1}
    image = {key: value for key, value in _WIDTHS.items() if key != "vocab_size"}
    vision = {**image, "num_hidden_layers": 12, "image_size": _SIDE, "patch_size": 8}
    module = transformers.CLIPModel(transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=32))
    pixels = torch.randn(BATCH, 3, _SIDE, _SIDE)
    return TrainingCase(module, {"input_ids": _words(), "pixel_values": pixels, "return_loss": True}, (), _own_loss)


_DEEP = {**_WIDTHS, "num_hidden_layers": 12}
_VISION = {key: value for key, value in _DEEP.items() if key != "vocab_size"} | {"patch_size": 8}
_FAMILIES: dict[str, Callable[[], TrainingCase]] = {
    "gpt2": lambda: _language(
        "GPT2LMHeadModel", "GPT2Config", vocab_size=WORDS, n_embd=48, n_layer=12, n_head=4, n_positions=LENGTH,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2,
    ),
    "bert": lambda: _language("BertForMaskedLM", "BertConfig", **_DEEP, **_STILL, max_position_embeddings=LENGTH),
    "roberta": lambda: _language(
        "RobertaForMaskedLM", "RobertaConfig", **_DEEP, **_STILL, max_position_embeddings=LENGTH + 4
    ),
    "llama": lambda: _language("LlamaForCausalLM", "LlamaConfig", **_DEEP, num_key_value_heads=2),
    "qwen3": lambda: _language("Qwen3ForCausalLM", "Qwen3Config", **_DEEP, num_key_value_heads=2, head_dim=12),
    "t5": lambda: _language(
        "T5ForConditionalGeneration", "T5Config", vocab_size=WORDS, d_model=48, d_kv=12, d_ff=96, num_layers=6,
        num_heads=4, dropout_rate=0.0, decoder_start_token_id=0,
    ),
    "vit": lambda: _vision("ViTForImageClassification", "ViTConfig", **_VISION),
    "swin": lambda: _vision(
        "SwinForImageClassification", "SwinConfig", patch_size=2, embed_dim=24, depths=[2, 2, 6], num_heads=[2, 4, 8],
        window_size=4, drop_path_rate=0.0,
    ),
    "deit": lambda: _vision("DeiTForImageClassification", "DeiTConfig", **_VISION),
    "whisper": _whisper,
    "clip": _clip,
    "mixtral": lambda: _language(
        "MixtralForCausalLM", "MixtralConfig", **{**_DEEP, "num_hidden_layers": 8}, num_key_value_heads=2,
        num_local_experts=4, experts_implementation="batched_mm",
    ),
}  # fmt: skip
