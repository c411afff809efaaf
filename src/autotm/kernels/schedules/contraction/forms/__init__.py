"""Ways to walk through a contraction."""

from autotm.kernels.schedules.contraction.forms.batched import batched_product
from autotm.kernels.schedules.contraction.forms.groups import each_group
from autotm.kernels.schedules.contraction.forms.long import long_product_nt, long_product_pays
from autotm.kernels.schedules.contraction.forms.pixels import Pixels, Source, feature_tiles
from autotm.kernels.schedules.contraction.forms.rows import FEW_ROWS, few_rows_product, few_rows_product_nt
from autotm.kernels.schedules.contraction.forms.strips import contract_strips

__all__ = [
    "FEW_ROWS",
    "Pixels",
    "Source",
    "batched_product",
    "contract_strips",
    "each_group",
    "feature_tiles",
    "few_rows_product",
    "few_rows_product_nt",
    "long_product_nt",
    "long_product_pays",
]
