"""What machine files say of slow memory: what is accepted, what is refused and how, and which cores go with it."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from autotm.model import cores
from autotm.model.cores import Topology
from autotm.model.errors import BadInputError
from autotm.model.machine import DaxTier, Machine, NumaTier, deciding, load_machine
from autotm.model.provenance import provenance, slow_memory_text


def write(folder: Path, tier: str, more: str = "") -> Path:
    path = folder / "box.yaml"
    path.write_text(f"description: a box\nslow_tier: {tier}\n{more}", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("tier", "more", "message"),
    [
        ("{kind: numa}", "", r"box.yaml: key 'slow_tier.fast_nodes' is missing"),
        ("{kind: nma, fast_nodes: [0]}", "", r"slow_tier.kind: 'nma' is not allowed; did you mean 'numa'"),
        ("{node: 1}", "", r"key 'slow_tier.kind' is missing"),
        ("numa", "", r"slow_tier: 'numa' is not allowed"),
        ("{kind: numa, fast_nodes: [0], slow_node: [1]}", "", r"unknown key 'slow_tier.slow_node'; .*'slow_nodes'"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [0]}", "", r"both name \[0\].*stand_in: true"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: []}", "", r"slow_tier.slow_nodes: \[\] is not allowed"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [-1]}", "", r"slow_tier.slow_nodes.0: -1 is not allowed"),
        (
            "{kind: numa, fast_nodes: [0], slow_nodes: [1], capacity: much}",
            "",
            r"capacity: 'much' is not allowed: it is no size",
        ),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [1], huge_pages: big}", "", r"slow_tier.huge_pages: 'big'"),
        ("{kind: dax, path: pmem}", "", r"slow_tier.path: 'pmem' is not allowed"),
        ("{kind: dax, path: /mnt, huge_pages: reserved}", "", r"slow_tier.huge_pages: 'reserved' is not allowed"),
        ("{kind: cuda, overhead: some}", "", r"overhead: 'some' is not allowed: it is no size"),
        ("{kind: cuda, device_index: -1}", "", r"slow_tier.device_index: -1 is not allowed"),
        ("{kind: cuda, products: fp16}", "", r"slow_tier.products: 'fp16' is not allowed.*'float32', 'tf32' or 'bf16'"),
        ("{kind: emulated, device: cxl-x8, products: tf32}", "", r"unknown key 'slow_tier.products'"),
        ("{kind: modelled, device: h200}", "", r"box.yaml: a machine of kind modelled.*begins with modelled-"),
        ("{kind: numa, fast_nodes: [0], slow_nodes: [1]}", "memory_mode: true", r"memory_mode: .* give slow_tier kind"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path: Path, tier: str, more: str, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        load_machine(write(tmp_path, tier, more))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Loads a machine file on a server with cores 0 to 3 on node 0 and 4 to 7 on node 1; node 2 has none."""
    for node, cpus in enumerate(("0-3", "4-7", "")):
        folder = tmp_path / "system" / "node" / f"node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n", encoding="ascii")
    monkeypatch.setattr(cores, "usable_cpus", lambda: tuple(range(8)))
    monkeypatch.setattr(Topology, "of", functools.partial(Topology.of, sysfs=tmp_path / "system"))

    def load(tier: str, more: str = "") -> Machine:
        return load_machine(write(tmp_path, tier, more))

    return load


def test_kernels_and_copies_run_next_to_fast_memory(server) -> None:
    far = server("{kind: numa, fast_nodes: [1], slow_nodes: [2]}", "threads: 3")
    assert (far.cpus, far.spare_cpus) == ((4, 5, 6), (7,))
    assert server("{kind: numa, fast_nodes: [0, 1], slow_nodes: [2]}").cpus == tuple(range(8))
    assert server("{kind: dax, path: /mnt, fast_nodes: [1]}").cpus == (4, 5, 6, 7)
    assert server("{kind: dax, path: /mnt}").cpus == tuple(range(8))
    assert server("{kind: numa, fast_nodes: [1], slow_nodes: [2]}", "cpus: [6, 5]").cpus == (6, 5)


def test_cores_elsewhere_are_refused(server) -> None:
    with pytest.raises(BadInputError, match=r"fast_nodes: \[2\] is not allowed: .* cores of numa_node 0, 1"):
        server("{kind: numa, fast_nodes: [2], slow_nodes: [0]}")
    with pytest.raises(BadInputError, match=r"cpus: \[3\] are not next to slow_tier.fast_nodes \[1\]"):
        server("{kind: numa, fast_nodes: [1], slow_nodes: [2]}", "cpus: [3, 5]")
    with pytest.raises(BadInputError, match=r"fast_nodes: \[1\] is not allowed: .* cores of numa_node 0"):
        server("{kind: numa, fast_nodes: [1], slow_nodes: [2]}", "numa_node: 0")


def test_real_memory_is_said_to_be_real_and_a_stand_in_not(server) -> None:
    assert server("{kind: numa, fast_nodes: [0], slow_nodes: [2]}").tier_reality == "real"
    assert server("{kind: numa, fast_nodes: [0], slow_nodes: [0], stand_in: true}").tier_reality == "stand-in"
    assert server("{kind: dax, path: /tmp, stand_in: true}").tier_reality == "stand-in"
    assert server("{kind: emulated, device: optane-dcpmm}").tier_reality == "emulated"


def test_how_much_a_run_may_take_decides_no_measurement() -> None:
    tiers = [DaxTier(kind="dax", path="/mnt", capacity=capacity) for capacity in (None, "3GB")]
    assert deciding(tiers[0]) == deciding(tiers[1])
    assert tiers[1].capacity_bytes == 3_000_000_000
    assert deciding(NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(1,))) != deciding(
        NumaTier(kind="numa", fast_nodes=(0,), slow_nodes=(2,))
    )


def test_products_that_are_rounded_are_told(server) -> None:
    exact, rounding = server("{kind: cuda}"), server("{kind: cuda, products: bf16}")
    assert (exact.products, rounding.products) == ("float32", "bf16")
    assert deciding(exact.slow_tier) != deciding(rounding.slow_tier)
    said = [provenance(machine, 0) for machine in (exact, rounding)]
    assert [found.get("products") for found in said] == [None, "bf16"]
    assert [slow_memory_text(found) for found in said] == [
        "",
        "of the host of a GPU, whose contractions round their factors to bf16",
    ]
