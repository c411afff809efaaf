"""Copies between a modelled GPU's memory and its host's: a latency, then a constant rate."""

from __future__ import annotations

from autotm.model.measurement import AsynchronousLinks, Contention, Link, Links, MachineRates
from autotm.model.step import OpClass, Tier
from autotm.model.study import GpuFile

_SIZES = (4096, 10**6, 10**9, 10**11)
"""Bytes; between them a straight line, which the model is, and beyond them the last bandwidth."""


def modelled_links(gpu: GpuFile) -> Links:
    """The links of a GPU: a copy of B bytes takes latency + B / rate, blocking or beside kernels.

    Each direction has an engine of its own at the full rate (`docs/formulation.md` §9), and copies and kernels take
    nothing from each other: a copy uses a fiftieth of the bandwidth of device memory.
    """
    latency_us = gpu.link.latency_us
    to_fast = _link(Tier.DRAM, gpu.link.to_device_bytes_per_s, latency_us)
    to_slow = _link(Tier.PMEM, gpu.link.to_host_bytes_per_s, latency_us)
    none = dict.fromkeys(OpClass, Contention(0.0, 0.0))
    return Links(
        to_fast,
        to_slow,
        contraction_flop_per_s=gpu.compute.flop_per_s,
        emulation_stretch=1.0,
        asynchronous=AsynchronousLinks(to_fast, to_slow, none, none, call_us=0.0),
        rates=MachineRates(gpu.compute.flop_per_s, gpu.bandwidth.bytes_per_s),
    )


def _link(destination: Tier, bytes_per_s: float, latency_us: float) -> Link:
    return Link(destination, tuple((size, round(1e3 * latency_us + 1e9 * size / bytes_per_s)) for size in _SIZES))
