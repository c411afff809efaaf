"""The networks are the artifact's: layers, parameters, shapes, and bytes at the paper's batch sizes."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import tvm
from tvm import relax

from autotm import zoo
from autotm.model.errors import BadInputError
from autotm.model.training import Sgd, Training


def calls(network: zoo.Network, operator: str) -> list[tvm.ir.Call]:
    """All calls of one Relax operator, in order."""
    values = [binding.value for block in network.module["main"].body.blocks for binding in block.bindings]
    return [value for value in values if isinstance(value, tvm.ir.Call) and value.op.name == operator]


def shape(expression: tvm.ir.Call) -> tuple[int, ...]:
    return tuple(int(extent) for extent in expression.ty.shape)


def parameter_count(network: zoo.Network) -> int:
    sizes = {var.name: math.prod(shape(var)) for var in network.module["main"].params}
    return sum(sizes[name] for name in network.parameters)


def test_inception_v4_at_paper_size():
    network = zoo.build("inception_v4", {"batch": 4, "image": 299})
    assert len(calls(network, "relax.nn.conv2d")) == 149
    # arXiv:1602.07261, figures 3 to 9: 35x35x384, 17x17x1024, 8x8x1536 after stem and reductions.
    concats = [shape(call)[1:] for call in calls(network, "relax.concat")]
    assert concats[2] == (35, 35, 384)
    assert concats[7] == (17, 17, 1024)
    assert concats[15] == (8, 8, 1536)
    assert len(concats) == 3 + 4 + 1 + 7 + 1 + 3
    assert shape(calls(network, "relax.matmul")[0]) == (4, 1000)
    # One ReLU a convolution but for the pooled branch of the seven B blocks, one after the dense layer.
    assert len(calls(network, "relax.nn.relu")) == 149 - 7 + 1
    assert network.training == Training(Sgd(0.05))


def test_networks_have_the_published_parameter_counts():
    # timm's inception_v4 has 42 679 816 with batch norm (scale and shift per channel) instead of biases.
    network = zoo.build("inception_v4", {"batch": 1, "image": 75})
    channels = sum(shape(call)[-1] for call in calls(network, "relax.nn.conv2d"))
    assert parameter_count(network) == 42_679_816 - channels
    # torchvision's resnet50: 25 557 032, with batch norm behind the first convolution, without the 26 560 biases.
    network = zoo.build("resnet50", {"batch": 1, "image": 32})
    assert parameter_count(network) == 25_557_032 - 2 * 64 + 26_560
    for name, count in (("resnet200", 64_761_704), ("densenet264", 21_140_520)):
        assert parameter_count(zoo.build(name, {"batch": 1, "image": 32})) == count
    network = zoo.build("vgg19", {"batch": 2, "image": 224})
    assert parameter_count(network) == 143_667_240
    assert len(calls(network, "relax.nn.conv2d")) == 16
    assert shape(calls(network, "relax.reshape")[0]) == (2, 25088)


def test_mlp_is_three_layers_and_a_head():
    network = zoo.build("mlp", {"batch": 16, "width": 4096})
    assert [shape(call) for call in calls(network, "relax.matmul")] == [(16, 4096)] * 3 + [(16, 10)]
    assert network.training == Training(Sgd(0.005))


def test_mnist_leaves_288_features_before_the_dense_layer():
    network = zoo.build("mnist", {"batch": 256})
    assert [shape(call) for call in calls(network, "relax.nn.conv2d")] == [
        (256, 28, 28, 16),
        (256, 14, 14, 32),
        (256, 7, 7, 32),
    ]
    assert shape(calls(network, "relax.reshape")[0]) == (256, 288)
    weights = 9 * (1 * 16 + 16 * 32 + 32 * 32) + 288 * 10
    assert parameter_count(network) == weights + 16 + 32 + 32 + 10
    # ReLU behind every convolution, and none behind the scores.
    assert len(calls(network, "relax.nn.relu")) == 3


def test_dlrm_at_paper_size():
    network = zoo.build("dlrm", {"batch": 128})
    lookups = [shape(call.args[0]) for call in calls(network, "relax.take")]
    assert len(lookups) == 26
    # The Kaggle data has 33 762 577 values in all; AutoTM's tables have five rows for each.
    assert sum(rows for rows, _ in lookups) == 5 * 33_762_577
    assert {width for _, width in lookups} == {16}
    products = [shape(call.args[1]) for call in calls(network, "relax.matmul")]
    dense = [(13, 512), (512, 256), (256, 64), (64, 16)]
    assert products == [*dense, (745, 512), (512, 256), (256, 1)]
    assert [shape(call) for call in calls(network, "relax.einsum")] == [(128, 27, 27)]
    # ReLU behind every dense layer but the last.
    assert len(calls(network, "relax.nn.relu")) == 6

    # Rows are a cap for large tables only.
    network = zoo.build("dlrm", {"batch": 4, "rows": 1000})
    rows = [shape(call.args[0])[0] for call in calls(network, "relax.take")]
    assert rows[:6] == [1000, 1000, 1000, 1000, 1000, 120]
    assert [int(network.inputs[f"indices_{slot}"].scale) for slot in range(26)] == rows


def test_transformer_has_eight_layers_on_each_side():
    network = zoo.build("transformer", {"batch": 2, "sequence": 10})
    width, hidden, vocabulary = 512, 2048, 20000
    attention = 4 * (width * width + width)
    feed_forward = 2 * width * hidden + hidden + width
    norm = 2 * width
    encoder, decoder = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    ends = vocabulary * width + (width + 1) * vocabulary
    assert parameter_count(network) == 8 * (encoder + decoder) + ends
    # Per attention: scores and context; the decoder attends twice, once to its own past.
    assert [shape(call) for call in calls(network, "relax.einsum")[:2]] == [(2, 8, 10, 10), (2, 10, 8, 64)]
    assert len(calls(network, "relax.einsum")) == 2 * (8 + 2 * 8)
    assert len(calls(network, "relax.nn.layer_norm")) == 2 * 8 + 3 * 8
    assert len([call for call in calls(network, "relax.add") if shape(call) == (2, 8, 10, 10)]) == 8
    assert shape(calls(network, "relax.nn.log_softmax")[0]) == (2 * 10, vocabulary)
    assert not calls(network, "relax.permute_dims"), "heads are never moved"


@pytest.mark.parametrize(
    ("name", "sizes", "words"),
    [
        ("inceptoin_v4", {"batch": 1}, "did you mean 'inception_v4'"),
        ("vgg19", {"batch": 1, "imge": 32}, "did you mean 'image'"),
        ("vgg19", {"batch": 0}, "batch: 0"),
        ("vgg19", {"image": 32}, "batch is missing"),
    ],
)
def test_wrong_names_and_sizes_are_named(name, sizes, words):
    with pytest.raises(BadInputError, match=words):
        zoo.build(name, sizes)


def counts(network: zoo.Network) -> dict[str, int]:
    names = {"conv": "nn.conv2d", "norm": "nn.batch_norm", "relu": "nn.relu", "concat": "concat", "dense": "matmul"}
    names |= {"max_pool": "nn.max_pool2d", "avg_pool": "nn.avg_pool2d"}
    return {word: len(calls(network, f"relax.{name}")) for word, name in names.items()}


@pytest.mark.parametrize(("name", "blocks"), [("resnet50", (3, 4, 6, 3)), ("resnet200", (3, 24, 36, 3))])
def test_resnet(name, blocks):
    network = zoo.build(name, {"batch": 2, "image": 224})
    total = sum(blocks)
    layers = {"conv": 1 + 3 * total + 4, "norm": 3 * total + 4, "relu": 3 * total, "concat": 0, "dense": 1}
    assert counts(network) == layers | {"max_pool": 1, "avg_pool": 0}
    assert network.training == Training(Sgd(0.001))
    first, second, third, fourth, shortcut = (shape(call)[1:] for call in calls(network, "relax.nn.conv2d")[:5])
    assert first == (112, 112, 64)
    assert (second, third, fourth, shortcut) == ((56, 56, 64), (56, 56, 64), (56, 56, 256), (56, 56, 256))
    # The stride of a stage is on the last convolution of its first block.
    strided = [i for i, call in enumerate(calls(network, "relax.nn.conv2d")) if int(call.attrs.strides[0]) == 2]
    starts = [1 + 3 * sum(blocks[:stage]) + stage for stage in range(1, 4)]
    assert strided == [0] + [start + place for start in starts for place in (2, 3)]
    assert shape(calls(network, "relax.nn.batch_norm")[-1].args[0]) == (2, 7, 7, 2048)
    assert shape(calls(network, "relax.mean")[0]) == (2, 2048)
    assert shape(calls(network, "relax.matmul")[0]) == (2, 1000)
    assert not any(
        call.args[0].same_as(calls(network, "relax.nn.conv2d")[0]) for call in calls(network, "relax.nn.relu")
    )


def test_densenet264():
    network = zoo.build("densenet264", {"batch": 2, "image": 224})
    layers = {"conv": 1 + 2 * 130 + 3, "norm": 2 * 130 + 3, "relu": 1 + 2 * 130 + 3, "concat": 130, "dense": 1}
    assert counts(network) == layers | {"max_pool": 1, "avg_pool": 3}
    assert [shape(call)[-1] for call in calls(network, "relax.nn.conv2d")[:5]] == [64, 128, 32, 128, 32]
    assert network.training == Training(Sgd(0.001))
    ends = [shape(calls(network, "relax.concat")[index - 1])[1:] for index in (6, 18, 82, 130)]
    assert ends == [(56, 56, 256), (28, 28, 448), (14, 14, 2112), (7, 7, 1600)]
    assert [shape(call)[1:] for call in calls(network, "relax.nn.avg_pool2d")] == [
        (28, 28, 64), (14, 14, 64), (7, 7, 64)
    ]  # fmt: skip
    assert shape(calls(network, "relax.matmul")[0]) == (2, 1000)


def test_vgg416():
    network = zoo.build("vgg416", {"batch": 2, "image": 224})
    layers = {"conv": 413, "norm": 0, "relu": 413 + 2, "concat": 0, "dense": 3}
    assert counts(network) == layers | {"max_pool": 5, "avg_pool": 0}
    assert network.training == Training(Sgd(0.05))
    # Each convolution that widens is the last before its pool.
    assert [shape(pool)[1:] for pool in calls(network, "relax.nn.max_pool2d")] == [
        (112, 112, 128), (56, 56, 256), (28, 28, 512), (14, 14, 512), (7, 7, 512)
    ]  # fmt: skip
    widths = [shape(call)[1:] for call in calls(network, "relax.nn.conv2d")]
    assert [widths.count(width) for width in ((224, 224, 64), (112, 112, 128), (56, 56, 256))] == [81, 81, 82]
    assert [widths.count(width) for width in ((28, 28, 512), (14, 14, 512))] == [83, 83]
    assert shape(calls(network, "relax.reshape")[0]) == (2, 25088)
    assert not calls(network, "relax.log")


def test_test_vgg_is_vgg19():
    small, large = (zoo.build(name, {"batch": 16, "image": 224}) for name in ("test_vgg", "vgg19"))
    tvm.ir.assert_structural_equal(small.module, large.module)
    assert zoo.build("test_vgg", {}).batch == 16


# Bytes of intermediates at the paper's batch sizes, computed without allocating them.
#
# Counted as the numbers were made (`reference/autotm.md` §5): the forward tensors that the original keeps for its
# backward pass, which is what fills memory at its peak. A convolution with its bias and ReLU writes one tensor, so does
# batch norm with its ReLU, and a sum with its ReLU; a batch norm without ReLU is not kept, since neither the sum behind
# it nor its own gradient reads it; concatenations are tensors of their own; a maximum pool keeps the places of its
# maxima, four bytes each. Our own step keeps less: no places.

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


@pytest.mark.parametrize(("name", "batch"), sorted(PAPER_GB))
def test_footprints_of_the_paper(name, batch):
    sizes = {"batch": batch, "image": 299 if name == "inception_v4" else 224}
    assert kept_bytes(zoo.build(name, sizes)) == pytest.approx(PAPER_GB[name, batch] * 1e9, rel=0.05)
