"""What prices prove: the Lagrangian bound, term by term, and what it rules out."""

from autotm.solve.bounds.certificate import Prices, SlowPrices
from autotm.solve.bounds.cut import Cut
from autotm.solve.bounds.engine_prices import EnginePrices, SpanPrices
from autotm.solve.bounds.fitting import Fitting
from autotm.solve.bounds.fixed import AsyncMove, Decision, Fixed, Place, Spaces
from autotm.solve.bounds.lagrangian import Lagrangian, Priced
from autotm.solve.bounds.potential import Potential, potential
from autotm.solve.bounds.priced_residencies import CheapestResidencies, PricedResidencies
from autotm.solve.bounds.prune import Reduced, narrow, reduce, undominated
from autotm.solve.bounds.stated import certificate_of, like, state

__all__ = [
    "AsyncMove",
    "CheapestResidencies",
    "Cut",
    "Decision",
    "EnginePrices",
    "Fitting",
    "Fixed",
    "Lagrangian",
    "Place",
    "Potential",
    "Priced",
    "PricedResidencies",
    "Prices",
    "Reduced",
    "SlowPrices",
    "Spaces",
    "SpanPrices",
    "certificate_of",
    "like",
    "narrow",
    "potential",
    "reduce",
    "state",
    "undominated",
]
