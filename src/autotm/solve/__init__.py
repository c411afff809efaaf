"""Placement: which tensor lives in which tier when, decided by integer programming and proven by prices."""
