"""Tensor cores: instructions that C++ has no operators for, as functions in CUDA C++ (PTX ISA, `mma` and `cvt`).

Factors lie in *words* of 32 bits: one of tf32, or two of bf16, the one with the smaller k in the lower half. Counted in
words, the fragments of both instructions are the same: a warp multiplies 16 x 8 words by 8 words x 8.
"""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import tirx

from autotm.model.machine import Products

PACKED = {"tf32": 1, "bf16": 2}
"""Factors in a word."""
ROWS, COLUMNS, WORDS = 16, 8, 8
"""Of one product of a warp."""
_ROUNDED_TF32 = """\
static __device__ __forceinline__ unsigned rounded_tf32(float factor) {
  unsigned word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(factor));
  return word;
}
"""
_ROUNDED_BF16 = """\
static __device__ __forceinline__ unsigned rounded_bf16(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
"""
_ADD_PRODUCT = """\
static __device__ __forceinline__ void add_product_{products}(float* sums, const unsigned* a, const unsigned* b) {{
  asm volatile("mma.sync.aligned.{shape}.row.col.f32.{products}.{products}.f32 "
               "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""
_FUNCTIONS = {
    "rounded_tf32": _ROUNDED_TF32,
    "rounded_bf16": _ROUNDED_BF16,
    "add_product_tf32": _ADD_PRODUCT.format(products="tf32", shape="m16n8k8"),
    "add_product_bf16": _ADD_PRODUCT.format(products="bf16", shape="m16n8k16"),
}


def rounded(products: Products, factors: Sequence[tirx.Expr]) -> tirx.Expr:
    """The word of `PACKED` factors; of vectors of factors, a vector of words."""
    lanes = tvm.DataType(factors[0].ty.dtype).lanes
    return tirx.call_pure_extern("uint32" if lanes == 1 else f"uint32x{lanes}", f"rounded_{products}", *factors)


def add_product(products: Products, sums: tirx.Expr, left: tirx.Expr, right: tirx.Expr) -> tirx.Stmt:
    """A thread's part in what all threads of a warp do together.

    Args:
        products: what the words are.
        sums: first of 4 floats.
        left: first of 4 words.
        right: first of 2 words.
    """
    places = (tirx.address_of(first) for first in (sums, left, right))
    return tirx.Evaluate(tirx.call_extern("void", f"add_product_{products}", *places))


def functions_in(source: str) -> str:
    """What the source calls of these."""
    return "".join(text for name, text in _FUNCTIONS.items() if name in source)
