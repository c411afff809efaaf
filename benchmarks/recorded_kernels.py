"""Tables of kernels that were timed with each operand in DRAM or in slow memory (format: `docs/emulation.md`)."""

from __future__ import annotations

import csv
import gzip
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotm.model.graph import OpClass

OP_CLASSES = {
    OpClass.CONV_FORWARD: "Convolution ConvolutionBias ConvolutionBiasAdd ConvolutionAdd ConvolutionRelu",
    OpClass.CONV_DATA_GRADIENT: "ConvolutionBackpropData",
    OpClass.CONV_WEIGHT_GRADIENT: "ConvolutionBackpropFilters ConvolutionBiasBackpropFiltersBias",
    OpClass.MATMUL: "Dot MatmulBias BatchMatMul",
    OpClass.ELEMENTWISE: "Abs Add And Convert Divide Equal Exp Greater GreaterEq Less LessEq Log Maximum Minimum "
    "Multiply Negative Not NotEqual Or Power Relu ReluBackprop Select Sigmoid SigmoidBackprop Sqrt Subtract Tanh",
    OpClass.REDUCTION: "ArgMax ArgMin Max Min Product Softmax Sum",
    OpClass.WINDOW: "AvgPool MaxPool MaxPoolWithIndices",
    OpClass.WINDOW_GRADIENT: "AvgPoolBackprop MaxPoolBackprop MaxPoolWithIndicesBackprop",
    OpClass.NORMALIZATION: "BatchNormInference BatchNormTraining BatchNormTrainingRelu",
    OpClass.NORMALIZATION_GRADIENT: "BatchNormTrainingBackprop",
    OpClass.DATA_MOVEMENT: "Broadcast Concat ConvertLayout OneHot Pad ReplaceSlice Reshape Reverse Slice",
}
"""nGraph's op types by the op class of ours that does the same to memory."""

_CLASS_OF_OP = {op: op_class for op_class, ops in OP_CLASSES.items() for op in ops.split()}
_ITEM_BYTES = {"bool": 1, "i8": 1, "u8": 1, "f16": 2, "bf16": 2, "f32": 4, "i32": 4, "f64": 8, "i64": 8}
_SLOW, _FAST = "P", "D"
_POOLING_WITH_INDICES = {"MaxPoolWithIndices", "MaxPoolWithIndicesBackprop"}
_UNREAD_INPUTS = {"MaxPoolWithIndicesBackprop": {0}}
"""Inputs that an op names but does not read: the gradient of pooling needs the indices, not the forward input."""
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True)
class Recording:
    """One kernel in one configuration with at least one slow operand.

    Attributes:
        kernel: id of the kernel, unique in its table.
        op: nGraph's op type.
        op_class: ours.
        slow_read_bytes, slow_write_bytes: size of each slow operand.
        all_fast_us: recorded time with every operand in DRAM.
        time_us: recorded time of this configuration.
    """

    kernel: int
    op: str
    op_class: OpClass
    slow_read_bytes: tuple[int, ...]
    slow_write_bytes: tuple[int, ...]
    all_fast_us: int
    time_us: int


@dataclass(frozen=True)
class Table:
    """What a table holds, and what had to be left out of it.

    Attributes:
        recordings: rows with a slow operand, whose kernel has a time for the all-DRAM configuration.
        contraction_flop_per_s: rate of each all-DRAM convolution that took at least a millisecond, ascending.
        kernels_without_base: kernels that lack their all-DRAM row.
        zero_rows: rows recorded with 0 us.
        unknown_ops: op types that `OP_CLASSES` does not know, with their rows; counted as elementwise.
    """

    recordings: tuple[Recording, ...]
    contraction_flop_per_s: tuple[float, ...]
    kernels_without_base: int
    zero_rows: int
    unknown_ops: dict[str, int]

    def at_least(self, min_us: float) -> tuple[Recording, ...]:
        """Return recordings of kernels that take at least `min_us` with every operand in DRAM."""
        return tuple(recording for recording in self.recordings if recording.all_fast_us >= min_us)


