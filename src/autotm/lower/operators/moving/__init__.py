"""Operators that only move values."""

from autotm.lower.operators.moving import concat, embedding, movement, orders, places, shapes

__all__ = ["concat", "embedding", "movement", "orders", "places", "shapes"]
