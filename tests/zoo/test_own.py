"""One's own network from a Python file: what is wrong with it is said in one line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tvm
from tvm import relax

from autotm import zoo
from autotm.lower.step import whole_step
from autotm.model.config import OwnNetworkConfig
from autotm.model.errors import AutotmError, BadInputError, DamagedFileError
from autotm.model.graph import Initial
from autotm.model.network_source import NetworkSource

START = """
from autotm import Initial, NetworkBuilder

def small(batch, width=8):
    net = NetworkBuilder("small", batch, learning_rate=0.1)
    x = net.input("data", (batch, width), Initial("normal"))
"""
END = "    return net.softmax_cross_entropy(net.dense(x, 10))\n"


def source(folder: Path, text: str, function: str = "small", **sizes: int) -> NetworkSource:
    file = folder / "own.py"
    file.write_text(text, encoding="utf-8")
    return NetworkSource("mine", sizes or {"batch": 4}, str(file), function)


def test_it_is_built_under_the_name_of_the_study_and_its_file_is_part_of_its_origin(tmp_path: Path) -> None:
    network = zoo.build_from(source(tmp_path, START + END, batch=4, width=16))
    assert (network.name, network.batch) == ("mine", 4)
    assert "data" in network.inputs
    before, after = (source(tmp_path, START + END + more).provenance for more in ("", "\n# changed"))
    assert before["network_file_hash"] != after["network_file_hash"]
    assert before["sizes"] == {"batch": 4}
    assert zoo.build_from(NetworkSource("mlp", {"batch": 2, "width": 8})).batch == 2, "without a file it is the zoo's"


def test_another_process_reads_it_from_a_file(tmp_path: Path) -> None:
    network, file = zoo.build_from(source(tmp_path, START + END)), tmp_path / "graph.pkl"
    zoo.save_network(network, file, {})
    found = zoo.load_network(file)
    tvm.ir.assert_structural_equal(found.module, network.module)
    assert (found.inputs, found.training) == (network.inputs, network.training)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DamagedFileError, match=r"graph\.pkl: the network cannot be read .* delete the file and run"):
        zoo.load_network(file)


@pytest.mark.parametrize(
    ("text", "sizes", "message"),
    [
        (START + END.replace("return", "retrun"), {}, r"own.py: line 7: not Python"),
        (START.replace("small(", "smal(") + END, {}, r"unknown function 'small'; did you mean 'smal'\?"),
        (START + END, {"batch": 4, "widht": 3}, r"unknown size of .*small 'widht'; did you mean 'width'\?"),
        (START + END, {"width": 3}, r"small: size batch is missing"),
        (START + "    return x\n", {}, r"small\(batch=4\) returned a Var, not a network; .*softmax_cross_entropy"),
        (START + "    return None\n", {}, r"returned a NoneType, not a network"),
        (START + "    {}['k']\n" + END, {}, r"small\(batch=4\): line 7: raised KeyError: 'k'"),
        ("import nothing_of_that_name\n" + START + END, {}, r"own.py: line 1: running it raised ModuleNotFoundError"),
    ],
)
def test_faults_are_named(tmp_path: Path, text: str, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        zoo.build_from(source(tmp_path, text, **sizes))


def test_after_a_fault_the_next_network_is_built(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"network mine: .*own.py: cannot be read \(No such file"):
        zoo.build_from(NetworkSource("mine", {}, str(tmp_path / "own.py"), "small"))
    with pytest.raises(BadInputError):
        zoo.build_from(source(tmp_path, START + "    raise ValueError\n"))
    assert zoo.build_from(source(tmp_path, START + END)).batch == 4


@pytest.mark.parametrize(
    "text",
    [
        "from elsewhere import small\n",
        "from elsewhere import big as small\n",
        "small = print\n",
        "if True:\n    def small(): ...\n",
        "try:\n    import small\nexcept ImportError:\n    pass\n",
        "from elsewhere import *\n",
        "class small: ...\n",
    ],
)
def test_whatever_defines_the_name_is_found_without_running_it(tmp_path: Path, text: str) -> None:
    source(tmp_path, text).require()
    assert "elsewhere" not in sys.modules


def test_arguments_must_be_described_and_paths_hold_names() -> None:
    good = zoo.build("mlp", {"batch": 2, "width": 8})
    with pytest.raises(BadInputError, match=r"see to \['data'\]"):
        zoo.Network("bad", 2, good.module, {"labels": Initial("one_hot")}, good.parameters, None)
    with pytest.raises(BadInputError, match="no function main"):
        zoo.Network("bad", 2, tvm.IRModule(), {}, {}, None)
    with pytest.raises(BadInputError, match="'My net' cannot name a network"):
        zoo.call(lambda: zoo.build("mlp", {"batch": 2, "width": 8}), {}, "My net")


def test_an_operator_without_a_gradient_is_named() -> None:
    net = zoo.NetworkBuilder("curve", 4, 0.1)
    x = net.dense(net.input("data", (4, 8), Initial("normal")), 8, relu=False)
    network = net.softmax_cross_entropy(net.dense(net.emit(relax.op.cumprod(x, axis=1)), 10))
    with pytest.raises(AutotmError, match=r"network curve: relax.cumprod has no gradient here"):
        whole_step(network)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nets", "torch: 'nets' is not package.module:function"),
        ("nets:", "is not package.module:function"),
        ("no_such_package.nets:f", "no module no_such_package.nets in"),
        ("nets_here:thre", "unknown function 'thre'; did you mean 'three'"),
    ],
)
def test_an_address_that_cannot_be_is_named_before_anything_is_imported(address: str, message: str, tmp_path) -> None:
    (tmp_path / "nets_here.py").write_text("raise RuntimeError\ndef three(): ...\n")
    with pytest.raises(BadInputError, match=message):
        NetworkSource.imported("mine", {}, address, tmp_path).require()


def test_a_network_is_given_by_one_address() -> None:
    assert OwnNetworkConfig(torch="a.b:c").torch == "a.b:c"
    for wrong in ({}, {"file": "a.py"}, {"torch": "a.b:c", "file": "a.py", "function": "f"}):
        with pytest.raises(ValueError, match="give file and function, or torch"):
            OwnNetworkConfig(**wrong)
