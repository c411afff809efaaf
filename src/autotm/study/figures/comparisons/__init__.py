"""Figures that compare networks or optimizers."""

from autotm.study.figures.comparisons import cost_performance, fig7, fig8, fig9, fig11, ilp_times, price_performance

__all__ = ["cost_performance", "fig7", "fig8", "fig9", "fig11", "ilp_times", "price_performance"]
