"""Many products of matrices at once, as a tensor expression, float32; operands may lie in any order of their axes.

An operand is read where it lies: attention heads, say, are an axis in the middle, and are never moved to the front.
"""

from __future__ import annotations

from dataclasses import dataclass

from tvm import te


@dataclass(frozen=True)
class Subscripts:
    """One letter an axis, as in `numpy.einsum`: `left,right->result`."""

    left: str
    right: str
    result: str

    @classmethod
    def parse(cls, text: str) -> Subscripts:
        """Read e.g. `bihd,bjhd->bhij`.

        Raises:
            ValueError: there are not two operands and a result.
        """
        operands, _, result = text.replace(" ", "").partition("->")
        parts = operands.split(",")
        if len(parts) != 2 or not result:  # noqa: PLR2004  (a product has two factors)
            message = f"subscripts '{text}' are not of the form left,right->result"
            raise ValueError(message)
        return cls(*parts, result)

    @property
    def is_product(self) -> bool:
        """Whether this is a product of matrices for each index of the other axes.

        One letter is summed; each of the two others that are not shared belongs to one operand; no operand holds a
        letter twice, or one that neither the other operand nor the result has.
        """
        parts = set(self.left), set(self.right), set(self.result)
        if any(len(letters) != len(text) for letters, text in zip(parts, self._texts, strict=True)):
            return False
        left, right, result = parts
        return (
            len((left & right) - result) == 1
            and len(left - right) == 1
            and len(right - left) == 1
            and (left ^ right) <= result <= left | right
            and self.result[-1] in left ^ right
        )

    @property
    def left_gradient(self) -> Subscripts:
        """Of (gradient of the result, right operand)."""
        return Subscripts(self.result, self.right, self.left)

    @property
    def right_gradient(self) -> Subscripts:
        """Of (left operand, gradient of the result)."""
        return Subscripts(self.left, self.result, self.right)

    @property
    def _texts(self) -> tuple[str, str, str]:
        return self.left, self.right, self.result

    def __str__(self) -> str:
        """As `numpy.einsum` takes it."""
        return f"{self.left},{self.right}->{self.result}"


def batched_matmul(left: te.Tensor, right: te.Tensor, subscripts: str) -> te.Tensor:
    """The sums over the one letter that the result lacks, e.g. `bihd,bjhd->bhij`.

    Raises:
        ValueError: the subscripts are no batched product of matrices.
    """
    letters = Subscripts.parse(subscripts)
    if not letters.is_product:
        message = f"'{subscripts}' is no batched product of matrices"
        raise ValueError(message)
    extents = {}
    for tensor, text in ((left, letters.left), (right, letters.right)):
        extents.update(zip(text, (int(extent) for extent in tensor.shape), strict=True))
    (summed,) = (set(letters.left) & set(letters.right)) - set(letters.result)
    axis = te.reduce_axis((0, extents[summed]), "k")

    def element(*at: te.Var) -> te.PrimExpr:
        place = {**dict(zip(letters.result, at, strict=True)), summed: axis}
        factors = [
            tensor(*(place[letter] for letter in text))
            for tensor, text in ((left, letters.left), (right, letters.right))
        ]
        return te.sum(factors[0] * factors[1], axis=axis)

    return te.compute(tuple(extents[letter] for letter in letters.result), element, name="batched_matmul")
