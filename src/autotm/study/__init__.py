"""Studies: what is configured, tables of what was measured, and the figures drawn from them."""
