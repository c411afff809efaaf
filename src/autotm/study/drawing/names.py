"""What networks, optimizers and limits are called in figures, and their order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from autotm.model.step import Limit

TITLES = {
    "densenet264": "DenseNet-264",
    "inception_v4": "Inception v4",
    "resnet50": "ResNet-50",
    "resnet200": "ResNet-200",
    "dlrm": "DLRM",
    "mlp": "MLP",
    "test_vgg": "VGG19 (small)",
    "transformer": "Transformer",
    "vgg19": "VGG19",
    "vgg416": "VGG416",
}


_SERIES = {
    "static": "static-AutoTM",
    "synchronous": "sync-AutoTM",
    "asynchronous": "async-AutoTM",
    "linux-preferred": "Linux: preferred",
    "linux-interleave": "Linux: interleave",
    "linux-weighted-interleave": "Linux: weighted",
    "linux-balancing": "Linux: NUMA balancing",
    "managed-memory": "managed memory",
    "lru-paging": "LRU paging",
    "swap-all": "swap all (vDNN)",
    "recompute": "recompute (segments)",
    "save-on-cpu": "save_on_cpu (PyTorch)",
}


def title(network: str) -> str:
    """A network's name for people."""
    return TITLES.get(network, network)


def series_name(optimizer: str) -> str:
    """An optimizer's name in a legend: the paper's, where it has one."""
    return _SERIES.get(optimizer, optimizer)


def in_order(networks: Iterable[str], order: Sequence[str]) -> list[str]:
    """The distinct networks, those of `order` first."""
    found = list(dict.fromkeys(networks))
    return [*(name for name in order if name in found), *(name for name in found if name not in order)]


def limits_of(table: pd.DataFrame, *, ends: bool) -> list[str]:
    """The limits of a table, least fast memory first; with `ends`, all slow and all fast too."""
    slow_parts = {text: Limit.parse(text) for text in dict.fromkeys(table["limit"])}
    is_end = {text: limit.size_bytes is None and 0 in {limit.slow, limit.fast} for text, limit in slow_parts.items()}
    order = table.groupby("limit")["dram_limit_bytes"].median().sort_values(kind="stable").index
    return [text for text in order if ends or not is_end[text]]
