"""The figures, each drawn from its table alone."""
