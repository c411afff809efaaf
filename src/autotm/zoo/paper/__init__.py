"""The networks of the paper and its artifact."""

from autotm.zoo.paper.densenet import densenet, densenet264
from autotm.zoo.paper.dlrm import dlrm
from autotm.zoo.paper.inception import inception_v4
from autotm.zoo.paper.mlp import mlp
from autotm.zoo.paper.mnist import mnist
from autotm.zoo.paper.resnet import resnet, resnet50, resnet200
from autotm.zoo.paper.transformer import transformer
from autotm.zoo.paper.vgg import vgg19, vgg416, vgg_to_test

__all__ = [
    "densenet",
    "densenet264",
    "dlrm",
    "inception_v4",
    "mlp",
    "mnist",
    "resnet",
    "resnet50",
    "resnet200",
    "transformer",
    "vgg19",
    "vgg416",
    "vgg_to_test",
]
