"""Bytes of intermediates at the paper's batch sizes, computed without allocating them.

Counted as the numbers were made (`reference/autotm.md` §5): the forward tensors that the original keeps for its
backward pass, which is what fills memory at its peak. A convolution with its bias and ReLU writes one tensor, so does
batch norm with its ReLU, and a sum with its ReLU; a batch norm without ReLU is not kept, since neither the sum behind
it nor its own gradient reads it; concatenations are tensors of their own; a maximum pool keeps the places of its
maxima, four bytes each. Our own step keeps less: no places.
"""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import tvm
from tvm import relax

from autotm import zoo

MEGABYTE, GIGABYTE = 1e6, 1e9
PER_IMAGE_MB = {"inception_v4": 112, "resnet200": 254, "vgg19": 72, "vgg416": 2059, "densenet264": 230}
PAPER_GB = {
    ("inception_v4", 1024): 111,
    ("resnet200", 512): 132,
    ("vgg19", 2048): 143,
    ("densenet264", 512): 115,
    ("inception_v4", 6144): 659,
    ("vgg416", 320): 658,
    ("resnet200", 2560): 651,
    ("densenet264", 3072): 688,
}
PRODUCTS = {"relax.nn.conv2d", "relax.matmul"}
"""A bias follows each of them, in the same kernel."""
VIEWS = {"relax.reshape"}


def operator(value: relax.Expr) -> str:
    return value.op.name if isinstance(value, tvm.ir.Call) else "norm" if isinstance(value, relax.TupleGetItem) else ""


def kept_bytes(network: zoo.Network) -> int:
    bindings = [binding for block in network.module["main"].body.blocks for binding in block.bindings]
    users = defaultdict(list)
    for binding in bindings:
        value = binding.value
        if isinstance(value, relax.Var):
            continue
        arguments = value.args if isinstance(value, tvm.ir.Call) else [value.tuple_value]
        for argument in arguments:
            for tensor in argument.fields if isinstance(argument, relax.Tuple) else [argument]:
                if isinstance(tensor, relax.Var):
                    users[tensor].append(operator(value))
    total = 0
    for binding in bindings:
        name, followers = operator(binding.value), users[binding.var]
        is_inside = not name or name in PRODUCTS or followers == ["relax.nn.relu"]
        is_unread = name == "norm" and followers == ["relax.add"]
        if is_inside or is_unread or name in VIEWS or name == "relax.nn.batch_norm":
            continue
        elements = math.prod(int(extent) for extent in binding.var.ty.shape)
        total += 4 * elements * (2 if name == "relax.nn.max_pool2d" else 1)
    return total


@pytest.mark.parametrize("name", sorted(PER_IMAGE_MB))
def test_bytes_of_an_image(name):
    sizes = {"batch": 4, "image": 299 if name == "inception_v4" else 224}
    assert kept_bytes(zoo.build(name, sizes)) / 4 == pytest.approx(PER_IMAGE_MB[name] * MEGABYTE, rel=0.05)


@pytest.mark.parametrize(("name", "batch"), sorted(PAPER_GB))
def test_footprints_of_the_paper(name, batch):
    sizes = {"batch": batch, "image": 299 if name == "inception_v4" else 224}
    assert kept_bytes(zoo.build(name, sizes)) == pytest.approx(PAPER_GB[name, batch] * GIGABYTE, rel=0.05)