def read_table(path: Path) -> Table:
    """Read a csv or csv.gz table.

    Raises:
        ValueError: a column is missing or a field cannot be read; names file and row.
    """
    base_us: dict[int, int] = {}
    rates: list[float] = []
    slow_rows: list[tuple[int, str, tuple[int, ...], tuple[int, ...], int]] = []
    zero_rows = 0
    unknown: Counter[str] = Counter()
    for number, row in enumerate(_rows(path), start=2):
        try:
            kernel, op, time_us = int(row["kernel_id"]), row["op"], int(row["time_us"])
            reads, writes = _slow_bytes(row, "input"), _slow_bytes(row, "output")
        except (KeyError, ValueError, AttributeError) as error:
            raise ValueError(f"{path}: line {number}: {error!r}; the columns are those of docs/emulation.md") from error
        zero_rows += time_us == 0
        unknown[op] += op not in _CLASS_OF_OP
        if reads or writes:
            slow_rows.append((kernel, op, reads, writes, time_us))
        else:
            base_us[kernel] = time_us
            if time_us >= 1000 and (flops := _convolution_flops(row)):  # noqa: PLR2004 - whole microseconds are exact to 0.1 %
                rates.append(flops / time_us * 1e6)
    recordings = tuple(
        Recording(kernel, op, _CLASS_OF_OP.get(op, OpClass.ELEMENTWISE), reads, writes, base_us[kernel], time_us)
        for kernel, op, reads, writes, time_us in slow_rows
        if kernel in base_us and time_us > 0
    )
    without_base = {kernel for kernel, *_ in slow_rows} - set(base_us)
    return Table(recordings, tuple(sorted(rates)), len(without_base), zero_rows, dict(+unknown))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open("rb") as stream:
        zipped = stream.read(2) == _GZIP_MAGIC
    with gzip.open(path, "rt", encoding="utf-8") if zipped else path.open(encoding="utf-8") as text:
        yield from csv.DictReader(text)


def _shape(text: str) -> tuple[int, ...]:
    """Dimensions in W, H, C, N order; none for a scalar."""
    return () if text == "scalar" else tuple(int(part) for part in text.split("x"))


def _slow_bytes(row: dict[str, str], side: str) -> tuple[int, ...]:
    """Bytes that the kernel touches of each slow operand on its `input` or `output` side."""
    op, config = row["op"], row[f"{side}_config"]
    if not config:
        return ()
    if set(config) - {_SLOW, _FAST}:
        raise ValueError(f"configuration '{config}' has other letters than {_FAST} and {_SLOW}")
    shapes, dtypes = row[f"{side}_shapes"].split(";"), row[f"{side}_dtypes"].split(";")
    unread = _UNREAD_INPUTS.get(op, set()) if side == "input" else set()
    return tuple(
        0 if slot in unread else math.prod(_shape(shape)) * _item_bytes(op, dtype)
        for slot, (shape, dtype, letter) in enumerate(zip(shapes, dtypes, config, strict=True))
        if letter == _SLOW
    )


def _item_bytes(op: str, dtype: str) -> int:
    """MKL-DNN keeps the indices of pooling windows below 256 elements as bytes, whatever nGraph declares."""
    return 1 if op in _POOLING_WITH_INDICES and dtype == "i32" else _ITEM_BYTES[dtype]


def _convolution_flops(row: dict[str, str]) -> int:
    """2 x multiply-adds of a convolution or of one of its gradients; 0 for other ops.

    Every pixel of the forward output (or of its gradient) meets every weight of its channel, whatever the stride;
    products with padding are counted, as is usual.
    """
    inputs = row["input_shapes"].split(";")
    outputs = row["output_shapes"].split(";")
    match _CLASS_OF_OP.get(row["op"]):
        case OpClass.CONV_FORWARD:
            weights, pixels = inputs[1], outputs[0]
        case OpClass.CONV_DATA_GRADIENT:
            weights, pixels = inputs[0], inputs[1]
        case OpClass.CONV_WEIGHT_GRADIENT:
            weights, pixels = outputs[0], inputs[1]
        case _:
            return 0
    width, height, in_channels, _ = _shape(weights)
    return 2 * math.prod(_shape(pixels)) * width * height * in_channels
