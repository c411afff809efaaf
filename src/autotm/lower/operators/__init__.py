"""What the step does with each Relax operator: its gradient, and its form as a kernel, side by side, a family a file.

Importing this package registers the gradients over Relax's own for every later `relax.transform.Gradient`, and fills
`LEGALIZE`. Where a rule does not cover a case (another layout, more dimensions), Relax's own rule still answers.
"""

from autotm.lower.operators import moving, norms, pointwise, products, windows
from autotm.lower.operators.products import fold_transposes
from autotm.lower.operators.rules import LEGALIZE, ints, shape_of

__all__ = ["LEGALIZE", "fold_transposes", "ints", "moving", "norms", "pointwise", "products", "shape_of", "windows"]
