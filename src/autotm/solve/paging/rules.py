"""The numbers by which Linux promotes and demotes pages, each with its source in the kernel (6.1 and later)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BalancingRules:
    """NUMA balancing in mode 2 (`NUMA_BALANCING_MEMORY_TIERING`) with demotion, at the kernel's defaults.

    Attributes:
        scan_bytes: that one scan marks at most (`scan_size_mb`, kernel/sched/fair.c, `task_numa_work`); of the address
            space it passes over eight times as many at most.
        scan_period_us: in which everything is scanned once, at the fastest (`scan_period_min_ms`).
        least_period_us: between two scans (`task_scan_min`, `MAX_SCAN_WINDOW`).
        hot_us: a page is hot if it is touched within this time of being marked (`hot_threshold_ms`; the kernel adapts
            it once a minute, upwards while the rate limit is far off: here it stays).
        rate_bytes: of promotion candidates in a second (`numa_balancing_promote_rate_limit_MBps`).
        watermark_share: of fast memory between two watermarks (`watermark_scale_factor`, a ten-thousandth each):
            pages are promoted while more than two of these are free, and demoted until three are (`WMARK_PROMO`).
        plenty_bytes, plenty_share: where the greater of these is free beyond the watermarks, any page that faults
            counts as hot (`pgdat_free_space_enough`).
    """

    scan_bytes: int = 256 << 20
    scan_period_us: float = 1e6
    least_period_us: float = 1e5
    hot_us: float = 1e6
    rate_bytes: int = 65536 << 20
    watermark_share: float = 10 / 10_000
    plenty_bytes: int = 1 << 30
    plenty_share: float = 1 / 16


BALANCING = BalancingRules()
