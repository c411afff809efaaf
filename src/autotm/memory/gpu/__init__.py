"""Device memory over pinned host memory: pools, streams and events of a GPU."""
