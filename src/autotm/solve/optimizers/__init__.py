"""One module per optimizer; the registry finds them."""
