"""Tiers made real: pools, the copies between them, and the delays that play slow memory where there is none."""
