"""Device memory over pinned host memory: pools, streams and events of a GPU, or of threads that behave like one."""
