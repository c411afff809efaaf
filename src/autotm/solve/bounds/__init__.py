"""What prices prove: the Lagrangian bound, term by term, and what it rules out."""

from autotm.solve.bounds.certificate import Prices, SlowPrices
from autotm.solve.bounds.cut import Cut
from autotm.solve.bounds.engine_prices import EnginePrices, SpanPrices
from autotm.solve.bounds.fitting import Fitting
from autotm.solve.bounds.fixed import Decision, Fixed, Flight, Place, Spaces
from autotm.solve.bounds.lagrangian import Lagrangian, Priced
from autotm.solve.bounds.potential import Potential, potential
from autotm.solve.bounds.prune import Reduced, narrow, reduce, undominated
from autotm.solve.bounds.rented import Rental, Rented
from autotm.solve.bounds.stated import certificate_of, like, state

__all__ = [
    "Cut",
    "Decision",
    "EnginePrices",
    "Fitting",
    "Fixed",
    "Flight",
    "Lagrangian",
    "Place",
    "Potential",
    "Priced",
    "Prices",
    "Reduced",
    "Rental",
    "Rented",
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
