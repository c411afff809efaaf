"""The limit on fast memory (a ratio slow:fast, a share of the peak, or bytes), and which tensors count towards it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema, SchemaSerializer, core_schema

from autotm.model.errors import BadInputError, InfeasibleLimitError
from autotm.model.graph import CountedGraph, Graph, Operand

_BYTES = re.compile(r"^(\d+(?:\.\d+)?)\s*(|[kMGT]|[KMGT]i)B$")
_RATIO = re.compile(r"^(\d+)\s*(?::|to|//)\s*(\d+)$")
_SHARE = re.compile(r"^(\d+(?:\.\d+)?)\s*x$")
_UNIT = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_IO = "io"
_ACCEPTED = (
    "a ratio slow:fast of whole numbers such as 8:1 (not 0:0), a share of the peak such as 0.5x (at most 1x), bytes "
    "such as 4500MB, or 11GB-1GB-io: a memory of 11 GB less 1 GB that others take and the step's parameters, inputs "
    "and results"
)


@dataclass(frozen=True)
class Limit:
    """Either `slow`:`fast` parts of the peak live bytes, or `size_bytes`.

    Ratio r = slow/fast allows peak / (r + 1) bytes: 0:1 is everything fast, 1:0 nothing. With `less_io`, what stays in
    fast memory whatever the plan (parameters, inputs and results, unless they are placed too) is part of `size_bytes`.
    """

    slow: int | None = None
    fast: int | None = None
    size_bytes: int | None = None
    less_io: bool = False

    def __post_init__(self) -> None:
        if self.size_bytes is None:
            if self.slow is None or self.fast is None or min(self.slow, self.fast) < 0 or self.slow == self.fast == 0:
                raise BadInputError(f"limit: {self.slow}:{self.fast} is not a limit; give {_ACCEPTED}")
        elif self.size_bytes < 0:
            raise BadInputError(f"limit: {self.size_bytes} bytes is negative; give {_ACCEPTED}")

    @classmethod
    def parse(cls, text: str | float) -> Limit:
        """Read a ratio, a share of the peak, bytes, or bytes less others, and less the step's arguments.

        `8:1`, `8to1`, `8//1`; `0.5x`, which is 1:1; `4500MB` (10^6 bytes each), `4GiB` (2^30 each) or a number of
        bytes; `11GB-1GB-io`.

        Raises:
            BadInputError: the text is none of these, is 0:0, or a share above one.
        """
        if isinstance(text, int | float) and not isinstance(text, bool) and math.isfinite(text):
            return cls(size_bytes=int(text))
        stripped = str(text).strip()
        if match := _RATIO.match(stripped):
            return cls(slow=int(match[1]), fast=int(match[2]))
        if (match := _SHARE.match(stripped)) and (share := Fraction(match[1])) <= 1:
            return cls(slow=share.denominator - share.numerator, fast=share.numerator)
        first, *less = (part.strip() for part in stripped.split("-"))
        less_io = less[-1:] == [_IO]
        sizes = [_bytes(part) for part in (first, *less[: len(less) - less_io])]
        if None in sizes:
            raise BadInputError(f"limit: '{text}' is not a limit; give {_ACCEPTED}")
        total, *taken = (size or 0 for size in sizes)
        return cls(size_bytes=total - sum(taken), less_io=less_io)

    # Pydantic writes a value whose type it was not told by this, instead of as the fields of a dataclass.
    __pydantic_serializer__: ClassVar[SchemaSerializer] = SchemaSerializer(
        core_schema.any_schema(serialization=core_schema.to_string_ser_schema())
    )

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Let files and configs hold a limit as text: what `parse` reads and `str` writes."""
        del source, handler
        return core_schema.no_info_wrap_validator_function(
            cls._validated, core_schema.str_schema(), serialization=core_schema.to_string_ser_schema()
        )

    @classmethod
    def _validated(cls, value: Any, as_text: ValidatorFunctionWrapHandler) -> Limit:
        if isinstance(value, Limit):
            return value
        if not isinstance(value, str):
            # YAML reads an unquoted 8:1 as the base-60 number 481.
            raise ValueError('it should be quoted text: a ratio slow:fast such as "8:1", or bytes such as "4500MB"')  # noqa: TRY004 - pydantic reports this one
        try:
            return cls.parse(as_text(value))
        except BadInputError as error:
            raise ValueError(str(error).removeprefix("limit: ")) from None

    @property
    def is_unlimited(self) -> bool:
        """Whether it is a ratio 0:n: everything may be fast, and offsets may need more than the live peak."""
        return self.slow == 0

    @property
    def slug(self) -> str:
        """The form used in paths: `8to1`, `4500MB`, `123B`, or `10000MB-io`."""
        if self.size_bytes is None:
            return f"{self.slow}to{self.fast}"
        end = f"-{_IO}" if self.less_io else ""
        if self.size_bytes and self.size_bytes % 10**6 == 0:
            return f"{self.size_bytes // 10**6}MB{end}"
        return f"{self.size_bytes}B{end}"

    def __str__(self) -> str:
        return self.slug if self.size_bytes is not None else f"{self.slow}:{self.fast}"

    def fast_bytes(self, peak_live_bytes: int, io_bytes: int = 0) -> int:
        """Return the budget in bytes of a step whose movable tensors peak at `peak_live_bytes`, besides `io_bytes`.

        Raises:
            InfeasibleLimitError: those others alone do not fit.
        """
        if self.size_bytes is not None:
            left = self.size_bytes - (io_bytes if self.less_io else 0)
            if left < 0:
                raise InfeasibleLimitError(
                    f"limit {self}: the step's parameters, inputs and results alone take {io_bytes} bytes, {-left} "
                    "more; give more, or let the plan place them too (counts: all)"
                )
            return left
        assert self.slow is not None
        assert self.fast is not None
        return peak_live_bytes * self.fast // (self.slow + self.fast)


ALL_FAST, ALL_SLOW = Limit(slow=0, fast=1), Limit(slow=1, fast=0)


def _bytes(text: str) -> int | None:
    match = _BYTES.match(text)
    return round(Fraction(match[1]) * _UNIT[match[2]]) if match else None


class Counts(StrEnum):
    """Which tensors a plan places and a limit counts."""

    INTERMEDIATES = "intermediates"
    ALL = "all"


def counting(graph: Graph, counts: Counts) -> CountedGraph:
    """Return the step as a plan for that limit sees it.

    With `ALL`, parameters, inputs, constants and results are placed too, each in one tier for good, because the next
    step finds them where this one leaves them. What shares memory (a parameter and its update) becomes one tensor,
    under the name of the one whose memory it is.
    """
    if counts is Counts.INTERMEDIATES:
        return CountedGraph(graph)
    storage = {tensor.name: storage_of(graph, tensor.name) for tensor in graph.tensors}
    users: dict[str, set[int]] = {name: set() for name in storage.values()}
    for tensor in graph.tensors:
        users[storage[tensor.name]].update(tensor.users)
    whole = (0, max(len(graph.kernels), 1))
    tensors = tuple(
        tensor
        if tensor.is_movable
        else replace(tensor, readers=tuple(sorted(users[tensor.name] - {tensor.producer})), held=whole)
        for tensor in graph.tensors
        if tensor.alias_of is None
    )

    def renamed(operands: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(replace(operand, tensor=storage.get(operand.tensor, operand.tensor)) for operand in operands)

    kernels = tuple(replace(one, inputs=renamed(one.inputs), outputs=renamed(one.outputs)) for one in graph.kernels)
    return CountedGraph(replace(graph, kernels=kernels, tensors=tensors))


def counted_by(graph: CountedGraph) -> Counts:
    """Return which tensors plans for this graph place: the inverse of `counting`."""
    return Counts.ALL if any(tensor.held for tensor in graph.tensors) else Counts.INTERMEDIATES


def fixed_bytes(graph: Graph) -> int:
    """Return the bytes that are fast in every plan for this graph: its arguments, unless they are placed too."""
    fixed = (tensor for tensor in graph.tensors if not tensor.is_movable and tensor.alias_of is None)
    return sum(tensor.allocated_bytes for tensor in fixed)


def storage_of(graph: Graph, tensor: str) -> str:
    """Return the tensor whose memory `tensor` uses: itself, or what it is in the end an alias of."""
    while (alias := graph.by_name[tensor].alias_of) is not None:
        tensor = alias
    return tensor
